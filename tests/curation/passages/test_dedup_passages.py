import hashlib
import itertools
import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lmpipe.artifacts.types import Documents
from lmpipe.curation.passages import repeats
from lmpipe.curation.passages.bloom import BloomFilter
from lmpipe.curation.passages.config import DedupPassagesConfig
from lmpipe.curation.passages.dedup_passages import dedup_passages
from lmpipe.curation.passages.segments import split
from lmpipe.curation.text import word_hashes
from lmpipe.errors import InputError
from tests.curation.conftest import Workbench
from tests.curation.given import GivenConfig, given, id_of, kept, removed, shards

MENU = "Home, products, about us, contact and search the whole site"


def line(seed: int, words: int = 12) -> str:
    return " ".join(f"w{random.Random(seed * 1000 + n).randrange(10**6)}" for n in range(words))


def run(bench: Workbench, config: GivenConfig, workers: int = 1, **options: object) -> Documents:
    documents = bench.run(given, config)
    return bench.run(dedup_passages, DedupPassagesConfig(**options), documents, workers=workers)


def cuts(documents: Documents) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for name in documents.names("cuts/"):
        rows += pq.read_table(pa.BufferReader(documents.read_bytes(name))).to_pylist()
    return rows


def by_id(*keys: str) -> list[str]:
    """Return keys in the order in which their documents keep passages."""
    return sorted(keys, key=id_of)


def test_a_paragraph_stays_in_the_document_of_the_smallest_id_alone(bench: Workbench):
    first, *others = by_id("a", "b", "c")
    texts = {
        key: f"{line(10 + n)}\n\n{menu}\n\n{line(20 + n)}"
        for n, (key, menu) in enumerate(
            {first: MENU, others[0]: MENU.upper() + "!", others[1]: MENU.replace(",", " –")}.items()
        )
    }
    result = run(bench, shards(texts))
    left = kept(result)
    assert left[id_of(first)] == texts[first] and removed(result) == {}
    for n, key in enumerate(others):
        assert left[id_of(key)] == f"{line(11 + n)}\n\n{line(21 + n)}"
    rows = {row["id"]: row for row in cuts(result)}
    assert set(rows) == {id_of(key) for key in others}
    row = rows[id_of(others[0])]
    assert (row["keeper"], row["keeper_segment"], row["segment"]) == (id_of(first), 1, 1)
    assert (row["copies"], row["num_words"], row["action"]) == (3, 10, "cut")
    data = texts[others[0]].encode()
    assert data[row["start"] : row["end"]].decode() == MENU.upper() + "!\n\n"
    assert result.metrics["cut"] == 2 and result.metrics["cut_words"] == 20
    assert result.metrics["most_copied"] == [{"keeper": id_of(first), "segment": 1, "copies": 3}]


def test_three_sentences_go_and_two_stay(bench: Workbench):
    s = [f"{line(n, 6).capitalize()}." for n in range(20)]
    one, two = by_id("x", "y")
    texts = {one: " ".join(s[:8]), two: " ".join([s[8], *s[2:6], s[9], *s[0:2], *s[10:15]])}
    result = run(bench, shards(texts), unit="sentences")
    assert kept(result)[id_of(one)] == texts[one]
    assert kept(result)[id_of(two)] == " ".join([s[8], s[9], *s[0:2], *s[10:15]])
    (row,) = cuts(result)  # two spans of three, one run of four
    assert (row["segment"], row["num_segments"]) == (1, 4)
    assert (row["keeper"], row["keeper_segment"], row["num_words"]) == (id_of(one), 2, 24)


def test_a_repeat_within_a_document_goes_for_its_first_occurrence(bench: Workbench):
    text = f"{line(1)}\n{MENU}\n{line(2)}\n{MENU}\n"
    result = run(bench, shards({"a": text, "b": line(3) + "\n" + line(4)}))
    assert kept(result)[id_of("a")] == f"{line(1)}\n{MENU}\n{line(2)}\n"
    (row,) = cuts(result)
    assert (row["id"], row["keeper"], row["keeper_segment"]) == (id_of("a"), id_of("a"), 1)


