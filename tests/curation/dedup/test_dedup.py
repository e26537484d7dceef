import hashlib
import json
import random
import tracemalloc

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import Field

from lmpipe.artifacts.output import Output
from lmpipe.artifacts.stage import StageConfig, stage
from lmpipe.artifacts.types import Documents
from lmpipe.curation.dedup.config import DedupConfig
from lmpipe.curation.dedup.dedup import dedup
from lmpipe.curation.dedup.signatures import earlier_shards
from lmpipe.curation.text import word_hashes
from lmpipe.documents.ledger import write_ledger
from lmpipe.documents.read import count_documents
from lmpipe.documents.write import DocumentWriter
from lmpipe.errors import InputError
from lmpipe.runtime import Runtime
from tests.curation.conftest import Workbench
from tests.curation.given import GivenConfig, given, id_of, kept, removed, shards

VOCABULARY = [f"word{number}" for number in range(4000)]


def prose(seed: int, words: int = 300) -> list[str]:
    return random.Random(seed).choices(VOCABULARY, k=words)


def changed(words: list[str], count: int, seed: int = 0) -> list[str]:
    """Replace some words, spread evenly."""
    rng, copy = random.Random(seed), list(words)
    for index in range(count):
        copy[(2 * index + 1) * len(words) // (2 * count)] = f"n{rng.randrange(10**6)}"
    return copy


def texts() -> dict[str, str]:
    """Sixty unique texts, equal copies of one and near copies of another."""
    result = {f"unique{seed}": " ".join(prose(seed)) for seed in range(60)}
    original = prose(1000)
    result |= {
        "near-short": " ".join(changed(original[:-2], 3)),
        "near-long": " ".join(original) + " and a longer end",
        "near-other": " ".join(changed(original, 2)),
        "equal-a": " ".join(prose(2000)),
        "equal-b": " ".join(prose(2000)).title().replace(" ", ", ", 50),
        "equal-c": " ".join(prose(2000)) + "!",
    }
    return result


def run(bench: Workbench, config: GivenConfig, workers: int = 1, **options: object) -> Documents:
    documents = bench.run(given, config)
    return bench.run(dedup, DedupConfig(**options), documents, workers=workers)


def test_keeps_the_longest_of_equal_and_near_duplicates(bench: Workbench):
    result = run(bench, shards(texts()))
    gone = removed(result)
    near, equal = {"near-short", "near-other"}, {"equal-a", "equal-c"}
    assert set(gone) == {id_of(key) for key in near | equal}
    for key in near:
        row = gone[id_of(key)]
        assert (row["reason"], row["keeper"]) == ("near_duplicate", id_of("near-long"))
        assert 0.7 <= row["similarity"] < 1 and row["url"] == f"https://a.example/{key}"
    for key in equal:
        row = gone[id_of(key)]
        assert (row["reason"], row["keeper"]) == ("same_words", id_of("equal-b"))
        assert row["similarity"] == 1
    assert count_documents(result) + len(gone) == len(texts())
    assert result.metrics["removed"] == {"exact_duplicate": 0, "same_words": 2, "near_duplicate": 2}


def test_equally_long_duplicates_keep_the_smallest_id(bench: Workbench):
    keys = ["one", "two", "three"]
    result = run(bench, shards({key: " ".join(prose(5)) for key in keys}))
    assert list(kept(result)) == [min(id_of(key) for key in keys)]


def test_outcome_depends_on_the_set_of_documents_alone(bench: Workbench):
    items = list(texts().items())
    whole = run(bench, shards(dict(items)))
    random.Random(3).shuffle(items)
    mixed = run(bench, shards(dict(items[:20]), dict(items[20:21]), {}, dict(items[21:])))
    assert kept(whole) == kept(mixed)
    assert removed(whole) == removed(mixed)
    assert list(kept(mixed)) == [id_of(key) for key, _ in items if id_of(key) in kept(whole)]


def test_bytes_are_equal_for_any_number_of_workers(new_bench, monkeypatch):
    monkeypatch.setattr(word_hashes, "DOCUMENTS_PER_WORKER", 1)
    items = list(texts().items())
    config = shards(*(dict(items[number::4]) for number in range(4)))
    digests = {run(new_bench(str(n)), config, workers=n).digest for n in (1, 3)}
    assert len(digests) == 1


def test_one_two_and_eight_workers_give_the_same_bytes_a_resumed_run_too(
    new_bench, other_executor, monkeypatch
):
    from lmpipe.curation.dedup import dedup as module

    monkeypatch.setattr(word_hashes, "DOCUMENTS_PER_WORKER", 1)
    items = list(texts().items())
    config = shards(*(dict(items[number::8]) for number in range(8)))
    digests = [run(new_bench(str(n)), config, workers=n).digest for n in (1, 2, 8)]

    def die(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    bench = new_bench("killed")
    with monkeypatch.context() as patch:
        patch.setattr(module, "filter_part", die)
        with pytest.raises(KeyboardInterrupt):
            run(bench, config, workers=2)
    resumed = run(bench, config, workers=8)
    assert "adopted 8 of 8 shards" in str(bench.events)
    assert {*digests, resumed.digest} == {digests[0]}


def test_reads_grow_with_shards_and_bands_and_not_with_documents(bench: Workbench, monkeypatch):
    from lmpipe.curation.dedup.signatures import Sketches

    reads, real = [], Sketches._read
    monkeypatch.setattr(
        Sketches, "_read", lambda self, *args: (reads.append(args), real(self, *args))[1]
    )
    counts = {}
    for size, num_shards in ((40, 2), (160, 2), (160, 4)):
        reads.clear()
        items = [(f"{size}-{n}", " ".join(prose(n, 40))) for n in range(size)]
        run(bench, shards(*(dict(items[n::num_shards]) for n in range(num_shards))))
        counts[size, num_shards] = len(reads)
    assert counts[40, 2] == counts[160, 2] == counts[160, 4] / 2
    assert counts[160, 4] <= 4 * (14 + 5)


def test_memory_of_the_gathering_does_not_grow_with_the_bands(bench: Workbench, monkeypatch):
    from lmpipe.curation.dedup.signatures import Gathering

    peaks, real = {}, Gathering.near_texts

    def measured(self: Gathering, out: Output) -> object:
        tracemalloc.start()
        try:
            return real(self, out)
        finally:
            peaks[self._config.bands] = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()

    monkeypatch.setattr(Gathering, "near_texts", measured)
    config = shards({str(n): f"a{n} b c d e{n}" for n in range(4000)})
    for bands in (2, 4, 64):
        run(bench, config, bands=bands, rows=4, verify=False)
    every_key = 8 * 4000 * 64
    assert peaks[64] < peaks[4] + every_key / 10  # the first run compiles


def test_documents_shorter_than_the_ngram_never_collide(bench: Workbench):
    short = {
        key: key
        for key in ["", "...", "!?", "a", "b", "a b", "b a", "a b c", "a b d", "a b c d", "a b c e"]
    }
    result = run(bench, shards(short), min_similarity=0)
    assert removed(result) == {}
    again = run(bench, shards({**short, "copy": "A, b. C!"}), min_similarity=0)
    assert [row["keeper"] for row in removed(again).values()] == [id_of("copy")]


def test_unique_documents_survive_even_with_loose_bands(bench: Workbench):
    unique = {str(seed): " ".join(prose(seed, 80)) for seed in range(400)}
    assert removed(run(bench, shards(unique), bands=40, rows=2)) == {}


def test_low_similarity_stays_unless_the_bands_are_trusted(bench: Workbench):
    words = prose(1)
    half = {"long": " ".join(words) + " x", "half": " ".join(changed(words, 18))}
    assert removed(run(bench, shards(half), bands=60, rows=2)) == {}
    trusted = removed(run(bench, shards(half), bands=60, rows=2, min_similarity=0))
    assert trusted[id_of("half")]["keeper"] == id_of("long")
    assert trusted[id_of("half")]["similarity"] < 0.7


def test_an_equal_copy_of_a_near_duplicate_names_the_document_that_stays(bench: Workbench):
    words = prose(4)
    near = " ".join(changed(words, 1))
    gone = removed(run(bench, shards({"long": " ".join(words) + " x", "a": near, "b": near})))
    assert {row["keeper"] for row in gone.values()} == {id_of("long")}
    assert {row["reason"] for row in gone.values()} == {"near_duplicate"}


def test_equal_only_without_bands(bench: Workbench):
    result = run(bench, shards(texts()), bands=0)
    assert {row["reason"] for row in removed(result).values()} == {"same_words"}


def test_other_columns_and_an_empty_shard_keep_their_schema(bench: Workbench):
    result = run(bench, shards(texts(), {}))
    schemas = [pq.read_schema(pa.BufferReader(result.read_bytes(n))) for n in result.names("kept/")]
    assert len(schemas) == 2 and schemas[0].equals(schemas[1])


def test_template_clusters_and_wiped_out_hosts_raise_the_alarm(bench: Workbench):
    page = " ".join(prose(9))
    rows = [("first", "b.example", page + " more")]
    rows += [(str(number), "a.example", page) for number in range(30)]
    config, limits = GivenConfig(shards=(tuple(rows),)), {"alarm_cluster_size": 25}
    alarms = run(bench, config, **limits).metrics["alarms"]
    assert len(alarms) == 2 and "31 documents" in alarms[0] and "'a.example' lost 30" in alarms[1]
    warned = [e["message"] for e in bench.events if e["type"] == "log" and e["level"] == "warning"]
    assert warned == alarms
    with pytest.raises(InputError, match="2 alarms"):
        run(bench, config, stop_on_alarm=True, **limits)
    assert run(bench, shards(texts())).metrics["alarms"] == []


def test_no_documents_is_an_error(bench: Workbench):
    with pytest.raises(InputError, match="no documents"):
        run(bench, shards({}))


def test_shards_of_a_killed_attempt_are_taken_over_unless_cut_short(bench: Workbench, monkeypatch):
    from lmpipe.curation.dedup import dedup as module

    items = list(texts().items())
    config = shards(*(dict(items[number::3]) for number in range(3)))

    def die(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "filter_part", die)
        with pytest.raises(KeyboardInterrupt):
            run(bench, config)
    (cut,) = bench.root.rglob("00001.minima")
    cut.write_bytes(cut.read_bytes()[:-4])
    result = run(bench, config)
    adopted = [e["message"] for e in bench.events if "adopted" in str(e.get("message"))]
    assert adopted[0] == "adopted 2 of 3 shards finished by an earlier attempt"
    assert len(removed(result)) == 4


def evidence(documents: Documents) -> dict[str, dict[str, object]]:
    rows: list[dict[str, object]] = []
    for name in documents.names("evidence/"):
        rows += pq.read_table(pa.BufferReader(documents.read_bytes(name))).to_pylist()
    return {str(row["id"]): row for row in rows}


def shingles(text: str, length: int = 5) -> set[tuple[str, ...]]:
    words = text.lower().split()
    return {tuple(words[i : i + length]) for i in range(len(words) - length + 1)}


def test_every_removal_stores_its_comparison(bench: Workbench):
    near, result = texts(), run(bench, shards(texts()))
    rows = evidence(result)
    assert set(rows) == set(removed(result))
    keeper = shingles(near["near-long"])
    for key in ("near-short", "near-other"):
        row, mine = rows[id_of(key)], shingles(near[key])
        assert row["similarity"] == pytest.approx(len(mine & keeper) / len(mine | keeper))
        assert row["containment"] == pytest.approx(len(mine & keeper) / len(mine))
        assert row["keeper_containment"] == pytest.approx(len(mine & keeper) / len(keeper))
        words, covered = near[key].split(), set()
        for at in range(len(words) - 4):
            if tuple(words[at : at + 5]) in keeper:
                covered |= set(range(at, at + 5))
        assert row["novel_words"] == len(words) - len(covered) == (3 if "short" in key else 2)
    assert rows[id_of("equal-a")]["similarity"] == 1 and rows[id_of("equal-a")]["novel_words"] == 0
    assert result.metrics["lost_words"] == 5


def test_what_a_kept_document_contains_goes_and_not_the_other_way_round(bench: Workbench):
    words = prose(3)
    part = {"whole": " ".join(words), "part": " ".join(words[:200])}
    options = {"bands": 60, "rows": 2}
    gone = run(bench, shards(part), **options)
    assert set(removed(gone)) == {id_of("part")}
    row = evidence(gone)[id_of("part")]
    assert row["containment"] == 1 and row["keeper_containment"] < 0.7 and row["novel_words"] == 0
    fewer = {**part, "part": " ".join(changed(words[:200], 4))}
    assert removed(run(bench, shards(fewer), **options)) == {}
    assert len(removed(run(bench, shards(fewer), min_containment=0.8, **options))) == 1


def test_trusting_minima_skips_the_comparison(bench: Workbench):
    result = run(bench, shards(texts()), verify=False)
    assert len(removed(result)) == 4
    row = evidence(result)[id_of("near-other")]
    assert 0.7 < row["similarity"] < 1 and row["containment"] is None
    assert row["novel_words"] is None


def with_columns(bench: Workbench, rows: list[dict[str, object]]) -> Documents:
    config = RowsConfig(rows=tuple(json.dumps(row) for row in rows))
    return bench.run(rows_given, config)


class RowsConfig(StageConfig):
    rows: tuple[str, ...] = Field(description="Documents as JSON.")


@stage(version=1, kind="exact")
def rows_given(out: Output[Documents], config: RowsConfig, *, runtime: Runtime) -> Documents:
    with out.open("kept/00000.parquet", "wb") as file, DocumentWriter(file) as writer:
        for row in map(json.loads, config.rows):
            writer.write(row)
    write_ledger(out, [])
    return out.commit()


def test_the_keeper_is_the_longest_the_best_or_the_earliest(bench: Workbench):
    words = prose(3)
    long, middle, short = (" ".join([*words, *prose(n, n)]) for n in (3, 2, 1))
    rows = [
        {"id": "0" * 32, "text": middle, "quality_score": 0.9, "date": "2024-05-01T00:00:00Z"},
        {"id": "8" * 32, "text": short, "quality_score": 0.2, "date": "2020-01-01T10:00:00Z"},
        {"id": "f" * 32, "text": long, "quality_score": None, "date": None},
    ]
    for keep, expected in (("longest", "f"), ("best_quality", "0"), ("earliest", "8")):
        for order in (rows, rows[::-1]):
            result = bench.run(dedup, DedupConfig(keep=keep), with_columns(bench, order))
            assert list(kept(result)) == [expected * 32], keep


def test_ids_at_the_bounds_are_like_any_other(bench: Workbench):
    rows = [
        {"id": digit * 32, "text": " ".join(prose(3 if digit in "0f" else 4))} for digit in "07f"
    ]
    result = bench.run(dedup, DedupConfig(), with_columns(bench, rows))
    assert set(kept(result)) == {"0" * 32, "7" * 32}
    assert removed(result)["f" * 32]["keeper"] == "0" * 32


def test_documents_of_one_address_are_duplicates_if_asked_for(bench: Workbench):
    addresses = ["https://www.a.example/x/?b=1&a=2&utm_source=q#top", "http://a.example/x?a=2&b=1",
                 "https://a.example/X?a=2&b=1", None, None]  # fmt: skip
    rows = [
        {"id": f"{n:032x}", "text": " ".join(prose(n, 50 + 10 * n)), "url": url}
        for n, url in enumerate(addresses)
    ]
    documents = with_columns(bench, rows)
    assert removed(bench.run(dedup, DedupConfig(), documents)) == {}
    result = bench.run(dedup, DedupConfig(same_url=True), documents)
    (row,) = removed(result).values()
    assert (row["reason"], row["keeper"]) == ("same_url", f"{1:032x}")
    assert evidence(result)[f"{0:032x}"]["novel_words"] == 50
    assert result.metrics["removed"]["same_url"] == 1


@pytest.mark.parametrize("verify", [True, False])
def test_a_new_crawl_loses_what_an_earlier_one_holds_and_the_earlier_nothing(
    bench: Workbench, verify: bool
):
    old = {key: text for key, text in texts().items() if key not in ("near-long", "equal-b")}
    first = run(bench, shards(old), verify=verify)
    before = [first.read_bytes(name) for name in first.names("kept/")]
    new = {
        "longer": " ".join(prose(1000)) + " and a longer end than any before it",
        "copy": texts()["unique7"].upper(),
        "fresh": " ".join(prose(5000)),
        "fresh-copy": " ".join(prose(5000)) + "!",
    }
    documents = bench.run(given, shards(dict(list(new.items())[:2]), dict(list(new.items())[2:])))
    second = bench.run(dedup, DedupConfig(verify=verify), documents, [first])
    gone = removed(second)
    assert set(kept(second)) == {id_of("fresh-copy")}
    assert gone[id_of("copy")]["keeper"] == id_of("unique7")
    assert gone[id_of("longer")]["keeper"] in {id_of("near-short"), id_of("near-other")}
    assert gone[id_of("longer")]["reason"] == "near_duplicate"
    assert gone[id_of("fresh")]["keeper"] == id_of("fresh-copy")
    assert second.metrics["repeats_of_earlier"] == 2
    assert [first.read_bytes(name) for name in first.names("kept/")] == before
    third = bench.run(dedup, DedupConfig(verify=verify), documents, [first, second])
    assert removed(third) == gone  # the second holds these very documents: it is passed over


def test_records_curated_again_do_not_go_for_themselves(bench: Workbench):
    """Another setting upstream gives the crawl in the index other bytes under the same ids."""
    first = run(bench, shards(texts()))
    again = {
        key: f"{text} and a line that another extractor keeps" for key, text in texts().items()
    }
    documents = bench.run(given, shards({**again, "copy": texts()["unique7"]}))
    alone = bench.run(dedup, DedupConfig(), documents, [])
    second = bench.run(dedup, DedupConfig(), documents, [first])
    assert not [id_ for id_, row in removed(second).items() if row["keeper"] == id_]
    assert set(kept(second)) == set(kept(alone))
    assert second.metrics["repeats_of_earlier"] == 0


def test_a_crawl_of_which_nothing_stays_is_an_error(bench: Workbench):
    first = run(bench, shards({"a": " ".join(prose(1))}))
    documents = bench.run(given, shards({"b": " ".join(prose(1))}))
    with pytest.raises(InputError, match="keeps none of 1 documents: earlier crawls hold all"):
        bench.run(dedup, DedupConfig(), documents, [first])


def test_a_crawl_of_other_settings_or_with_a_cut_sketch_is_refused(bench: Workbench):
    first = run(bench, shards(texts()))
    documents = bench.run(given, shards({"a": " ".join(prose(1))}))
    with pytest.raises(InputError, match="deduplicated with ngram=5, now 6"):
        bench.run(dedup, DedupConfig(ngram=6), documents, [first])
    (cut,) = bench.root.rglob("00000.keys")
    cut.write_bytes(cut.read_bytes()[:-4])
    with pytest.raises(InputError, match=r"00000.keys has .* it is cut short; build"):
        bench.run(dedup, DedupConfig(), documents, [first])


def test_bytes_are_equal_for_any_memory(new_bench, monkeypatch):
    from lmpipe.curation.dedup import clusters, verification

    monkeypatch.setattr(verification, "BYTES_PER_WORD", 16_000)
    monkeypatch.setattr(clusters, "BYTES_PER_PAIR", 1_000_000)
    pages = {f"{n}-{copy}": " ".join(changed(prose(n), copy)) for n in range(9) for copy in (0, 2)}
    config, digests, spilled = shards(texts(), pages), set(), set()
    for memory in (16, 2000):
        here = new_bench(str(memory))
        here.runtime = {"sort_memory_mb": memory}
        digests.add(run(here, config, same_url=True).digest)
        spilled |= {str(e["message"]) for e in here.events if "spilled" in str(e.get("message"))}
    assert len(digests) == 1 and len(spilled) == 2


def test_equal_texts_and_equal_words_are_two_reasons(bench: Workbench):
    text = "Let us eat, said the elder of the two, before the rain comes down on Café Élan"
    result = run(
        bench,
        shards(
            {
                "kept": f"{text}!!!",
                "blanks": f"{text}!!!".replace(" ", "\n\t"),
                "form": f"{text}!!!".replace("é", "e\u0301"),
                "words": text.upper(),
                "words-copy": f" {text.upper()} ",
            }
        ),
    )
    gone = removed(result)
    assert len(kept(result)) == 1 and len(gone) == 4
    (keeper,) = kept(result)
    reasons = {key: gone[id_of(key)]["reason"] for key in ("words", "words-copy")}
    assert set(reasons.values()) == {"same_words"}
    assert {row["keeper"] for row in gone.values()} == {keeper}
    assert result.metrics["removed"] == {
        "exact_duplicate": 2,
        "same_words": 2,
        "near_duplicate": 0,
    }
    assert {row["similarity"] for row in gone.values()} == {1.0}


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("a + b", "a - b"),
        ("written in C++ today", "written in C# today"),
        ("it has −5 degrees", "it has 5 degrees"),
        ("if (!ready) go", "if (ready) go"),
        ("उसका कुल बड़ा है", "उसका केल बड़ा है"),
        ("area of x² and y", "area of x2 and y"),
    ],
)
def test_texts_of_other_operators_signs_and_vowels_are_no_duplicates(
    bench: Workbench, one: str, two: str
):
    assert len(kept(run(bench, shards({"one": one, "two": two})))) == 2


