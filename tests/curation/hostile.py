"""Files as the web and other people's programs leave them, and what must become of each.

Everything is made here: legacy charsets, marks, damaged and cut archives, lengths that cannot be,
JSON and Parquet at their edges, and texts that trip rules about letters, words and numbers.
"""

import gzip
import hashlib
import io
import json
from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from tests.curation.warcs import response

SOME = -1
ANY_LOSS = ("named",)  # for one or more of these, and no other reason
LOSSES = {"truncated_record", "unreadable_archive", "bad_record_length", "page_too_large"}
UNREADABLE = ("unreadable_file",)


class HostileFile(NamedTuple):
    """A file, and what must become of it.

    Attributes:
        name: its name; the ending says how it is read.
        data: its bytes.
        kept: how many documents come out of it; SOME: as many as stand before the break.
        reasons: why the others do not, one reason each, sorted.
        says: what must stand in its documents.
        is_lossy: whether its bytes demand U+FFFD.
    """

    name: str
    data: bytes
    kept: int
    reasons: tuple[str, ...] = ()
    says: tuple[str, ...] = ()
    is_lossy: bool = False


ENGLISH = (
    "The committee met on Tuesday in the old town hall and spoke for a long time about the bridge "
    "over the river, which has been closed since the flood of last spring. "
)
# charset as a page calls it, Python's codec of what Windows and others then write, and the text
CHARSETS = (
    ("Shift_JIS", "cp932", "第①章 ㈱山田商店の髙橋社長は三㎏の米を買った。№7 表示 ソ能"),
    ("x-sjis", "cp932", "ｶﾀｶﾅと漢字、それから神様と福が来た。"),
    ("euc-jp", "euc_jp", "東京の図書館で古い地図を読んだ。丂丄"),
    ("iso-2022-jp", "iso2022_jp", "東京の図書館で古い地図を読んだ。"),
    ("gb2312", "gbk", "朱镕基在北京的图书馆里看书，他喜欢旧地图。"),
    ("gbk", "gbk", "我们昨天在北京看到了一座很老的桥。囍"),
    ("gb18030", "gb18030", "這是𠮷野家，㐀和𪚥都是漢字。"),
    ("big5", "cp950", "這棟房子的裏面有一面白色的墻，恒星的照片和圍碁。"),
    ("big5-hkscs", "big5hkscs", "佢哋喺香港食嘢，嘅咗嚟。"),
    ("euc-kr", "cp949", "이렇게 됬으니 똠얌꿍을 먹고 펲시를 마셨다."),
    ("ks_c_5601-1987", "cp949", "서울의 도서관에서 오래된 지도를 읽었다. 뷁"),
    ("tis-620", "cp874", "“เราอ่านหนังสือในห้องสมุด” … และดื่มน้ำ"),
    ("windows-874", "cp874", "เมื่อวานเราไปดูสะพานเก่าในเมือง"),
    ("iso-8859-1", "cp1252", "“Café” – naïve … 5 € für Œuvres, Žižek"),
    ("iso-8859-9", "cp1254", "İstanbul’da ığdır ve şeker – “çok güzel”"),
    ("koi8-r", "koi8_r", "Вчера мы видели старый мост над рекой."),
    ("windows-1251", "cp1251", "Вчора ми бачили старий міст – «дуже гарний» №5."),
    ("windows-1255", "cp1255", "אתמול ראינו גשר ישן מעל הנהר."),
    ("windows-1256", "cp1256", "رأينا أمس جسرا قديما فوق النهر."),
    ("iso-8859-8-i", "iso8859_8", "אתמול ראינו גשר ישן."),
    ("macintosh", "mac_roman", "“Café” — naïve … Ωmega ≠ π"),
    ("utf-8", "utf-8", "한국어 ไทย עברית 𝄞 हिन्दी ক্ষুদ্র தமிழ்"),
)


def html(body: bytes, head: bytes = b"") -> bytes:
    """Return a page whose article holds a paragraph of such bytes and one of plain prose."""
    prose = f"<p>{ENGLISH * 4}</p>".encode()
    start = b"<!doctype html><html><head>" + head + b"<title>Page</title></head><body><article><p>"
    return start + body + b"</p>" + prose + b"</article></body></html>"


