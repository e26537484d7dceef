"""The digests are those of the WHATWG Encoding Standard's indexes, by another implementation."""

import hashlib
import time

import pytest
from datatrove.data import Document

from lmpipe.curation.crawl.charset_labels import _NAMES, charset_of
from lmpipe.curation.crawl.charsets import decode
from lmpipe.curation.extraction.extractors import Extractor, MainText, extract_page

SINGLE = [
    "ibm866",
    "iso-8859-2",
    "iso-8859-3",
    "iso-8859-4",
    "iso-8859-5",
    "iso-8859-6",
    "iso-8859-7",
    "iso-8859-8",
    "iso-8859-8-i",
    "iso-8859-10",
    "iso-8859-13",
    "iso-8859-14",
    "iso-8859-15",
    "iso-8859-16",
    "koi8-r",
    "koi8-u",
    "macintosh",
    "windows-874",
    "windows-1250",
    "windows-1251",
    "windows-1252",
    "windows-1253",
    "windows-1254",
    "windows-1255",
    "windows-1256",
    "windows-1257",
    "windows-1258",
    "x-mac-cyrillic",
    "x-user-defined",
]
MULTI = ["big5", "euc-jp", "euc-kr", "gb18030", "gbk", "shift_jis", "iso-2022-jp"]


def units(charset: str) -> list[bytes]:
    """Return every byte, every pair with a byte above ASCII first, and what is longer."""
    found = [bytes((byte,)) for byte in range(256)]
    if charset in SINGLE:
        return found
    high = range(0x80, 0x100)
    found += [bytes((lead, trail)) for lead in high for trail in range(256)]
    if charset == "euc-jp":
        found += [bytes((0x8F, lead, trail)) for lead in high for trail in range(256)]
    if charset.startswith("gb"):
        found += [
            bytes((lead, 0x30 + second, third, 0x30 + fourth))
            for lead in (0x81, 0x82, 0x83, 0x84, 0x90, 0xE3, 0xE4, 0xFE)
            for second in range(10)
            for third in range(0x81, 0xFF, 5)
            for fourth in range(10)
        ]
    if charset == "iso-2022-jp":
        pairs = [bytes((lead, trail)) for lead in range(0x20, 0x80) for trail in range(0x20, 0x80)]
        found += [b"\x1b$B" + pair + b"\x1b(B" for pair in pairs]
        found += [b"\x1b(" + kind + bytes((byte,)) for kind in (b"J", b"I") for byte in range(256)]
    return found


