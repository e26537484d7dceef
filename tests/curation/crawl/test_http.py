import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmpipe.curation.crawl.http import (
    BodyTooLargeError,
    decode_body,
    decode_text,
    join_chunks,
    page_charset,
)

LIMIT = 1 << 20


@given(st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=6))
def test_chunks_with_extensions_and_trailers_are_joined(pieces: list[bytes]) -> None:
    chunked = b"".join(b'%x;note="x"\r\n%s\r\n' % (len(piece), piece) for piece in pieces)
    assert join_chunks(chunked + b"0\r\nLink: <x>\r\n\r\n") == b"".join(pieces)


@pytest.mark.parametrize("body", [b"<html>not chunked at all", b"", b"zz\r\nbody"])
def test_a_body_that_only_claims_to_be_chunked_is_kept(body: bytes) -> None:
    assert decode_body(body, "chunked", "", LIMIT) == body


def test_what_a_wrong_chunk_size_leaves_is_kept() -> None:
    assert join_chunks(b"5\r\nhello\r\nxx world").startswith(b"hello")


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        ("gzip", gzip.compress(b"text " * 100, mtime=0)),
        ("deflate", zlib.compress(b"text " * 100)),
        ("deflate", zlib.compress(b"text " * 100)[2:-4]),
        ("identity", b"text " * 100),
        ("gzip", b"text " * 100),
    ],
)
def test_content_encodings_are_undone_or_seen_to_be_undone_already(
    encoding: str, packed: bytes
) -> None:
    assert decode_body(packed, "", encoding, LIMIT) == b"text " * 100


def test_brotli_and_zstd_are_undone_and_unknown_encodings_named() -> None:
    import io

    import zstandard
    from fastwarc.stream_io import BrotliWriter

    packed = io.BytesIO()
    writer = BrotliWriter(packed)
    writer.write(b"text " * 100)
    writer.close()
    data = packed.getvalue()
    assert decode_body(data, "", "br", LIMIT) == b"text " * 100
    assert decode_body(zstandard.compress(b"abc"), "", "zstd", LIMIT) == b"abc"
    with pytest.raises(ValueError, match="unknown content encoding 'compress'"):
        decode_body(b"x", "", "compress", LIMIT)


