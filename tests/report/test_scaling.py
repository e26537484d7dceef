"""A sweep in which a run diverged still has a page."""

from types import SimpleNamespace
from typing import Any

from lmpipe.report.blocks import Table, Tiles
from lmpipe.report.sections.scaling import section
from lmpipe.scaling.config import ScaleConfig
from lmpipe.scaling.scale import describe
from tests.scaling.test_scale import sweep_points


def test_diverged_runs_are_named_and_the_rest_is_shown() -> None:
    points = sweep_points(diverged=(4, 9))
    files = {"fit.json": describe(points, ScaleConfig(num_resamples=10)), "points.json": points}
    run: Any = SimpleNamespace(of=lambda _: [SimpleNamespace(read_json=files.__getitem__)])
    blocks = section(run).blocks
    (tiles,) = (block for block in blocks if isinstance(block, Tiles))
    said = {tile.label: (tile.value, tile.note) for tile in tiles.tiles}
    assert said["Measured loss"] == ("none", "the run diverged")
    assert said["Left out of the fit"] == ("2", "diverged: 100000 parameters on 10000000 tokens")
    table = [block for block in blocks if isinstance(block, Table)][-1]
    assert [row[3] for row in table.rows].count("diverged") == 2
