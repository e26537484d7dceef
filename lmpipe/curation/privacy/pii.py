"""Personal data in running text: e-mail, phone, public IP addresses, payment cards, IBAN, US SSN.

Whatever has a checksum or a fixed form is found by it. What has none (national phone numbers, bare
digits) needs a cue word nearby, for a crawl holds more version numbers, dates, hashes and ISBNs
than phone numbers. A named-entity model finds names and addresses as well; it costs a thousand
times as much, and masks the names of authors and towns that a language model should know.

Left alone on purpose: private and documentation addresses (10.0.0.1, 2001:db8::1) and networks,
quadruples below 32 without a cue or at the head of a line before a full stop (versions and sections
look like that), IBANs and cards whose checksum is wrong, cards with no network's prefix and local
phone numbers without a cue, country codes and SSNs that are never issued.
"""

import ipaddress
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

TYPES = ("email", "iban", "card", "ssn", "ip", "phone")
CUE_CHARACTERS = 48


UNSPACED_CUE_CHARACTERS = 16  # 48 of them are two sentences


class Span(NamedTuple):
    """Where something personal stands in a text."""

    start: int
    end: int
    type: str


class Page(NamedTuple):
    """A text, and the same with a comma for each letter of a script without spaces.

    Han, kana, Thai and the like put no blank between words, and Korean particles follow without
    one. So an address or a number begins and ends at their letters, which `\\w` would take into it.
    """

    text: str
    plain: str

    def before(self, at: int) -> str:
        """Return the plain characters in which a cue may stand."""
        return self.plain[max(0, at - CUE_CHARACTERS) : at]


class Cue(NamedTuple):
    """Words that say what a number is: of scripts with spaces, and of those without."""

    spaced: re.Pattern[str]
    unspaced: re.Pattern[str]

    def is_near(self, page: Page, start: int, end: int) -> bool:
        """Say whether a cue stands before a number, or directly after it."""
        return bool(
            self.spaced.search(page.before(start))
            or self.spaced.search(page.plain[end : end + 12])
            or self.is_written_before(page, start)
        )

    def is_written_before(self, page: Page, at: int) -> bool:
        """Say whether a cue of a script without spaces stands before a place."""
        near = page.text[max(0, at - UNSPACED_CUE_CHARACTERS) : at]
        return bool(not near.isascii() and self.unspaced.search(near))


