"""What `lmpipe bench flash_attention` counts as work, and where it refuses to run."""

from pathlib import Path

import pytest
import torch

from lmpipe.bench import _flash_attention_timing as timing
from lmpipe.bench import _flash_attention_tuning as tuning
from lmpipe.bench import flash_attention as bench
from lmpipe.errors import ConfigError
from lmpipe.kernels import flash_attention_settings as settings
from lmpipe.kernels.flash_attention import document_bounds, visible_mask


@pytest.mark.parametrize("kind", ["causal", "full", "gqa", "window", "packed"])
@pytest.mark.parametrize("length", [512, 2048])
def test_work_is_the_pairs_that_see_each_other(kind: str, length: int) -> None:
    shape = timing.Shape(length, 64, kind)
    bounds = document_bounds(shape.documents[None]) if kind == "packed" else None
    row = torch.empty(1, length, 1, 1)
    assert shape.num_pairs == int(visible_mask(row, row, shape.pattern, bounds).sum())
    assert shape.batch * length == timing.NUM_TOKENS


def test_a_packed_row_holds_eight_documents() -> None:
    assert timing.Shape(512, 64, "packed").documents.unique().numel() == 8


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_refuses_to_measure_without_a_device() -> None:
    with pytest.raises(ConfigError, match="CUDA device"):
        bench.run({})


def test_tuning_writes_the_fastest_tile_by_mask_and_length(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # A device nobody has measured; short walks like few stages, windows small tiles, and only
    # Triton's kernels take everything.
    def time(direction, shape, candidate):
        kernel, (queries, keys, _, stages, registers) = candidate
        wanted = (64, 64 if shape.kind == "window" else 128, 2 if shape.length == 1024 else 3, None)
        given = (queries, keys, stages, registers)
        wrong = sum(a != b for a, b in zip(wanted, given, strict=True))
        return wrong + 0.5 * (kernel == "triton")

    kernels = ("triton", "hopper_small")
    monkeypatch.setattr(tuning, "_time", time)
    monkeypatch.setattr(tuning, "compile_beforehand", lambda *_: None)
    monkeypatch.setattr(tuning, "KERNELS", kernels)
    every = [(64, keys, 4, stages, None) for keys in (64, 128) for stages in (2, 3)]
    tiles = {
        "triton": dict.fromkeys(settings.DEFAULTS, every),
        "hopper_small": {direction: [(64, 128, 4, 2, None)] for direction in settings.DEFAULTS},
    }
    monkeypatch.setattr(tuning, "TILES", tiles)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    before = settings.TABLE.read_text()
    (tmp_path / "table.json").write_text(before)
    monkeypatch.setattr(settings, "TABLE", tmp_path / "table.json")
    settings.table.cache_clear()
    try:
        tuning.tune([64], 1)
        settings.table.cache_clear()

        def found(length: int, mask: settings.Mask, kernels: tuple[settings.Kernel, ...]):
            return settings.tile(
                "forward",
                padded_head_size=64,
                length=length,
                mask=mask,
                dtype=torch.bfloat16,
                capability=(8, 0),
                kernels=kernels,
            )

        for length, stages in ((512, 2), (1024, 2), (1025, 3), (16_384, 3)):
            assert found(length, "window", kernels) == settings.Tile(64, 64, 4, stages)
            assert found(length, "dense", ("triton",)) == settings.Tile(64, 128, 4, stages)
        small = settings.Tile(64, 128, 4, 2, None, "hopper_small")
        assert found(1024, "dense", kernels) == found(1024, "packed", kernels) == small
        assert found(1025, "dense", kernels) == settings.Tile(64, 128, 4, 3)
    finally:
        settings.table.cache_clear()
    written = (tmp_path / "table.json").read_text()
    assert written.startswith(before.rstrip().removesuffix("}").rstrip())  # other devices stay
