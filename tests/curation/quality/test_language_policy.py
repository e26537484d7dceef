"""Languages as recipes name them, and as models of other labels say them."""

from pathlib import Path
from typing import Any

import pytest

from lmpipe.artifacts.types import Documents
from lmpipe.curation.extraction.config import ImportDocumentsConfig
from lmpipe.curation.extraction.import_documents import import_documents
from lmpipe.curation.quality.config import SignalsConfig
from lmpipe.curation.quality.language import (
    LanguageIdentifier,
    known_languages,
    label_language,
    policy_language,
)
from lmpipe.curation.quality.language_policy import by_models_codes, said_as
from lmpipe.curation.quality.perplexity import models_by_language
from lmpipe.curation.quality.rules import Thresholds
from lmpipe.curation.quality.signals import signals
from lmpipe.curation.selection.config import SelectConfig
from lmpipe.curation.selection.language_terms import in_models_terms
from lmpipe.curation.selection.select import select
from lmpipe.curation.selection.whatif import compare
from lmpipe.documents.read import read_documents
from lmpipe.errors import ConfigError
from tests.curation.conftest import Workbench
from tests.curation.quality.test_language import MODEL
from tests.curation.selection.test_select import OFF

NORWEGIAN = (
    "Jeg vet ikke hva jeg skal gjøre i morgen, men vi kan gå en tur hvis det blir fint vær. "
)
WORDS = {
    "eng_Latn": "the old house was very quiet when we came home and liked it",
    "ace_Latn": "ureueng gampông jak bak keude ngon rakan geutanyoe peugah haba",
    "nob_Latn": "jeg vet ikke hva som skal skje her i kveld men takk",
    "nno_Latn": "eg veit ikkje kva som skal hende her i kveld takk no",
    "positive": "zzz qqq www xxx",
}


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a small model whose labels are ISO 639-3 with a script, and one that is neither."""
    import fasttext

    folder = tmp_path_factory.mktemp("lid")
    lines = [f"__label__{label} {words}\n" for label, words in WORDS.items()]
    (folder / "train.txt").write_text("".join(lines * 30), encoding="utf-8")
    model = fasttext.train_supervised(
        str(folder / "train.txt"), dim=8, epoch=40, lr=0.5, thread=1, verbose=0
    )
    model.save_model(str(folder / "lid.bin"))
    return folder / "lid.bin"


def imported(bench: Workbench, *texts: str) -> Documents:
    lines = {f"{number}__txt": text for number, text in enumerate(texts)}
    documents: Documents = bench.run(
        import_documents, ImportDocumentsConfig(), bench.files("corpus", **lines)
    )
    return documents


def found(bench: Workbench, model: Path, *texts: str, config: Any = None) -> Documents:
    inputs = imported(bench, *texts), bench.source("lid", model), None, None
    documents: Documents = bench.run(signals, config or SignalsConfig(), *inputs)
    return documents


def languages(documents: Documents) -> list[tuple[str, float]]:
    rows = [row for b in read_documents(documents, ["language", "language_score"])
            for row in b.to_pylist()]  # fmt: skip
    return [(row["language"], round(row["language_score"], 1)) for row in rows]


@pytest.mark.parametrize(
    ("label", "code"),
    [
        ("__label__eng_Latn", "en"), ("__label__ace_Latn", "ace"), ("__label__acm_Arab", "acm"),
        ("__label__zho_Hans", "zh"), ("__label__als_Latn", "sq"), ("__label__als", "als"),
        ("__label__hbs_Cyrl", "sh"), ("__label__fil_Latn", "tl"), ("__label__plt_Latn", "mg"),
        ("__label__und_Grek", "und"), ("__label__positive", "und"), ("__label__", "und"),
        ("__label__xx", "und"), ("__label__no", "no"),
    ],
)  # fmt: skip
def test_labels_are_read_as_iso_639_with_a_script(label: str, code: str) -> None:
    assert label_language(label) == code


def test_a_label_that_no_table_has_is_kept_as_its_code_and_select_decides(
    bench: Workbench, labelled: Path
) -> None:
    texts = [f"{WORDS[label]} " * 3 for label in ("eng_Latn", "ace_Latn", "positive")]
    documents = found(bench, labelled, *texts)
    assert languages(documents) == [("en", 1.0), ("ace", 1.0), ("und", 0.0)]
    config = SelectConfig(languages={"ace_Latn": 0.5}, thresholds=OFF)
    selected = bench.run(select, config, documents)
    assert [language for language, _ in languages(selected)] == ["ace"]


@pytest.mark.parametrize(
    "text",
    ["123 456 7890 12", "!!! ??? …", "😀😀 🎉", "3.14 – 2,71 = ½", "ℹ️ 12:30", "१२३ ٣٤٥", "→ ★★★☆"],
)
def test_a_text_without_letters_is_in_no_language(text: str) -> None:
    identify = LanguageIdentifier(MODEL, 400, 10_000, 0.5)
    assert identify(text) == ("und", 0.0)
    assert identify(f"{text}\n" * 3000) == ("und", 0.0)


def test_letters_beyond_the_first_looks_are_found() -> None:
    identify = LanguageIdentifier(MODEL, 30, 100_000, 0.5)
    prose = "The committee met on Tuesday and agreed to look at the plan again. " * 40
    assert identify("12 " * 3000 + prose + "12 " * 9000)[0] == "en"


@pytest.mark.parametrize(
    ("code", "known", "names"),
    [
        ("nb", ["no", "nn"], ["no"]),
        ("nn", ["no", "nn"], ["nn"]),
        ("no", ["nb", "nn"], ["nb", "nn"]),
        ("tw", ["ak"], ["ak"]),
        ("gsw", ["als"], ["als"]),
        ("zu", ["en"], []),
    ],
)
def test_a_language_is_its_macrolanguage_or_its_members_where_the_model_says_those(
    code: str, known: list[str], names: list[str]
) -> None:
    assert said_as(policy_language(code), known) == names


def test_every_code_of_a_config_is_said_by_the_model_or_refused_with_what_it_says() -> None:
    known = known_languages(MODEL)
    assert by_models_codes({"nb": 1, "en": 2}, known, "languages") == {"no": 1, "en": 2}
    assert by_models_codes({"nb": 1, "no": 2}, ["nb", "nn"], "x") == {"nb": 1, "nn": 2}
    with pytest.raises(ConfigError, match=r"languages\.nb: .* both 'no'"):
        by_models_codes({"no": 1, "nb": 2}, known, "languages")
    with pytest.raises(ConfigError, match=r"languages\.zu: .* never says 'zu'.* it says .* en .*"):
        by_models_codes({"zu": 1}, known, "languages")


def test_norwegian_by_any_of_its_codes_is_kept_and_what_no_document_can_be_is_refused(
    bench: Workbench,
) -> None:
    documents = found(bench, MODEL, NORWEGIAN * 3, "The committee met on Tuesday again. " * 5)
    for code in ("no", "nb", "nob_Latn"):
        config = SelectConfig(
            languages={code: 0.3},
            thresholds=OFF,
            thresholds_by_language={code: {"gopher_min_words": 3}},
        )
        assert [name for name, _ in languages(bench.run(select, config, documents))] == ["no"]
        before = SelectConfig(languages={"en": 0.3}, thresholds=OFF)
        assert compare(documents, before, config).num_gained == 1
    for config in (
        SelectConfig(languages={"zu": 0.3}, thresholds=OFF),
        SelectConfig(languages={}, thresholds_by_language={"zu": {"gopher_min_words": 3}}),
    ):
        with pytest.raises(ConfigError, match="never says 'zu'"):
            bench.run(select, config, documents)
    gate = SignalsConfig(gate=Thresholds(), gate_by_language={"zu": {"gopher_min_words": 3}})
    with pytest.raises(ConfigError, match=r"gate_by_language\.zu"):
        found(bench, MODEL, NORWEGIAN, config=gate)


def test_documents_without_a_models_codes_are_selected_by_the_configs_own(
    bench: Workbench,
) -> None:
    config = SelectConfig(languages={"zu": 0.3})
    assert in_models_terms(config, imported(bench, "text")) == config


def test_a_perplexity_model_is_named_by_any_code_of_its_language() -> None:
    assert models_by_language(["nb.kenlm", "all.kenlm"], ["no"]) == {
        "no": "nb.kenlm", "": "all.kenlm",
    }  # fmt: skip
    assert models_by_language(["no.kenlm"], ["nb", "nn"]) == {"nb": "no.kenlm", "nn": "no.kenlm"}
