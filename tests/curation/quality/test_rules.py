"""BatchThresholds that differ by language."""

import json
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from lmpipe.artifacts.identity import canonical_json
from lmpipe.curation.extraction.config import ImportDocumentsConfig
from lmpipe.curation.extraction.import_documents import import_documents
from lmpipe.curation.quality.config import SignalsConfig
from lmpipe.curation.quality.rules import RULES, BatchThresholds, Thresholds
from lmpipe.curation.quality.signals import signals
from lmpipe.curation.selection.config import SelectConfig
from lmpipe.curation.selection.select import select
from lmpipe.documents.read import read_documents, read_removed
from tests.curation.conftest import Workbench
from tests.curation.given import MeasuredConfig, measured
from tests.curation.selection.test_select import LANGUAGE, OFF, PERPLEXITY

WORDS = next(rule for rule in RULES if rule.name == "gopher_min_words")
BRACKET = next(rule for rule in RULES if rule.name == "c4_no_curly_bracket")


def test_a_language_has_its_own_bound_and_others_the_common_one() -> None:
    by_language = SelectConfig(
        languages={},
        thresholds_by_language={
            "deu": {"gopher_min_words": 30},
            "zh-CN": {"gopher_min_words": None, "c4_no_curly_bracket": False},
        },
    ).thresholds_by_language
    languages = ["en", "de", "zh", None]
    bounds = BatchThresholds(Thresholds(), by_language, languages)
    found = bounds.of(WORDS)
    assert isinstance(found, np.ndarray)
    assert np.array_equal(found, [50, 30, np.nan, 50], equal_nan=True)
    breaks = WORDS.breaks(np.array([40, 40, 0, 40]), found)
    assert breaks.tolist() == [True, False, False, True]
    flags = bounds.of(BRACKET)
    assert flags is not None
    assert BRACKET.breaks(np.ones(4), flags).tolist() == [True, True, False, True]
    # off in common and on in one language
    only = BatchThresholds(OFF, {"de": {"gopher_min_words": 30}}, languages)
    assert np.array_equal(only.of(WORDS), [np.nan, 30, np.nan, np.nan], equal_nan=True)  # type: ignore[arg-type]
    assert only.of(BRACKET) is None


def test_equal_meanings_have_one_form_and_so_one_id() -> None:
    written: list[dict[str, Any]] = [
        {"de": {"gopher_min_words": 30, "gopher_max_top_2_gram": 1}},
        {"deu-AT": {"gopher_max_top_2_gram": 1.0, "gopher_min_words": 30.0}},
    ]
    configs = [SelectConfig(languages={}, thresholds_by_language=value) for value in written]
    identities = [canonical_json(config.model_dump(mode="json")) for config in configs]
    assert identities[0] == identities[1]
    again = SelectConfig.model_validate(json.loads(configs[0].model_dump_json()))
    assert again == configs[0]
    gate = SignalsConfig(gate=Thresholds(), gate_by_language=written[0])
    assert gate.gate_by_language == configs[0].thresholds_by_language