_UNSPACED = re.compile(
    "[\u0e00-\u0fff\u1000-\u11ff\u1780-\u17ff\u2e80-\u9fff\ua000-\ua4cf\ua960-\ua97f"
    "\uac00-\ud7ff\uf900-\ufaff\uff66-\uffdc\U00020000-\U000323af]"
)
_EMAIL = re.compile(
    r"(?<![\w.+@/-])[\w](?:[\w.+'%-]{0,62}[\w+-])?[@＠](?:[^\W_](?:[\w-]{0,61}[^\W_])?\.)+"
    r"([^\W\d_]{2,24})(?![\w@-]|\.\w+@)"
)
# A domain in Han, kana or Hangul: ended by a Latin ending, or by one of the few of its own script.
_EMAIL_UNSPACED = re.compile(
    r"(?<![A-Za-z0-9_.+@/-])[A-Za-z0-9](?:[A-Za-z0-9.+'%_-]{0,62}[A-Za-z0-9+_-])?@"
    r"[\u3005\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]{1,20}\."
    r"(?:[A-Za-z]{2,24}(?![A-Za-z0-9@-])|中国|中國|公司|网络|網絡|香港|台灣|台湾|한국|みんな|コム)"
)
_FILE_ENDINGS = frozenset(
    (
        "png",
        "jpg",
        "jpeg",
        "gif",
        "svg",
        "webp",
        "css",
        "js",
        "ts",
        "py",
        "html",
        "json",
        "xml",
        "so",
    )
)
_IBAN = re.compile(r"(?<![A-Za-z0-9])[A-Z]{2}\d{2}(?:[ -]?[A-Z0-9]){11,30}")
_CARD = re.compile(r"(?<![\w.,+/=&#%-])\d(?:[ -]?\d){11,18}(?![\w]|[.,-]\d|[%&=])")
_SSN = re.compile(
    r"(?<![\w.+/-])(?!000|666|9)\d{3}([- ]?)(?!00)\d{2}\1(?!0000)\d{4}(?![\w/-]|\.\d)"
)
_IPV4 = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?!\w|\.\d|\.in-addr)")
_IPV6 = re.compile(
    r"(?<![\w:.])[23][0-9A-Fa-f]{3}(?::[0-9A-Fa-f]{0,4}){2,7}(?![\w:])"
    r"|(?<![\w:.])[0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f]{1,4}){7}(?![\w:])"
)
_PHONE = re.compile(
    r"(?<![\w.+/=&#@-])"
    r"(?:(?P<plus>\+(?:\(?\d{1,4}\)?)[ .-]?(?:\(0\)[ .-]?)?)|(?P<zeros>00\d{1,3}[ .-])"
    r"|8[ -]?(?=\(\d))?"
    r"(?P<area>\(\d{2,5}\)[ .-]?|(?P<slash>\d{2,5} ?/ ?)(?=\d{2}))?"
    r"\d{1,5}(?:[ .－-]?\d{2,5}){0,4}"
    r"(?P<extension> ?(?:x|ext\.? ?)\d{1,5})?(?![\w]|[.,:/-]\d|[%=&])"
)
_AMERICAN = re.compile(
    r"(?:(?:\+|00)?1[ .-]?)?(?:\([2-9]\d{2}\) ?|[2-9]\d{2}[.-])[1-9]\d{2}[.-]\d{4}"
    r"(?: ?(?:x|ext\.? ?)\d{1,5})?"
)
_PHONE_CUE = Cue(
    re.compile(
        r"\b(?:tele)?phones?\b|\btel\b|\bfax\b|\bmobile\b|\bcell\b|\bdesk\b|\boffice\b|\bring\b"
        r"|\bdial\b|\bcall(?:ed|ing)?\b|\bsms\b|\btext(?:ed)? (?:me|us|him|her)\b|\bwhatsapp\b"
        r"|\bt[eé]l[eé](?:f[oó]n|ph(?:one|\b)|fax)|\bt[eé]l\b|\bmobil\b|\bhandy\b|\bm[oó]vil\b"
        r"|\bcelular|\bcellulare|\bappele[rz]\b|\banrufen\b|\banswering at\b"
        r"|\breach (?:me|us|him|her)\b|\bmessages to\b|\bhotline\b|\bcontact\b"
        r"|\bтел\b|\bтелефон|\bфакс|\bмоб(?:ил|\b)|\bзвон|\bпозвон|\bдзвон|\bконтакт|\bτηλ|\bφαξ",
        re.IGNORECASE,
    ),
    re.compile(
        "电话|電話|手机|手機|座机|热线|熱線|传真|傳真|致电|致電|拨打|撥打|来电|來電|联系|聯繫|聯絡|"
        "連絡|携帯|ファック?ス|ﾌｧｯｸｽ|問い合わせ|問合せ|ダイヤル|"
        "전화|휴대폰|휴대전화|핸드폰|연락처|팩스|문의|โทร|แฟกซ์"
    ),
)
_NUMBER_IS_OTHER = re.compile(
    r"\b(?:isbn|issn|doi|version|release|rfc|pep|bug|issue|ticket|section|chapter|page|line|port|"
    r"commit|hash|sha\d*|md5|date|cve|id|no\. of)\b[^\w\n]{0,3}\w{0,6}[^\w\n]{0,3}$",
    re.IGNORECASE,
)
_NUMBER_IS_OTHER_UNSPACED = re.compile(
    "(?:订单|訂單|编号|編號|版本|单号|注文|番号|品番|주문|번호)[^\\d\n]{0,4}$"
)
_NUMBER_IS_PHONES = re.compile("(?:电话|電話|手机|手機|전화|휴대폰)[^\\d\n]{0,4}$")
_SSN_CUE = re.compile(r"\bssn\b|social security", re.IGNORECASE)
_CARD_CUE = Cue(
    re.compile(
        r"\bcards?\b|\bvisa\b|\bmastercard\b|\bamex\b|\bcc\b|payment|\bкарт[аыуе]\b",
        re.IGNORECASE,
    ),
    re.compile("卡|カード|카드|บัตร"),
)
_IP_CUE = Cue(
    re.compile(
        r"\bip(?:v4)?\b|address|\bhosts?\b|\bserver|\bping|\bclient|connect|\bpeer\b|\bdns\b"
        r"|\bадрес|\bсервер|\bхост",
        re.IGNORECASE,
    ),
    re.compile("地址|服务器|伺服器|主机|主機|アドレス|サーバ|ホスト|주소|서버"),
)
_VERSION = re.compile(
    r"(?:\bv|\bversions?|\brelease|\bsections?|\bchapter|§|\bbuild|\bfirmware|\bdriver|[a-z]/)"
    r"\s*$"
    r"|\bver(?:sion)?s?\.?[^.\n]{0,12}$",
    re.IGNORECASE,
)
_HEADING = re.compile(r"\.\s|\s+[^\W\d_]")  # what follows a section's number
_COUNTRY = re.compile(  # calling codes that are assigned (ITU E.164)
    r"1|7|2[07]|21[1-368]|22\d|23\d|24\d|25[0-8]|26[0-9]|29[0179]|3[0-469]|35\d|37\d|38[0-35-79]|"
    r"4[0134-9]|42[013]|5[1-8]|50\d|59\d|6[0-6]|67[02-9]|68[0-35-9]|69[0-2]|8[1246]|80[08]|85[02356]|"
    r"870|88[0368]|9[0-58]|96[0-8]|97[0-79]|99[2-68]"
)
_IBAN_LENGTHS = {
    pair[:2]: int(pair[2:])
    for pair in re.findall(
        r"\w+",
        "AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BI27 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DJ27 "
        "DK18 DO28 EE20 EG29 ES24 FI18 FK18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HR21 HU28 IE22 "
        "IL23 IQ23 IS26 IT27 JO30 KW30 KZ20 LB28 LC32 LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 MK19 "
        "MN20 MR27 MT31 MU30 NI28 NL18 NO15 OM23 PK24 PL28 PS29 PT25 QA29 RO24 RS22 RU33 SA24 SC31 "
        "SD18 SE24 SI19 SK24 SM27 SO23 ST25 SV28 TL23 TN24 TR26 UA29 VA22 VG24 XK20",
    )
}