def digest(texts: list[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


LABELS = "d9153e22e1ff5385"
STANDARD = {
    "big5": "3089c866310b5788",
    "euc-jp": "b44878f235f2b8ee",
    "euc-kr": "f421ebee147d7d3f",
    "gb18030": "9ec14c010c7739c1",
    "gbk": "9ec14c010c7739c1",
    "shift_jis": "afe61df68127c081",
    "iso-2022-jp": "540bf945e0d76878",
    "ibm866": "e4d6ff5ca5ada13a",
    "iso-8859-2": "f06000761c8bcf26",
    "iso-8859-3": "202a1b363622d2ae",
    "iso-8859-4": "f7076eceae60e496",
    "iso-8859-5": "93b826201406f5c1",
    "iso-8859-6": "7bd8ab9b93da30d5",
    "iso-8859-7": "6990b4f2c0f41585",
    "iso-8859-8": "3fece254a648dccd",
    "iso-8859-8-i": "3fece254a648dccd",
    "iso-8859-10": "4f9e6ea68a80234a",
    "iso-8859-13": "e0dc2e83c4600e7f",
    "iso-8859-14": "cc0467a122c68308",
    "iso-8859-15": "02da73e6cb687359",
    "iso-8859-16": "1695e6848a2fa540",
    "koi8-r": "4864274e118185ef",
    "koi8-u": "0fdfdda8e9261a58",
    "macintosh": "07da6af6067c9558",
    "windows-874": "17408160a539642a",
    "windows-1250": "01dd09bae2d209f4",
    "windows-1251": "64bc96a197c74f59",
    "windows-1252": "d486335e5257b059",
    "windows-1253": "9e4c70ccbbd0778f",
    "windows-1254": "390edd6fb0372487",
    "windows-1255": "eb0725777360879e",
    "windows-1256": "5526d72d1fce45fa",
    "windows-1257": "6df262bb978fac4d",
    "windows-1258": "4744ca2fc1f4eb72",
    "x-mac-cyrillic": "ce302a812a98d7f3",
    "x-user-defined": "eeb486ac8bd5c248",
}


@pytest.mark.parametrize("charset", [*MULTI, *SINGLE])
def test_every_unit_is_read_as_the_standard_has_it(charset: str) -> None:
    assert digest([decode(unit, charset) for unit in units(charset)]) == STANDARD[charset]


def test_the_labels_are_those_of_the_standard() -> None:
    assert len(_NAMES) == 228
    assert sorted({*_NAMES.values()}) == sorted(
        {*SINGLE, *MULTI, "utf-8", "utf-16le", "utf-16be", "replacement"}
    )
    listed = "\n".join(f"{label} {name}" for label, name in sorted(_NAMES.items()))
    assert digest([listed]) == LABELS


@pytest.mark.parametrize(
    ("label", "charset"),
    [
        ("ISO-8859-1", "windows-1252"),
        ("us-ascii", "windows-1252"),
        ("latin5", "windows-1254"),
        ("TIS-620", "windows-874"),
        ("iso-8859-11", "windows-874"),
        (" GB2312\n", "gbk"),
        ("ks_c_5601-1987", "euc-kr"),
        ("x-sjis", "shift_jis"),
        ("Big5-HKSCS", "big5"),
        ("iso-2022-kr", "replacement"),
        ("unicodefffe", "utf-16be"),
        ("x-mac-ukrainian", "x-mac-cyrillic"),
        ("utf-7", None),
        ("utf-32", None),
        ("cp65001", None),
        ("", None),
    ],
)
def test_a_label_stands_for_what_browsers_take_it_for(label: str, charset: str | None) -> None:
    assert charset_of(label) == charset


@pytest.mark.parametrize(
    ("charset", "body", "text"),
    [
        (
            "shift_jis",
            "第①章 ㈱山田商店の髙橋 三㎏ №7".encode("cp932"),
            "第①章 ㈱山田商店の髙橋 三㎏ №7",
        ),
        ("euc-jp", b"\xad\xa1\xfc\xe2 \x8f\xb0\xa1\x8e\xb1", "①髙 丂ｱ"),
        ("euc-kr", "됬으니 똠얌꿍 펲시".encode("cp949"), "됬으니 똠얌꿍 펲시"),
        ("big5", b"\xf9\xd6\xf9\xd9\xf9\xdb\xf9\xdc a", "碁墻粧嫺 a"),
        ("big5", b"\xa4\x40\xfb\x48\x88\x62\xa2\x41\xa1\xfe", "一嘅\xca\u0304∕／"),
        ("gbk", b"\x80 \x81\x30\x81\x30 \xa8\xbc", "€ \x80 ḿ"),
        ("windows-1252", b"\x93x\x94 \x81 \xe9", "“x” \x81 é"),
        ("windows-874", b"\x85\xa1 \xdb", "…ก \ufffd"),
        ("iso-2022-jp", b"a\x1b$B-!|b\x1b(J~\\\x1b(B~", "a①髙‾¥~"),
        ("x-user-defined", b"a\xff", "a\uf7ff"),
        ("replacement", b"anything", "\ufffd"),
        ("replacement", b"", ""),
    ],
)
def test_characters_that_pythons_codecs_lack_are_read(charset: str, body: bytes, text: str) -> None:
    assert decode(body, charset) == text


@pytest.mark.parametrize("charset", ["big5", "euc-jp", "euc-kr", "gbk", "shift_jis"])
@pytest.mark.parametrize("wrong", [b"\xfc", b"\xfc\xff", b"\x83\x0a", b"\x81"])
def test_a_wrong_lead_byte_takes_no_markup_with_it(charset: str, wrong: bytes) -> None:
    """Also far into a page, where pieces of it are read apart."""
    for text in ("", "日本 " * 400):
        body = text.encode(charset) + wrong + b"</p><p>x"
        ascii = wrong[1:] if wrong[1:] < b"\x80" else b""
        read = decode(body, charset)
        assert read.startswith(text)
        assert read.removeprefix(text).lstrip("\ufffd").startswith(ascii.decode() + "</p><p>x")


def test_pieces_of_a_large_page_join_as_if_it_were_one() -> None:
    text = "".join(f"文字{'語' * (n % 90)}{' ' * (n % 3)}" for n in range(3000))
    for charset in ("big5", "euc-jp", "gbk", "shift_jis", "iso-2022-jp"):
        assert decode(text.encode(charset), charset) == text
        assert decode(text.encode(charset) + b"\xff", charset) == text + "\ufffd"


@pytest.mark.parametrize("charset", ["big5", "euc-jp", "euc-kr", "gbk", "shift_jis"])
def test_a_large_page_with_wrong_bytes_costs_little(charset: str) -> None:
    """Measured: 0.3 s a MB where all of it is wrong, else 0.03; the bound is for busy machines."""
    line = "<p>日本語の文章</p>" if charset != "euc-kr" else "<p>오늘은 날씨가</p>"
    for body in (line.encode(charset) * 80_000 + b"\xff", "<p>Привет</p>".encode() * 60_000):
        start = time.process_time()
        decode(body, charset)
        assert time.process_time() - start < 2 * len(body) / 1e6


@pytest.mark.parametrize("extractor", ["cascade", "trafilatura", "trafilatura_fast", "resiliparse"])
@pytest.mark.parametrize(
    ("label", "codec", "sentence"),
    [
        ("Shift_JIS", "cp932", "㈱山田商店の髙橋社長は、第①章で製品の重さは三㎏だと説明します。"),
        ("euc-kr", "cp949", "이렇게 됬으니 내일 다시 가서 똠얌꿍을 먹고 펲시를 마시기로 했다."),
        ("big5", "cp950", "這棟房子的裏面有一面白色的墻，恒星的照片掛在上面，旁邊放著碁子。"),
        ("iso-8859-9", "cp1254", "Şirketin “yeni” ürünü – çığ gibi – her gün büyüyor, dediler."),
    ],
)
def test_every_extractor_gives_the_characters_of_the_charset(
    extractor: Extractor, label: str, codec: str, sentence: str
) -> None:
    html = f"<html><head><title>x</title></head><body><article><p>{sentence * 8}</p></article>"
    text, charset, _ = extract_page((extractor, html.encode(codec), label))
    assert sentence * 2 in text
    assert charset == charset_of(label)


def test_a_page_in_a_charset_that_no_browser_decodes_is_removed_by_name() -> None:
    page = Document(
        text="", id="a", metadata={"body": b"<p>~{<:Ky2;~}", "header_charset": "hz-gb-2312"}
    )
    (page,) = MainText("resiliparse", 20, 1 << 30).run(iter([page]))
    assert page.metadata["removed"] == "unread_charset"
