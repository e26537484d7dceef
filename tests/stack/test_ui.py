"""What a person sees and does in Prefect's UI, in a real browser. The pictures are to be looked at:
`pytest tests/stack/test_ui.py -rP` prints where they lie."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.services.browser import Browser, browser
from tests.services.prefect_server import PrefectServer
from tests.services.processes import ServiceProcess, wait_until
from tests.stack.test_deploy import deployment_id, tiny_recipe

FLOW = "tests/stack/stage_flows.py:run_report"


@pytest.fixture(scope="module")
def ui(
    deployed: PrefectServer, lmpipe_worker: ServiceProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Browser]:
    """A browser that has logged in with the server's auth string."""
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        opened.log_in(page(deployed, "dashboard"), deployed.auth_string)
        yield opened


def page(server: PrefectServer, path: str) -> str:
    return f"{server.api_url.removesuffix('/api')}/v2/{path}"


def test_a_person_fills_the_rerun_form_and_sees_progress_and_tables_of_the_run(
    ui: Browser, deployed: PrefectServer, tmp_path: Path
) -> None:
    recipe = tiny_recipe(tmp_path / "store")
    form = page(deployed, f"deployments/deployment/{deployment_id(deployed, 'rerun')}/run")
    ui.open(form)
    ui.fill("recipe", yaml.safe_dump(recipe, default_flow_style=True, width=10_000))
    ui.find("button[aria-label='Select flow']").click()
    ui.find("[role=option]", "curate").click()
    ui.fill("Until Stage", "extract")
    ui.field("Force", "button[normalize-space()='Add item']").click()
    ui.fill("Force", "extract")
    ui.fill("Reason", "asked for in the form")
    ui.screenshot("rerun-form")
    ui.find("button", "Submit").click()

    runs: list[str] = []
    body = {"flow_runs": {"deployment_id": {"any_": [deployment_id(deployed, "curate")]}}}

    def queued() -> bool:
        found = deployed.request("POST", "/flow_runs/filter", body | {"sort": "START_TIME_DESC"})
        runs[:] = [r["id"] for r in found if r["parameters"]["recipe"]["store"] == recipe["store"]]
        return bool(runs)

    wait_until(queued, timeout_seconds=90, what="the run that the form asked for")
    assert deployed.wait_for(runs[0]) == "COMPLETED"
    (manifest,) = (tmp_path / "store" / "extract").glob("*/manifest.json")
    assert "asked for in the form" in manifest.read_text()

    ui.open(page(deployed, f"runs/flow-run/{runs[0]}"))
    ui.wait_for_text("RUN extract built")
    ui.screenshot("run-logs")
    ui.show_tab("Artifacts", "extract-progress")
    for shown in ("extract-records", "extract", "steps"):
        ui.wait_for_text(shown)
    ui.screenshot("run-artifacts")


def test_a_report_is_linked_from_its_run_and_readable_in_the_ui(
    ui: Browser, deployed: PrefectServer, tmp_path: Path
) -> None:
    deployment = deployed.create_deployment(FLOW, pool="cpu")
    run = deployed.submit(deployment, store=str(tmp_path / "store"))
    assert deployed.wait_for(run) == "COMPLETED"
    ui.open(page(deployed, f"runs/flow-run/{run}"))
    ui.show_tab("Artifacts", "report-text")
    ui.screenshot("report-artifacts")
    body = {"artifacts": {"flow_run_id": {"any_": [run]}}}
    found = {a["key"]: a for a in deployed.request("POST", "/artifacts/filter", body)}
    link = found["report-page"]["data"]
    assert str(tmp_path / "store") in link and link.endswith("report.html)")

    ui.open(page(deployed, f"artifacts/artifact/{found['report-text']['id']}"))
    ui.wait_for_text("lmpipe run")
    ui.screenshot("report-text")
    alert = ui.driver.execute_script("return document.querySelectorAll('main script').length")
    assert alert == 0, "a text of the report became a script"
