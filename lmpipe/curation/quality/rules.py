"""The published rules as data: a name, a column, a threshold. One named predicate each.

Signals computes the columns, select compares; so a threshold costs seconds to change and every
removal can say its score and its threshold. Defaults are the published ones: Gopher (Rae et al.
2021, A1), C4 (Raffel et al. 2020), FineWeb (Penedo et al. 2024, 3.6). They were made for English:
its stop words, its mean word. So a threshold may differ by language, said as the differences alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, ValidationError

from lmpipe.artifacts.stage import StageConfig
from lmpipe.curation.quality.language import policy_language
from lmpipe.errors import did_you_mean


@dataclass(frozen=True)
class Rule:
    """Remove a document whose `column` lies beyond the threshold of the field `name`."""

    name: str
    column: str
    kind: Literal["below", "above", "flag"]

    def threshold(self, thresholds: "Thresholds") -> float | None:
        """Return the threshold, or None where the rule is off."""
        value = getattr(thresholds, self.name)
        if self.kind == "flag":
            return 0.5 if value else None
        return None if value is None else float(value)

    def breaks(
        self, values: NDArray[Any], threshold: float | NDArray[np.float64]
    ) -> NDArray[np.bool_]:
        """Say which values break the rule; a missing value or threshold (NaN) breaks none.

        Columns are float32: the threshold is rounded alike, else 3/10 would exceed 0.3.
        """
        rounded = np.float32(threshold)
        scores = values.astype(np.float32)
        return scores < rounded if self.kind == "below" else scores > rounded


RULES: tuple[Rule, ...] = (
    Rule("gopher_min_words", "num_non_symbol_words", "below"),
    Rule("gopher_max_words", "num_non_symbol_words", "above"),
    Rule("gopher_min_mean_word_length", "mean_word_length", "below"),
    Rule("gopher_max_mean_word_length", "mean_word_length", "above"),
    Rule("gopher_max_hash_word_ratio", "hash_word_ratio", "above"),
    Rule("gopher_max_ellipsis_word_ratio", "ellipsis_word_ratio", "above"),
    Rule("gopher_max_bullet_line_fraction", "bullet_line_fraction", "above"),
    Rule("gopher_max_ellipsis_line_fraction", "ellipsis_line_fraction", "above"),
    Rule("gopher_min_alphabetic_word_fraction", "alphabetic_word_fraction", "below"),
    Rule("gopher_min_stop_words", "num_stop_words", "below"),
    Rule("gopher_max_duplicate_paragraph_fraction", "duplicate_paragraph_fraction", "above"),
    Rule(
        "gopher_max_duplicate_paragraph_character_fraction",
        "duplicate_paragraph_character_fraction",
        "above",
    ),
    Rule("gopher_max_duplicate_line_fraction", "duplicate_line_fraction", "above"),
    Rule(
        "gopher_max_duplicate_line_character_fraction",
        "duplicate_line_character_fraction",
        "above",
    ),
    *(
        Rule(f"gopher_max_top_{n}_gram", f"top_{n}_gram_character_fraction", "above")
        for n in (2, 3, 4)
    ),
    *(
        Rule(f"gopher_max_duplicate_{n}_gram", f"duplicate_{n}_gram_character_fraction", "above")
        for n in range(5, 11)
    ),
    Rule("c4_no_lorem_ipsum", "has_lorem_ipsum", "flag"),
    Rule("c4_no_curly_bracket", "has_curly_bracket", "flag"),
    Rule("c4_min_sentences", "num_sentences", "below"),
    Rule("fineweb_min_punctuated_line_fraction", "punctuated_line_fraction", "below"),
    Rule("fineweb_max_short_line_fraction", "short_line_fraction", "above"),
    Rule(
        "fineweb_max_repeated_line_character_fraction",
        "repeated_line_character_fraction",
        "above",
    ),
    Rule("fineweb_max_newline_word_ratio", "newline_word_ratio", "above"),
)


def _count(default: int | None, description: str) -> Any:
    return Field(default, ge=0, le=10**9, description=f"{description}; null: off.")


def _fraction(default: float | None, description: str) -> Any:
    return Field(default, ge=0, le=1, description=f"{description}; null: off.")


def _ratio(default: float | None, description: str) -> Any:
    return Field(default, ge=0, le=1000, description=f"{description}; null: off.")


class Thresholds(StageConfig):
    """Thresholds of the Gopher, C4 and FineWeb rules; a rule whose threshold is null is off."""

    gopher_min_words: int | None = _count(50, "Fewest words that are not symbols")
    gopher_max_words: int | None = _count(100_000, "Most words that are not symbols")
    gopher_min_mean_word_length: float | None = _ratio(3.0, "Shortest mean word, characters")
    gopher_max_mean_word_length: float | None = _ratio(10.0, "Longest mean word, characters")
    gopher_max_hash_word_ratio: float | None = _ratio(0.1, "Most hash signs per word")
    gopher_max_ellipsis_word_ratio: float | None = _ratio(0.1, "Most ellipses per word")
    gopher_max_bullet_line_fraction: float | None = _fraction(0.9, "Most lines that are bullets")
    gopher_max_ellipsis_line_fraction: float | None = _fraction(
        0.3, "Most lines that end in an ellipsis"
    )
    gopher_min_alphabetic_word_fraction: float | None = _fraction(
        0.8, "Fewest words with a letter in them"
    )
    gopher_min_stop_words: int | None = _count(
        2, "Fewest distinct of: the, be, to, of, and, that, have, with"
    )
    gopher_max_duplicate_paragraph_fraction: float | None = _fraction(0.3, "Most paragraphs twice")
    gopher_max_duplicate_paragraph_character_fraction: float | None = _fraction(
        0.2, "Most characters in paragraphs seen before"
    )
    gopher_max_duplicate_line_fraction: float | None = _fraction(0.3, "Most lines seen before")
    gopher_max_duplicate_line_character_fraction: float | None = _fraction(
        0.2, "Most characters in lines seen before"
    )
    gopher_max_top_2_gram: float | None = _ratio(0.20, "Most characters in the top 2-gram")
    gopher_max_top_3_gram: float | None = _ratio(0.18, "Most characters in the top 3-gram")
    gopher_max_top_4_gram: float | None = _ratio(0.16, "Most characters in the top 4-gram")
    gopher_max_duplicate_5_gram: float | None = _fraction(
        0.15, "Most characters in repeated 5-grams"
    )
    gopher_max_duplicate_6_gram: float | None = _fraction(
        0.14, "Most characters in repeated 6-grams"
    )
    gopher_max_duplicate_7_gram: float | None = _fraction(
        0.13, "Most characters in repeated 7-grams"
    )
    gopher_max_duplicate_8_gram: float | None = _fraction(
        0.12, "Most characters in repeated 8-grams"
    )
    gopher_max_duplicate_9_gram: float | None = _fraction(
        0.11, "Most characters in repeated 9-grams"
    )
    gopher_max_duplicate_10_gram: float | None = _fraction(
        0.10, "Most characters in repeated 10-grams"
    )
    c4_no_lorem_ipsum: bool = Field(
        default=True, description="Remove documents with 'lorem ipsum'."
    )
    c4_no_curly_bracket: bool = Field(
        default=True, description="Remove documents with '{' in a kept line."
    )
    c4_min_sentences: int | None = _count(5, "Fewest sentences in the lines that C4 keeps")
    fineweb_min_punctuated_line_fraction: float | None = _fraction(
        0.12, "Fewest lines that end a sentence"
    )
    fineweb_max_short_line_fraction: float | None = _fraction(
        0.67, "Most lines of <= 30 characters"
    )
    fineweb_max_repeated_line_character_fraction: float | None = _fraction(
        0.01, "Most characters in lines seen before"
    )
    fineweb_max_newline_word_ratio: float | None = _ratio(0.3, "Most newlines per word")


ByLanguage = dict[str, dict[str, bool | int | float | None]]


def _checked(by_language: ByLanguage) -> ByLanguage:
    """Bring codes, keys and values to one form, so that equal meanings have one id."""
    checked: ByLanguage = {}
    for code, changes in by_language.items():
        language = policy_language(code)
        if language in checked:
            raise ValueError(f"{code}: language {language!r} is named twice")
        checked[language] = {
            key: _value(code, key, value) for key, value in sorted(changes.items())
        }
    return dict(sorted(checked.items()))


def _value(code: str, key: str, value: bool | int | float | None) -> Any:
    if key not in Thresholds.model_fields:
        raise ValueError(f"{code}.{key}: unknown key; {did_you_mean(key, Thresholds.model_fields)}")
    try:
        return getattr(Thresholds.model_validate({key: value}), key)
    except ValidationError as error:
        raise ValueError(f"{code}.{key}: {error.errors()[0]['msg']}, got {value!r}") from error


LanguageThresholds = Annotated[ByLanguage, AfterValidator(_checked)]


@dataclass(frozen=True)
class BatchThresholds:
    """Every rule's threshold for every document of a batch.

    Args:
        by_language: what differs from `thresholds` in a language.
        languages: of the batch's documents.
    """

    thresholds: Thresholds
    by_language: ByLanguage
    languages: Sequence[str | None]

    def of(self, rule: Rule) -> float | NDArray[np.float64] | None:
        """Return one threshold for all, one a document (NaN: off), or None where it is off."""
        common = rule.threshold(self.thresholds)
        others = {
            language: rule.threshold(self.thresholds.model_copy(update=changes))
            for language, changes in self.by_language.items()
            if rule.name in changes
        }
        if not others:
            return common
        thresholds = [others.get(name or "", common) for name in self.languages]
        return np.array([np.nan if b is None else b for b in thresholds], dtype=np.float64)


def broken_rules(
    columns: Mapping[str, NDArray[Any]],
    thresholds: Thresholds,
    by_language: ByLanguage | None = None,
    languages: Sequence[str | None] = (),
) -> dict[str, NDArray[np.bool_]]:
    """Return, for each rule that is on, which rows break it."""
    of_batch = BatchThresholds(thresholds, by_language or {}, languages)
    broken = {}
    for rule in RULES:
        threshold = of_batch.of(rule)
        if threshold is not None:
            broken[rule.name] = rule.breaks(columns[rule.column], threshold)
    return broken
