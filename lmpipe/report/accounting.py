"""What runs and stages took: a row an attempt, as Parquet and as a page.

Rows come from the store alone (manifests, and accounts of attempts that have none), so they reach
back as far as the store does, and need no Prefect server, whose database forgets.
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from lmpipe.artifacts.attempts import Attempt
from lmpipe.report.blocks import Cell, Charts, Page, Section, Table, Text, Tile, Tiles
from lmpipe.report.prices import Prices, gpu_kinds
from lmpipe.report.svg import Chart, Line, line_chart
from lmpipe.report.wording import count, duration

WASTED = frozenset({"failed", "killed"})
MAX_ROWS = 300
NO_PRICE = "no price given"
LEAD = (
    "A run is charged for what it built, not for what it found. A + behind a cost: and what some of"
    " its attempts cost that have no price."
)
DAY = 86400.0


@dataclass(frozen=True)
class Row:
    """One attempt."""

    flow_run: str
    flow_run_name: str
    flow: str
    recipe: str
    stage: str
    step: str
    artifact: str
    attempt: str
    outcome: str
    started: datetime
    wall_seconds: float
    cpu_hours: float | None
    gpu_kind: str
    gpus: int
    gpu_hours: float
    cost: float | None
    currency: str
    host: str
    reason: str
    error: str

    @property
    def is_wasted(self) -> bool:
        """Whether it made nothing. The next attempt may have adopted part of it all the same."""
        return self.outcome in WASTED


def account(attempts: Iterable[Attempt], prices: Prices) -> list[Row]:
    """Return a row for each attempt."""
    return [_row(attempt, prices) for attempt in attempts]


def _row(attempt: Attempt, prices: Prices) -> Row:
    kinds, origin = gpu_kinds(attempt), attempt.origin
    return Row(
        flow_run=origin.flow_run,
        flow_run_name=origin.flow_run_name,
        flow=origin.flow,
        recipe=origin.recipe,
        stage=attempt.stage,
        step=origin.step or attempt.stage,
        artifact=attempt.id,
        attempt=attempt.attempt,
        outcome=attempt.outcome,
        started=datetime.fromisoformat(attempt.started),
        wall_seconds=attempt.seconds,
        cpu_hours=attempt.cpu_hours,
        gpu_kind=", ".join(sorted(set(kinds))),
        gpus=len(kinds),
        gpu_hours=attempt.gpu_hours,
        cost=prices.cost(attempt),
        currency=prices.currency,
        host=attempt.host,
        reason=attempt.reason,
        error=attempt.error,
    )


def to_parquet(rows: Sequence[Row]) -> bytes:
    """Return the rows as a Parquet file; the columns are the fields of Row."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {
        "started": pa.timestamp("ms", tz="UTC"),
        "gpus": pa.int32(),
        **dict.fromkeys(["wall_seconds", "cpu_hours", "gpu_hours", "cost"], pa.float64()),
    }
    schema = pa.schema([(name, kinds.get(name, pa.string())) for name in Row.__annotations__])
    buffer = io.BytesIO()
    table = pa.Table.from_pylist([asdict(row) for row in rows], schema)
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def make_page(rows: Sequence[Row], where: str) -> Page:
    """Describe what the rows add up to."""
    if not rows:
        nothing = Section("totals", "Totals", blocks=[Text("Nothing has been built yet.")])
        return Page("Accounting", where, [nothing])
    first, last = min(row.started for row in rows), max(row.started for row in rows)
    subtitle = f"{where} · {first:%Y-%m-%d} to {last:%Y-%m-%d} · {len(rows)} attempts"
    return Page("Accounting", subtitle, [_totals(rows), _by_run(rows), _by_stage(rows), _all(rows)])


def _totals(rows: Sequence[Row]) -> Section:
    wasted = [row for row in rows if row.is_wasted]
    running = sum(row.outcome == "unfinished" for row in rows)
    result = Section(
        "totals",
        "Totals",
        "Wasted is what failed or was killed. The next attempt may have adopted its finished shards"
        " or checkpoints, so not all of it was in vain.",
    )
    tiles = [
        Tile("wall time", duration(_wall(rows)), f"{len(rows)} attempts"),
        Tile("GPU-hours", _hours(_gpu(rows)), ", ".join(_kinds(rows)) or "no GPU was used"),
        Tile("CPU-hours", _hours(_cpu(rows)), _unknown_cpu(rows)),
        Tile("cost", _cost(rows, more=""), _unpriced(rows)),
        Tile("wasted", duration(_wall(wasted)), f"{len(wasted)} attempts, {_cost(wasted)}")
        if wasted
        else Tile("wasted", "–", "no attempt failed or was killed"),
    ]
    if running:
        tiles.append(Tile("unfinished", str(running), "at work, or lost with their machine"))
    result.add(Tiles(tiles), Charts([c for c in (_wall_chart(rows), _gpu_chart(rows)) if c]))
    return result


def _wall_chart(rows: Sequence[Row]) -> Chart | None:
    return _sum_chart("Wall time so far", rows, lambda row: row.wall_seconds / 3600, "hours")


def _gpu_chart(rows: Sequence[Row]) -> Chart | None:
    if not _gpu(rows):
        return None
    return _sum_chart("GPU-hours so far", rows, lambda row: row.gpu_hours, "GPU-hours")