def record(body: bytes, name: str, content_type: str | None = "text/html", **options: str) -> bytes:
    """Return the WARC record of a page, under an id and a URL of its own."""
    headers = tuple(f"{key.replace('_', '-')}: {value}" for key, value in options.items())
    url, identity = f"http://hostile.example/{name}", f"<urn:uuid:{name}>"
    return response(body, url=url, record_id=identity, content_type=content_type, headers=headers)


def packed(*records: bytes) -> bytes:
    """Return records as gzip members."""
    return b"".join(gzip.compress(each, mtime=0) for each in records)


def _charsets() -> list[HostileFile]:
    by_header, by_meta = [], []
    for label, codec, text in CHARSETS:
        body = text.encode(codec)
        by_header.append(record(html(body), f"h-{label}", f"text/html; charset={label}"))
        by_meta.append(record(html(body, b"<meta charset='%s'>" % label.encode()), f"m-{label}"))
    texts = tuple(text for _, _, text in CHARSETS)
    return [
        HostileFile("charset-header.warc.gz", packed(*by_header), len(texts), says=texts),
        HostileFile("charset-meta.warc.gz", packed(*by_meta), len(texts), says=texts),
    ]


def _marks() -> list[HostileFile]:
    text = "The bell rang: 鐘 is 𝄞"
    page = html(text.encode()).decode()
    bodies = (
        b"\xef\xbb\xbf" + page.encode(),
        b"\xff\xfe" + page.encode("utf-16-le"),
        b"\xfe\xff" + page.encode("utf-16-be"),
        page.encode("utf-16-le"),  # seen by its NULs
        page.encode("utf-16-be"),
    )
    # a mark counts more than the header's charset
    records = [
        record(body, f"mark{n}", "text/html; charset=windows-1252") for n, body in enumerate(bodies)
    ]
    korean = html("한국".encode("iso2022_kr"))
    lossy = (
        record(html(b"caf\xe9 \xff\xc0\x80 \xed\xa0\x80"), "wrong", "text/html; charset=utf-8"),
        record(html(b"\x81\xff \x82<b>x</b>"), "lead", "text/html; charset=shift_jis"),
    )
    return [
        HostileFile("marks.warc.gz", packed(*records), 5, says=(text,) * 5),
        HostileFile(
            "unread.warc.gz",
            packed(record(korean, "kr", "text/html; charset=iso-2022-kr")),
            0,
            ("unread_charset",),
        ),
        HostileFile("wrong-bytes.warc.gz", packed(*lossy), 2, says=("caf",), is_lossy=True),
        HostileFile(
            "nonsense-label.warc.gz",
            packed(record(html("naïve 鐘".encode()), "n", "text/html; charset=x-nonsense; \"'")),
            1,
            says=("naïve 鐘",),
        ),
    ]


def _markup() -> list[HostileFile]:
    many = b"</p><p>".join([b"<i>a</i> " * 250] * 100)
    pages = {
        "tags": html(many),
        "nested": html(b"<div>" * 2_000 + b"deep words" + b"</div>" * 2_000),
        "unclosed": html(b"<font><b>" * 400 + b"bold words"),
        "spans": html(b'<table><tr><td colspan="9007199254740991" rowspan=-1>wide</table>'),
        "references": html(b"&#0; &#x110000; &#xFFFFFFFFFFFF; &#128; &notanentity; &amp after"),
        "controls": html(b"a\x00b\x01c\x0bd\x0ce\x1bf\x7f g\xe2\x80\xa8h\xc2\x85i\xef\xbf\xbe"),
        "open": html(b"<!-- a - comment --! > -- --> no <b <i =x> text </p"),
        "bidi": html("\u202e evil \u2066\u2069 zero\u200bwidth\u200d\ufe0f".encode()),
    }
    empty = {
        "nothing": b"",
        "blank": b" \r\n\t ",
        "nuls": b"\0" * 5_000,
        "only-tags": b"<html><body>" + b"<div></div>" * 200 + b"</body></html>",
    }
    return [
        HostileFile(
            "markup.warc.gz",
            packed(*(record(body, name) for name, body in pages.items())),
            len(pages),
            says=("The committee met",) * len(pages),
            is_lossy=True,  # a reference to no character is U+FFFD
        ),
        HostileFile(
            "no-text.warc.gz",
            packed(*(record(body, name) for name, body in empty.items())),
            0,
            ("no_text",) * len(empty),
        ),
    ]


