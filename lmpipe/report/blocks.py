"""What a report is made of, before it is HTML or Markdown.

Sections are built as data, and the two writers escape every string that they are given. So no
section can let a web page's text through as markup, and the Markdown twin cannot fall behind the
page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lmpipe.report.svg import Chart


@dataclass(frozen=True)
class Tile:
    """One number that matters, with what to compare it to."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Tiles:
    """Figures side by side."""

    tiles: Sequence[Tile]


@dataclass(frozen=True)
class Check:
    """A claim that the run was meant to fulfil; `passed` None where the run does not say."""

    claim: str
    evidence: str
    passed: bool | None


@dataclass(frozen=True)
class Checks:
    """Claims with what speaks for each."""

    checks: Sequence[Check]


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Cell:
    """A table cell; `share` in [0, 1] draws a bar behind it."""

    text: str
    share: float | None = None
    code: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of cells; `numeric` names the columns that are set to the right."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    numeric: Sequence[int] = ()
    caption: str = ""


@dataclass(frozen=True)
class Charts:
    """Drawings side by side."""

    charts: Sequence[Chart]


@dataclass(frozen=True)
class FunnelStep:
    """What one stage let through, and what it removed by reason, in one unit."""

    label: str
    entered: int
    kept: int
    reasons: Sequence[tuple[str, int]] = ()
    unit: str = "documents"  # of what is kept


@dataclass(frozen=True)
class Funnel:
    """What is left after each stage, one below the other."""

    steps: Sequence[FunnelStep]


@dataclass(frozen=True)
class Sample:
    """A quoted text, shown folded to a few lines."""

    heading: str
    body: str
    facts: str = ""
    tone: str = ""  # "", "good" or "bad"


@dataclass(frozen=True)
class Samples:
    """Samples behind one line that opens them."""

    title: str
    samples: Sequence[Sample]
    open: bool = False


@dataclass(frozen=True)
class Code:
    """Commands or other text to copy."""

    text: str


Block = Tiles | Checks | Text | Table | Charts | Funnel | Samples | Code


@dataclass
class Section:
    """One heading of the report; a section without blocks is not written."""

    anchor: str
    title: str
    lead: str = ""
    blocks: list[Block] = field(default_factory=list)

    def add(self, *blocks: Block | None) -> None:
        """Append blocks; None, for what a run does not have, is left out."""
        self.blocks += [block for block in blocks if block is not None]


@dataclass(frozen=True)
class Page:
    """A whole document, to be written as HTML or Markdown."""

    title: str
    subtitle: str
    sections: Sequence[Section]