def find(text: str) -> list[Span]:
    """Return what is personal in a text, in order and without overlaps."""
    page = Page(text, text if text.isascii() else _UNSPACED.sub("、", text))
    found: list[Span] = []
    for type_, finder in _FINDERS:
        for start, end in finder(page):
            if all(end <= span.start or start >= span.end for span in found):
                found.append(Span(start, end, type_))
    return sorted(found)


def mask(text: str, spans: list[Span]) -> str:
    """Replace each span by its type in brackets: [EMAIL]."""
    parts, at = [], 0
    for span in spans:
        parts += [text[at : span.start], f"[{span.type.upper()}]"]
        at = span.end
    return "".join([*parts, text[at:]])


def _emails(page: Page) -> Iterator[tuple[int, int]]:
    if "@" in page.text or "＠" in page.text:
        for match in _EMAIL.finditer(page.plain):
            if match[1].lower() not in _FILE_ENDINGS and ".." not in match[0]:
                yield match.span()
        for match in _EMAIL_UNSPACED.finditer(page.text) if page.plain != page.text else ():
            if ".." not in match[0]:
                yield match.span()


def iban_end(text: str, start: int) -> int | None:
    """Return where the IBAN that starts there ends, if its length and checksum are right."""
    length = _IBAN_LENGTHS.get(text[start : start + 2])
    if length is None:
        return None
    compact, at = "", start
    while len(compact) < length and at < len(text):
        if text[at].isascii() and text[at].isalnum():
            compact += text[at]
        elif text[at] not in " -":
            return None
        at += 1
    if len(compact) < length or (at < len(text) and text[at].isalnum()):
        return None
    digits = "".join(str(int(character, 36)) for character in compact[4:] + compact[:4])
    return at if int(digits) % 97 == 1 else None


def _ibans(page: Page) -> Iterator[tuple[int, int]]:
    for match in _IBAN.finditer(page.plain):
        end = iban_end(page.plain, match.start())
        if end is not None:
            yield match.start(), end


