"""`lmpipe bench pii`: recall and precision of the masking by type, and what it must leave alone.

Three sets: labelled spans (presidio-research's synthetic texts); 1,000 generated cases a type, each
put between two words of a real sentence; and the version numbers, dates, hashes and ISBNs that real
documents hold, found by patterns of their own, with 1,000 generated ones of each beside them.
"""

import gzip
import json
import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field

from lmpipe.bench import Row, row
from lmpipe.curation.privacy.pii import TYPES, find, iban_end, luhn
from lmpipe.curation.text.words import split_sentences
from lmpipe.documents.text_files import json_lines
from lmpipe.errors import InputError

PRESIDIO = {
    "EMAIL_ADDRESS": "email", "IBAN_CODE": "iban", "CREDIT_CARD": "card", "US_SSN": "ssn",
    "IP_ADDRESS": "ip", "PHONE_NUMBER": "phone",
}  # fmt: skip
HARMLESS = {
    "version": re.compile(
        r"(?i)(?:\bv|\bversions? |\brelease )\d+(?:\.\d+){1,4}\b|(?<![\w.])\d+\.\d+\.\d+\b(?!\.\d)"
    ),
    "date": re.compile(
        r"\b(?:19|20)\d\d([-/.])\d\d?\1\d\d?\b|\b\d\d?([-/.])\d\d?\2(?:19|20)\d\d\b"
    ),
    "hash": re.compile(r"\b(?=[0-9a-f]*\d)[0-9a-f]{32,128}\b"),
    "isbn": re.compile(r"\bISBN(?:-1[03])?[:\s]*[\d-]{9,16}[\dXx]\b"),
}  # fmt: skip
FIRST_NAMES = ("anna", "li.wei", "Jean-Luc", "m_schmidt", "o'neil", "sales+eu", "x", "user2024")
DOMAINS = (
    "example.com",
    "mail.uni-bonn.de",
    "gmail.com",
    "dept.gov.uk",
    "firma.co.jp",
    "web.museum",
)
PHONES = (
    "+## ## #### ####", "+1 ###-###-####", "+1-###-###-####", "(###) ###-####", "###-###-####",
    "###.###.####", "+44 20 #### ####", "+49 30 ######", "+33 # ## ## ## ##", "+81-3-####-####",
    "+91 ##### #####", "+4477########", "1-###-###-####", "Tel. 0## ### ## ##",
    "phone: (0##) ### ####", "call 0#### ######",
)  # fmt: skip
IBANS = (("DE", "#" * 18), ("GB", "NWBK" + "#" * 14), ("FR", "#" * 23), ("NL", "ABNA" + "#" * 10),
         ("ES", "#" * 20), ("CH", "#" * 17), ("NO", "#" * 11), ("PL", "#" * 24))  # fmt: skip
CARDS = (("4", 16), ("51", 16), ("2221", 16), ("34", 15), ("37", 15), ("6011", 16), ("3528", 16))


