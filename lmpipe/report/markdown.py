"""Write a page as Markdown: the same sections, with charts given as the figures at their ends.

Text of web pages is hostile here too: Prefect's UI renders Markdown, and Markdown renders HTML.
Inline text has its markup characters escaped; quoted texts go into fences longer than any run of
backticks inside.
"""

from __future__ import annotations

import re
from functools import singledispatch

from lmpipe.report.blocks import (
    Block,
    Cell,
    Charts,
    Checks,
    Code,
    Funnel,
    Page,
    Samples,
    Table,
    Text,
    Tiles,
)  # fmt: skip

MARKUP = re.compile(r"([\\`*_{}\[\]<>#|~!&])")
SAMPLE_CHARACTERS = 400


def write_markdown(page: Page) -> str:
    """Render the whole page."""
    parts = [f"# {inline(page.title)}", inline(page.subtitle)]
    for section in page.sections:
        if section.blocks:
            parts += [f"## {inline(section.title)}", inline(section.lead)]
            parts += [_block(block) for block in section.blocks]
    return "\n\n".join(part for part in parts if part) + "\n"


def inline(text: str) -> str:
    """Escape text for use inside a line or a table cell."""
    return MARKUP.sub(r"\\\1", " ".join(text.split()))


def fenced(text: str) -> str:
    """Quote a text as a code block whose fence is longer than any run of backticks inside."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def _table(columns: list[str], rows: list[list[str]], numeric: tuple[int, ...] = ()) -> str:
    rule = ["---:" if i in numeric else "---" for i in range(len(columns))]
    lines = [columns, rule, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


@singledispatch
def _block(block: Block) -> str:
    raise TypeError(f"no Markdown for {type(block).__name__}")


@_block.register
def _(block: Text) -> str:
    return inline(block.text)


@_block.register
def _(block: Code) -> str:
    return fenced(block.text)


@_block.register
def _(block: Tiles) -> str:
    rows = [[inline(t.label), f"**{inline(t.value)}**", inline(t.note)] for t in block.tiles]
    return _table(["what", "value", ""], rows)


@_block.register
def _(block: Checks) -> str:
    mark = {True: "✓", False: "✗", None: "–"}
    return "\n".join(
        f"- {mark[c.passed]} **{inline(c.claim)}** {inline(c.evidence)}" for c in block.checks
    )


@_block.register
def _(block: Table) -> str:
    def text(cell: Cell | str) -> str:
        return inline(cell if isinstance(cell, str) else cell.text)

    rows = [[text(cell) for cell in row] for row in block.rows]
    table = _table([inline(c) for c in block.columns], rows, tuple(block.numeric))
    return f"{inline(block.caption)}\n\n{table}" if block.caption else table


@_block.register
def _(block: Charts) -> str:
    names = ", ".join(inline(chart.title) for chart in block.charts)
    return f"*Charts in the HTML report: {names}.*"


@_block.register
def _(block: Funnel) -> str:
    rows = []
    for step in block.steps:
        reasons = ", ".join(f"{inline(name)} {count:,}" for name, count in step.reasons)
        removed = f"{step.entered - step.kept:,}"
        rows.append([inline(step.label), f"{step.entered:,}", f"{step.kept:,}", removed, reasons])
    return _table(["stage", "in", "kept", "removed", "reasons"], rows, (1, 2, 3))


@_block.register
def _(block: Samples) -> str:
    parts = [f"**{inline(block.title)}**"]
    for sample in block.samples:
        body = sample.body[:SAMPLE_CHARACTERS]
        facts = f" ({inline(sample.facts)})" if sample.facts else ""
        parts += [f"{inline(sample.heading)}{facts}", fenced(body)]
    return "\n\n".join(parts)