def _by_run(rows: Sequence[Row]) -> Section:
    result = Section("runs", "By run", LEAD)
    groups = _grouped(rows, lambda row: row.flow_run)
    newest = sorted(groups.values(), key=lambda group: group[0].started, reverse=True)
    cells: list[list[Cell | str]] = []
    for group in newest[:MAX_ROWS]:
        row = group[0]
        name = row.flow_run_name or row.recipe or "without a flow"
        run = Cell(row.flow_run[:8] or "–", code=True)
        cells.append([name, run, row.flow or "–", f"{row.started:%Y-%m-%d %H:%M}", *_sums(group)])
    columns = ["run", "id", "flow", "began", *SUMS]
    result.add(Table(columns, cells, _numeric(columns)), _rest(len(newest)))
    return result


def _by_stage(rows: Sequence[Row]) -> Section:
    result = Section("stages", "By stage")
    groups = _grouped(rows, lambda row: row.stage)
    total = _wall(rows) or 1.0
    cells: list[list[Cell | str]] = []
    for stage, group in sorted(groups.items(), key=lambda item: -_wall(item[1])):
        attempts, wall, *others = _sums(group)
        cells.append([stage, attempts, Cell(wall, _wall(group) / total), *others])
    columns = ["stage", *SUMS]
    result.add(Table(columns, cells, _numeric(columns)))
    return result


def _all(rows: Sequence[Row]) -> Section:
    result = Section("attempts", "Every attempt", "accounting.parquet has all of them and more.")
    newest = sorted(rows, key=lambda row: row.started, reverse=True)
    cells: list[list[Cell | str]] = [
        [
            f"{row.started:%m-%d %H:%M}",
            row.step,
            Cell(row.artifact[:12], code=True),
            row.outcome,
            duration(row.wall_seconds),
            f"{row.gpus} × {row.gpu_kind}" if row.gpus else "–",
            NO_PRICE if row.cost is None else f"{row.cost:,.2f} {row.currency}",
            row.error[:80] or row.reason[:80] or "–",
        ]
        for row in newest[:MAX_ROWS]
    ]
    columns = ["began", "step", "artifact", "outcome", "wall", "GPUs", "cost", "why"]
    result.add(Table(columns, cells, (0, 4, 6)), _rest(len(newest)))
    return result


SUMS = ["attempts", "wall", "CPU h", "GPU h", "cost", "wasted"]


def _sums(group: Sequence[Row]) -> list[str]:
    wasted = _wall([row for row in group if row.is_wasted])
    return [
        str(len(group)),
        duration(_wall(group)),
        _hours(_cpu(group)),
        _hours(_gpu(group)),
        _cost(group),
        duration(wasted) if wasted else "–",
    ]


def _numeric(columns: Sequence[str]) -> tuple[int, ...]:
    return tuple(index for index, name in enumerate(columns) if name in ("began", *SUMS))


def _grouped(rows: Sequence[Row], key: Callable[[Row], str]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.started):
        groups[key(row)].append(row)
    return groups


def _sum_chart(
    title: str, rows: Sequence[Row], value: Callable[[Row], float], unit: str
) -> Chart | None:
    """Draw how a sum has grown, that of all and that of what was wasted."""
    ordered = sorted(rows, key=lambda row: row.started)
    first = ordered[0].started.timestamp()
    span = ordered[-1].started.timestamp() - first
    scale, name = (DAY, "days") if span > 3 * DAY else (3600.0, "hours")
    lines = []
    for label, chosen, colour in (
        ("all", ordered, 1),
        ("wasted", [row for row in ordered if row.is_wasted], 2),
    ):
        xs, ys, total = [], [], 0.0
        for row in chosen:
            xs += [(row.started.timestamp() - first) / scale] * 2
            ys += [total, total + value(row)]
            total = ys[-1]
        if chosen:
            xs.append(span / scale)
            ys.append(total)
        lines.append(Line(label, xs, ys, colour))
    return line_chart(
        title, lines, x_label=f"{name} since the first attempt", y_label=unit,
        caption="Each attempt counts at the time of its beginning.",
    )  # fmt: skip


def _wall(rows: Sequence[Row]) -> float:
    return sum(row.wall_seconds for row in rows)


def _gpu(rows: Sequence[Row]) -> float:
    return sum(row.gpu_hours for row in rows)


def _cpu(rows: Sequence[Row]) -> float:
    return sum(row.cpu_hours or 0.0 for row in rows)


def _hours(hours: float) -> str:
    return count(hours) if hours >= 100 else f"{hours:.2f}" if hours else "–"


def _kinds(rows: Sequence[Row]) -> list[str]:
    return sorted({row.gpu_kind for row in rows if row.gpus})


def _cost(rows: Sequence[Row], more: str = " +") -> str:
    """Add up what has a price; what has none is never counted as 0, but said to be `more`."""
    known = [row.cost for row in rows if row.cost is not None]
    if not known:
        return NO_PRICE if rows else "–"
    return f"{sum(known):,.2f} {rows[0].currency}{more if len(known) < len(rows) else ''}"


def _unpriced(rows: Sequence[Row]) -> str:
    missing = sum(row.cost is None for row in rows)
    return f"and more: {missing} attempts have no price" if missing else "of all attempts"


def _unknown_cpu(rows: Sequence[Row]) -> str:
    missing = sum(row.cpu_hours is None for row in rows)
    return f"unknown of {missing} attempts" if missing else ""


def _rest(num: int) -> Text | None:
    return Text(f"{num - MAX_ROWS} older ones are not shown.") if num > MAX_ROWS else None