def test_short_passages_stay_however_often_they_come(bench: Workbench):
    texts = {str(n): f"Read more\n}}\n{line(n)}\n\n---\n{line(50 + n)}" for n in range(5)}
    result = run(bench, shards(texts))
    assert kept(result) == {id_of(key): text for key, text in texts.items()}
    assert cuts(result) == []


def test_too_little_left_removes_the_document_and_says_how_much_that_was(bench: Workbench):
    first, *others = by_id("a", "b", "c")
    shared = "\n".join(line(n) for n in range(5))
    texts = {first: shared, others[0]: shared + "\nonly six words of its own",
             others[1]: shared + "\n" + line(90, 30)}  # fmt: skip
    result = run(bench, shards(texts))
    (row,) = removed(result).values()
    assert (row["id"], row["reason"]) == (id_of(others[0]), "few_words_left")
    assert (row["score"], row["threshold"], row["keeper"]) == (6, 20, None)
    assert {r["action"] for r in cuts(result) if r["id"] == id_of(others[0])} == {"removed"}
    strict = run(bench, shards(texts), min_remaining_fraction=0.4)
    assert set(kept(strict)) == {id_of(first)}
    loose = run(bench, shards(texts), min_remaining_words=0)
    assert kept(loose)[id_of(others[0])] == "only six words of its own"
    with pytest.raises(InputError, match="keeps none of 1 documents; lower min_remaining_words"):
        run(bench, shards({"a": f"{MENU}\n{MENU}"}))


def test_a_text_lost_with_its_keeper_is_counted(bench: Workbench):
    first, second, third = by_id("a", "b", "c")
    texts = {first: f"{line(1)}\n{line(2)}\n{line(3)}",
             second: f"{line(1)}\n{line(2)}\n{line(4)}",  # goes; it kept line 4
             third: f"{line(4)}\n{line(5)}\n{line(6)}"}  # fmt: skip
    result = run(bench, shards(texts))
    assert set(removed(result)) == {id_of(second)}
    assert kept(result)[id_of(third)] == f"{line(5)}\n{line(6)}"
    assert result.metrics["lost_keepers"] == 1


def test_whole_documents_name_their_keeper(bench: Workbench):
    first, second, third = by_id("a", "b", "c")
    texts = {first: line(1), second: line(1).upper() + " !", third: line(2)}
    result = run(bench, shards(texts), unit="document")
    (row,) = removed(result).values()
    assert (row["id"], row["keeper"]) == (id_of(second), id_of(first))
    assert (row["reason"], row["similarity"]) == ("exact_duplicate", 1)
    assert result.metrics["removed"] == {"exact_duplicate": 1} and result.metrics["cut"] == 0


def pages(count: int = 40, seed: int = 0) -> dict[str, str]:
    """Pages of lines and sentences, some of them shared, with letters of two to four bytes."""
    rng, texts = random.Random(seed), {}
    for number in range(count):
        rows = []
        for place in range(12):
            n = rng.randrange(30) if rng.random() < 0.5 else 1000 + number * 50 + place
            rows.append(f"{line(n, 4)} 日本語。 Ünter {line(n, 5)}. {line(n + 7000, 8)} 😀!")
        texts[f"page{number}"] = "\n".join(rows) + "\n" * (number % 3)
    return texts


@pytest.mark.parametrize("unit", ["paragraph", "sentences"])
@pytest.mark.parametrize("bloom", [0, 1])
def test_kept_text_and_cuts_together_are_the_text_that_came_in(
    bench: Workbench, unit: str, bloom: int
):
    texts = pages()
    result = run(bench, shards(texts), unit=unit, bloom_memory_mb=bloom, min_remaining_words=150)
    left, rows, metrics = kept(result), cuts(result), result.metrics
    assert removed(result) and rows and len(left) + len(removed(result)) == len(texts)
    for key, text in texts.items():
        data, mine = text.encode(), [row for row in rows if row["id"] == id_of(key)]
        rest, at = b"", 0
        for row in mine:
            assert at <= row["start"] < row["end"]
            assert len(data[row["start"] : row["end"]].decode()) == row["characters"]
            rest += data[at : row["start"]]
            at = row["end"]
        rest += data[at:]
        if id_of(key) in left:
            assert rest.decode() == left[id_of(key)]
    total = sum(map(len, texts.values()))
    names = ("kept_characters", "cut_characters", "dropped_characters")
    assert sum(metrics[name] for name in names) == total
    assert metrics["cut_characters"] == sum(row["characters"] for row in rows)