class Options(BaseModel):
    """Where labelled spans and real documents are."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    spans: str = Field("", description="JSONL (.gz) of presidio-research; empty: without.")
    documents: str = Field(description="Parquet file of real documents, column `text`.")
    num_documents: int = Field(2000, ge=1, description="Documents read for what is harmless.")
    num_cases: int = Field(1000, ge=1, description="Generated cases a type.")
    seed: int = Field(0, description="Of the generated cases.")


def run(options: dict[str, Any]) -> list[Row]:
    """Return recall, precision and counts by type and set."""
    settings = Options.model_validate(options)
    texts = pq.read_table(settings.documents, columns=["text"])["text"].to_pylist()
    texts = texts[: settings.num_documents]
    rows = _labelled(Path(settings.spans)) if settings.spans else []
    rows += _scores("generated", generated_cases(texts, settings.num_cases, settings.seed))
    start = time.perf_counter()
    found = {kind: harmless_hits(texts, kind) for kind in HARMLESS}
    seconds = (time.perf_counter() - start) / len(HARMLESS)
    for kind, (seen, hit) in found.items():
        case = f"{kind} in {len(texts)} documents"
        rows.append(row("pii", "lmpipe", case, "seen", float(seen), ""))
        rows.append(row("pii", "lmpipe", case, "masked", float(len(hit)), ""))
    planted = plant_harmless(texts, settings.num_cases, settings.seed)
    for kind, cases in planted.items():
        hits = sum(bool(_overlapping(text, start, end)) for text, start, end in cases)
        case = f"{kind}, {len(cases)} generated"
        rows.append(row("pii", "lmpipe", case, "masked", float(hits), ""))
    rate = len(texts) / seconds
    return [*rows, row("pii", "lmpipe", "real documents", "throughput", rate, "documents/s")]


Case = tuple[str, list[tuple[int, int, str]]]  # text, spans with their types


def _labelled(path: Path) -> list[Row]:
    data = path.read_bytes()
    lines = json_lines(gzip.decompress(data) if path.suffix == ".gz" else data)
    cases: list[Case] = []
    for _, line in lines:
        entry = json.loads(line)
        spans = [
            (span["start_position"], span["end_position"], PRESIDIO[span["entity_type"]])
            for span in entry["spans"]
            if span["entity_type"] in PRESIDIO
        ]
        cases.append((entry["full_text"], spans))
    return _scores("labelled", cases)


def _scores(name: str, cases: list[Case]) -> list[Row]:
    """A span is found if one of ours of its type covers it; ours that cover none are false."""
    truth: Counter[str] = Counter()
    hit: Counter[str] = Counter()
    ours: Counter[str] = Counter()
    for text, spans in cases:
        found = find(text)
        ours.update(span.type for span in found)
        for start, end, type_ in spans:
            truth[type_] += 1
            hit[type_] += any(f.type == type_ and f.start <= start and f.end >= end for f in found)
    rows = []
    for type_ in TYPES:
        case = f"{name} {type_}"
        rows.append(row("pii", "lmpipe", case, "cases", float(truth[type_]), ""))
        rows.append(row("pii", "lmpipe", case, "recall", hit[type_] / max(1, truth[type_]), ""))
        rows.append(row("pii", "lmpipe", case, "precision", hit[type_] / max(1, ours[type_]), ""))
    return rows


def _overlapping(text: str, start: int, end: int) -> list[Any]:
    return [span for span in find(text) if span.start < end and span.end > start]


def harmless_hits(texts: list[str], kind: str) -> tuple[int, list[str]]:
    """Count what looks like `kind` in the texts; return which of it would be masked."""
    seen, hit = 0, []
    for text in texts:
        spans = find(text)
        for match in HARMLESS[kind].finditer(text):
            seen += 1
            if any(s.start < match.end() and s.end > match.start() for s in spans):
                hit.append(text[max(0, match.start() - 30) : match.end() + 30])
    return seen, hit


def _sentences(texts: list[str]) -> list[str]:
    """Return real sentences with two spaces at least and nothing personal in them."""
    found = []
    for text in texts:
        for line in text.splitlines():
            for sentence in map(str.strip, split_sentences(line)):
                if 40 < len(sentence) < 300 and len(sentence.split(" ")) > 4 and not find(sentence):
                    found.append(sentence)
    if not found:
        raise InputError("the documents hold no sentence of 40 to 300 characters; give others")
    return found


def generated_cases(texts: list[str], number: int, seed: int) -> list[Case]:
    """Put each generated value between two words of a real sentence."""
    draw = random.Random(seed)
    sentences = _sentences(texts)
    cases: list[Case] = []
    for type_ in TYPES:
        for _ in range(number):
            text, start, end = _planted(draw, sentences, _value(draw, type_))
            cases.append((text, [(start, end, type_)]))
    return cases


def plant_harmless(
    texts: list[str], number: int, seed: int
) -> dict[str, list[tuple[str, int, int]]]:
    """Put generated version numbers, dates, hashes and ISBNs between words of real sentences."""
    draw = random.Random(seed)
    sentences = _sentences(texts)
    return {
        kind: [_planted(draw, sentences, _harmless_value(draw, kind)) for _ in range(number)]
        for kind in HARMLESS
    }


def _planted(draw: random.Random, sentences: list[str], value: str) -> tuple[str, int, int]:
    """Put a value where no other number touches it: two of them side by side are a third one."""
    while True:
        words = draw.choice(sentences).split(" ")
        at = draw.randrange(1, len(words))
        if not re.search(r"\d", words[at - 1] + words[at]):
            break
    before = " ".join(words[:at]) + " "
    text = before + value + " " + " ".join(words[at:])
    bare = re.sub(r"^(?:Tel\. |phone: |call )", "", value)
    start = len(before) + len(value) - len(bare)
    return text, start, start + len(bare)


def _digits(draw: random.Random, pattern: str) -> str:
    return re.sub("#", lambda _: str(draw.randrange(10)), pattern)


def _value(draw: random.Random, type_: str) -> str:
    if type_ == "email":
        return f"{draw.choice(FIRST_NAMES)}{draw.randrange(100)}@{draw.choice(DOMAINS)}"
    if type_ == "phone":
        return _phone(draw)
    if type_ == "ip":
        return str(next(_public_addresses(draw)))
    if type_ == "card":
        return _card(draw)
    if type_ == "ssn":
        area = draw.choice([n for n in range(1, 900) if n != 666])
        return f"{area:03d}-{draw.randrange(1, 100):02d}-{draw.randrange(1, 10_000):04d}"
    return _iban(draw)


def _phone(draw: random.Random) -> str:
    pattern = draw.choice(PHONES)
    if pattern.startswith("+##"):
        pattern = f"+{draw.choice((34, 39, 41, 46, 61, 86))}{pattern[3:]}"
    value = _digits(draw, pattern)
    # American area and exchange codes begin with 2 to 9
    if re.fullmatch(r"(?:\+?1[ -])?\(?\d{3}\)?[ .-]\d{3}[.-]\d{4}", value):
        for code in (r"\d(?=\d\d\)?[ .-]\d{3}[.-])", r"\d(?=\d\d[.-]\d{4}$)"):
            value = re.sub(code, lambda _: str(draw.randrange(2, 10)), value)
    return value


def _public_addresses(draw: random.Random) -> Iterator[IPv4Address | IPv6Address]:
    while True:
        if draw.random() < 0.7:
            address: IPv4Address | IPv6Address = IPv4Address(draw.getrandbits(32))
        else:
            network = draw.choice((0x2001_0470, 0x2A00_1450, 0x2606_4700, 0x2600_1F18))
            address = IPv6Address((network << 96) | draw.getrandbits(draw.choice((16, 64, 96))) | 1)
        if address.is_global and not address.is_multicast:
            yield address


def _card(draw: random.Random) -> str:
    prefix, size = draw.choice(CARDS)
    body = prefix + _digits(draw, "#" * (size - len(prefix) - 1))
    number = next(body + str(check) for check in range(10) if luhn(body + str(check)))
    separator = draw.choice(("", " ", "-"))
    groups = (4, 6, 5) if size == 15 else (4, 4, 4, 4)
    starts = [sum(groups[:n]) for n in range(len(groups))]
    return separator.join(number[s : s + n] for s, n in zip(starts, groups, strict=True))


def _iban(draw: random.Random) -> str:
    country, pattern = draw.choice(IBANS)
    body = _digits(draw, pattern)
    value = next(
        candidate
        for candidate in (f"{country}{check:02d}{body}" for check in range(2, 99))
        if iban_end(candidate, 0)
    )
    if draw.random() < 0.5:
        value = " ".join(value[at : at + 4] for at in range(0, len(value), 4))
    return value


def _harmless_value(draw: random.Random, kind: str) -> str:
    if kind == "version":
        parts = [str(draw.randrange(30)) for _ in range(draw.choice((2, 3, 4)))]
        return draw.choice(("version ", "v", "Version ", "release ")) + ".".join(parts)
    if kind == "date":
        year, month, day = draw.randrange(1900, 2030), draw.randrange(1, 13), draw.randrange(1, 29)
        forms = (
            "{y}-{m:02}-{d:02}",
            "{d:02}.{m:02}.{y}",
            "{m}/{d}/{y}",
            "{d:02}-{m:02}-{y}",
            "{y}{m:02}{d:02}",
            "{y}-{m:02}-{d:02} 12:31:07",
        )
        return draw.choice(forms).format(y=year, m=month, d=day)
    if kind == "hash":
        return f"{draw.getrandbits(256):064x}"[: draw.choice((32, 40, 64))]
    isbn = f"978{draw.randrange(10**9):09d}"
    isbn += str(-sum(int(c) * (1 + 2 * (n % 2)) for n, c in enumerate(isbn)) % 10)
    if draw.random() < 0.5:
        return f"ISBN {isbn[:3]}-{isbn[3]}-{isbn[4:8]}-{isbn[8:12]}-{isbn[12]}"
    return draw.choice(("ISBN ", "ISBN-13: ", "")) + isbn