def _bodies() -> list[HostileFile]:
    """Content and transfer encodings that lie, break off, or ask for too much."""
    plain = html(b"one plain page")
    zst = zstandard.compress(plain)
    good = {
        "zstd": zst,
        "zstd ": zstandard.compress(plain[:100]) + zstandard.compress(plain[100:]),
        "zstd, identity": plain,  # decoded by the crawler, header and all
        "gzip": plain,
        "identity": plain,
        "utf-8": plain,
    }
    noise = hashlib.shake_256(b"noise").hexdigest(200_000).encode()  # more than a block of zstd
    long = plain.replace(b"</body>", b"<!-- " + noise + b" --></body>")
    cut = {"gzip": gzip.compress(long)[:-400], "zstd": zstandard.compress(long)[:-9]}
    bad = {
        "zstd": b"\x28\xb5\x2f\xfd" + b"\xff" * 60,
        "zstd ": long_window(plain, 31),
        "br": b"\xff" * 60,
        "deflate": b"\xff" * 60,
        "gzip": b"\x1f\x8b\x08" + b"\xff" * 60,
        "compress": plain,
        "x-gzip": gzip.compress(plain)[:12],  # nothing of it can be read
        "zstd  ": zst[:12],
    }
    chunks = b"fffffffffffffff\r\n" + plain
    return [
        HostileFile(
            "encodings.warc.gz",
            packed(
                *(record(b, f"g{n}", Content_Encoding=e) for n, (e, b) in enumerate(good.items())),
                record(chunks, "chunks", Transfer_Encoding="chunked"),
                record(plain, "none", Transfer_Encoding="chunked", Content_Encoding=" , ,"),
            ),
            len(good) + 2,
            says=("one plain page",) * (len(good) + 2),
        ),
        HostileFile(
            "cut-encodings.warc.gz",
            packed(*(record(b, f"c-{e}", Content_Encoding=e) for e, b in cut.items())),
            2,
            says=("The committee met",) * 2,
        ),
        HostileFile(
            "bad-encodings.warc.gz",
            packed(
                *(record(b, f"b{n}", Content_Encoding=e) for n, (e, b) in enumerate(bad.items()))
            ),
            0,
            ("unreadable_body",) * len(bad),
        ),
        HostileFile(
            "bomb.warc.gz",
            packed(
                record(gzip.compress(b"<p>" + b"0" * 11_000_000), "bomb", Content_Encoding="gzip"),
                record(zstandard.compress(b"0" * 11_000_000), "bomb2", Content_Encoding="zstd"),
            ),
            0,
            ("page_too_large",) * 2,
        ),
    ]


def long_window(data: bytes, window_log: int) -> bytes:
    """Return a zstd frame that asks its reader for 2 ** window_log bytes."""
    settings = zstandard.ZstdCompressionParameters.from_level(1, window_log=window_log)
    compressor = zstandard.ZstdCompressor(compression_params=settings).compressobj()
    return compressor.compress(data) + compressor.flush()


def _pages(name: str, count: int = 3) -> list[bytes]:
    return [record(html(b"page %d of them" % n), f"{name}{n}") for n in range(count)]


