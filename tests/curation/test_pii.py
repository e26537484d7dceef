"""What is masked, what is left alone, and the stage that does it."""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given as each
from hypothesis import strategies as st

from lmpipe.bench.pii import generated_cases, plant_harmless
from lmpipe.curation.mask import MaskConfig, mask
from lmpipe.curation.pii import TYPES, find, iban_end, luhn
from lmpipe.curation.pii import mask as mask_text
from tests.curation.conftest import Workbench
from tests.curation.given import given, id_of, kept, removed, shards

EXAMPLES = Path(__file__).parents[2] / "flows/recipes/demo_data/quality/examples.jsonl"


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [json.loads(line)["text"] for line in EXAMPLES.read_text().splitlines()]


def found(text: str) -> list[tuple[str, str]]:
    return [(span.type, text[span.start : span.end]) for span in find(text)]


@pytest.mark.parametrize(
    ("text", "type_", "value"),
    [
        ("write to a.b+c@mail.example.org.", "email", "a.b+c@mail.example.org"),
        ("IBAN DE89 3704 0044 0532 0130 00 OK", "iban", "DE89 3704 0044 0532 0130 00"),
        ("pay with 4111 1111 1111 1111 now", "card", "4111 1111 1111 1111"),
        ("his SSN is 078-05-1120", "ssn", "078-05-1120"),
        ("from 8.8.8.8:53 it came", "ip", "8.8.8.8"),
        ("peer 2001:4860:4860::8888 answers", "ip", "2001:4860:4860::8888"),
        ("ring +49 (0)30 901820 today", "phone", "+49 (0)30 901820"),
        ("Fax: 345-899-3560x4587", "phone", "345-899-3560x4587"),
    ],
)
def test_each_type_is_found_whole(text: str, type_: str, value: str) -> None:
    assert found(text) == [(type_, value)]


@pytest.mark.parametrize(
    "text",
    [
        "localhost is 127.0.0.1, the router 192.168.0.1, an example 192.0.2.7 and 2001:db8::1",
        "upgrade to version 62.0.3202.94 of Chrome/62.0.3202.94",
        "49.6.4.13. Stream Stop Callback",
        "see Section 24.2.2.4 and 9.17.3.1 for more",
        "released 2024-01-15, 15.01.2024 and 01/15/2024",
        "md5 d41d8cd98f00b204e9800998ecf8427e, call 9780131103627 at most once",
        "ISBN 978-0-13-110362-7, phone book",
        "DE89 3704 0044 0532 0130 01 has a wrong checksum, so has 4111 1111 1111 1112",
        "icon@2x.png and std::vector and 12:34:56:78:90:ab:cd:ef",
        "from -2147483648 to +2147483647",
        "numbers 000-12-3456, 666-12-3456 and 912-12-3456 are never issued",
    ],
)
def test_versions_dates_hashes_and_numbers_are_left_alone(text: str) -> None:
    assert found(text) == []


def test_generated_cases_in_real_sentences_are_found_by_type(texts: list[str]) -> None:
    missed: Counter[str] = Counter()
    for text, spans in generated_cases(texts, 100, seed=7):
        ((start, end, type_),) = spans
        missed[type_] += not any(
            s.type == type_ and s.start <= start and s.end >= end for s in find(text)
        )
    assert set(missed) == set(TYPES)
    assert sum(missed.values()) <= 2, missed  # an address after the word "version"


def test_generated_versions_dates_hashes_and_isbns_are_left_alone(texts: list[str]) -> None:
    for kind, cases in plant_harmless(texts, 100, seed=7).items():
        hits = [t for t, a, b in cases if any(s.start < b and s.end > a for s in find(t))]
        assert hits == [], kind


@each(st.text(alphabet="0123456789", min_size=11, max_size=15))
def test_any_single_wrong_digit_breaks_a_card_number(body: str) -> None:
    number = next(body + str(check) for check in range(10) if luhn(body + str(check)))
    for at in range(len(number)):
        wrong = number[:at] + str((int(number[at]) + 1) % 10) + number[at + 1 :]
        assert not luhn(wrong)


def test_an_ibans_end_is_where_its_country_says() -> None:
    text = "NO93 8601 1117 947 AND MORE"
    assert iban_end(text, 0) == len("NO93 8601 1117 947")
    assert iban_end("XX93 8601 1117 947", 0) is None


@each(st.text(alphabet="ab@.:+-(1 9)0x/", max_size=60))
def test_spans_are_ordered_apart_and_masking_keeps_the_rest(text: str) -> None:
    spans = find(text)
    assert all(a.end <= b.start for a, b in pairwise(spans))
    rest = mask_text(text, spans)
    for span in reversed(spans):
        rest = rest.replace(f"[{span.type.upper()}]", "", 1)
    assert len(rest) == len(text) - sum(span.end - span.start for span in spans)


def test_the_stage_masks_the_chosen_types_and_removes_nothing(bench: Workbench) -> None:
    texts = {"a": "mail a@b.example, phone 555-867-5309", "b": "nothing here"}
    documents = bench.run(given, shards(texts))
    masked = bench.run(mask, MaskConfig(), documents)
    assert kept(masked) == {id_of("a"): "mail [EMAIL], phone [PHONE]", id_of("b"): "nothing here"}
    assert removed(masked) == {}
    assert masked.metrics["masked"] == {"email": 1, "phone": 1}
    assert masked.metrics["documents_masked"] == 1
    some = bench.run(mask, MaskConfig(types=("phone",)), documents)
    assert kept(some)[id_of("a")] == "mail a@b.example, phone [PHONE]"
    two = bench.run(mask, MaskConfig(), documents, workers=2)
    assert two.digest == masked.digest
