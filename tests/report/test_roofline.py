import re

import pytest

from lmpipe.model.accelerators import H100
from lmpipe.model.cost_estimate import CostEstimate, Plan
from lmpipe.model.sizes import SIZES
from lmpipe.report.roofline import roofline_chart


def test_dots_lie_on_the_roof_and_are_not_joined() -> None:
    estimate = CostEstimate(Plan(SIZES["7B"], H100, ranks=64, zero_stage=3))
    chart = roofline_chart("Training", estimate.training, H100)
    assert chart is not None and chart.svg.count("<polyline") == 1
    roof = re.search(r'<polyline class="line k0" points="([^"]+)"', chart.svg)
    assert roof is not None
    low, turn, high = (tuple(map(float, point.split(","))) for point in roof[1].split())
    dots = re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', chart.svg)
    assert len(dots) == len(estimate.training)
    for x, y in ((float(x), float(y)) for x, y in dots):
        assert low[0] <= x <= high[0]
        slope = low[1] + (x - low[0]) / (turn[0] - low[0]) * (turn[1] - low[1])
        assert y == pytest.approx(slope if x < turn[0] else turn[1], abs=0.2)
