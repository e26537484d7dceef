from pathlib import Path

import numpy as np
import pytest

from lmpipe.artifacts.build import build
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import TokenShards
from lmpipe.bench.loader import BenchShardsConfig, bench_shards
from lmpipe.errors import InputError
from lmpipe.runtime import Runtime
from lmpipe.token_data import block_cache as blocks
from lmpipe.token_data.block_cache import BlockCache
from lmpipe.token_data.dataset import TokenReader
from lmpipe.token_data.index import SplitIndex

BLOCK = 1024


@pytest.fixture
def shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TokenShards:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", BLOCK)
    monkeypatch.setattr(blocks, "MIN_FREE_BYTES", 0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    config = BenchShardsConfig(num_tokens=40_000, document_tokens=70)
    return build(bench_shards, config, {}, store=Store(str(tmp_path / "s")), runtime=Runtime())


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """The ranges that were asked of the store."""
    found: list[tuple[str, int, int]] = []
    read_range = Store.read_range

    def counted(store: Store, path: str, start: int, stop: int) -> bytes:
        found.append((path, start, stop))
        return read_range(store, path, start, stop)

    monkeypatch.setattr(Store, "read_range", counted)
    return found


def remote(
    shards: TokenShards, monkeypatch: pytest.MonkeyPatch, limit_bytes: int = 1 << 40
) -> tuple[TokenReader, BlockCache]:
    monkeypatch.setattr(Store, "is_local", False)
    cache = BlockCache(limit_bytes)
    return TokenReader.of(shards, "train", 50, cache=cache), cache


def test_blocks_give_the_tokens_of_the_mapped_file_and_fetch_each_once(
    shards: TokenShards, monkeypatch: pytest.MonkeyPatch, fetched: list[tuple[str, int, int]]
) -> None:
    local = TokenReader.of(shards, "train", 50)
    reader, cache = remote(shards, monkeypatch)
    assert not fetched  # a run of thousands of shards begins without thousands of requests
    for number in [*range(0, local.num_sequences, 3), 0, 1]:
        assert np.array_equal(reader.sequence(number), local.sequence(number))
        assert np.array_equal(reader.document_numbers(number), local.document_numbers(number))
    assert len(set(fetched)) == len(fetched)
    assert cache.kept_bytes == BLOCK * len(fetched)
    other, _ = remote(shards, monkeypatch)  # as another process of the host
    before = len(fetched)
    assert np.array_equal(other.sequence(0), local.sequence(0))
    assert len(fetched) == before


@pytest.mark.parametrize("kept_blocks", [0, 1, 10])
def test_past_the_limit_nothing_is_kept_and_only_a_sequence_is_fetched(
    shards: TokenShards,
    monkeypatch: pytest.MonkeyPatch,
    fetched: list[tuple[str, int, int]],
    kept_blocks: int,
) -> None:
    local = TokenReader.of(shards, "train", 50)
    reader, cache = remote(shards, monkeypatch, limit_bytes=kept_blocks * BLOCK + BLOCK // 2)
    for _ in range(2):
        for number in range(local.num_sequences):
            assert np.array_equal(reader.sequence(number), local.sequence(number))
    assert cache.kept_bytes == kept_blocks * BLOCK
    whole = [request for request in fetched if request[2] - request[1] == BLOCK]
    assert len(whole) == kept_blocks
    assert max(stop - start for _, start, stop in fetched if stop - start < BLOCK) <= 51 * 2
    folder = shards.copies_folder() / "blocks" / "train"
    on_disk = sum(path.stat().st_blocks * 512 for path in folder.glob("*.bin"))
    assert on_disk <= 4 * 4096 * max(1, kept_blocks)  # sparse files, by pages
    before = len(fetched)
    other, others_cache = remote(shards, monkeypatch, limit_bytes=kept_blocks * BLOCK + BLOCK // 2)
    other.sequence(0)
    assert others_cache.kept_bytes == kept_blocks * BLOCK  # one limit for the host
    assert len(fetched) - before <= 2


def test_many_threads_read_what_one_reads(
    shards: TokenShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = TokenReader.of(shards, "train", 50)
    reader, cache = remote(shards, monkeypatch, limit_bytes=10 * BLOCK)
    numbers = list(range(0, local.num_sequences, 2))
    for mine, expected in zip(reader.sequences(numbers), local.sequences(numbers), strict=True):
        assert np.array_equal(mine, expected)
    assert cache.kept_bytes <= 10 * BLOCK


def test_sequences_asked_for_together_fetch_each_block_once(
    shards: TokenShards, monkeypatch: pytest.MonkeyPatch, fetched: list[tuple[str, int, int]]
) -> None:
    local = TokenReader.of(shards, "train", 50)
    reader, cache = remote(shards, monkeypatch)
    numbers = list(range(local.num_sequences))
    rows = reader.sequences(numbers)
    assert all(map(np.array_equal, rows, local.sequences(numbers)))
    bodies = [request for request in fetched if request[1] > 0]  # headers may come twice
    assert len(set(bodies)) == len(bodies)
    assert cache.kept_bytes == BLOCK * len({(path, start) for path, start, _ in fetched})
    before = len(fetched)
    reader.sequences(numbers[::-1])
    assert len(fetched) == before


def test_a_block_that_the_disk_lost_is_fetched_again(
    shards: TokenShards, monkeypatch: pytest.MonkeyPatch, fetched: list[tuple[str, int, int]]
) -> None:
    expected = TokenReader.of(shards, "train", 50).sequence(3)
    reader, _ = remote(shards, monkeypatch)
    reader.sequence(3)
    (file,) = (shards.copies_folder() / "blocks" / "train").glob("00000-000.bin")
    with file.open("r+b") as kept:
        kept.write(bytes(BLOCK))  # as after a loss of power: the checksum came to the disk first
    again, _ = remote(shards, monkeypatch)
    before = len(fetched)
    assert np.array_equal(again.sequence(3), expected)
    assert len(fetched) > before


def test_a_full_disk_costs_requests_and_not_the_run(
    shards: TokenShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    expected = TokenReader.of(shards, "train", 50).sequence(3)
    reader, cache = remote(shards, monkeypatch)
    monkeypatch.setattr("os.pwrite", refuse)
    assert np.array_equal(reader.sequence(3), expected)
    assert not cache.reserve() and cache.kept_bytes == 0


def test_the_cache_leaves_a_part_of_the_disk_to_others(
    shards: TokenShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "MIN_FREE_BYTES", 1 << 62)
    reader, cache = remote(shards, monkeypatch)
    reader.sequence(0)
    assert cache.kept_bytes == 0


def test_an_object_that_was_cut_short_is_refused(
    shards: TokenShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, _ = remote(shards, monkeypatch)
    monkeypatch.setattr(Store, "read_range", lambda *_: b"LMPTOKEN")
    with pytest.raises(InputError, match="cut short"):
        reader.sequence(0)


def test_an_object_of_another_kind_is_refused(
    shards: TokenShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, _ = remote(shards, monkeypatch)
    monkeypatch.setattr(Store, "read_range", lambda _s, _p, start, stop: bytes(stop - start))
    with pytest.raises(InputError, match="not a token shard"):
        reader.sequence(0)


def test_the_index_finds_shard_and_document_without_reading_tokens(shards: TokenShards) -> None:
    index = SplitIndex.of(shards, "train")
    assert index.num_tokens == 40_000
    place = index.place("00002-000", 141)
    assert place == 20_141
    assert index.shard_of(place) == ("00002-000", 141)
    number = int(index.documents(place, place + 1)[0])
    assert index.document_id(number) == f"{2 * 143 + 2:032x}"
    with pytest.raises(InputError, match=r"offset=10000 must be in \[0, 10000\)"):
        index.place("00002-000", 10_000)
    with pytest.raises(InputError, match="no split"):
        SplitIndex.of(shards, "test")