def test_programs_and_hindi_texts_that_differ_in_signs_throughout_are_not_near(bench: Workbench):
    rng = random.Random(5)
    lines = [
        f"v{rng.randrange(50)} = v{rng.randrange(50)} + v{rng.randrange(50)}\n" for _ in "ab" * 60
    ]
    hindi = ["कुल", "दल", "मिल", "खेल", "फल", "जल", "पल", "बल"]
    words = rng.choices(hindi, k=200)
    vowels = str.maketrans({"ु": "ू", "ि": "ी", "े": "ै", "ल": "ला"})
    texts = {
        "plus": "".join(lines),
        "minus": "".join(lines).replace("+", "-"),
        "hindi": " ".join(words),
        "vowels": " ".join(words).translate(vowels),
    }
    assert len(kept(run(bench, shards(texts)))) == 4


def test_sketches_of_another_version_are_refused(bench: Workbench):
    first, config = run(bench, shards({"a": " ".join(prose(1))})), DedupConfig()
    assert len(earlier_shards([first], config, dedup.version)) == 1
    with pytest.raises(InputError, match=r"is of dedup v3, now v4: .* build it again"):
        earlier_shards([first], config, 4)


def test_output_of_a_small_input_is_golden(bench: Workbench):
    """Another hash means other results for the same input: raise the stage's version.

    It is taken over our own arrays and rows; Parquet's bytes change with pyarrow's version as well.
    """
    result = run(bench, shards(texts()))
    digest = hashlib.sha256()
    for name in result.names("sketches/"):
        digest.update(result.read_bytes(name))
    digest.update(json.dumps([sorted(kept(result)), sorted(removed(result).items())]).encode())
    assert (dedup.version, digest.hexdigest()[:16]) == (3, "bc263a0f69702ef5")


