import codecs
import gzip
import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmpipe.documents.text_files import (
    as_utf8,
    json_lines,
    parse_json,
    read_text_file,
    utf8_copy,
    utf8_lines,
)
from lmpipe.errors import InputError

MARKED = {
    "utf-8": codecs.BOM_UTF8,
    "utf-16-le": codecs.BOM_UTF16_LE,
    "utf-16-be": codecs.BOM_UTF16_BE,
    "utf-32-le": codecs.BOM_UTF32_LE,
    "utf-32-be": codecs.BOM_UTF32_BE,
}
TEXT = "The bell\u2028rang\x85 twice.\r\nDie Glöckchen 鐘 𝄞\n\nend"


@pytest.mark.parametrize("encoding", MARKED)
def test_a_mark_names_the_encoding_and_is_no_content(encoding: str, tmp_path: Path) -> None:
    data = MARKED[encoding] + TEXT.encode(encoding)
    assert as_utf8(data).decode() == TEXT
    assert b"".join(utf8_lines(io.BytesIO(data))).decode() == TEXT
    (tmp_path / "a.gz").write_bytes(gzip.compress(data))
    assert read_text_file(tmp_path / "a.gz") == TEXT


@given(st.text(st.characters(codec="utf-8")), st.sampled_from(["", *MARKED]))
def test_lines_end_at_newlines_alone_in_every_encoding(text: str, encoding: str) -> None:
    data = MARKED[encoding] + text.encode(encoding) if encoding else text.encode()
    plain = text if encoding else text.removeprefix("\ufeff")
    lines = [line.decode() for line in utf8_lines(io.BytesIO(data))]
    assert "".join(lines) == plain
    assert all(line.endswith("\n") for line in lines[:-1])
    assert all("\n" not in line[:-1] for line in lines)


def test_characters_across_blocks_of_a_file_in_utf_16_stay_whole() -> None:
    text = "".join(f"{'x' * n}𝄞鐘\n" for n in range(600))
    data = codecs.BOM_UTF16_LE + text.encode("utf-16-le")
    lines = [line.decode() for line in utf8_lines(io.BytesIO(data))]
    assert lines == text.splitlines(keepends=True)


def test_lines_of_json_are_numbered_and_blank_ones_left_out() -> None:
    data = codecs.BOM_UTF8 + '{"a": "b\u2028c\x85\x1c"}\r\n \n\n2\n'.encode()
    assert list(json_lines(data)) == [(1, '{"a": "b\u2028c\x85\x1c"}\r'.encode()), (4, b"2")]


@pytest.mark.parametrize(
    ("data", "message"),
    [(b"caf\xe9", "no UTF-8 at byte 3"), (gzip.compress(b"x" * 99)[:-9], "no whole gzip file")],
)
def test_a_text_file_that_is_none_is_named(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / ("a.gz" if data[:1] == b"\x1f" else "a.txt")
    path.write_bytes(data)
    with pytest.raises(InputError, match=f"{path.name} is {message}"):
        read_text_file(path)


def test_a_file_is_copied_only_if_another_reader_would_not_read_it(tmp_path: Path) -> None:
    (tmp_path / "copies").mkdir()
    for data, is_copied in ((b"x", False), (codecs.BOM_UTF8 + b"x", False), (b"\xff\xfex\0", True)):
        path = tmp_path / "a.jsonl"
        path.write_bytes(data)
        copy = utf8_copy(path, tmp_path / "copies")
        assert (copy != path) == is_copied
        assert copy.read_bytes().removeprefix(codecs.BOM_UTF8) == b"x"


HALVES = [
    (
        rb'{"a": ["x\ud83d", {"\uDE00k": 1}], "b": "\ud83d\ude00"}',
        {"a": ["x\ufffd", {"\ufffdk": 1}], "b": "\U0001f600"},
    ),
    (b'"\xed\xa0\xbdx"', "\ufffdx"),
    (b'"\\ud83d\\ud83d\\ude00"', "\ufffd\U0001f600"),
    (b'["plain", 1.5, null]', ["plain", 1.5, None]),
]


@pytest.mark.parametrize(("line", "value"), HALVES)
def test_half_of_a_surrogate_pair_is_the_replacement_character(line: bytes, value: object) -> None:
    assert parse_json(line) == value
    json.dumps(parse_json(line), ensure_ascii=False).encode()  # is text in every encoding


def test_a_file_with_half_a_surrogate_pair_is_copied_as_what_it_is_read_as(tmp_path: Path) -> None:
    (tmp_path / "copies").mkdir()
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": "x\\ud83d"}\n\n{"a": "y"}\n')
    copy = utf8_copy(path, tmp_path / "copies")
    rows = [json.loads(line) for line in copy.read_text("utf-8").splitlines()]
    assert copy != path and rows == [{"a": "x\ufffd"}, {"a": "y"}]
