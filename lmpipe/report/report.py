"""Stage `report`: one self-contained page about a run, and its Markdown twin.

Reads artifacts only, so it can be made anew for any run that is still in the store, on a machine
that has neither torch nor a network.
"""

from __future__ import annotations

from pydantic import Field

from lmpipe.artifacts.output import Output
from lmpipe.artifacts.stage import StageConfig, stage
from lmpipe.artifacts.types import Artifact, Report
from lmpipe.runtime import Runtime


class ReportConfig(StageConfig):
    """What the page is called and how much it quotes."""

    title: str = Field(
        "lmpipe run", min_length=1, max_length=200, description="Heading of the page."
    )
    recipe: str = Field(
        "demo", max_length=400, description="Recipe named in the commands that repeat the run."
    )
    samples_per_reason: int = Field(
        3, ge=0, le=50, description="Removed documents quoted for each reason."
    )
    kept_samples: int = Field(6, ge=0, le=100, description="Kept documents quoted.")
    failed: tuple[str, ...] = Field(
        (), description="Steps that failed or were not run, and why; a run fills it in."
    )


@stage(version=1, kind="statistical")
def report(
    out: Output[Report], config: ReportConfig, everything: list[Artifact], *, runtime: Runtime
) -> Report:
    """Write report.html and report.md about `everything`."""
    from lmpipe.report.html import write_html
    from lmpipe.report.markdown import write_markdown
    from lmpipe.report.page import make_page

    page = make_page(config, everything)
    html, markdown = write_html(page), write_markdown(page)
    out.write_bytes("report.html", html.encode())
    out.write_bytes("report.md", markdown.encode())
    out.metric("bytes", len(html.encode()))
    out.metric("sections", sum(1 for section in page.sections if section.blocks))
    return out.commit()