@pytest.mark.parametrize("unit", ["paragraph", "sentences"])
def test_every_cut_is_in_its_keeper_and_every_text_is_left_somewhere(bench: Workbench, unit: str):
    texts = pages()
    result = run(bench, shards(texts), unit=unit, min_remaining_words=0)
    names = {id_of(key): key for key in texts}

    def words(text: str) -> list[str]:
        return word_hashes.hash_words([text]).hashes.tolist()

    def segments(key: str) -> list[str]:
        found = split([texts[key]], unit).bounds.tolist()
        data = texts[key].encode()
        return [data[a:b].decode() for a, b in itertools.pairwise(found)]

    for row in cuts(result):
        at, count = int(row["keeper_segment"]), int(row["num_segments"])  # type: ignore[call-overload]
        theirs = "".join(segments(names[row["keeper"]])[at : at + count])  # type: ignore[index]
        data = texts[names[row["id"]]].encode()  # type: ignore[index]
        assert words(theirs) == words(data[row["start"] : row["end"]].decode())
    before = {tuple(words(s)) for key in texts for s in segments(key)}
    after = {
        tuple(words(s))
        for text in kept(result).values()
        for s in text_segments(text, unit)
    }  # fmt: skip
    assert before == after


def text_segments(text: str, unit: str) -> list[str]:
    bounds, data = split([text], unit).bounds.tolist(), text.encode()
    return [data[a:b].decode() for a, b in itertools.pairwise(bounds)]


@pytest.mark.parametrize("options", [{}, {"unit": "sentences"}, {"bloom_memory_mb": 1}])
def test_outcome_depends_on_the_set_of_documents_alone(bench: Workbench, options):
    items = list(pages().items())
    whole = run(bench, shards(dict(items)), **options)
    random.Random(1).shuffle(items)
    mixed = run(bench, shards(dict(items[:9]), {}, dict(items[9:30]), dict(items[30:])), **options)
    assert kept(whole) == kept(mixed) and removed(whole) == removed(mixed)
    assert list(kept(mixed)) == [id_of(key) for key, _ in items if id_of(key) in kept(whole)]
    order = sorted(map(str, cuts(whole)))
    assert order == sorted(map(str, cuts(mixed))) and len(order) > 50


@pytest.mark.parametrize(("options", "workers"), [({}, 2), ({"bloom_memory_mb": 1}, 1)])
def test_bytes_are_equal_for_any_number_of_workers_and_any_memory(
    new_bench, monkeypatch, options, workers
):
    monkeypatch.setattr(word_hashes, "DOCUMENTS_PER_WORKER", 1)
    items = list(pages().items())
    config = shards(*(dict(items[n::3]) for n in range(3)))
    digests = set()
    for processes, memory, size in ((1, 512, 160), (workers, 16, 60_000), (1, 16, 10**6)):
        monkeypatch.setattr(repeats, "BYTES_PER_PASSAGE", size)
        here = new_bench(f"{memory}-{size}")
        here.runtime = {"sort_memory_mb": memory}
        digests.add(run(here, config, processes, **options).digest)
    assert len(digests) == 1


def test_a_killed_attempt_is_taken_over_unless_its_keys_are_cut_short(bench, monkeypatch):
    from lmpipe.curation.passages import dedup_passages as module

    items = list(pages().items())
    config = shards(*(dict(items[n::3]) for n in range(3)))

    def die(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "cut_part", die)
        with pytest.raises(KeyboardInterrupt):
            run(bench, config)
    (cut,) = bench.root.rglob("passages/keys-00001")
    cut.write_bytes(cut.read_bytes()[:-4])
    result = run(bench, config)
    adopted = [e["message"] for e in bench.events if "adopted" in str(e.get("message"))]
    assert adopted[0] == "adopted 2 of 3 shards finished by an earlier attempt"
    assert adopted[1] == "adopted 1 of 1 shards finished by an earlier attempt"
    assert len(kept(result)) + len(removed(result)) == 40


