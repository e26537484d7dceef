"""Write a page as one HTML file: style inline, charts inline, no script, nothing fetched.

The page carries a content security policy that forbids loading anything, so that even a mistake
in escaping could not call home from a reader's browser.
"""

from __future__ import annotations

from functools import singledispatch
from html import escape
from pathlib import Path

from lmpipe.report.blocks import (
    Block,
    Cell,
    Charts,
    Checks,
    Code,
    Funnel,
    FunnelStep,
    Page,
    Samples,
    Section,
    Table,
    Text,
    Tiles,
)  # fmt: skip
from lmpipe.report.svg import Chart

STYLE_FILE = Path(__file__).with_name("style.css")
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none';"
    " form-action 'none'"
)


def write_html(page: Page) -> str:
    """Render the whole page."""
    sections = [section for section in page.sections if section.blocks]
    links = "".join(f'<a href="#{s.anchor}">{escape(s.title)}</a>' for s in sections)
    body = "".join(_section(section) for section in sections)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(page.title)}</title><style>{STYLE_FILE.read_text('utf-8')}</style></head>"
        f"<body><header><h1>{escape(page.title)}</h1><p>{escape(page.subtitle)}</p></header>"
        f'<nav aria-label="Sections">{links}</nav><main>{body}</main></body></html>\n'
    )


def _section(section: Section) -> str:
    lead = f'<p class="lead">{escape(section.lead)}</p>' if section.lead else ""
    blocks = "\n".join(_block(block) for block in section.blocks)
    return (
        f'\n<section id="{section.anchor}"><h2>{escape(section.title)}</h2>{lead}{blocks}</section>'
    )


@singledispatch
def _block(block: Block) -> str:
    raise TypeError(f"no HTML for {type(block).__name__}")


@_block.register
def _(block: Text) -> str:
    return f"<p>{escape(block.text)}</p>"


@_block.register
def _(block: Code) -> str:
    return f"<pre><code>{escape(block.text)}</code></pre>"


@_block.register
def _(block: Tiles) -> str:
    tiles = "".join(
        f'<div class="tile"><span>{escape(t.label)}</span><b>{escape(t.value)}</b>'
        f"<small>{escape(t.note)}</small></div>"
        for t in block.tiles
    )
    return f'<div class="tiles">{tiles}</div>'


@_block.register
def _(block: Checks) -> str:
    marks = {True: ("good", "✓", "holds"), False: ("bad", "✗", "fails"), None: ("", "–", "unknown")}
    items = []
    for check in block.checks:
        tone, mark, word = marks[check.passed]
        items.append(
            f'<li class="{tone}"><i role="img" aria-label="{word}">{mark}</i><div>'
            f"<b>{escape(check.claim)}</b><span>{escape(check.evidence)}</span></div></li>"
        )
    return f'<ul class="checks">{"".join(items)}</ul>'


@_block.register
def _(block: Table) -> str:
    def attribute(column: int) -> str:
        return ' class="n"' if column in block.numeric else ""

    head = "".join(f"<th{attribute(i)}>{escape(name)}</th>" for i, name in enumerate(block.columns))
    rows = "".join(
        f"<tr>{''.join(f'<td{attribute(i)}>{_cell(cell)}</td>' for i, cell in enumerate(row))}</tr>"
        for row in block.rows
    )
    caption = f"<caption>{escape(block.caption)}</caption>" if block.caption else ""
    return (
        f'<div class="scroll" tabindex="0"><table>{caption}<thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _cell(cell: Cell | str) -> str:
    if isinstance(cell, str):
        return escape(cell)
    text = f"<code>{escape(cell.text)}</code>" if cell.code else escape(cell.text)
    if cell.share is None:
        return text
    percent = 100 * min(max(cell.share, 0.0), 1.0)
    bar = f'<span class="bar"><span style="width:{percent:.1f}%"></span></span>'
    return f'<span class="barred">{bar}{text}</span>'


@_block.register
def _(block: Charts) -> str:
    return f'<div class="charts">{"".join(_chart(chart) for chart in block.charts)}</div>'


def _chart(chart: Chart) -> str:
    legend = "".join(f'<span class="{kind}">{escape(name)}</span>' for kind, name in chart.legend)
    caption = f"<p>{escape(chart.caption)}</p>" if chart.caption else ""
    keys = f'<div class="legend">{legend}</div>' if legend else ""
    return (
        f"<figure><figcaption>{escape(chart.title)}</figcaption>{keys}{chart.svg}{caption}</figure>"
    )


@_block.register
def _(block: Funnel) -> str:
    widest = max((step.entered for step in block.steps), default=0)
    return f'<div class="funnel">{"".join(_step(step, widest) for step in block.steps)}</div>'


def _step(step: FunnelStep, widest: int) -> str:
    removed = step.entered - step.kept

    def percent(count: int) -> float:
        return 100 * count / (widest or 1)

    tail = f'<i style="width:{percent(removed):.2f}%"></i>' if removed else ""
    numbers = f"<b>{step.kept:,}</b> {escape(step.unit)}"
    if removed:
        numbers += f" <em>−{removed:,} ({removed / step.entered:.1%})</em>"
    chips = "".join(_chip(name, count, removed) for name, count in step.reasons)
    return (
        f'<div class="step"><div class="name">{escape(step.label)}</div>'
        f'<div class="numbers">{numbers}</div>'
        f'<div class="track"><b style="width:{percent(step.kept):.2f}%"></b>{tail}</div>'
        f'<div class="chips">{chips}</div></div>'
    )


def _chip(name: str, count: int, removed: int) -> str:
    share = 100 * count / (removed or 1)
    return f'<span style="--share:{share:.0f}%">{escape(name)} <b>{count:,}</b></span>'


@_block.register
def _(block: Samples) -> str:
    items = []
    for sample in block.samples:
        facts = f"<small>{escape(sample.facts)}</small>" if sample.facts else ""
        items.append(
            f'<article class="{sample.tone}"><h4>{escape(sample.heading)}</h4>{facts}'
            f"<pre>{escape(sample.body)}</pre></article>"
        )
    state = " open" if block.open else ""
    title = f"{escape(block.title)} <small>{len(items)}</small>"
    return (
        f"<details{state}><summary>{title}</summary>"
        f'<div class="samples">{"".join(items)}</div></details>'
    )
