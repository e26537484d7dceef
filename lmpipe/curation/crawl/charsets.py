"""Decode the charsets of the web as browsers do: by the WHATWG Encoding Standard.

Python's codecs do the work where they agree with the standard, which was compared for every lead
and trail byte; the differences are the tables below. Where a codec refuses a text, the few hundred
bytes around are cut into the standard's own units, each looked up alone. What a charset lacks
becomes U+FFFD and takes no ASCII with it: a lone lead byte before `<` costs itself only. Without
the codecs, the standard's indexes would be 70,000 characters of tables in this package.
"""

import codecs
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

REPLACED = "\ufffd"
UNREAD = "replacement"  # the standard's name of charsets that no browser decodes
_PIECE_BYTES = 512  # cut after a byte below 0x30, which is in no charset a lead or trail
_CUT = re.compile(rb"[\x00-\x2f]")

# what the standard has and big5hkscs lacks, or has elsewhere: a pair of bytes in hexadecimal, and
# the characters from there on (HKSCS of 2008, its duplicates, control pictures, cp950's signs)
_BIG5 = """
877a㡵𡵓𣚞𦀡㻬𥣞㫵竼龗𤅡𨤍𣇪𠪊𣉞䌊蒄龖鐯䤰蘓墖靊鈘秐稲晠権袝瑌篅枂稬剏遆㓦珄𥶹瓆鿇垳䤯呌䄱𣚎堘穲𧭥讏䚮𦺈䆁𥶙箮𢒼鿈𢓁𢓉𢓌鿉蔄𣖻䂴鿊䓡𪷿拁灮鿋
8e69箸 8e6f簆 8e7e糎 8eab緒 8eb4縝 8ecd者 8ed0耨 8f57菁 8f69蒨 8f6e萏 8fcb覦覩 8ffe起
906d都 907a銹 90dc靜 90f1響 91bf鼖 9244蔃 92af兙兛兝兞 92c8鍮 92d1瑹 9447浧 94ca禛 95d9邗
9644靝 96ed瀞 96fc嬨 9b76爁 9b78矗 9b7b纇 9bc6駖 9bde釔 9bec惞 9bf6澶 9c42輶 9c53侻
9c62營 9c68鄄 9c6b鷰 9c77菏 9cbc尐秣 9cd0婧 9d57輋 9d5a筑 9dc4拐 9ea9恢 9eef痹 9efd汊
9f60鬮 9f66鼗 9fcb僭 9fd8弌 a063蠏 a077拎 a0d5瑨 a0df煢 a0e4牐 a241∕﹨
a3c0␀␁␂␃␄␅␆␇␈␉␊␋␌␍␎␏␐␑␒␓␔␕␖␗␘␙␚␛␜␝␞␟␡€
c6cf廴 c6d3无 c6d5癶 c6d7隶 c6de〃仝 fa5f倩 fa66偽 fabd包 fac5卄 fad5卿 fb48嘅 fbb8婷
fbf3幵 fbf9廐 fc4f彘 fc6c悤 fcb9撐 fce2晴 fcf1杞 fdb7沜渝 fdbb港 fdf1煮 fe52猪 fe6f瑜
feaa瓩 fedd砉
"""
# characters that a codec gives and the standard does not; each comes from one sequence alone
_BIG5_SIGNS = str.maketrans("•､‾∼♁☉¥¢£", "‧﹑¯～⊕⊙￥￠￡")
_SHIFT_JIS = str.maketrans(dict.fromkeys("\uf8f0\uf8f1\uf8f2\uf8f3", REPLACED))
_EUC_JP = str.maketrans("\u301c\u2016\u2212\xa2\xa3\xac", "\uff5e\u2225\uff0d\uffe0\uffe1\uffe2")
_GB18030 = str.maketrans(
    "\ue5e5\ue78d\ue78e\ue78f\ue790\ue791\ue792\ue793\ue794\ue795\ue796\ue7c7\u1e3f"
    "\ue81e\ue826\ue82b\ue82c\ue832\ue843\ue854\ue864",
    "\u3000\ufe10\ufe12\ufe11\ufe13\ufe14\ufe15\ufe16\ufe17\ufe18\ufe19\u1e3f\ue7c7"
    "\u9fb4\u9fb5\u9fb6\u9fb7\u9fb8\u9fb9\u9fba\u9fbb",
)
_KOI8_U = {0xAE: "\u045e", 0xBE: "\u040e"}
_WINDOWS_1255 = {0xCA: "\u05ba"}
_SINGLE = {  # Python's names, where they differ, of charsets of one byte a character
    "iso-8859-8-i": "iso-8859-8",
    "macintosh": "mac_roman",
    "windows-874": "cp874",
    "x-mac-cyrillic": "mac_cyrillic",
}