def test_a_truncated_gzip_body_gives_what_can_be_read() -> None:
    text = bytes(range(256)) * 200
    packed = gzip.compress(text, mtime=0)
    read = decode_body(packed[: len(packed) // 2], "", "gzip", LIMIT)
    assert 0 < len(read) < len(text)
    assert text.startswith(read)


def test_a_zip_bomb_stops_at_the_bound() -> None:
    bomb = gzip.compress(b"\0" * (50 << 20))
    with pytest.raises(BodyTooLargeError):
        decode_body(bomb, "", "gzip", LIMIT)


META = b'<html><head><meta charset="iso-8859-2"></head>'


@pytest.mark.parametrize(
    ("body", "header", "charset"),
    [
        (b"\xef\xbb\xbf" + META, "koi8-r", "utf-8"),  # the mark beats all
        (META, "koi8-r", "koi8-r"),  # the header beats the meta element
        (META, None, "iso-8859-2"),
        (META, "no-such-charset", "iso-8859-2"),
        (b"<script>" + b"x" * 20_000 + b"</script>" + META, None, "iso-8859-2"),
        (b"<meta http-equiv=Content-Type content='text/html; charset=gb2312'>", None, "gbk"),
        ("<p>Привет, как дела, друзья мои</p>".encode("koi8-r") * 20, None, "koi8-r"),
        (b"<meta charset=utf-16>", None, "utf-8"),
    ],
)
def test_charsets_come_from_mark_then_header_then_meta_then_detection(
    body: bytes, header: str | None, charset: str
) -> None:
    assert page_charset(body, header) == charset


MARK = b"\xef\xbb\xbf"
CHINESE = "<p>今天天气很好，我们一起去公园散步，晚上回家吃饭。</p>" * 30


@pytest.mark.parametrize("detected", [True, False])
@pytest.mark.parametrize("meta", [b"windows-1251", b"no-such-charset", None])
@pytest.mark.parametrize("header", ["koi8-r", "no-such-charset", "", None])
@pytest.mark.parametrize("mark", [MARK, b""])
def test_each_source_of_a_charset_decides_only_where_all_before_it_are_silent(
    mark: bytes, header: str | None, meta: bytes | None, detected: bool
) -> None:
    head = b"<html><head><meta charset=%s></head>" % meta if meta else b"<html>"
    text = CHINESE.encode("gbk") if detected else b"<p>plain</p>"
    if mark:
        expected = {"utf-8"}
    elif header == "koi8-r":
        expected = {"koi8-r"}
    elif meta == b"windows-1251":
        expected = {"windows-1251"}
    else:
        expected = {"gbk", "gb18030"} if detected else {"utf-8"}
    assert page_charset(mark + head + text, header) in expected


@pytest.mark.parametrize("filler_bytes", [0, 900, 16_000, 60_000, 200_000])
@pytest.mark.parametrize("label", [b"gb2312", b"GB2312", b"gbk", b"gb18030"])
def test_chinese_is_read_however_late_its_charset_is_declared(
    label: bytes, filler_bytes: int
) -> None:
    filler = b"<script>" + b"x" * filler_bytes + b"</script>"
    meta = b'<meta http-equiv="Content-Type" content="text/html; charset=%s">' % label
    # beyond GB2312, as pages are that call themselves so
    text = CHINESE + "<p>朱镕基</p>"
    body = b"<html><head>" + filler + meta + b"</head>" + text.encode("gbk")
    assert text in decode_text(body, page_charset(body, None))


@pytest.mark.parametrize("hiding", [
    b"<!-- <meta charset=koi8-r> -->",
    b"<!-- <meta charset=koi8-r> a comment without an end",
    b"<script>document.write('<meta charset=koi8-r>')</script>",
    b'<SCRIPT type="text/x">var a = "<meta charset=koi8-r>"</SCRIPT>',
    b"<style>/* <meta charset=koi8-r> */</style>",
    b"<title><meta charset=koi8-r></title>",
    b"<textarea><meta charset=koi8-r></textarea>",
    b'<meta name=description content="how to declare charset=koi8-r">',
    b'<meta data-charset=x name=k content="charset=koi8-r">',
    b"<meta charset=no-such-charset>",
])  # fmt: skip
def test_a_meta_element_that_is_none_or_says_nothing_is_not_believed(hiding: bytes) -> None:
    assert page_charset(b"<html><head>" + hiding + b"<p>plain", None) == "utf-8"
    if b"without an end" not in hiding:
        real = b"<html><head>" + hiding + b"<meta charset='iso-8859-2'><p>plain"
        assert page_charset(real, None) == "iso-8859-2"


@pytest.mark.parametrize("meta", [
    b"<META CHARSET = 'windows-1251' >",
    b"<meta charset=windows-1251/>",
    b'<meta content="text/html;charset=windows-1251" http-equiv="Content-Type">',
    b"<meta\nhttp-equiv=content-type\ncontent='application/xhtml+xml; Charset = windows-1251'>",
    b'<meta content="text/html; charset=windows-1251">',
])  # fmt: skip
def test_meta_elements_are_read_however_they_are_written(meta: bytes) -> None:
    assert page_charset(b"<html><!-- a page --><head>" + meta, None) == "windows-1251"


@pytest.mark.parametrize("header", [None, "utf-8", "iso-8859-1", "utf-16"])
@pytest.mark.parametrize("charset", ["utf-16le", "utf-16be"])
@pytest.mark.parametrize("text", ["plain words", "Привет, друзья", "今天天气很好，我们去公园"])
def test_utf_16_without_a_mark_is_seen_by_its_nuls(
    text: str, charset: str, header: str | None
) -> None:
    html = f"<!DOCTYPE html><html><head><meta charset=utf-16></head><p>{text * 20}</p></html>"
    body = html.encode(charset)
    assert page_charset(body, header) == charset
    assert decode_text(body, page_charset(body, header)) == html


@pytest.mark.parametrize("body", [b"", b"\0\0", b"\0" * 5000, b"<p>a\0b a\0 and</p>" * 9, b"a\0"])
def test_stray_nuls_are_no_utf_16(body: bytes) -> None:
    assert page_charset(body, "koi8-r") == "koi8-r"


def test_bytes_that_the_charset_lacks_become_replacement_characters() -> None:
    assert decode_text(b"caf\xe9", "utf-8") == "caf\ufffd"
    assert decode_text(b"\xef\xbb\xbfx", "utf-8") == "x"
