"""What `lmpipe bench flash_attention` counts as work, and where it refuses to run."""

from pathlib import Path

import pytest
import torch

from lmpipe.bench import flash_attention as bench
from lmpipe.errors import ConfigError
from lmpipe.kernels import flash_attention_settings as settings
from lmpipe.kernels.flash_attention import document_bounds, visible_mask


@pytest.mark.parametrize("kind", ["causal", "full", "gqa", "window", "packed"])
@pytest.mark.parametrize("length", [512, 2048])
def test_work_is_the_pairs_that_see_each_other(kind: str, length: int) -> None:
    shape = bench.Shape(length, 64, kind)
    bounds = document_bounds(shape.documents[None]) if kind == "packed" else None
    row = torch.empty(1, length, 1, 1)
    assert shape.num_pairs == int(visible_mask(row, row, shape.pattern, bounds).sum())
    assert shape.batch * length == bench.NUM_TOKENS


def test_a_packed_row_holds_eight_documents() -> None:
    assert bench.Shape(512, 64, "packed").documents.unique().numel() == 8


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_refuses_to_measure_without_a_device() -> None:
    with pytest.raises(ConfigError, match="CUDA device"):
        bench.run({})


def test_tuning_writes_the_fastest_tile_by_length(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # A device nobody has measured; short walks like few stages, long ones many.
    def try_(tiles, candidate, direction, head_size, length):
        kernel, (queries, keys, warps, stages, registers) = candidate
        wanted = 1 if length == bench.SHORT else 3
        wrong = (queries, keys, warps, registers) != (64, 64, 4, None)
        return float("inf") if wrong else 1.0 + abs(stages - wanted) + (kernel != "triton")

    monkeypatch.setattr(bench, "_try", try_)
    monkeypatch.setattr(bench, "KERNELS", ("triton",))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    before = settings.TABLE.read_text()
    (tmp_path / "table.json").write_text(before)
    monkeypatch.setattr(settings, "TABLE", tmp_path / "table.json")
    settings.table.cache_clear()
    try:
        rows = bench.tune(bench.Options(head_sizes=[64]))
        settings.table.cache_clear()
        for length, stages in ((512, 1), (2048, 1), (2049, 3), (16_384, 3)):
            for direction in settings.DEFAULTS:
                found = settings.tile(
                    direction,
                    padded_head_size=64,
                    length=length,
                    dtype=torch.bfloat16,
                    capability=(8, 0),
                    kernels=("triton",),
                )
                assert found == settings.Tile(64, 64, 4, stages)
    finally:
        settings.table.cache_clear()
    assert len(rows) == 6
    written = (tmp_path / "table.json").read_text()
    assert written.startswith(before.rstrip().removesuffix("}").rstrip())  # other devices stay
