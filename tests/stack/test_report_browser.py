"""The report in a real browser: nothing is wider than a phone, nothing is fetched."""

import html
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from lmpipe.artifacts.build import build
from lmpipe.artifacts.store import Store
from lmpipe.model.accelerators import H100
from lmpipe.model.cost_estimate import CostEstimate, Plan
from lmpipe.model.sizes import SIZES
from lmpipe.report import cost_page
from lmpipe.report.accounting import account, make_page
from lmpipe.report.config import ReportConfig
from lmpipe.report.html import write_html
from lmpipe.report.prices import Prices
from lmpipe.report.report import report
from lmpipe.runtime import Runtime
from tests.report.attempts import invented
from tests.report.fake_run import make_run

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
MEASURE = """
<script>
const frame = document.getElementById("frame");
frame.onload = () => {
  const page = frame.contentDocument;
  page.querySelectorAll("details").forEach(part => { part.open = true; });
  const wide = [...page.querySelectorAll("main *, header *")].filter(element =>
    !element.closest(".scroll, svg")
    && element.getBoundingClientRect().right > frame.clientWidth + 1);
  const drawn = [...page.querySelectorAll("svg")].filter(svg =>
    svg.getBoundingClientRect().width > 200 && svg.getBoundingClientRect().height > 60);
  document.body.innerHTML = "<p>width=" + page.documentElement.scrollWidth
    + " wide=" + wide.length + " charts=" + page.querySelectorAll("svg").length
    + " drawn=" + drawn.length + " loaded=" + frame.contentWindow.performance
      .getEntriesByType("resource").length + "</p>";
};
</script>
"""


def measure(page: str, width: int, folder: Path) -> dict[str, int]:
    """Lay the page out in a frame of the given width; return what was measured."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    assert browser, f"install one of {', '.join(BROWSERS)} to run this test"
    outer = folder / f"outer-{width}.html"
    frame = f'<iframe id="frame" style="width:{width}px;height:844px;border:0"'
    outer.write_text(f'{frame} srcdoc="{html.escape(page, quote=True)}"></iframe>{MEASURE}')
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
        "--no-first-run", "--disable-background-networking", "--disable-component-update",
        "--disable-sync", f"--user-data-dir={folder / f'profile-{width}'}",
        "--virtual-time-budget=4000", "--dump-dom", outer.as_uri(),
    ]  # fmt: skip
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    found = re.search(r"<p>(width=[^<]+)</p>", text)
    assert found, text[:2000]
    return {k: int(v) for k, v in (part.split("=") for part in found[1].split())}


@pytest.mark.stack
@pytest.mark.parametrize("width", [390, 1280])
def test_the_report_fits_the_screen_with_every_chart_drawn(width: int, tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    inputs = {"everything": make_run(tmp_path / "store")}
    made = build(report, ReportConfig(), inputs, store=store, runtime=Runtime())
    found = measure(made.read_bytes("report.html").decode(), width, tmp_path)
    assert found["width"] <= width
    assert found["wide"] == 0
    assert found["loaded"] == 0
    assert found["drawn"] == found["charts"] > 20


@pytest.mark.stack
@pytest.mark.parametrize("width", [390, 1280])
def test_the_accounting_page_fits_the_screen_with_both_plots_drawn(
    width: int, tmp_path: Path
) -> None:
    rows = account(invented(), Prices(currency="EUR", devices={"H200": 3.0}, cpu_hour=0.05))
    found = measure(write_html(make_page(rows, "s3://bucket/prefix")), width, tmp_path)
    assert found["width"] <= width
    assert found["wide"] == 0
    assert found["loaded"] == 0
    assert found["drawn"] == found["charts"] == 2


@pytest.mark.stack
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_of_a_estimate_fits_the_screen_with_its_roofs_drawn(
    width: int, tmp_path: Path
) -> None:
    estimate = CostEstimate(
        Plan(SIZES["70B"], H100, ranks=1024, tokens=15e12, zero_stage=3, price=2.5)
    )
    found = measure(write_html(cost_page.make_page(estimate, "70B")), width, tmp_path)
    assert found["width"] <= width
    assert found["wide"] == 0
    assert found["loaded"] == 0
    assert found["drawn"] == found["charts"] == 3
