from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmpipe.errors import ConfigError, InputError
from lmpipe.token_data.dataset import TokenReader
from lmpipe.token_data.shard_file import (
    HEADER_BYTES,
    map_tokens,
    pack_shard,
    read_header,
    token_dtype,
    verify_checksum,
)

DIGEST = "ab" * 32


def write_shards(folder: Path, lengths_by_shard: list[list[int]]) -> list[int]:
    """Write train shards of documents of these lengths; token t of the stream is t."""
    (folder / "train").mkdir(parents=True)
    rows: dict[str, list[object]] = {
        name: [] for name in ("document_id", "split", "shard", "start", "length")
    }
    owner: list[int] = []
    for number, lengths in enumerate(lengths_by_shard):
        start = 0
        for length in lengths:
            for name, value in zip(
                rows,
                (f"doc{len(rows['split'])}", "train", f"{number:05d}", start, length),
                strict=True,
            ):
                rows[name].append(value)
            owner += [len(rows["split"]) - 1] * length
            start += length
        tokens = np.arange(len(owner) - start, len(owner))
        (folder / "train" / f"{number:05d}.bin").write_bytes(pack_shard(tokens, 60_000, DIGEST))
    schema = [(name, pa.string() if i < 3 else pa.int64()) for i, name in enumerate(rows)]
    pq.write_table(pa.table(rows, pa.schema(schema)), folder / "index.parquet")
    return owner


shards = st.lists(st.lists(st.integers(1, 9), max_size=4), min_size=1, max_size=4)


@given(shards, st.integers(1, 12))
@settings(deadline=None, max_examples=25)
def test_sequences_cover_the_stream_across_shards_with_the_documents_of_every_token(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[list[int]], sequence_length: int
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    owner = write_shards(folder, lengths)
    reader = TokenReader(folder, "train", sequence_length)
    assert reader.num_tokens == len(owner)
    assert reader.num_sequences == max(0, (len(owner) - 1) // sequence_length)
    for number in range(reader.num_sequences):
        expected = np.arange(number * sequence_length, (number + 1) * sequence_length + 1)
        assert np.array_equal(reader.sequence(number), expected)
        assert reader.document_numbers(number).tolist() == [owner[t] for t in expected]
    with pytest.raises(IndexError):
        reader.sequence(reader.num_sequences)


def test_the_index_names_the_document_of_any_token_of_any_shard(tmp_path: Path) -> None:
    owner = write_shards(tmp_path, [[3, 1], [], [4]])
    index = TokenReader(tmp_path, "train", 2).index
    places = [index.place(shard, i) for shard in ("00000", "00002") for i in range(4)]
    found = [index.document_id(int(index.documents(p, p + 1)[0])) for p in places]
    assert found == [f"doc{number}" for number in owner]
    with pytest.raises(InputError, match=r"\[0, 4\)"):
        index.place("00002", 4)
    with pytest.raises(InputError, match="00000"):
        index.place("7", 0)


@pytest.mark.parametrize(("vocab_size", "width"), [(65_536, 2), (65_537, 4), (200_000, 4)])
def test_the_width_holds_the_largest_id_and_stands_in_the_header(
    tmp_path: Path, vocab_size: int, width: int
) -> None:
    path = tmp_path / "0.bin"
    path.write_bytes(pack_shard(np.array([0, vocab_size - 1]), vocab_size, DIGEST))
    header = read_header(path)
    assert header.dtype.itemsize == token_dtype(vocab_size).itemsize == width
    assert header.num_tokens == 2
    assert header.tokenizer_digest == DIGEST
    assert map_tokens(path).tolist() == [0, vocab_size - 1]
    check(path)


def check(path: Path) -> None:
    with path.open("rb") as file:
        verify_checksum(file, path.name, path.stat().st_size)


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    path = tmp_path / "0.bin"
    good = pack_shard(np.arange(5), 10, DIGEST)
    path.write_bytes(good[:-1])
    with pytest.raises(InputError, match="5 tokens of 2 bytes"):
        read_header(path)
    path.write_bytes(b"x" * HEADER_BYTES)
    with pytest.raises(InputError, match="not a token shard"):
        read_header(path)
    path.write_bytes(good[:-2] + b"\x07\x00")
    with pytest.raises(InputError, match="checksum"):
        check(path)


def test_a_sequence_length_below_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        TokenReader(tmp_path, "train", 0)