def _archives() -> list[HostileFile]:
    """Archives that are damaged, cut, or written by others."""
    files = [
        HostileFile("empty.warc", b"", 0),
        HostileFile("empty.warc.gz", b"", 0),
        HostileFile("empty-member.warc.gz", gzip.compress(b"", mtime=0), 0, ANY_LOSS),
        HostileFile("noise.warc", b"no record \0\xff\r\n" * 50, 0, ("unreadable_archive",)),
        HostileFile("padded.warc", b"".join(_pages("padded")) + b"\0" * 4096, 3),
    ]
    changes: dict[str, Callable[[bytes], bytes]] = {
        "lower": bytes.lower,
        "upper": bytes.upper,
        "strange": lambda name: name.swapcase(),
    }
    for case, change in changes.items():
        for ending, pack in ((".warc", b"".join), (".warc.gz", lambda all_: packed(*all_))):
            name = f"names-{case}{ending}"
            records = [_renamed(each, change) for each in _pages(name)]
            files.append(HostileFile(name, pack(records), 3, says=("page 2 of them",)))
    for n, length in enumerate(("-1", "9" * 25, "9" * 15, "0x10", "1e9", "")):
        for ending in (".warc", ".warc.gz"):
            name = f"length{n}{ending}"
            records = _pages(name)
            head, _, rest = records[1].partition(b"Content-Length: ")
            value = rest.partition(b"\r\n")
            records[1] = head + b"Content-Length: " + length.encode() + b"\r\n" + value[2]
            data = b"".join(records) if ending == ".warc" else packed(*records)
            files.append(HostileFile(name, data, 2, ANY_LOSS, says=("page 0", "page 2")))
    files += [
        _cut("cut-body.warc", b"".join(_pages("cut-body"))[:-300], 2),
        _cut("cut-header.warc", b"".join(_pages("cut-header")[:2]) + _pages("x")[2][:90], 2),
        _cut("cut.warc.gz", packed(*_pages("cutgz"))[:-60], 2),
        _cut("cut.warc.zst", zstandard.compress(b"".join(_pages("cutzst")))[:-30], SOME),
        _cut("damaged.warc.gz", _damaged(), 2),
    ]
    bad = record(html(b"x"), "status")
    files.append(
        HostileFile(
            "http-headers.warc.gz",
            packed(
                bad.replace(b"HTTP/1.1 200 OK", b"HTTP/1.1 2OO 0K"),
                bad.replace(b"HTTP/1.1 200 OK", b"ICY 20000000000000000000 OK"),
                bad.replace(b"HTTP/1.1 200 OK", b"\0\xff\xfe\xfd garbage!!"),
            ),
            0,
            ("bad_http_header",) * 3,
        )
    )
    url = record(html(b"named in Latin-1"), "urlXXXX").replace(b"urlXXXX", b"url\xe9\xff[]")
    files.append(HostileFile("url-bytes.warc.gz", packed(url), 1, says=("named in Latin-1",)))
    inner = record(b"".join(_pages("inner")), "outer", "application/warc")
    files.append(HostileFile("archive-in-archive.warc.gz", packed(inner, *_pages("outside")), 3))
    files.append(HostileFile("archive-in-archive.warc", inner + b"".join(_pages("outer")), 3))
    return files + _arcs()


def _cut(name: str, data: bytes, kept: int) -> HostileFile:
    return HostileFile(name, data, kept, ANY_LOSS)


def _renamed(data: bytes, change: Callable[[bytes], bytes]) -> bytes:
    head, end, rest = data.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    fields = [line.partition(b":") for line in lines]
    return b"\r\n".join([first, *(change(n) + c + value for n, c, value in fields)]) + end + rest


def _damaged() -> bytes:
    members = [packed(each) for each in _pages("damaged")]
    half = len(members[1]) // 2
    members[1] = members[1][:half] + bytes(byte ^ 0x5A for byte in members[1][half:])
    return b"".join(members)


def _arcs() -> list[HostileFile]:
    def line(n: int, body: bytes, size: object = None) -> bytes:
        size = len(body) if size is None else size
        return f"http://arc.example/{n} 1.2.3.4 20010203040506 text/html {size}\n".encode()

    def arc(*parts: bytes) -> bytes:
        about = b"1 0 Archive\nURL IP-address Archive-date Content-type Archive-length\n\n"
        first = b"filedesc://a.arc 0.0.0.0 20010203040506 text/plain %d\n" % len(about)
        return first + about + b"\n" + b"\n".join(parts) + b"\n"

    bodies = [
        b"HTTP/1.0 200 OK\r\nContent-Type: text/html\r\n\r\n" + html(b"arc page %d" % n)
        for n in range(3)
    ]
    good = [line(n, body) + body for n, body in enumerate(bodies)]
    broken = [good[0], line(1, bodies[1], "9" * 30) + bodies[1], good[2]]
    return [
        HostileFile("good.arc", arc(*good), 3, says=("arc page 2",)),
        HostileFile("length.arc", arc(*broken), 2, ANY_LOSS, says=("arc page 0", "arc page 2")),
        _cut("cut.arc", arc(*good)[:-200], 2),
        _cut("cut.arc.gz", gzip.compress(arc(*good), mtime=0)[:-40], SOME),
    ]


def archive_files() -> list[HostileFile]:
    """Return the archives that extract must bear."""
    return [*_charsets(), *_marks(), *_markup(), *_bodies(), *_archives()]