def decode(body: bytes, charset: str) -> str:
    """Decode bytes; what the charset does not have becomes U+FFFD.

    Args:
        charset: a name that `charset_of` gave.

    Cost:
        About 0.03 s a MB; iso-2022-jp 0.2 s.
    """
    if charset in ("utf-8", "utf-16le", "utf-16be"):
        return body.decode(charset, "replace")
    if charset == UNREAD:
        return REPLACED if body else ""
    if charset == "iso-2022-jp":
        return _iso_2022_jp(body)
    if charset in _MULTI:
        return _MULTI[charset].decode(body)
    return codecs.charmap_decode(body, "replace", _single(charset))[0]


class _MultiByte(dict[str, str]):
    """A charset of several bytes a character: units, as Latin-1, and what they stand for.

    Args:
        codec: Python's, which is right wherever it accepts a unit, up to `fix` and `doubtful`.
        unit: a unit that begins with a lead byte, as a regular expression.
        fix: characters of the codec that are others in the standard, wherever they come from.
        doubtful: characters of the codec that are others if they come from some units.
        lost: ASCII that a wrong unit takes with it, if it ends in it.
    """

    def __init__(
        self,
        codec: str,
        unit: str,
        fix: dict[int, Any] | None = None,
        *,
        doubtful: str = "",
        lost: str = "",
    ) -> None:
        super().__init__()
        self._codec, self._fix, self._lost = codec, fix or {}, lost
        self._signs = [chr(code) for code in self._fix]
        self._doubtful = doubtful
        self._units = re.compile(rf"(?s)[\x00-\x7f]+|{unit}|.")

    def decode(self, body: bytes) -> str:
        """Decode piece by piece: by the codec or, where it does not do, unit by unit."""
        return "".join(map(self._piece, _pieces(body)))

    def _piece(self, piece: bytes) -> str:
        try:
            text = piece.decode(self._codec)
        except UnicodeDecodeError:
            return self._by_units(piece)
        if any(sign in text for sign in self._doubtful):
            return self._by_units(piece)
        return text.translate(self._fix) if any(sign in text for sign in self._signs) else text

    def _by_units(self, piece: bytes) -> str:
        return "".join(map(self.__getitem__, self._units.findall(piece.decode("latin-1"))))

    def __missing__(self, unit: str) -> str:
        if unit < "\x80":  # a run of ASCII
            return unit
        text = self.one(unit.encode("latin-1"))
        if text is None:
            is_kept = unit[-1] < "\x80" and unit[-1] not in self._lost
            text = REPLACED + unit[-1] if is_kept else REPLACED
        if len(unit) < 4:  # of those of four bytes there are a million
            self[unit] = text
        return text

    def one(self, unit: bytes) -> str | None:
        """Return what one unit stands for; None: it is wrong."""
        try:
            return unit.decode(self._codec).translate(self._fix)
        except UnicodeDecodeError:
            return None


class _Big5(_MultiByte):
    """big5 with the characters of ETEN and of Hong Kong."""

    def one(self, unit: bytes) -> str | None:
        return _big5_table().get(unit) or super().one(unit)


class _EucJp(_MultiByte):
    """euc-jp with the rows of NEC and IBM."""

    def one(self, unit: bytes) -> str | None:
        if unit == b"\x8f\xa2\xb7":  # to the codec, ASCII's tilde
            return "\uff5e"
        text = super().one(unit)
        if text is None and len(unit) == 2 and min(unit) > 0xA0 and max(unit) < 0xFF:
            return _jis0208(*unit)
        return text


