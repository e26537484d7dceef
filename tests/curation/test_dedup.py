import hashlib
import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lmpipe.artifacts.types import Documents
from lmpipe.curation import word_hashes
from lmpipe.curation.dedup import DedupConfig, dedup
from lmpipe.documents.read import count_documents
from lmpipe.errors import InputError
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
        assert (row["reason"], row["keeper"]) == ("exact_duplicate", id_of("equal-b"))
        assert row["similarity"] == 1
    assert count_documents(result) + len(gone) == len(texts())
    assert result.metrics["removed"] == {"exact_duplicate": 2, "near_duplicate": 2}


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
    digests = {run(new_bench(str(n)), config, workers=n).digest for n in (1, 2, 4)}
    assert len(digests) == 1


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
    assert {row["reason"] for row in removed(result).values()} == {"exact_duplicate"}


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
    from lmpipe.curation import dedup as module

    items = list(texts().items())
    config = shards(*(dict(items[number::3]) for number in range(3)))

    def die(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "filter_shard", die)
        with pytest.raises(KeyboardInterrupt):
            run(bench, config)
    (cut,) = bench.root.rglob("00001.minima")
    cut.write_bytes(cut.read_bytes()[:-4])
    result = run(bench, config)
    adopted = [e["message"] for e in bench.events if "adopted" in str(e.get("message"))]
    assert adopted == ["adopted 2 of 3 shards finished by an earlier attempt"]
    assert len(removed(result)) == 4


def test_output_of_a_small_input_is_golden(bench: Workbench):
    """Another hash means other results for the same input: raise the stage's version.

    It is taken over our own arrays and rows; Parquet's bytes change with pyarrow's version as well.
    """
    result = run(bench, shards(texts()))
    digest = hashlib.sha256()
    for name in result.names("sketches/"):
        digest.update(result.read_bytes(name))
    digest.update(json.dumps([sorted(kept(result)), sorted(removed(result).items())]).encode())
    assert (dedup.version, digest.hexdigest()[:16]) == (1, "ee38a6a4302e0bc4")