def luhn(digits: str) -> bool:
    """Say whether a number's check digit is right."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit) * (1 + place % 2)
        total += value - 9 * (value > 9)
    return total % 10 == 0


def _is_card_number(digits: str, cued: bool) -> bool:
    """Know the networks' prefixes and lengths; any other number needs a cue as well."""
    size, first = len(digits), int(digits[:4])
    visa = size == 16 and digits[0] == "4"
    master = size == 16 and (51 <= first // 100 <= 55 or 2221 <= first <= 2720)
    amex = size == 15 and first // 100 in (34, 37)
    discover = size == 16 and (first == 6011 or first // 10 in range(644, 660))
    jcb = size == 16 and 3528 <= first <= 3589
    return cued or visa or master or amex or discover or jcb


def _cards(page: Page) -> Iterator[tuple[int, int]]:
    for match in _CARD.finditer(page.plain):
        digits = re.sub(r"[ -]", "", match[0])
        cued = _CARD_CUE.is_near(page, *match.span())
        if luhn(digits) and len(set(digits)) > 1 and _is_card_number(digits, cued):
            yield match.span()


def _ssns(page: Page) -> Iterator[tuple[int, int]]:
    for match in _SSN.finditer(page.plain):
        if match[1] == "-" or _SSN_CUE.search(page.before(match.start())):
            yield match.span()


def _ips(page: Page) -> Iterator[tuple[int, int]]:
    text = page.plain
    for match in _IPV4.finditer(text):
        parts = match[0].split(".")
        if any((len(part) > 1 and part[0] == "0") or int(part) > 255 for part in parts):
            continue
        before = page.before(match.start())
        with_port = re.compile(r":\d|/(?:8|16|24|32)\b").match(text, match.end())
        cued = bool(
            _IP_CUE.spaced.search(before)
            or _IP_CUE.is_written_before(page, match.start())
            or before.endswith("//")
            or with_port
        )
        if max(map(int, parts)) < 32 and not cued:
            continue
        if _HEADING.match(text, match.end()) and not before.split("\n")[-1].strip():
            continue
        if (_VERSION.search(before) and not before.endswith("//")) or not _is_public(match[0]):
            continue
        yield match.span()
    if ":" in text:
        for match in _IPV6.finditer(text):
            if _is_public(match[0]):
                yield match.span()


def _is_public(address: str) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv4Address):
        return parsed.is_global and not parsed.is_multicast
    if not int(parsed) & (2**64 - 1):  # a network and nobody's machine
        return False
    if int(parsed) >> 125 == 1:
        return parsed.is_global
    # outside 2000::/3 nothing is routed, but whole addresses of unusual form are written there
    groups = address.split(":")
    first_byte = int(parsed) >> 120
    unusual = len(groups) == 8 and max(map(len, groups)) > 2 and first_byte not in (0, 0xFF)
    return unusual and not parsed.is_private and not parsed.is_link_local


def _phones(page: Page) -> Iterator[tuple[int, int]]:
    for match in _PHONE.finditer(page.plain):
        start, end = match.span()
        number = match[0]
        digits = re.sub(r"\D", "", re.split(r" ?(?:x|ext)", number)[0].replace("(0)", ""))
        if not 7 <= len(digits) <= 15:
            continue
        if match["plus"]:
            # +12345678 alone may be an offset or a difference: a separator or ten digits tell
            parted = len(digits) >= 10 or re.search(r"\d[ .-]", number)
            good = len(digits) >= 8 and bool(parted and _COUNTRY.match(digits))
        elif _AMERICAN.fullmatch(number):
            good = not _is_other(page, start)
        else:
            good = _is_national(match, digits, page)
        if good:
            yield start, end


def _is_other(page: Page, at: int) -> bool:
    """Say whether the words before a number name something else: an ISBN, an order, a version."""
    near = page.text[max(0, at - UNSPACED_CUE_CHARACTERS) : at]
    other = _NUMBER_IS_OTHER_UNSPACED.search(near) and not _NUMBER_IS_PHONES.search(near)
    return bool(other or _NUMBER_IS_OTHER.search(page.before(at)))


def _is_national(match: re.Match[str], digits: str, page: Page) -> bool:
    """Believe a number without a country if a cue is near and it is nothing else."""
    number, (start, end) = match[0], match.span()
    cued = (
        _PHONE_CUE.spaced.search(page.before(start))
        or _PHONE_CUE.spaced.match(page.plain[end : end + 9].lstrip(" -\\"))
        or _PHONE_CUE.is_written_before(page, start)
    )
    shaped = match["area"] or match["zeros"] or number[0] == "0" or len(digits) >= 9
    isbn = len(digits) == 13 and digits.startswith(("978", "979"))
    return bool(
        cued
        and not isbn
        and (shaped or re.search(r"\d[ －-]\d", number))
        and (not match["slash"] or number[0] == "0")
        and ("." not in number or _is_dotted(number, digits))
        and not _is_other(page, start)
        and not _is_date(number)
    )


_DOTTED = re.compile(r"\d{2,5}(?:\.\d{2,8})+")  # 01.84.17.61.18, 089.1234567, 91.123.45.67
_THOUSANDS = re.compile(r"[1-9]\d{0,2}(?:\.\d{3})+")


def _is_dotted(number: str, digits: str) -> bool:
    """Tell a number parted by dots alone from a decimal, from thousands and from an IP address."""
    groups = number.split(".")
    like_ip = len(groups) == 4 and all(int(group) < 256 for group in groups if group.isdigit())
    return bool(
        _DOTTED.fullmatch(number)
        and not _THOUSANDS.fullmatch(number)
        and len(digits) >= 8
        and (number[0] == "0" or (len(digits) >= 9 and len(groups) > 2 and not like_ip))
    )


_DATE = re.compile(r"(?:19|20)\d\d[ .-]\d{1,2}[ .-]\d{1,2}|\d{1,2}[ .-]\d{1,2}[ .-](?:19|20)\d\d")
_YEARS = re.compile(r"(?:1[5-9]|20)\d\d(?:[ -](?:1[5-9]|20)\d\d)+")


def _is_date(number: str) -> bool:
    return bool(_DATE.match(number) or _YEARS.fullmatch(number))


_Finder = Callable[[Page], Iterator[tuple[int, int]]]
_FINDERS: tuple[tuple[str, _Finder], ...] = (
    ("email", _emails),
    ("iban", _ibans),
    ("card", _cards),
    ("ssn", _ssns),
    ("ip", _ips),
    ("phone", _phones),
)