@lru_cache(1)
def _big5_table() -> dict[bytes, str]:
    trails = [*range(0x40, 0x7F), *range(0xA1, 0xFF)]
    table = {}
    for run in _BIG5.split():
        lead, first = bytes.fromhex(run[:4])
        for place, character in enumerate(run[4:], trails.index(first)):
            pair = bytes((lead + place // len(trails), trails[place % len(trails)]))
            table[pair] = character
    return table


def _jis0208(first: int, second: int) -> str | None:
    """Return a character of JIS X 0208 by its bytes in EUC, through its place in Shift_JIS."""
    row, place = divmod((first - 0xA1) * 94 + second - 0xA1, 188)
    lead = row + (0x81 if row < 0x1F else 0xC1)
    trail = place + (0x40 if place < 0x3F else 0x41)
    try:
        return bytes((lead, trail)).decode("cp932")
    except UnicodeDecodeError:
        return None


_PAIR = r"[\x81-\xfe].?"
_MULTI: dict[str, _MultiByte] = {
    "big5": _Big5("big5hkscs", _PAIR, _BIG5_SIGNS, doubtful="／＼"),
    "euc-jp": _EucJp("euc_jp", r"\x8f[\xa1-\xfe].?|[\x8e\x8f\xa1-\xfe].?", _EUC_JP, doubtful="~"),
    "euc-kr": _MultiByte("cp949", _PAIR),
    "gb18030": _MultiByte(
        "gb18030",
        r"[\x81-\xfe](?:[0-9][\x81-\xfe][0-9]|[0-9][\x81-\xfe]?\Z|[^0-9])?",
        _GB18030,
        lost="0123456789",
    ),
    "shift_jis": _MultiByte("cp932", r"[\x81-\x9f\xe0-\xfc].?", _SHIFT_JIS),
}
_MULTI["gb18030"]["\x80"] = "\u20ac"
_MULTI["gbk"] = _MULTI["gb18030"]


def _pieces(body: bytes) -> Iterator[bytes]:
    """Cut where no unit is cut, so that one wrong byte costs little, and a large page no memory."""
    at = 0
    while at < len(body):
        cut = _CUT.search(body, at + _PIECE_BYTES)
        end = cut.end() if cut else len(body)
        yield body[at:end]
        at = end


@lru_cache(40)
def _single(charset: str) -> str:
    """Return the 256 characters of a charset; U+FFFE stands for none, as Python's codecs have it.

    The standard gives the bytes that windows leaves open below 0xA0 to the C1 controls.
    """
    if charset == "x-user-defined":
        return "".join(chr(byte if byte < 0x80 else 0xF700 + byte) for byte in range(256))
    more = {"koi8-u": _KOI8_U, "windows-1255": _WINDOWS_1255}.get(charset, {})
    codec = _SINGLE.get(charset, charset)
    characters = []
    for byte in range(256):
        try:
            character = bytes((byte,)).decode(codec)
        except UnicodeDecodeError:
            character = chr(byte) if byte < 0xA0 else "\ufffe"
        characters.append(more.get(byte, character))
    return "".join(characters)


_ESCAPE = re.compile(rb"\x1b(\([BJI]|\$[@B])")
_JIS_PAIRS = re.compile(rb"(?:[\x21-\x7e]{2})*")
_HIGH = bytes(byte | 0x80 for byte in range(256))
_JIS_UNIT = re.compile(r"(?s)[\x21-\x7e][^\x1b]?|.")
_ASCII = "".join(
    chr(b) if b < 0x80 and b not in (0x0E, 0x0F, 0x1B) else "\ufffe" for b in range(256)
)
_ROMAN = _ASCII.replace("\\", "\xa5").replace("~", "\u203e")
_KATAKANA = "".join(chr(0xFF40 + b) if 0x21 <= b <= 0x5F else "\ufffe" for b in range(256))


def _iso_2022_jp(body: bytes) -> str:
    """Decode ISO-2022-JP; an escape after which nothing comes but another is an error."""
    first, *rest = _ESCAPE.split(body)
    texts = [codecs.charmap_decode(first, "replace", _ASCII)[0]]
    tables = {b"(B": _ASCII, b"(J": _ROMAN, b"(I": _KATAKANA}
    for number, (escape, data) in enumerate(zip(rest[::2], rest[1::2], strict=True)):
        if number and not rest[2 * number - 1]:
            texts.append(REPLACED)
        if escape in tables:
            texts.append(codecs.charmap_decode(data, "replace", tables[escape])[0])
        elif _JIS_PAIRS.fullmatch(data):
            texts.append(_MULTI["euc-jp"].decode(data.translate(_HIGH)))
        else:
            texts += map(_jis_unit, _JIS_UNIT.findall(data.decode("latin-1")))
    return "".join(texts)


def _jis_unit(unit: str) -> str:
    if len(unit) < 2 or not "\x21" <= unit[1] <= "\x7e":
        return REPLACED
    return _jis0208(ord(unit[0]) | 0x80, ord(unit[1]) | 0x80) or REPLACED
