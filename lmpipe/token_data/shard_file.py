"""One file of tokens: a 64-byte header, then flat little-endian uint16 or uint32.

Header, little-endian: magic 8s, version u32, bytes per token u32, token count u64, tokenizer digest
32s, XXH3-64 of the tokens u64. The width is read from the header and never guessed: a reader that
guesses turns a large vocabulary into junk ids without a word. A flat array is preferred to Arrow or
npz because any slice of it is one `pread`, locally or from an object store.
"""

import struct
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from lmpipe.artifacts.types import TokenShards
from lmpipe.errors import InputError

HEADER_BYTES = 64
PIECE_BYTES = 8 << 20
FILES_AT_A_TIME = 8  # an object store answers one request with a fraction of its bandwidth
_HEADER = struct.Struct("<8sIIQ32sQ")
_MAGIC = b"LMPTOKEN"
_VERSION = 1
_DTYPES: dict[int, np.dtype[Any]] = {2: np.dtype("<u2"), 4: np.dtype("<u4")}


@dataclass(frozen=True)
class ShardHeader:
    """What the first 64 bytes say."""

    dtype: np.dtype[Any]
    num_tokens: int
    tokenizer_digest: str
    checksum: int


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Choose the narrowest width that holds ids below vocab_size."""
    return _DTYPES[2] if vocab_size <= 2**16 else _DTYPES[4]


def pack_shard(tokens: NDArray[Any], vocab_size: int, tokenizer_digest: str) -> bytes:
    """Return the bytes of a shard file.

    Args:
        tokenizer_digest: 64 hex characters.
    """
    assert tokens.size == 0 or int(tokens.max()) < vocab_size, "a token is outside the vocabulary"
    body = np.ascontiguousarray(tokens, token_dtype(vocab_size)).tobytes()
    width = token_dtype(vocab_size).itemsize
    digest = bytes.fromhex(tokenizer_digest)
    checksum = xxhash.xxh3_64_intdigest(body)
    return _HEADER.pack(_MAGIC, _VERSION, width, tokens.size, digest, checksum) + body


def read_header(path: Path) -> ShardHeader:
    """Read and check the header against the size of the file."""
    with path.open("rb") as file:
        raw = file.read(HEADER_BYTES)
    return parse_header(raw, str(path), path.stat().st_size)


def parse_header(raw: bytes, place: str, size: int) -> ShardHeader:
    """Check a header against the size of its object.

    Args:
        place: what messages name.
    """
    remedy = "build the token shards again (lmpipe run … --force shards)"
    if len(raw) < HEADER_BYTES or raw[:8] != _MAGIC:
        raise InputError(f"{place}: not a token shard (no {_MAGIC.decode()} header); {remedy}")
    _, version, width, count, digest, checksum = _HEADER.unpack(raw)
    if version != _VERSION or width not in _DTYPES:
        raise InputError(
            f"{place}: version {version}, {width} bytes a token; this lmpipe reads version "
            f"{_VERSION} with 2 or 4; {remedy}"
        )
    if size != HEADER_BYTES + count * width:
        raise InputError(
            f"{place}: the header announces {count} tokens of {width} bytes, the file has {size} "
            f"bytes; {remedy}"
        )
    return ShardHeader(_DTYPES[width], count, digest.hex(), checksum)


def map_tokens(path: Path) -> NDArray[Any]:
    """Memory-map the tokens of a shard file, read-only."""
    header = read_header(path)
    if header.num_tokens == 0:  # an empty range cannot be mapped
        return np.empty(0, header.dtype)
    mapped = np.memmap(path, header.dtype, "r", offset=HEADER_BYTES, shape=(header.num_tokens,))
    return np.asarray(mapped)  # slices of a memmap cost microseconds each, of an array 0.2


def verify_shards(artifact: TokenShards) -> int:
    """Read every shard of an artifact once, wherever it lies, and check its tokens.

    Training calls this where it opens the shards, once on the host that starts the ranks: wrong
    tokens of the right size train without a word.

    Returns:
        The bytes read.

    Raises:
        InputError: a shard is not what was written; names artifact and file.

    Cost: one reading of the data. 0.12 s a GB from the page cache, so a disk or the network is the
        limit; the files then lie in the page cache for the ranks.
    """
    names = [name for name in artifact.names() if name.endswith(".bin")]

    def verify(name: str) -> int:
        num_bytes = artifact.record(name).bytes
        with artifact.open(name) as file:
            try:
                verify_checksum(file, artifact.url(name), num_bytes)
            except InputError as error:
                raise InputError(
                    f"{error}; {artifact.stage}/{artifact.id} {name}: {artifact.remedy}"
                ) from error
        return num_bytes

    with ThreadPoolExecutor(FILES_AT_A_TIME) as pool:
        return sum(pool.map(verify, names))


def verify_checksum(file: IO[bytes], place: str, size: int) -> None:
    """Raise InputError when the tokens of a shard file are not those that were written.

    Args:
        place: what messages name.
        size: of the file in bytes.
    """
    header = parse_header(file.read(HEADER_BYTES), place, size)
    checksum = xxhash.xxh3_64()
    while piece := file.read(PIECE_BYTES):
        checksum.update(piece)
    if checksum.intdigest() != header.checksum:
        raise InputError(f"{place}: the tokens do not match the checksum in the header")
