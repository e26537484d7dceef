"""Pretraining from token shards that lie on a real S3 server, through the blocks kept on the host.

One rank reads a mixture of two token sets while only one block may be kept, so that kept blocks and
single ranges both serve it.
"""

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import s3fs

from lmpipe.artifacts.build import build
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import TokenShards
from lmpipe.runtime import Runtime
from lmpipe.token_data.block_cache import BLOCK_BYTES, BlockCache
from lmpipe.token_data.dataset import TokenReader
from lmpipe.training.pretrain import pretrain
from tests.services.seaweedfs import SeaweedFS
from tests.training.test_pretrain import MIXED, mixed_inputs

BUCKET = "token-blocks"


@pytest.fixture
def store(seaweedfs: SeaweedFS, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Store]:
    for name, value in seaweedfs.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # of the ranks as well: nothing is kept yet
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    s3fs.S3FileSystem.clear_instance_cache()
    yield Store(f"{seaweedfs.create_bucket(BUCKET)}/{secrets.token_hex(4)}")
    s3fs.S3FileSystem.clear_instance_cache()


def kept_blocks(shards: TokenShards) -> int:
    folder = shards.copies_folder() / "blocks"
    sums = [np.fromfile(path, np.uint64) for path in sorted(folder.glob("*.sums"))]
    return sum(int(np.count_nonzero(part)) for part in sums)


def test_a_mixture_is_trained_from_s3_with_one_block_kept(store: Store, tmp_path: Path) -> None:
    inputs: dict[str, Any] = mixed_inputs(store)
    sets: list[TokenShards] = [inputs["shards"], *inputs["others"]]
    config = MIXED.model_copy(update={"validation_every": 0})
    runtime = Runtime(ranks=1, device="cpu", token_cache_gb=1.5 * BLOCK_BYTES / 1e9)
    made = build(pretrain, config, inputs, store=store, runtime=runtime)
    assert made.metrics["mixture"]["code"]["tokens"] == 50 * 32
    assert made.metrics["skipped_steps"] == 0 and made.metrics["step"] == 20
    assert sum(map(kept_blocks, sets)) == 1
    for part in sets:  # no shard was fetched whole
        assert not list(part.copies_folder().glob("train/*.bin"))

    local = mixed_inputs(Store(str(tmp_path / "local")))
    for limit in (0, 1 << 40):
        cache = BlockCache(limit)
        for part, twin in zip(sets, [local["shards"], *local["others"]], strict=True):
            reader = TokenReader.of(part, "train", 32, packing="best_fit", cache=cache)
            on_disk = TokenReader.of(twin, "train", 32, packing="best_fit")
            numbers = range(0, reader.num_sequences, 5)
            rows = reader.sequences(numbers)
            assert all(map(np.array_equal, rows, on_disk.sequences(numbers)))
    assert sum(map(kept_blocks, sets)) == 4
    assert {part.digest for part in sets} == {
        part.digest for part in (local["shards"], *local["others"])
    }