# texts that trip rules about letters, words, numbers and names
TEXTS = {
    "pii-zh": "请联系张三，邮箱zhang.san@example.com谢谢。服务器8.8.8.8已经停机。",
    "pii-ja": "お問い合わせはtaro@example.co.jpまでお願いします。電話03-1234-5678へどうぞ。",
    "pii-ko": "문의는kim@example.kr으로 주세요. 카드 4111 1111 1111 1111을 쓰세요.",
    "pii-thai": "ติดต่อsomchai@example.co.thได้ตลอดเวลา",
    "look-alikes": "Тhe соmmittее mеt оn Тuеsdаy аnd ѕроkе fоr а lоng timе аbout thе bridgе.",
    "operators": "a = b + c; x != y && !(z <= w) || p ->* q; i++ ** 2 // 3 ... ??? :=",
    "operators-2": "a = b - c; x == y && !(z <= w) || p ->* q; i-- ** 2 // 3 ... ??? :=",
    "indic": "किताब की कीमत कितनी है और कल कौन आया था। ক্ষুদ্র কথা বলা হয়েছে।",
    "indic-2": "कताब क कमत कतन ह और कल कन आय थ। কষদর কথ বল হযছ।",
    "numbers": "1234 5678 90 12.5 % 2024-01-01 " * 20,
    "signs": "★☆★ !!! ??? --- ... " * 30,
    "emoji": "👨‍👩‍👧‍👦 🏳️‍🌈 ℹ️ 🇩🇪 " * 20,
    "controls": "a\u0001b\u0002 c\u001b[0m d\u007f e\u0085f\u2028g\u2029h\ufeffi\ufffej\uffff",
    "marks-only": "\u0301\u0302\u0940 " * 50,
    "bidi": "\u202eesrever\u202c \u2066x\u2069 zero\u200bwidth soft\u00adhyphen",
    "one-word": "w" * 20_000,
    "brackets": "[" * 2_000 + "(" * 2_000 + "{" * 2_000,
    "decomposed": "Cafe\u0301 ha\u0308tte \u1112\u1161\u11ab\u1100\u1173\u11af",
    "special": "The file ends with <|endoftext|> and <|user|> begins <|end|>.",
    "lines": "\n".join(["the same line of a menu, with a few words in it"] * 60),
    "prose": ENGLISH * 6,
    "prose-2": ENGLISH.upper() * 6,
    "prose-3": (ENGLISH * 6).replace("the", "the\u200b"),
}
HIDDEN = "the nine grey herons of the upper lake returned before the ice had left the reeds"


def as_rows(texts: dict[str, str]) -> bytes:
    """Return JSON Lines of texts, each under an address that ends in its key."""
    rows = [
        {"text": text, "url": f"http://text.example/{key}", "date": "2024-01-01"}
        for key, text in texts.items()
    ]
    return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)


def parquet(table: pa.Table) -> bytes:
    """Return a table as a Parquet file."""
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()


