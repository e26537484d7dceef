"""The measures against plain Python, and the rules against datatrove's filters."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmpipe.bench.rules import FILTERS
from lmpipe.bench.rules import disagreements as disagreements_on_spacy
from lmpipe.curation.quality.c4 import line_facts
from lmpipe.curation.quality.measures import measure
from lmpipe.curation.quality.rules import Thresholds, broken_rules
from lmpipe.curation.text.words import (
    character_classes,
    codes_of,
    count_sentences,
    split_sentences,
    split_words,
)

EXAMPLES = Path(__file__).parents[3] / "flows/recipes/demo_data/quality/examples.jsonl"

_BY_LABEL = {label: names for _, label, names in FILTERS.values()}
QUALITY, REPETITION = _BY_LABEL["gopher quality"], _BY_LABEL["gopher repetition"]
C4, FINEWEB = _BY_LABEL["c4"], _BY_LABEL["fineweb"]


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Real documents, whole, doubled, and with their lines shuffled into a list."""
    data = EXAMPLES.read_bytes()
    rows = [json.loads(line) for line in data.decode().splitlines()]
    real = [row["text"].strip() for row in rows]
    doubled = [f"{text}\n\n{text[: len(text) // 4]}" for text in real[::4]]
    listed = ["\n".join(f"- {line}..." for line in text.splitlines()) for text in real[::5]]
    joined = ["\n\n".join(real[at : at + 6]) for at in range(0, len(real) - 6, 3)]
    return real + doubled + listed + joined + ["Lorem ipsum dolor sit amet. " * 20, "a b c"]


@pytest.fixture
def filters(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Any, dict[str, str]]]]:
    """datatrove's filters with our word and sentence splitter in place of spaCy."""
    from datatrove.pipeline.filters import (
        c4_filters,
        fineweb_quality_filter,
        gopher_quality_filter,
        gopher_repetition_filter,
    )

    def words(text: str, language: str = "") -> list[str]:
        return split_words(text)

    def sentences(text: str, language: str = "") -> list[str]:
        return split_sentences(text)

    for module in (gopher_quality_filter, gopher_repetition_filter, fineweb_quality_filter):
        monkeypatch.setattr(module, "split_into_words", words)
    monkeypatch.setattr(c4_filters, "split_into_sentences", sentences)
    yield [
        (gopher_quality_filter.GopherQualityFilter(), QUALITY),
        (gopher_repetition_filter.GopherRepetitionFilter(), REPETITION),
        (c4_filters.C4QualityFilter(), C4),
        (fineweb_quality_filter.FineWebQualityFilter(), FINEWEB),
    ]


def disagreements(texts: list[str], filters: list[tuple[Any, dict[str, str]]]) -> list[str]:
    """Compare each document's fate, and that our broken rules hold datatrove's first reason."""
    from datatrove.data import Document

    broken = broken_rules(measure(texts), Thresholds())
    found = []
    for number, text in enumerate(texts):
        ours = {rule for rule, rows in broken.items() if rows[number]}
        for block, names in filters:
            verdict = block.filter(Document(text=text, id=str(number)))
            reason = None if verdict is True else names[verdict[1]]
            mine = ours & set(names.values())
            if (reason is None) != (not mine) or (reason and reason not in mine):
                found.append(f"document {number}: datatrove {reason}, lmpipe {sorted(mine)}")
    return found


def test_the_rules_decide_as_datatroves_filters_on_the_same_words(
    texts: list[str], filters: list[tuple[Any, dict[str, str]]]
) -> None:
    assert len(texts) > 500
    assert disagreements(texts, filters) == []


def test_the_rules_decide_as_datatroves_filters_on_spacys_words_and_sentences(
    texts: list[str],
) -> None:
    assert disagreements_on_spacy([text[:2000] for text in texts[::17]]) == []


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="ab .!?\"')]。！…{[1\n\r\u2028\U0001f600", max_size=70))
def test_the_compiled_pass_counts_the_sentences_that_the_strings_do(text: str) -> None:
    fast = line_facts(text, codes_of(text), character_classes())
    assert fast == line_facts(text, codes_of(text), character_classes(), count_sentences)


def test_the_comparison_sees_every_rule_family_fire(texts: list[str]) -> None:
    broken = broken_rules(measure(texts), Thresholds())
    fired = {rule for rule, rows in broken.items() if rows.any() and not rows.all()}
    assert len(fired) >= 20
    for family in ("gopher_max_duplicate", "gopher_max_top", "c4_", "fineweb_"):
        assert any(rule.startswith(family) for rule in fired), family


