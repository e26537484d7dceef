"""Each operation under its device's roof: plots and tables of a cost estimate's three phases."""

from __future__ import annotations

from collections.abc import Sequence

from lmpipe.model.accelerators import Accelerator
from lmpipe.model.cost_estimate import CostEstimate
from lmpipe.model.roofline import KINDS, Operation, total_seconds
from lmpipe.report.blocks import Cell, Charts, Section, Table
from lmpipe.report.svg import Chart, Line, line_chart, number
from lmpipe.report.wording import percent, period, size

SERVED = 64  # sequences of the decoding plot: products move right, attention does not


def roofline(estimate: CostEstimate) -> Section:
    """Return the plots of training, prefill and decoding, and a table of each."""
    plan = estimate.plan
    phases = {
        "Training": (
            estimate.training,
            f"A micro-batch of {_rows(plan.micro_batch)}, both passes.",
        ),
        "Prefill": (
            estimate.prefill,
            f"Prompts of {plan.length:,} tokens, {plan.micro_batch} a pass.",
        ),
        "Decoding": (
            estimate.decode(SERVED),
            f"One more token for each of {_rows(SERVED)}.",
        ),
    }
    device = plan.device
    result = Section(
        "roofline",
        "Roofline",
        f"Left of {device.intensity:.0f} FLOPs a byte the {device.name} waits for memory, right of"
        " it for arithmetic. Each operation is taken as one kernel that reads and writes once:"
        " these are the best rates that can be had.",
    )
    charts = [
        roofline_chart(title, operations, device, caption)
        for title, (operations, caption) in phases.items()
    ]
    result.add(Charts([chart for chart in charts if chart is not None]))
    for title, (operations, _) in phases.items():
        result.add(_operations(title, operations, device))
    return result


def roofline_chart(
    title: str, operations: Sequence[Operation], device: Accelerator, caption: str = ""
) -> Chart | None:
    """Draw the roof and the operations under it, coloured by kind."""
    low = min(0.1, *(o.intensity for o in operations))
    high = max(1e4, *(o.intensity for o in operations))
    turns = [low, device.intensity, high]
    roof = [min(device.flops_per_second, x * device.bytes_per_second) for x in turns]
    lines = [Line(f"roof of {device.name}", turns, roof, colour=0)]
    for colour, kind in enumerate(KINDS, start=1):
        mine = [o for o in operations if o.kind == kind]
        if mine:
            xs = [o.intensity for o in mine]
            ys = [o.flops_per_second(device) for o in mine]
            lines.append(Line(kind, xs, ys, colour, dots=True, joined=False))
    return line_chart(
        title, lines, x_label="FLOPs per byte", y_label="FLOP/s", log="xy", caption=caption
    )


def _operations(title: str, operations: Sequence[Operation], device: Accelerator) -> Table:
    total = total_seconds(operations, device)
    rows = [
        [
            o.name,
            number(o.flops),
            size(o.bytes),
            f"{o.intensity:,.1f}" if o.intensity < 100 else f"{o.intensity:,.0f}",
            "memory" if o.is_memory_bound(device) else "arithmetic",
            period(o.seconds(device)),
            Cell(percent(o.seconds(device) / total), o.seconds(device) / total),
        ]
        for o in operations
    ]
    columns = ["operation", "FLOPs", "bytes", "FLOPs/byte", "waits for", "time", "of the time"]
    return Table(columns, rows, (1, 2, 3, 5), f"{title}: {period(total)} at least")


def _rows(num: int) -> str:
    return f"{num} sequence{'s' * (num != 1)}"
