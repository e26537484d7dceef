import io
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lmpipe.artifacts.attempts import Attempt
from lmpipe.errors import ConfigError
from lmpipe.report.accounting import NO_PRICE, account, make_page, to_parquet
from lmpipe.report.blocks import Charts, Table, Tiles
from lmpipe.report.html import write_html
from lmpipe.report.prices import SHIPPED, Prices, load_prices
from tests.report.attempts import HOSTILE, invented

PRICES = Prices(currency="EUR", devices={"H200": 3.0}, cpu_hour=0.05)


def attempt(**fields: object) -> Attempt:
    plain = {
        "stage": "pretrain", "id": "a" * 24, "attempt": "1", "outcome": "published",
        "started": "2026-01-01T00:00:00.000+00:00", "seconds": 7200.0, "host": "h",
        "cpu_hours": 10.0,
    }  # fmt: skip
    return Attempt.model_validate(plain | fields)


TWO = {"devices": ("cuda:0 NVIDIA H200", "cuda:1 NVIDIA H200"), "gpu_hours": 4.0}


@pytest.mark.parametrize(
    ("prices", "fields", "cost"),
    [
        (Prices(), {}, None),
        (Prices(cpu_hour=0.05), {}, 0.5),
        (Prices(cpu_hour=0.05), {"cpu_hours": None}, None),
        (Prices(devices={"H200": 3.0}), TWO, 12.0),
        (Prices(devices={"H200": 3.0}, cpu_hour=0.05), TWO, 12.5),
        (Prices(devices={"H200": None}, cpu_hour=0.05), TWO, None),
        (Prices(devices={"H": 1.0, "nvidia h200": 2.0}), TWO, 8.0),
        (Prices(devices={"H100": 3.0}), TWO, None),
        (
            Prices(devices={"H200": 3.0, "L4": 1.0}),
            {"devices": ("cuda:0 NVIDIA H200", "cuda:1 NVIDIA L4"), "gpu_hours": 4.0},
            8.0,
        ),
        (Prices(cpu_hour=0.0), {}, 0.0),
    ],
)
def test_a_cost_needs_a_price_for_all_that_was_held(
    prices: Prices, fields: dict[str, object], cost: float | None
) -> None:
    assert prices.cost(attempt(**fields)) == pytest.approx(cost)


def test_the_shipped_prices_are_none_and_the_page_says_so() -> None:
    prices = load_prices(SHIPPED)
    assert set(prices.devices.values()) == {None} and prices.cpu_hour is None
    page = make_page(account(invented(3), prices), "store")
    tiles = {t.label: t for b in page.sections[0].blocks if isinstance(b, Tiles) for t in b.tiles}
    assert tiles["cost"].value == NO_PRICE and tiles["GPU-hours"].value != "–"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("devices: {H200: -1}", "devices.H200 = -1.0 must be 0 or more"),
        ("cpu_hour: -1", "cpu_hour"),
        ("cpu_hours: 1", "cpu_hours"),
        ("a: [", "no table of prices"),
    ],
)
def test_a_bad_price_is_refused_by_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as error:
        load_prices(path)
    assert str(path) in str(error.value)
    with pytest.raises(ConfigError, match="no table of prices at"):
        load_prices(tmp_path / "none.yaml")


def test_the_table_has_a_row_an_attempt_and_typed_columns() -> None:
    attempts = invented(4)
    table = pq.read_table(io.BytesIO(to_parquet(account(attempts, PRICES))))
    assert table.num_rows == len(attempts)
    assert table.schema.field("started").type == pa.timestamp("ms", tz="UTC")
    assert table.schema.field("cost").type == pa.float64()
    row = next(r for r in table.to_pylist() if r["stage"] == "pretrain")
    assert (row["gpus"], row["gpu_kind"], row["currency"]) == (8, "NVIDIA H200", "EUR")
    assert row["cost"] == pytest.approx(row["gpu_hours"] * 3 + (row["cpu_hours"] or 0) * 0.05)
    empty = pq.read_table(io.BytesIO(to_parquet([])))
    assert empty.schema == table.schema


def test_sums_by_run_and_stage_are_those_of_the_rows_and_waste_stands_apart() -> None:
    rows = account(invented(), PRICES)
    page = make_page(rows, "store")
    sections = {section.anchor: section for section in page.sections}
    (by_stage,) = [b for b in sections["stages"].blocks if isinstance(b, Table)]
    pretrain = next(r for r in by_stage.rows if r[0] == "pretrain")
    mine = [row for row in rows if row.stage == "pretrain"]
    assert pretrain[1] == str(len(mine)) == "30"
    assert pretrain[4] == f"{sum(row.gpu_hours for row in mine):,.0f}"
    wasted = [row for row in rows if row.outcome in ("failed", "killed")]
    tiles = {t.label: t for b in sections["totals"].blocks if isinstance(b, Tiles) for t in b.tiles}
    assert tiles["wasted"].note.startswith(f"{len(wasted)} attempts") and len(wasted) > 5
    (by_run,) = [b for b in sections["runs"].blocks if isinstance(b, Table)]
    assert len(by_run.rows) == 30
    (charts,) = [b for b in sections["totals"].blocks if isinstance(b, Charts)]
    assert [chart.title for chart in charts.charts] == ["Wall time so far", "GPU-hours so far"]


def test_the_page_lets_no_markup_of_an_error_through() -> None:
    html = write_html(make_page(account(invented(), PRICES), HOSTILE))
    assert "<script" not in html and "&lt;script&gt;" in html


def test_one_attempt_and_none_make_a_page_too() -> None:
    one = make_page(account([attempt()], PRICES), "store")
    assert any(isinstance(b, Charts) for b in one.sections[0].blocks)
    assert "Nothing has been built yet" in write_html(make_page([], "store"))
    assert account([attempt()], PRICES)[0].started == datetime.fromisoformat("2026-01-01T00:00Z")
