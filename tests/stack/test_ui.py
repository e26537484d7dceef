"""What a person sees and does in Prefect's UI, in a real browser. The pictures are to be looked at:
`pytest tests/stack/test_ui.py -rP` prints where they lie."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from flows.naming import is_made_up
from tests.services.browser import Browser, browser
from tests.services.prefect_server import REPOSITORY, PrefectServer
from tests.services.processes import ServiceProcess, wait_until
from tests.stack.test_deploy import deployment_id, tiny_recipe

FILE = yaml.safe_load((REPOSITORY / "deployments" / "prefect.yaml").read_text())
# by name: other tests leave deployments of their own with our tag on the server
OURS = {"deployments": {"name": {"any_": [entry["name"] for entry in FILE["deployments"]]}}}
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


def test_every_form_fits_three_screens_and_opens_with_what_a_run_is_started_for(
    ui: Browser, deployed: PrefectServer
) -> None:
    ui.driver.set_window_size(1280, 900)
    heights = {}
    for deployment in deployed.request("POST", "/deployments/filter", OURS):
        ui.open(page(deployed, f"deployments/deployment/{deployment['id']}/run"))
        last = "Settings" if "recipe" in deployment["parameters"] else "Preview"
        ui.find("label", f"{last} (Optional)")
        ui.wait_for_text("Additional Options")
        heights[deployment["name"]] = ui.height()
        labels = [label.text for label in ui.driver.find_elements("css selector", "label")]
        titled = [label.removesuffix(" (Optional)") for label in labels if label]
        assert not {"Field", ""} & set(titled), labels
        assert not [t for t in titled if re.search("[a-z][A-Z]|^[a-z]", t)], labels
    print(heights)
    assert len(heights) == 9
    assert max(heights.values()) <= 3 * 900, heights
    ui.driver.set_window_size(1400, 1500)


def test_a_wrong_setting_is_named_by_its_key_when_the_form_is_sent(
    ui: Browser, deployed: PrefectServer
) -> None:
    ui.open(page(deployed, f"deployments/deployment/{deployment_id(deployed, 'pipeline')}/run"))
    ui.fill_json("Settings", '{"dedup": {"rows": 0}}')
    ui.find("button", "Submit").click()
    ui.wait_for_text("'settings.dedup.rows'. Failure reason: 0 is less than the minimum of 1")
    ui.screenshot("refused")


def test_a_person_fills_the_rerun_form_and_sees_progress_and_tables_of_the_run(
    ui: Browser, deployed: PrefectServer, tmp_path: Path
) -> None:
    recipe = tiny_recipe(tmp_path / "store")
    form = page(deployed, f"deployments/deployment/{deployment_id(deployed, 'rerun')}/run")
    ui.open(form)
    assert is_made_up(str(ui.find("form input").get_property("value"))), "the form's own name"
    ui.choose("Flow", "curate")
    ui.choose("Until", "extract")
    ui.choose("Force", "extract")
    ui.fill("Reason", "asked for in the form")
    ui.fill("Recipe", yaml.safe_dump(recipe, default_flow_style=True, width=10_000))
    ui.screenshot("rerun-form")
    ui.find("button", "Submit").click()

    runs: list[str] = []
    body = {"flow_runs": {"deployment_id": {"any_": [deployment_id(deployed, "curate")]}}}

    def queued() -> bool:
        found = deployed.request("POST", "/flow_runs/filter", body | {"sort": "START_TIME_DESC"})
        runs[:] = [
            r["id"] for r in found if r["parameters"]["settings"]["store"] == recipe["store"]
        ]
        return bool(runs)

    wait_until(queued, timeout_seconds=90, what="the run that the form asked for")
    assert deployed.wait_for(runs[0]) == "COMPLETED"
    (manifest,) = (tmp_path / "store" / "extract").glob("*/manifest.json")
    assert "asked for in the form" in manifest.read_text()

    name = deployed.request("GET", f"/flow_runs/{runs[0]}")["name"]
    assert name.startswith("tiny · curate until extract, extract anew · ")

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