def plain_grams(words: list[str], length: int) -> dict[str, float]:
    """The repetition measures over words, as the paper words them."""
    result = {}
    for n in (2, 3, 4):
        grams = [tuple(words[at : at + n]) for at in range(len(words) - n + 1)]
        most = max(Counter(grams).values(), default=0)
        first = next((g for g in grams if Counter(grams)[g] == most), ())
        characters = most * len(" ".join(first))
        result[f"top_{n}_gram_character_fraction"] = characters / length
    for n in range(5, 11):
        seen, at, repeated = set(), 0, 0
        while at <= len(words) - n:
            gram = tuple(words[at : at + n])
            if gram in seen:
                repeated += sum(map(len, gram))
                at += n
            else:
                seen.add(gram)
                at += 1
        result[f"duplicate_{n}_gram_character_fraction"] = repeated / length
    return result


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["a", "bb", "ccc", "the", "…", "é"]), min_size=1, max_size=60))
def test_repetition_equals_the_papers_definition(words: list[str]) -> None:
    text = " ".join(words)
    signals = measure([text])
    for name, value in plain_grams(split_words(text), len(text)).items():
        assert signals[name][0] == np.float32(value), name


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="ab.…-# \n\r\x85•?。", max_size=80))
def test_line_measures_equal_plain_python(text: str) -> None:
    signals = {name: values[0] for name, values in measure([text]).items()}
    lines = text.splitlines()
    bullets = sum(line.lstrip().startswith(("•", "-")) for line in lines)
    dotted = sum(line.rstrip().endswith(("...", "…")) for line in lines)
    assert signals["bullet_line_fraction"] == np.float32(bullets / max(1, len(lines)))
    assert signals["ellipsis_line_fraction"] == np.float32(dotted / max(1, len(lines)))
    full = [line for line in text.split("\n") if line.strip()]
    ended = sum(line.endswith((".", "?", "。")) for line in full)
    short = sum(len(line) <= 30 for line in full)
    assert signals["punctuated_line_fraction"] == np.float32(ended / max(1, len(full)))
    assert signals["short_line_fraction"] == np.float32(short / max(1, len(full)))
    words = split_words(text)
    ellipses = text.count("...") + text.count("…")
    assert signals["num_words"] == len(words)
    assert signals["ellipsis_word_ratio"] == np.float32(ellipses / max(1, len(words)))


def test_blank_lines_are_no_duplicates() -> None:
    text = "\n\n\n\n".join(
        f"Paragraph number {n} says the thing and more of it." for n in "abcdefgh"
    )
    signals = measure([text])
    assert signals["duplicate_line_fraction"][0] == 0
    assert signals["duplicate_paragraph_fraction"][0] == 0


def test_a_batch_gives_what_each_document_gives_alone(texts: list[str]) -> None:
    few = [*texts[:20], "", " \n", "ひらがな漢字"]
    whole = measure(few)
    for number, text in enumerate(few):
        alone = measure([text])
        assert all(whole[name][number] == alone[name][0] for name in whole)


def test_c4_lines_with_scripts_or_policies_carry_no_sentences() -> None:
    good = "This line has a sentence in it.\n" * 5
    policy = "Please read our privacy policy before you go on.\nEnable JavaScript to see this.\n"
    signals = measure([good + policy, policy, "Too short.\nwhere no mark ends a line of words"])
    assert signals["num_sentences"].tolist() == [5, 0, 0]


def test_fractions_at_a_bound_are_within_it() -> None:
    text = "\n".join(["- one two three"] * 9 + ["other words here"])  # bullets: exactly 0.9
    broken = broken_rules(measure([text]), Thresholds())
    assert not broken["gopher_max_bullet_line_fraction"][0]
    stricter = Thresholds(gopher_max_bullet_line_fraction=0.89)
    assert broken_rules(measure([text]), stricter)["gopher_max_bullet_line_fraction"][0]


def test_a_rule_without_a_bound_removes_nothing() -> None:
    off = {name: None for name in Thresholds.model_fields if not name.startswith("c4_no")}
    thresholds = Thresholds(**off, c4_no_lorem_ipsum=False, c4_no_curly_bracket=False)
    assert broken_rules(measure(["x"]), thresholds) == {}