def _json_files() -> list[HostileFile]:
    separators = '{"text": "one\u2028row\u2029and\u0085one", "url": "http://["}\n{"text": "two"}\n'
    good = separators.encode()
    bad: tuple[tuple[bytes, str], ...] = (
        (b"[" * 100_000, "invalid_json"),
        (b'{"text": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", "invalid_json"),
        (b'{"text": "latin \xe9"}', "invalid_json"),
        (b'{"text": "cut', "invalid_json"),
        (b'{"n": ' + b"9" * 10_000 + b"}", "invalid_json"),
        (b"\0\0\0\0", "invalid_json"),
        (b"NaN", "no_json_object"),
        (b'["text"]', "no_json_object"),
        (b'{"TEXT": "x"}', "no_text_field"),
        (b'{"text": null}', "no_text_field"),
        (b'{"text": 1e999}', "text_is_no_string"),
        (b'{"text": {"text": "x"}}', "text_is_no_string"),
        (b'{"text": " \\n\\t\\u3000 "}', "no_text"),
        (b'{"text": "\\u0000\\u0000 \\u0000"}', "no_text"),
    )
    halves = b'{"text": "half \\ud83d", "url": "http://a.example/\\udc00", "date": "\\udfff"}\n'
    files = [
        HostileFile("texts.jsonl", as_rows(TEXTS), len(TEXTS), says=(TEXTS["pii-zh"],)),
        HostileFile("separators.jsonl", good, 2, says=("one\u2028row\u2029and\u0085one", "two")),
        HostileFile("halves.jsonl", halves, 1, says=("half \ufffd",), is_lossy=True),
        HostileFile(
            "bad.jsonl", b"\n".join(line for line, _ in bad), 0, tuple(sorted(r for _, r in bad))
        ),
        HostileFile("blank.jsonl", b"\n \r\n\t\n", 0),
        HostileFile("empty.jsonl", b"", 0),
        HostileFile("odd.jsonl", b'{"text": "x", "url": {"a": 1}, "date": [NaN, 1e999]}', 1),
    ]
    for name, mark in (("utf-8", "\ufeff"), ("utf-16", ""), ("utf-32", "")):  # the latter add it
        data = (mark + separators).encode(name)
        files.append(HostileFile(f"{name}.jsonl", data, 2, says=("one\u2028row", "two")))
    return files


def _packed_files() -> list[HostileFile]:
    rows = b"".join(b'{"text": "row %d"}\n' % n for n in range(400))
    return [
        HostileFile("good.jsonl.gz", gzip.compress(rows[:36]) + gzip.compress(rows[36:72]), 4),
        HostileFile("plain.jsonl.gz", rows, 0, ("unreadable_file",)),
        HostileFile("plain.jsonl.zst", rows, 0, ("unreadable_file",)),
        HostileFile("cut.jsonl.gz", gzip.compress(rows)[:-30], SOME, UNREADABLE),
        HostileFile("cut.jsonl.zst", zstandard.compress(rows)[:-9], SOME, UNREADABLE),
        HostileFile("empty.jsonl.gz", b"", 0),
        HostileFile("empty.jsonl.zst", b"", 0),
        HostileFile("wide.jsonl.zst", long_window(rows, 31), 0, ("zstd_window_too_large",)),
    ]


def _text_files() -> list[HostileFile]:
    text = "The bell of the chapel rang.\r\nNobody knew why: 鐘 𝄞\u2028."
    plain = text.replace("\r\n", "\n")
    return [
        HostileFile("plain.txt", text.encode(), 1, says=(plain,)),
        *(
            HostileFile(f"{name}.txt", (mark + text).encode(name), 1, says=(plain,))
            for name, mark in (("utf-8", "\ufeff"), ("utf-16", ""), ("utf-32", ""))
        ),
        HostileFile("latin.txt", "caf\xe9 and more".encode("latin-1"), 1, is_lossy=True),
        HostileFile("cut16.txt", text.encode("utf-16")[:-1], 1, is_lossy=True),
        HostileFile("empty.txt", b"", 0, ("no_text",)),
        HostileFile("mark.txt", b"\xef\xbb\xbf", 0, ("no_text",)),
        HostileFile("nuls.txt", b"\0" * 999, 0, ("no_text",)),
        HostileFile("cut.txt.gz", gzip.compress(b"some words")[:-4], 0, ("unreadable_file",)),
    ]


def _parquet_files() -> list[HostileFile]:
    good = parquet(pa.table({"text": ["p one", None, "p\0two"], "XXXX": [1, 2, 3]}))
    footer = int.from_bytes(good[-8:-4], "little")
    return [
        HostileFile("good.parquet", good, 2, ("no_text_field",), says=("p one", "ptwo")),
        HostileFile("names.parquet", good.replace(b"XXXX", b"\xff\xfe\xff\xfe"), 0, UNREADABLE),
        HostileFile("cut.parquet", good[:-20], 0, UNREADABLE),
        HostileFile("half.parquet", good[: len(good) // 2], 0, UNREADABLE),
        HostileFile("empty.parquet", b"", 0, UNREADABLE),
        HostileFile("noise.parquet", b"PAR1" + b"\xff" * 400 + b"PAR1", 0, UNREADABLE),
        HostileFile("length.parquet", good[:-8] + b"\xff\xff\xff\x7fPAR1", 0, UNREADABLE),
        HostileFile(
            "footer.parquet",
            good[: -8 - footer] + b"\xff" * footer + good[-8:],
            0,
            UNREADABLE,
        ),
        HostileFile("rows0.parquet", parquet(pa.table({"text": pa.array([], pa.string())})), 0),
        HostileFile(
            "types.parquet",
            parquet(pa.table({"text": [b"\xff", b"bytes"]})),
            0,
            ("text_is_no_string",) * 2,
        ),
    ]


def document_files() -> list[HostileFile]:
    """Return the files of rows and texts that import_documents must bear."""
    return [*_json_files(), *_packed_files(), *_text_files(), *_parquet_files()]
