import math
from pathlib import Path

from lmpipe.curation.quality.perplexity import PerplexityModel, normalise_lines

MODEL = Path(__file__).parents[3] / "flows/recipes/demo_data/models/english-3gram.kenlm"


def test_lines_are_normalised_as_in_training() -> None:
    assert list(normalise_lines("It's 2024.\n\n \nTHE End")) == ["it's 0000 .", "the end"]


def test_prose_is_less_surprising_than_its_words_in_disorder() -> None:
    score = PerplexityModel(MODEL)
    prose = "This document describes the conventions that are used in the standard library."
    disorder = " ".join(sorted(prose.split()))
    first, second = score(prose), score(disorder)
    assert first is not None and second is not None
    assert first < second / 2
    assert math.isfinite(second)


def test_perplexity_counts_line_ends_and_not_blank_lines() -> None:
    score = PerplexityModel(MODEL)
    line = "the conventions are used in the library ."
    assert score(line) == score(f"{line}\n\n{line}\n")
    assert score(" \n") is None
