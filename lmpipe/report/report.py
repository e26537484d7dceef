"""Stage `report`: one self-contained page about a run, and its Markdown twin.

Reads artifacts only, so it can be made anew for any run that is still in the store, on a machine
that has neither torch nor a network.
"""

from __future__ import annotations

from lmpipe.artifacts.output import Output
from lmpipe.artifacts.stage import stage
from lmpipe.artifacts.types import Artifact, Report
from lmpipe.report.config import ReportConfig
from lmpipe.runtime import Runtime


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