def test_a_join_reads_twice_a_shard_and_part_however_many_passages_there_are(
    bench: Workbench, monkeypatch
):
    from lmpipe.artifacts.store import Store

    reads, real = [], Store.read_range
    monkeypatch.setattr(
        Store, "read_range", lambda self, *args: (reads.append(args), real(self, *args))[1]
    )
    for count in (30, 90):
        reads.clear()
        items = list(pages(count).items())
        run(bench, shards(*(dict(items[n::3]) for n in range(3))))
        assert len(reads) == 3 * 2 + 3  # keys: bounds and range of each shard; its repeats


def test_documents_without_a_passage_long_enough_are_an_error(bench: Workbench):
    message = "none of 2 documents holds a passage of min_passage_words=50 .*lower it"
    with pytest.raises(InputError, match=message):
        run(bench, shards({"a": line(1), "b": ""}), min_passage_words=50)
    with pytest.raises(InputError, match="none of 0 documents"):
        run(bench, shards({}))


def test_a_bloom_filter_finds_all_that_the_join_finds_and_names_nobody(bench: Workbench):
    texts = pages()
    exact = run(bench, shards(texts))
    bloom = run(bench, shards(texts), bloom_memory_mb=1, bloom_false_positive_fraction=1e-6)
    assert kept(bloom) == kept(exact)
    assert {row["keeper"] for row in cuts(bloom)} == {None}
    assert exact.metrics["repeats"] == bloom.metrics["repeats"]
    assert bloom.metrics["bloom_keys"] + bloom.metrics["repeats"] == bloom.metrics["passages"]


def test_a_bloom_filter_that_is_too_small_is_an_error_that_says_what_would_do(bench, monkeypatch):
    monkeypatch.setattr(repeats, "BloomFilter", lambda memory, p: BloomFilter(memory >> 14, p))
    texts = {"all": "\n".join(line(n) for n in range(200))}
    message = r"bloom_memory_mb=1 holds 35 keys .* 1 MB hold all 200 passages; or allow more errors"
    with pytest.raises(InputError, match=message):
        run(bench, shards(texts), bloom_memory_mb=1)


def test_a_bloom_filter_removes_about_the_promised_share_of_unique_documents(bench, monkeypatch):
    monkeypatch.setattr(repeats, "BloomFilter", lambda memory, p: BloomFilter(memory >> 11, p))
    texts = {str(n): line(n) for n in range(800)}
    options = {"unit": "document", "bloom_memory_mb": 1, "bloom_false_positive_fraction": 0.1}
    metrics = run(bench, shards(texts), **options).metrics
    expected = metrics["bloom_expected_errors"]
    assert 0.06 < metrics["bloom_error_rate_at_the_end"] < 0.1 and 10 < expected < 30
    assert abs(metrics["removed"]["seen_before"] - expected) < 4 * expected**0.5
    assert metrics["bloom_keys"] == metrics["kept"] <= metrics["bloom_capacity"] == 851


def test_bloom_removes_documents_of_the_same_words_without_a_keeper(bench: Workbench):
    texts = {"a": line(1), "b": line(1).upper(), "c": line(2)}
    result = run(bench, shards(texts), unit="document", bloom_memory_mb=1)
    (row,) = removed(result).values()
    assert row["id"] == max(id_of("a"), id_of("b"))
    assert (row["reason"], row["keeper"], row["similarity"]) == ("seen_before", None, None)


@pytest.mark.parametrize(
    ("options", "golden"),
    [
        ({}, "f3057dcb3f263090"),
        ({"unit": "sentences"}, "d786070583299b65"),
        ({"bloom_memory_mb": 1}, "b92c80e2a32469f9"),
    ],
)
def test_output_of_a_small_input_is_golden(bench: Workbench, options, golden: str):
    """Another hash means other results for the same input: raise the stage's version."""
    result = run(bench, shards(pages()), **options)
    rows = [sorted(kept(result).items()), sorted(removed(result).items()), cuts(result)]
    digest = hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()
    assert (dedup_passages.version, digest[:16]) == (2, golden)
