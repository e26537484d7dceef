"""The bench of learning-rate transfer, at a size of seconds."""

import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from lmpipe.bench.mup import Options, run, shape, train
from lmpipe.errors import InputError
from lmpipe.model.decoder import Decoder


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "text.parquet"
    pq.write_table(pa.table({"text": ["the quick brown fox jumps over a lazy dog. " * 400]}), file)
    return str(file)


def test_the_best_rate_and_its_distance_from_the_base_are_those_of_the_losses(path: str) -> None:
    options = {"widths": [64, 128], "log2_rates": [-12, -8, -7], "steps": 12, "length": 16}
    rows = run({"paths": [path], **options})
    for kind in ("mup", "standard"):
        best = {}
        for width in (64, 128):
            losses = {
                rate: value
                for rate in (-12, -8, -7)
                for value in [_value(rows, f"{kind}, width {width}, rate 2^{rate}")]
            }
            assert all(0 < loss < math.log(256) + 1 for loss in losses.values())
            assert losses[-12] > losses[-8], "a rate that is too small learns less"
            best[width] = _value(rows, f"{kind}, width {width}", "log2 of the best rate")
            assert losses[int(best[width])] == min(losses.values())
        apart = _value(rows, kind, "largest distance from the base")
        assert apart == abs(best[128] - best[64])
    same = [_value(rows, f"{kind}, width 64, rate 2^-8") for kind in ("mup", "standard")]
    assert same[0] == pytest.approx(same[1], rel=1e-3), "at the base both are the same model"


def _value(rows: list[dict[str, object]], case: str, metric: str = "loss") -> float:
    (value,) = [r["value"] for r in rows if (r["case"], r["metric"]) == (case, metric)]
    assert isinstance(value, int | float)
    return float(value)


def test_a_run_that_diverges_counts_as_infinitely_bad() -> None:
    settings = Options(paths=["-"], steps=4, length=16)
    text = torch.randint(0, 256, (4096,), dtype=torch.uint8)
    assert train(settings, "standard", 64, 1e30, text) == math.inf


def test_widths_share_depth_and_head_size() -> None:
    settings = Options(paths=["-"])
    wide, narrow = (Decoder(shape(settings, "mup", width)) for width in (256, 64))
    assert wide.config.head_size == narrow.config.head_size
    assert wide.config.num_layers == narrow.config.num_layers


def test_missing_and_too_short_texts_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.parquet does not exist"):
        run({"paths": [str(tmp_path / "none.parquet")]})
    short = tmp_path / "short.parquet"
    pq.write_table(pa.table({"text": ["short"]}), short)
    with pytest.raises(InputError, match="5 bytes of text are less than one batch of 1040"):
        run({"paths": [str(short)]})
