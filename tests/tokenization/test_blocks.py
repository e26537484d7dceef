from pathlib import Path

import numpy as np
import pytest

from lmpipe.artifacts.build import build
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import TokenShards
from lmpipe.bench.loader import BenchShardsConfig, bench_shards
from lmpipe.errors import InputError
from lmpipe.runtime import Runtime
from lmpipe.tokenization import blocks
from lmpipe.tokenization.blocks import RemoteTokens
from lmpipe.tokenization.index import SplitIndex
from lmpipe.tokenization.reading import TokenReader


@pytest.fixture
def shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TokenShards:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1024)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    config = BenchShardsConfig(num_tokens=40_000, document_tokens=70)
    return build(bench_shards, config, {}, store=Store(str(tmp_path / "s")), runtime=Runtime())


def test_blocks_give_the_tokens_of_the_mapped_file_and_fetch_each_once(
    shards: TokenShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[tuple[str, int]] = []
    read_range = Store.read_range

    def counted(store: Store, path: str, start: int, stop: int) -> bytes:
        fetched.append((path, start))
        return read_range(store, path, start, stop)

    monkeypatch.setattr(Store, "read_range", counted)
    local = TokenReader.of(shards, "train", 50)
    monkeypatch.setattr(Store, "is_local", False)
    remote = TokenReader.of(shards, "train", 50)
    assert len(fetched) == 4  # headers
    for number in [*range(0, local.num_sequences, 3), 0, 1]:
        assert np.array_equal(remote.sequence(number), local.sequence(number))
        assert np.array_equal(remote.document_numbers(number), local.document_numbers(number))
    assert len(set(fetched)) == len(fetched)
    other = TokenReader.of(shards, "train", 50)  # as another process of the host
    before = len(fetched)
    assert np.array_equal(other.sequence(0), local.sequence(0))
    assert len(fetched) == before


def test_an_object_that_was_cut_short_is_refused(
    shards: TokenShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Store, "read_range", lambda *_: b"LMPTOKEN")
    with pytest.raises(InputError, match="cut short"):
        RemoteTokens(shards, "train/00000-000.bin")


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