def test_what_cannot_be_meant_is_refused_by_key_and_range() -> None:
    for bad, hint in (
        ({"de": {"gopher_min_wrds": 3}}, r"de\.gopher_min_wrds: unknown key; did you mean 'gopher"),
        ({"de": {"gopher_min_words": -3}}, r"de\.gopher_min_words: .*greater than or equal to 0"),
        ({"de": {"gopher_max_bullet_line_fraction": 2}}, r"less than or equal to 1, got 2"),
        ({"german": {}}, "language 'german' is unknown"),
        ({"de": {}, "deu": {}}, "'de' is named twice"),
    ):
        for model, field in (
            (SelectConfig, "thresholds_by_language"),
            (SignalsConfig, "gate_by_language"),
        ):
            with pytest.raises((ValidationError, ValueError), match=hint):
                model.model_validate({field: bad})


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        (
            {"thresholds_by_language": {"de": {}, "fr": {}}},
            r"thresholds_by_language\.de: select removes 'de', only en are kept; add languages\.de"
            ".*or take de and fr out of thresholds_by_language",
        ),
        (
            {"languages": {"fr": 0.5}, "thresholds_by_language": {"en": {}}},
            r"thresholds_by_language\.en: select removes 'en', only fr",
        ),
        (
            {"max_perplexity_percentile": 50, "perplexity_bounds": {"deu": 300}},
            r"perplexity_bounds\.de: select removes 'de'",
        ),
        (
            {"perplexity_buckets": {"cutoffs": {"de": [10, 20]}}},
            r"perplexity_buckets\.cutoffs\.de: select removes 'de'",
        ),
        ({"perplexity_bounds": {"en": 300}}, "max_perplexity_percentile is null: give it"),
        (
            {"max_perplexity_percentile": 50, "perplexity_bounds": {"en": -3}},
            r"perplexity_bounds\.en=-3\.0 must be a perplexity above 0",
        ),
        (
            {"max_perplexity_percentile": 50, "perplexity_bounds": {"en": 3, "eng": 4}},
            "names one language twice",
        ),
        ({"short_text_score": 0.3}, "short_text_words words, which is 0"),
    ],
)
def test_a_bound_that_would_meet_no_document_is_refused(given: dict[str, Any], hint: str) -> None:
    with pytest.raises(ValidationError, match=hint):
        SelectConfig.model_validate(given)
    if "languages" not in given and "by_language" in str(given):
        assert SelectConfig.model_validate(given | {"languages": {}}).thresholds_by_language


def test_a_gate_by_language_without_a_gate_is_refused() -> None:
    with pytest.raises(ValidationError, match="nothing is gated; give gate: "):
        SignalsConfig(gate_by_language={"de": {"gopher_min_words": 3}})


def test_select_judges_each_document_by_its_languages_bounds(bench: Workbench) -> None:
    rows = [
        {"key": f"{language}{words}", "language": language, "num_non_symbol_words": words}
        for language in ("de", "en", "fi")
        for words in (10, 20, 30, 40, 50)
    ]
    documents = bench.run(measured, MeasuredConfig(shards=(tuple(rows),)))
    config = SelectConfig(
        languages={},
        thresholds=OFF.model_copy(update={"gopher_min_words": 40}),
        thresholds_by_language={"de": {"gopher_min_words": 20}, "fi": {"gopher_min_words": None}},
    )
    kept = bench.run(select, config, documents)
    found = [
        (row["language"], row["num_non_symbol_words"])
        for batch in read_documents(kept)
        for row in batch.to_pylist()
    ]
    assert sorted(found) == sorted(
        [("de", n) for n in (20, 30, 40, 50)]
        + [("en", n) for n in (40, 50)]
        + [("fi", n) for n in (10, 20, 30, 40, 50)]
    )
    lost = [row for batch in read_removed(kept) for row in batch.to_pylist()]
    assert sorted(row["threshold"] for row in lost) == [20, 40, 40, 40]
    nearest = kept.read_json("margins.json")["removed gopher_min_words"][0]
    assert (nearest["score"], nearest["bound"]) == (30, 40)  # nearer than 10 of 20 in German


def test_the_gate_spares_by_language_as_select_removes(bench: Workbench) -> None:
    german = "Der Ausschuss trat am Dienstag zusammen und beriet lange über den neuen Plan. "
    documents = bench.run(
        import_documents, ImportDocumentsConfig(), bench.files("c", a__txt=german * 10)
    )
    inputs = (documents, bench.source("l", LANGUAGE), None, bench.source("p", PERPLEXITY))
    gates: list[dict[str, Any]] = [{}, {"de": dict.fromkeys(Thresholds.model_fields, None)}]
    gates[1]["de"] |= {"c4_no_lorem_ipsum": False, "c4_no_curly_bracket": False}
    made = [
        bench.run(signals, SignalsConfig(gate=Thresholds(), gate_by_language=gate), *inputs)
        for gate in gates
    ]
    assert [documents.metrics["gated"] for documents in made] == [1, 0]
