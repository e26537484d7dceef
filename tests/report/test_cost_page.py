"""The page of a cost estimate says what the estimate says."""

import dataclasses
import re

import pytest

from lmpipe.model.accelerators import CPU, H100
from lmpipe.model.cost_estimate import CostEstimate, Plan
from lmpipe.model.sizes import SIZES
from lmpipe.report.cost_page import make_page, summary
from lmpipe.report.html import write_html
from lmpipe.report.wording import period, size

PLAN = Plan(SIZES["7B"], H100, ranks=64, tokens=2e12, zero_stage=3, price=2.5)


@pytest.fixture(scope="module")
def html() -> str:
    return write_html(make_page(CostEstimate(PLAN), "7B <b>"))


def test_the_page_holds_three_roofs_and_every_operation(html: str) -> None:
    estimate = CostEstimate(PLAN)
    operations = [*estimate.training, *estimate.prefill, *estimate.decode(64)]
    assert html.count("<svg") == 3 == html.count('class="line k0"')
    assert html.count("<circle") == len(operations)
    for operation in operations:
        assert f"<td>{operation.name}</td>" in html
    assert "7B &lt;b&gt;" in html and "7B <b>" not in html


def test_tiles_are_the_estimates_figures_and_the_price_appears_only_if_given() -> None:
    estimate = CostEstimate(PLAN)
    tiles = {tile.label: tile for tile in summary(estimate)}
    assert tiles["parameters"].value == "6.74B"
    assert tiles["time"].value == "42.1 days" == period(estimate.seconds)
    assert tiles["price"].value == "162k"
    assert tiles["memory a device"].note.startswith("fits in 80 GB")
    unpriced = CostEstimate(dataclasses.replace(PLAN, price=None, zero_stage=0))
    tiles = {tile.label: tile for tile in summary(unpriced)}
    assert "price" not in tiles
    assert tiles["memory a device"].note.startswith("does not fit in 80 GB")
    cheap = CostEstimate(Plan(SIZES["1M"], CPU, price=0.5, precision="fp32"))
    assert next(tile.value for tile in summary(cheap) if tile.label == "price") == "0.01"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2e-6, "2 µs"), (0.0123, "12.3 ms"), (5, "5.0 s"), (86_400, "24.0 h"),
     (144 * 86_400, "144 days"), (5e8, "15.8 years")],
)  # fmt: skip
def test_periods_are_written_from_microseconds_to_years(seconds: float, text: str) -> None:
    assert period(seconds) == text


def test_terabytes_are_written_as_such() -> None:
    assert size(1.41e12) == "1.41 TB"


def test_the_page_compares_stages_and_modes_of_checkpointing(html: str) -> None:
    for stage in (0, 1, 2, 3):
        total = sum(CostEstimate(dataclasses.replace(PLAN, zero_stage=stage)).memory_bytes.values())
        assert re.search(
            rf"<td>ZeRO-{stage}</td><td[^>]*>[^<]*</td><td[^>]*>{size(total)}</td>", html
        )
    assert (
        "idle over busy, m micro-batches" in html and "37.5%" in html
    )  # 4 stages, 8 micro-batches
