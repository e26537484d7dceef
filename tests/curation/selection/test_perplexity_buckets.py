"""CCNet's split: a model for each language, and head, middle and tail by its percentiles."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given as examples
from hypothesis import strategies as st
from pydantic import ValidationError

from lmpipe.artifacts.types import Documents
from lmpipe.curation.extraction.config import ImportDocumentsConfig
from lmpipe.curation.extraction.import_documents import import_documents
from lmpipe.curation.quality.config import SignalsConfig
from lmpipe.curation.quality.perplexity import PerplexityModel
from lmpipe.curation.quality.signals import signals
from lmpipe.curation.selection.config import ENSEMBLE_COLUMNS, SelectConfig
from lmpipe.curation.selection.perplexity_buckets import (
    LABELS,
    PerplexityBuckets,
    labels_of,
    nearest_thresholds,
)
from lmpipe.curation.selection.sampling import Ensemble
from lmpipe.curation.selection.select import select
from lmpipe.curation.selection.whatif import compare
from lmpipe.documents.read import read_documents, read_removed
from lmpipe.documents.schema import SIGNAL_COLUMNS
from lmpipe.errors import InputError
from tests.curation.arpa import arpa
from tests.curation.conftest import Workbench
from tests.curation.given import MeasuredConfig, measured
from tests.curation.selection.test_select import LANGUAGE, OFF

EVERYTHING = SelectConfig(languages={}, thresholds=OFF)
ENGLISH = "The committee met on Tuesday and talked about the new plan for a very long time. "
GERMAN = "Der Ausschuss trat am Dienstag zusammen und beriet lange über den neuen Plan. "
FRENCH = "Le comité s'est réuni mardi et a longuement discuté du nouveau plan de la ville. "


def rows_of(documents: Documents, *names: str) -> list[dict[str, Any]]:
    return [row for batch in read_documents(documents, names) for row in batch.to_pylist()]


def with_buckets(**settings: Any) -> SelectConfig:
    return EVERYTHING.model_copy(update={"perplexity_buckets": PerplexityBuckets(**settings)})


def corpus(bench: Workbench, *, num_shards: int = 2) -> Documents:
    """A hundred English documents, 50 German ones, and ten of a language without a model."""
    rows: list[dict[str, str | float | None]] = [
        {"key": f"{language}{n}", "language": language, "kenlm_perplexity": perplexity}
        for language, perplexities in (
            ("en", [100.0 + n for n in range(100)]),
            ("de", [1000.0 + 10 * n for n in range(50)]),
            ("fi", [None] * 10),
        )
        for n, perplexity in enumerate(perplexities)
    ]
    rows.sort(key=lambda row: str(row["key"])[::-1])
    shards = tuple(tuple(rows[n::num_shards]) for n in range(num_shards))
    return bench.run(measured, MeasuredConfig(shards=shards))


def test_each_language_is_scored_by_its_own_model_and_others_by_none(bench: Workbench) -> None:
    texts = {"en": ENGLISH * 3, "de": GERMAN * 3, "fr": FRENCH * 3}
    files = {f"{name}__txt": text for name, text in texts.items()}
    documents = bench.run(import_documents, ImportDocumentsConfig(), bench.files("c", **files))
    models = bench.files("models", en__arpa=arpa([ENGLISH]), **{"de-2gram__arpa": arpa([GERMAN])})
    inputs = (documents, bench.source("language", LANGUAGE), None)
    made = bench.run(signals, SignalsConfig(), *inputs, models)
    found = {row["language"]: row for row in rows_of(made, "language", "kenlm_perplexity")}
    for language, name in (("en", "en.arpa"), ("de", "de-2gram.arpa")):
        expected = PerplexityModel(models.local(name))(texts[language])
        assert found[language]["kenlm_perplexity"] == pytest.approx(expected, rel=1e-6)
        assert expected < 30
    assert found["fr"]["kenlm_perplexity"] is None
    foreign = PerplexityModel(models.local("en.arpa"))(texts["de"])
    assert foreign is not None and foreign > 2 * found["de"]["kenlm_perplexity"]
    # one that names no language scores what has no model of its own
    more = bench.files(
        "more", en__arpa=arpa([ENGLISH]), **{"web-text__arpa": arpa([FRENCH, GERMAN])}
    )
    both = bench.run(signals, SignalsConfig(), *inputs, more)
    assert all(row["kenlm_perplexity"] for row in rows_of(both, "kenlm_perplexity"))
    assert both.metrics["perplexity_models"] == {"en": "en.arpa", "others": "web-text.arpa"}
    # the files are inputs: pinned by name and hash, and thus part of the id
    assert both.id != made.id
    pinned = {record.role: record.digest for record in both.manifest.inputs}
    assert pinned["perplexity_model"] == more.digest != models.digest


def test_two_models_for_one_language_are_refused(bench: Workbench) -> None:
    models = bench.files("two", en__arpa=arpa([ENGLISH]), **{"eng-US__arpa": arpa([ENGLISH])})
    documents = bench.run(
        import_documents, ImportDocumentsConfig(), bench.files("c", a__txt=ENGLISH)
    )
    language = bench.source("language", LANGUAGE)
    with pytest.raises(InputError, match=r"en\.arpa and eng-US\.arpa are both .* language 'en'"):
        bench.run(signals, SignalsConfig(), documents, language, None, models)


def test_every_language_is_cut_at_its_own_percentiles(bench: Workbench) -> None:
    documents = corpus(bench)
    kept = bench.run(select, with_buckets(), documents)
    assert kept.metrics["perplexity_cutoffs"] == {
        "de": pytest.approx([1147.0, 1294.0]),
        "en": pytest.approx([129.7, 159.4]),
    }
    parts = {"head": 30, "middle": 30, "tail": 40}
    counted = kept.metrics["perplexity_buckets"]
    assert counted["en"] == {name: {"entered": n, "kept": n} for name, n in parts.items()}
    assert [part["kept"] for part in counted["de"].values()] == [15, 15, 20]
    assert counted["fi"] == {"all": {"entered": 10, "kept": 10}}
    for row in rows_of(kept, "language", "kenlm_perplexity", "perplexity_bucket"):
        value, label = row["kenlm_perplexity"], row["perplexity_bucket"]
        if row["language"] == "fi":
            assert label == "all"
        else:
            head, tail = kept.metrics["perplexity_cutoffs"][row["language"]]
            assert label == ("head" if value < head else "middle" if value < tail else "tail")


def test_the_split_is_a_condition_and_the_ledger_names_the_cut(bench: Workbench) -> None:
    documents = corpus(bench)
    kept = bench.run(select, with_buckets(keep=["middle", "head"]), documents)
    labels = [row["perplexity_bucket"] for row in rows_of(kept, "perplexity_bucket")]
    assert sorted(labels) == ["head"] * 45 + ["middle"] * 45
    lost = [row for batch in read_removed(kept) for row in batch.to_pylist()]
    assert {row["reason"] for row in lost} == {"perplexity_bucket"}
    cuts = {cut for _, cut in kept.metrics["perplexity_cutoffs"].values()}
    scored = [row for row in lost if row["score"] is not None]
    assert len(scored) == 60 and len(lost) == 70
    assert all(row["score"] >= row["threshold"] and row["threshold"] in cuts for row in scored)
    counted = kept.metrics["perplexity_buckets"]["en"]
    assert counted["tail"] == {"entered": 40, "kept": 0}
    shift = compare(documents, with_buckets(), with_buckets(keep=["head", "middle"]))
    assert (shift.kept_before, shift.kept_after, shift.num_lost) == (160, 90, 70)


def test_stored_cuts_take_the_place_of_counted_ones(bench: Workbench) -> None:
    documents = corpus(bench)
    kept = bench.run(select, with_buckets(cutoffs={"eng": (110.0, 120.0)}), documents)
    assert kept.metrics["perplexity_cutoffs"]["en"] == [110.0, 120.0]
    counted = kept.metrics["perplexity_buckets"]
    assert [part["kept"] for part in counted["en"].values()] == [10, 10, 80]
    assert [part["kept"] for part in counted["de"].values()] == [15, 15, 20]
    first = bench.run(select, with_buckets(), documents)
    stored = with_buckets(cutoffs=first.metrics["perplexity_cutoffs"])
    assert bench.run(select, stored, documents).digest == first.digest


def test_the_split_is_the_same_from_any_workers_and_shards(bench: Workbench) -> None:
    documents = corpus(bench)
    one, two = (bench.run(select, with_buckets(), documents, workers=n) for n in (1, 2))
    assert one.digest == two.digest
    again = bench.run(select, with_buckets(), corpus(bench, num_shards=5))
    labels = [
        {row["id"]: row["perplexity_bucket"] for row in rows_of(made, "id", "perplexity_bucket")}
        for made in (one, again)
    ]
    assert labels[0] == labels[1]
    assert again.metrics["perplexity_buckets"] == one.metrics["perplexity_buckets"]


def test_a_part_counts_in_an_ensemble_whatever_the_language(bench: Workbench) -> None:
    documents = corpus(bench)
    ensemble = Ensemble(columns={"perplexity_bucket": 1.0}, num_bands=10, min_band=9)
    kept = bench.run(select, with_buckets().model_copy(update={"ensemble": ensemble}), documents)
    found = rows_of(kept, "language", "perplexity_bucket")
    assert {row["perplexity_bucket"] for row in found} == {"head"}
    assert {row["language"] for row in found} == {"de", "en"}
    assert kept.metrics["perplexity_buckets"]["en"]["tail"] == {"entered": 40, "kept": 0}
    assert set(ENSEMBLE_COLUMNS) == {
        *(name for name in SIGNAL_COLUMNS if name not in ("is_blocked", "ensemble_band"))
    }
    with pytest.raises(ValidationError, match="needs perplexity_buckets"):
        SelectConfig(ensemble=ensemble)
    with pytest.raises(ValidationError, match="did you mean 'quality_score'"):
        SelectConfig(ensemble=Ensemble(columns={"qualty_score": 1.0}))


def test_bounds_on_perplexity_pass_over_languages_without_a_model(bench: Workbench) -> None:
    documents = corpus(bench)
    for bounds, expected in (
        ({"max_perplexity": 149.5}, {"en": 50, "fi": 10}),
        ({"max_perplexity_percentile": 50.0}, {"de": 25, "en": 50, "fi": 10}),
    ):
        kept = bench.run(select, EVERYTHING.model_copy(update=bounds), documents)
        languages = [row["language"] for row in rows_of(kept, "language")]
        assert {name: languages.count(name) for name in sorted(set(languages))} == expected
    # where others of the language have one, a missing perplexity is a mistake
    some = {"key": "x", "language": "en", "kenlm_perplexity": 5.0}, {"key": "y", "language": "en"}
    unscored = {"key": "z", "language": "fi"}
    gated = bench.run(measured, MeasuredConfig(shards=(some,)))
    none = bench.run(measured, MeasuredConfig(shards=((unscored,),)))
    for config in (
        with_buckets(),
        EVERYTHING.model_copy(update={"max_perplexity": 9.0}),
        EVERYTHING.model_copy(update={"max_perplexity_percentile": 50.0}),
    ):
        with pytest.raises(InputError, match="null for 1 of 2 documents"):
            bench.run(select, config, gated)
        with pytest.raises(InputError, match="null for all 1 documents"):
            bench.run(select, config, none)


def test_a_config_that_cannot_be_meant_is_refused() -> None:
    for bad, hint in (
        ({"head_percentile": 70.0}, "must not exceed tail_percentile=60"),
        ({"cutoffs": {"en": (9.0, 3.0)}}, "the lower one first"),
        ({"cutoffs": {"en": (3.0, 9.0), "eng": (3.0, 9.0)}}, "names one language twice"),
        ({"keep": ["heads"]}, "'head', 'middle', 'tail' or 'all'"),
        ({"keep": []}, "at least 1 item"),
    ):
        with pytest.raises(ValidationError, match=hint):
            PerplexityBuckets.model_validate(bad)
    assert PerplexityBuckets(keep=["tail", "head"]).keep == ("head", "tail")


@examples(
    st.lists(st.floats(1, 1e6, width=32), min_size=1, max_size=30),
    st.tuples(st.floats(1, 1e5), st.floats(1, 1e5)).map(sorted),
    st.sets(st.sampled_from(LABELS), min_size=1),
)
def test_a_label_is_ccnets_and_the_named_cut_parts_kept_from_removed(
    values: list[float], cuts: list[float], keep: set[Any]
) -> None:
    perplexities = np.array(values, dtype=np.float32)
    pairs = np.tile(np.array(cuts), (len(values), 1))
    labels = labels_of(perplexities, pairs)
    for value, label in zip(values, labels, strict=True):
        plain = "head" if value < cuts[0] else "middle" if value < cuts[1] else "tail"
        assert label == plain
    bounds = nearest_thresholds(perplexities, pairs, PerplexityBuckets(keep=tuple(keep)).keep)
    sides = [label in keep for label in ("head", "middle", "tail")]
    if sides[0] == sides[1] == sides[2]:
        assert np.isnan(bounds).all()
    else:
        assert all(bound in cuts for bound in bounds)
