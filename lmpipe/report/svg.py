"""Charts as SVG text whose colours are CSS variables, so that one drawing serves the light and
the dark page.

Alternative not taken: matplotlib. It costs 1 s and 60 MB to import, writes 40 kB a figure, and
bakes its colours in. The price of our own: only the three forms that the report needs (lines,
dots with error bars, spans in time).

A chart is 380 units wide and drawn at most 1.2 times larger, so its 12-unit text stays readable
at a phone's width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 380.0, 236.0
RIGHT, TOP, BOTTOM = 12.0, 12.0, 42.0
MAX_POINTS = 400
ROW_HEIGHT = 26.0
CHARACTER = 7.0  # width of a 12-unit character in the widest of the page's fonts
LONGEST_LABEL = 27
EXACT_DIGITS = 8


@dataclass(frozen=True)
class Line:
    """One curve; `faint` is for what lies behind another; `colour` is 1..6, 0 is ink.

    One without a name is left out of the legend.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: int = 1
    faint: bool = False
    dots: bool = False
    joined: bool = True  # False: dots alone


@dataclass(frozen=True)
class Level:
    """A horizontal reference line."""

    name: str
    y: float


@dataclass(frozen=True)
class Chart:
    """A finished drawing with what must be said beside it."""

    title: str
    svg: str
    legend: tuple[tuple[str, str], ...] = ()  # (css class, label)
    caption: str = ""


@dataclass(frozen=True)
class Dot:
    """A value with a symmetric error on a row of its own."""

    label: str
    value: float
    error: float | None = None
    reference: float | None = None
    colour: int = 1


@dataclass(frozen=True)
class Span:
    """A stretch of time on a row of its own, in seconds from the start."""

    label: str
    start: float
    end: float
    colour: int = 1


