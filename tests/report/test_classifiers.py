"""Classifiers and the split by perplexity, from labelled files to the tables of the report."""

from typing import Any

import pytest

from lmpipe.artifacts.types import Artifact
from lmpipe.curation.extraction.config import ImportDocumentsConfig
from lmpipe.curation.extraction.import_documents import import_documents
from lmpipe.curation.quality.config import (
    NsfwClassifierConfig,
    QualityClassifierConfig,
    SignalsConfig,
)
from lmpipe.curation.quality.quality_classifier import quality_classifier
from lmpipe.curation.quality.signals import signals
from lmpipe.curation.selection.config import SelectConfig
from lmpipe.curation.selection.perplexity_buckets import PerplexityBuckets
from lmpipe.curation.selection.sampling import Ensemble
from lmpipe.curation.selection.select import select
from lmpipe.documents.read import read_documents, read_removed
from lmpipe.report.blocks import Cell, Charts, Table
from lmpipe.report.read import Run
from lmpipe.report.sections import classifiers, data
from tests.curation.arpa import arpa
from tests.curation.conftest import Workbench
from tests.curation.labelled import nsfw_examples
from tests.curation.selection.test_select import EXAMPLES, LANGUAGE, OFF

CONFIG = SelectConfig(
    languages={},
    thresholds=OFF,
    min_quality_score=0.3,
    max_nsfw=0.5,
    perplexity_buckets=PerplexityBuckets(keep=("head", "middle", "all")),
    ensemble=Ensemble(columns={"quality_score": 1.0, "nsfw": -1.0}, num_bands=4, min_band=1),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    bench = Workbench(tmp_path_factory.mktemp("classifiers"))
    rows = EXAMPLES.read_text().splitlines()[:60] + nsfw_examples(40, seed=1).splitlines()
    pages = bench.files("pages", a__jsonl="\n".join(rows))
    documents = bench.run(import_documents, ImportDocumentsConfig(), pages)
    good = bench.source("good", EXAMPLES)
    quality = bench.run(quality_classifier, QualityClassifierConfig(buckets=5000), good)
    unsafe = bench.files("unsafe", a__jsonl=nsfw_examples())
    nsfw = bench.run(quality_classifier, NsfwClassifierConfig(buckets=5000), unsafe)
    models = bench.files("models", en__arpa=arpa(["this page is about the history of a garden"]))
    inputs = (documents, bench.source("language", LANGUAGE), quality, models, None, nsfw)
    measured = bench.run(signals, SignalsConfig(), *inputs)
    made: list[Artifact] = [documents, quality, nsfw, measured]
    return Run([*made, bench.run(select, CONFIG, measured)])


def rows_of(table: Table) -> list[dict[str, str]]:
    return [
        {
            name: cell.text if isinstance(cell, Cell) else cell
            for name, cell in zip(table.columns, row, strict=True)
        }
        for row in table.rows
    ]


def test_an_unsafe_page_is_scored_and_dropped_by_the_classifier_of_the_examples(run: Run) -> None:
    measured, kept = run.one("signals"), run.one("select")
    assert measured is not None and kept is not None
    found = [row for batch in read_documents(measured) for row in batch.to_pylist()]
    # the made-up pages come last, every other one unsafe
    unsafe, safe = found[60::2], found[61::2]
    assert sum(row["nsfw"] > 0.5 for row in unsafe) >= 18
    assert sum(row["nsfw"] > 0.5 for row in safe) <= 2
    lost = [row for batch in read_removed(kept) for row in batch.to_pylist()]
    assert any("max_nsfw" in row["reasons"] for row in lost)


def test_every_classifier_has_a_row_with_its_figures_and_its_threshold(run: Run) -> None:
    held_out, taken = classifiers.section(run).blocks[:2]
    assert isinstance(held_out, Table) and isinstance(taken, Table)
    measured = {row["finds"]: row for row in rows_of(held_out)}
    rows = {row["column"]: row for row in rows_of(taken)}
    assert set(rows) == {"quality_score", "nsfw"}
    for artifact in run.of("quality_classifier"):
        row = measured[artifact.read_json("meta.json")["positive_label"]]
        report = artifact.metrics["held_out"]
        for key in ("precision", "recall"):
            assert row[key] == f"{report[key]:.3f}"
        assert row["calibration error"] == f"{report['calibration_error']:.3f}"
        scores = artifact.read_json("held_out.json")["scores"]
        assert len(scores) == report["examples"] == int(row["examples"])
    assert (rows["nsfw"]["bound of select"], rows["nsfw"]["threshold"]) == ("max_nsfw", "0.5")
    assert rows["nsfw"]["precision there"] == measured["nsfw"]["precision"]
    assert rows["quality_score"]["bound of select"] == "min_quality_score"
    assert rows["quality_score"]["threshold"] == "0.3"
    (good,) = [
        artifact.read_json("held_out.json")
        for artifact in run.of("quality_classifier")
        if artifact.read_json("meta.json")["positive_label"] == "positive"
    ]
    pairs = zip(good["scores"], good["positive"], strict=True)
    chosen = [truth for score, truth in pairs if score >= 0.3]
    assert rows["quality_score"]["precision there"] == f"{sum(chosen) / len(chosen):.3f}"
    recall = sum(chosen) / sum(good["positive"])
    assert rows["quality_score"]["recall there"] == f"{recall:.3f}"


def test_each_classifier_has_its_reliability_scores_and_trade_off_drawn(run: Run) -> None:
    blocks = classifiers.section(run).blocks
    charts = [chart for block in blocks if isinstance(block, Charts) for chart in block.charts]
    titles = [chart.title for chart in charts]
    kinds = ("Reliability", "Held-out scores", "By threshold")
    assert sorted(titles) == sorted(f"{k}: {name}" for name in ("nsfw", "positive") for k in kinds)
    for chart in charts:
        assert "<polyline" in chart.svg
        if not chart.title.startswith("Reliability"):
            assert ("k0 faint", "threshold taken") in chart.legend


def test_a_counted_threshold_and_none_are_said(run: Run) -> None:
    def threshold(**config: Any) -> tuple[str, str]:
        artifact = run.one("select")
        assert artifact is not None
        changed = artifact.manifest.model_copy(
            update={
                "config": {**CONFIG.model_dump(mode="json"), **config},
                "metrics": {**artifact.metrics, "min_top_quality": 0.62},
            }
        )
        others = [a for a in run.artifacts if a.stage != "select"]
        other = Run([*others, type(artifact)(artifact.store, changed)])
        table = classifiers.section(other).blocks[1]
        assert isinstance(table, Table)
        (row,) = [row for row in rows_of(table) if row["column"] == "quality_score"]
        return row["bound of select"], row["threshold"]

    assert threshold(min_quality_score=None) == ("none", "–")
    top = threshold(min_quality_score=None, top_quality_fraction=0.2)
    assert top == ("top_quality_fraction", "0.62")
    drawn = threshold(min_quality_score=None, quality_pareto_alpha=9.0)
    assert drawn == ("quality_pareto_alpha (a draw)", "–")


def test_the_split_by_perplexity_is_a_table(run: Run) -> None:
    tables = [block for block in data.funnel(run).blocks if isinstance(block, Table)]
    (table,) = [table for table in tables if table.caption.startswith("Head, middle and tail")]
    rows = rows_of(table)
    english = [row for row in rows if row["language"] == "en"]
    assert [row["part"] for row in english] == ["head", "middle", "tail"]
    assert english[2]["kept by select"] == "0" and english[0]["kept by select"] != "0"
    assert english[0]["perplexity"].startswith("< ")
    assert english[2]["perplexity"].startswith("≥ ")


def test_bands_of_several_scores_are_a_table(run: Run) -> None:
    tables = [block for block in data.funnel(run).blocks if isinstance(block, Table)]
    (table,) = [table for table in tables if table.caption.startswith("Bands of nsfw, quality")]
    rows = rows_of(table)
    assert [int(row["band"]) for row in rows] == sorted(
        (int(r["band"]) for r in rows), reverse=True
    )
    assert {row["kept"] for row in rows if row["band"] != "0"} == {"yes"}
    select_ = run.one("select")
    assert select_ is not None
    assert sum(int(row["documents"]) for row in rows) == sum(
        select_.metrics["ensemble_bands"].values()
    )


def test_samples_at_the_bounds_name_classifiers_and_parts(run: Run) -> None:
    titles = " ".join(block.title for block in data.margins(run).blocks)  # type: ignore[union-attr]
    for rule in ("min_quality_score", "max_nsfw", "perplexity_bucket"):
        assert f"{rule}: just removed, then just kept" in titles


def test_a_run_without_classifiers_has_no_such_section(run: Run) -> None:
    plain = Run([a for a in run.artifacts if a.stage == "import_documents"])
    assert classifiers.section(plain).blocks == []