def test_a_host_that_is_lost_stops_dedup_with_a_table_unless_it_was_crawled_before(
    bench: Workbench,
):
    """A wrong normaliser or a template wipes a site out as surely as a wrong bound."""
    rows = [(f"page{n}", "b.example", " ".join(prose(n))) for n in range(20)]
    rows += [(f"copy{n}", "mirror.example", " ".join(prose(n)[:-3])) for n in range(20)]
    config = GivenConfig(shards=(tuple(rows[::2]), tuple(rows[1::2])))
    bench.runtime = {"stop_host_documents": 20}
    with pytest.raises(InputError, match=r"dedup stops.*=0\.95 of mirror\.example\n") as error:
        run(bench, config)
    said = str(error.value).splitlines()
    assert said[1:3] == [
        "  mirror.example: 0 of 20 kept, 100.0% lost",
        "  b.example: 20 of 20 kept, 0.0% lost",
    ]
    assert "lmpipe why ID" in said[-1] and "stage_runtime.dedup.stop_host_lost" in said[-1]
    for seed, runtime in enumerate(
        ({"stop_host_documents": 21}, {"stop_host_documents": 20, "stop_host_lost_fraction": 1.0})
    ):
        bench.runtime = runtime
        assert len(kept(run(bench, config, seed=seed))) == 20
    # what an earlier crawl holds is no loss: a second crawl of a site repeats it by intention
    bench.runtime = {"stop_host_documents": 20}
    first = run(bench, GivenConfig(shards=(tuple(rows[:20]),)))
    again = [(f"again-{key}", host, text) for key, host, text in rows[:20]]
    documents = bench.run(
        given, GivenConfig(shards=((*again, ("new", "c.example", "a new text")),))
    )
    second = bench.run(dedup, DedupConfig(), documents, [first])
    assert set(kept(second)) == {id_of("new")} and second.metrics["repeats_of_earlier"] == 20
    (table,) = [e["rows"] for e in bench.events if e.get("name") == "hosts"][-1:]
    assert table == [{"host": "c.example", "documents": 1, "kept": 1, "lost": "0.0%"}]