@dataclass
class _Axis:
    """A linear or logarithmic scale between two pixel positions."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    ticks: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.log:
            self.ticks = log_ticks(self.low, self.high)
        else:
            self.ticks = nice_ticks(self.low, self.high)
            self.low = min(self.low, self.ticks[0])
            self.high = max(self.high, self.ticks[-1])

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            value, low, high = math.log10(value), math.log10(low), math.log10(high)
        return self.start + (value - low) / ((high - low) or 1.0) * (self.end - self.start)


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round ticks (1, 2, 2.5 or 5 times a power of ten) that cover low..high."""
    if not high > low:
        pad = abs(low) * 0.1 or 1.0
        low, high = low - pad, high + pad
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{k * step:.12g}") + 0.0 for k in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten inside low..high, with 2 and 5 between them where they are few."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    tens = [10.0**e for e in exponents if low <= 10.0**e <= high]
    if len(tens) >= 3:
        return tens[:: max(1, len(tens) // 5)]
    return [m * 10.0**e for e in exponents for m in (1, 2, 5) if low <= m * 10.0**e <= high]


def labels(ticks: Sequence[float]) -> list[str]:
    """Write ticks with as many digits as tell them apart: 2e-4 beside 1.5e-4."""
    exact = [number(tick, EXACT_DIGITS) for tick in ticks]
    written = ([number(tick, digits) for tick in ticks] for digits in range(3, EXACT_DIGITS))
    return next((texts for texts in written if texts == exact), exact)


def number(value: float, digits: int = 3) -> str:
    """Write a number for an axis or a table: 1.2M, 340k, 0.0031, 3e-5."""
    size = abs(value)
    if not math.isfinite(value):
        return "–"
    if size >= 1e15:
        return f"{value:.1e}".replace("e+", "e")
    for limit, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            scale = 1e3 if suffix == "k" else limit
            return f"{value / scale:.{digits}g}{suffix}"
    if size >= 1000:
        return f"{value:,.0f}"
    if size == 0:
        return "0"
    if size >= 1e-3:
        return f"{value:.{digits}g}"
    mantissa, _, exponent = f"{value:.{digits - 3}e}".partition("e-")
    return f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}e-{int(exponent)}"


def line_chart(
    title: str,
    lines: Sequence[Line],
    *,
    x_label: str,
    y_label: str,
    levels: Sequence[Level] = (),
    log: str = "",
    caption: str = "",
) -> Chart | None:
    """Draw curves; None where no curve has a finite point, so that no empty plot reaches the page.

    Args:
        log: which axes are logarithmic: "", "x", "y" or "xy".
    """
    drawn = [line for line in (_clean(line, log) for line in lines) if line.x]
    if not drawn:
        return None
    ys = [v for line in drawn for v in line.y] + [level.y for level in levels]
    y = _Axis(min(ys), max(ys), HEIGHT - BOTTOM, TOP, "y" in log)
    left = 32.0 + CHARACTER * max(len(text) for text in labels(y.ticks))
    low, high = min(min(line.x) for line in drawn), max(max(line.x) for line in drawn)
    x = _Axis(low, high, left, WIDTH - RIGHT, "x" in log)
    parts = [_frame(x, y, x_label, y_label)]
    parts += [_polyline(line, x, y) for line in sorted(drawn, key=lambda line: not line.faint)]
    parts += [_rule("level", left, y(v.y), WIDTH - RIGHT, y(v.y)) for v in levels]
    legend = [
        (f"k{line.colour}{' faint' if line.faint else ''}", line.name)
        for line in drawn
        if line.name
    ]
    legend += [("level", f"{level.name} ({number(level.y)})") for level in levels]
    if len(legend) == 1:
        legend = []  # the title says it
    return Chart(title, _svg(title, HEIGHT, parts), tuple(legend), caption)


def _rule(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _write(text: str, x: float, y: float, anchor: str = "middle", more: str = "") -> str:
    at = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f"<text {at}{more}>{escape(text)}</text>"


def _clean(line: Line, log: str) -> Line:
    """Drop points that cannot be drawn, then thin to `MAX_POINTS`, keeping first and last."""
    points = [
        (float(x), float(y))
        for x, y in zip(line.x, line.y, strict=True)
        if x is not None and y is not None and math.isfinite(x) and math.isfinite(y)
        and not ("x" in log and x <= 0) and not ("y" in log and y <= 0)
    ]  # fmt: skip
    if len(points) > MAX_POINTS:
        stride = (len(points) - 1) / (MAX_POINTS - 1)
        points = [points[round(k * stride)] for k in range(MAX_POINTS)]
    return Line(
        line.name, [p[0] for p in points], [p[1] for p in points],
        line.colour, line.faint, line.dots or len(points) == 1, line.joined,
    )  # fmt: skip


def _frame(x: _Axis, y: _Axis, x_label: str, y_label: str) -> str:
    left, right, bottom = x.start, x.end, y.start
    parts = []
    for tick, text in zip(y.ticks, labels(y.ticks), strict=True):
        parts.append(_rule("grid", left, y(tick), right, y(tick)))
        parts.append(_write(text, left - 6, y(tick) + 4, "end"))
    for tick, text in zip(x.ticks, labels(x.ticks), strict=True):
        at = x(tick)
        if at > right + 0.5:
            continue
        parts.append(_rule("tick", at, bottom, at, bottom + 4))
        parts.append(_write(text, at, bottom + 17, "end" if at > right - 12 else "middle"))
    parts.append(_rule("axis", left, bottom, right, bottom))
    parts.append(_write(x_label, (left + right) / 2, HEIGHT - 6))
    turned = f' transform="rotate(-90 12 {(TOP + bottom) / 2:.1f})"'
    parts.append(_write(y_label, 12, (TOP + bottom) / 2, more=turned))
    return "".join(parts)


def _polyline(line: Line, x: _Axis, y: _Axis) -> str:
    points = [(x(a), y(b)) for a, b in zip(line.x, line.y, strict=True)]
    kind = f"k{line.colour}{' faint' if line.faint else ''}"
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
    drawing = (
        f'<polyline class="line {kind}" points="{path}"/>'
        if len(points) > 1 and line.joined
        else ""
    )
    if line.dots:
        drawing += "".join(
            _dot(kind, point, 3.2, f"{line.name}: {number(v)} at {number(u)}")
            for point, u, v in zip(points, line.x, line.y, strict=True)
        )
    return drawing


def _dot(kind: str, point: tuple[float, float], radius: float, hint: str) -> str:
    at = f'cx="{point[0]:.1f}" cy="{point[1]:.1f}" r="{radius}"'
    return f'<circle class="dot {kind}" {at}><title>{escape(hint)}</title></circle>'


def dot_chart(title: str, dots: Sequence[Dot], *, x_label: str, caption: str = "") -> Chart | None:
    """Draw values with error bars, one row each, and a mark at each row's reference (chance)."""
    dots = [dot for dot in dots if math.isfinite(dot.value)]
    if not dots:
        return None
    left, height = _label_width(dots), TOP + ROW_HEIGHT * len(dots) + BOTTOM
    ends = [d.value + s * (d.error or 0.0) for d in dots for s in (-1, 1)]
    ends += [d.reference for d in dots if d.reference is not None]
    x = _Axis(min(ends), max(ends), left, WIDTH - RIGHT - 6)
    bottom = height - BOTTOM
    parts = [_rows_frame(x, bottom, height, x_label)]
    for row, dot in enumerate(dots):
        at = TOP + ROW_HEIGHT * (row + 0.5)
        parts.append(_row_label(dot.label, left, at))
        if dot.reference is not None:
            parts.append(_rule("level", x(dot.reference), at - 9, x(dot.reference), at + 9))
        hint = f"{dot.label}: {dot.value:.4g}"
        if dot.error:
            low, high = x(dot.value - dot.error), x(dot.value + dot.error)
            parts.append(_rule(f"error k{dot.colour}", low, at, high, at))
            hint += f" ± {dot.error:.2g}"
        parts.append(_dot(f"k{dot.colour}", (x(dot.value), at), 4.2, hint))
    legend = [(f"k{dots[0].colour}", "value ± one standard error")]
    if any(dot.reference is not None for dot in dots):
        legend.append(("level", "chance"))
    return Chart(title, _svg(title, height, parts), tuple(legend), caption)


def span_chart(
    title: str, spans: Sequence[Span], *, legend: Sequence[tuple[str, str]] = ()
) -> Chart | None:
    """Draw stretches of time below each other."""
    if not spans:
        return None
    left, height = _label_width(spans), TOP + ROW_HEIGHT * len(spans) + BOTTOM
    total = max(span.end for span in spans)
    unit, scale = ("seconds", 1.0) if total < 600 else ("minutes", 60.0)
    if total >= 36000:
        unit, scale = "hours", 3600.0
    x = _Axis(0.0, total / scale or 1.0, left, WIDTH - RIGHT - 6)
    bottom = height - BOTTOM
    parts = [_rows_frame(x, bottom, height, f"{unit} since the first stage began")]
    for row, span in enumerate(spans):
        at = TOP + ROW_HEIGHT * (row + 0.5)
        start, end = x(span.start / scale), x(span.end / scale)
        parts.append(_row_label(span.label, left, at))
        place = f'x="{start:.1f}" y="{at - 7}" width="{max(1.5, end - start):.1f}"'
        hint = escape(f"{span.label}: {span.end - span.start:.1f} s")
        parts.append(
            f'<rect class="span k{span.colour}" {place} height="14" rx="3">'
            f"<title>{hint}</title></rect>"
        )
    return Chart(title, _svg(title, height, parts), tuple(legend))


def _rows_frame(x: _Axis, bottom: float, height: float, x_label: str) -> str:
    parts = []
    for tick, text in zip(x.ticks, labels(x.ticks), strict=True):
        parts.append(_rule("grid", x(tick), TOP, x(tick), bottom))
        parts.append(_write(text, x(tick), bottom + 16))
    parts.append(_write(x_label, (x.start + x.end) / 2, height - 6))
    return "".join(parts)


def _label_width(rows: Sequence[Dot] | Sequence[Span]) -> float:
    return min(LONGEST_LABEL, max(len(row.label) for row in rows)) * CHARACTER + 14


def _row_label(label: str, left: float, at: float) -> str:
    short = label if len(label) <= LONGEST_LABEL else label[: LONGEST_LABEL - 1] + "…"
    return _write(short, left - 8, at + 4, "end")


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    box, name = f"0 0 {WIDTH:.0f} {height:.0f}", escape(title, quote=True)
    return f'<svg viewBox="{box}" role="img" aria-label="{name}">{"".join(parts)}</svg>'
