"""`lmpipe up`: a laptop's stack asks for a secret, keeps to loopback, leaves nothing behind."""

import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.services.prefect_server import REPOSITORY, PrefectServer
from tests.services.processes import ServiceProcess, descendants, free_port, wait_until
from tests.stack.submissions import measure


class Laptop(PrefectServer):
    """`lmpipe up` in a home of its own, spoken to as its printed commands would."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.api_url = f"http://127.0.0.1:{self.port}/api"
        home = folder / "client-home"
        self.secret = home / "lmpipe-auth-string"
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}
        environment |= {"PREFECT_HOME": str(home), "PREFECT_WORKER_QUERY_SECONDS": "2"}
        command = [sys.executable, "-m", "deployments.cli", "up", "--port", str(self.port)]
        self.process = ServiceProcess("up", command, folder, environment=environment)

    @property
    def auth_string(self) -> str:
        return self.secret.read_text()

    def start(self) -> None:
        """Start and return once it says how to use it and the worker has come."""
        started = "the stack is up"
        already = self.process.log_path.read_text().count(started) if self.secret.exists() else 0
        self.process.start(
            lambda: self.process.log_path.read_text().count(started) > already, timeout_seconds=300
        )

    def family(self) -> list[psutil.Process]:
        return [psutil.Process(self.process.pid), *descendants(self.process.pid)]


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    up = Laptop(tmp_path_factory.mktemp("up"))
    try:
        up.start()
        yield up
    finally:
        up.process.stop(grace_seconds=60)


def gone(family: list[psutil.Process]) -> bool:
    return not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in family)


def test_it_listens_on_loopback_only_and_lets_nobody_in_without_the_secret(laptop: Laptop) -> None:
    listening = {
        connection.laddr.ip
        for process in laptop.family()
        for connection in process.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening == {"127.0.0.1"}
    url = f"{laptop.api_url}/flows/filter"
    assert httpx.post(url, json={}).status_code == 401
    assert stat.S_IMODE(laptop.secret.stat().st_mode) == 0o600
    printed = laptop.process.log_path.read_text()
    assert laptop.auth_string not in printed, "a terminal's history is no place for a secret"
    assert not any(laptop.auth_string in " ".join(p.cmdline()) for p in laptop.family())


def test_what_it_prints_queues_a_run_that_its_worker_completes(
    laptop: Laptop, tmp_path: Path
) -> None:
    printed = laptop.process.log_path.read_text()
    exports = re.search(r'export (\S+) PREFECT_API_AUTH_STRING="\$\(cat (\S+)\)"', printed)
    assert exports is not None
    assert exports[1] == f"PREFECT_API_URL={laptop.api_url}"
    assert exports[2] == str(laptop.secret)
    changes = [
        "--set=sources.crawl.paths=[demo_data/warc/common-crawl.warc.gz]",
        f"--set=store.root={tmp_path / 'store'}",
    ]
    options = ["--flow", "curate", "--until", "extract", "--remote"]
    url = laptop.lmpipe(tmp_path, "run", "demo", *changes, *options)
    laptop.wait_for(url.strip().rpartition("/")[2])
    wait_until(
        lambda: any((tmp_path / "store" / "extract").glob("*/manifest.json")),
        timeout_seconds=120,
        what="the artifact of the queued run",
    )


def test_forms_submitted_at_once_while_runs_write_are_all_taken(laptop: Laptop) -> None:
    """By Prefect's own command half of such a number is refused: "database is locked"."""
    laptop.create_pool("idle")
    taken, sent = measure(laptop, num_clients=8)
    assert taken == sent == 40


def test_a_worker_killed_by_9_is_started_again_and_the_server_goes_on(laptop: Laptop) -> None:
    children = psutil.Process(laptop.process.pid).children()
    (worker,) = [process for process in children if "worker" in process.cmdline()]
    (server,) = [process for process in children if "server" in process.cmdline()]
    worker.kill()
    wait_until(
        lambda: "cpu worker is started again" in laptop.process.log_path.read_text(),
        timeout_seconds=20,
        what="word of it on the screen",
    )
    greet = laptop.create_deployment("tests/stack/sample_flows.py:greet", pool="cpu")
    assert laptop.wait_for(laptop.submit(greet)) == "COMPLETED"
    assert server.is_running()


def test_the_documents_commands_of_a_laptop_hold_as_written_one_after_the_other(
    laptop: Laptop, tmp_path: Path
) -> None:
    """All lines, word by word, but for port, home and store, which are the test's own."""
    text = (REPOSITORY / "docs" / "operations.md").read_text()
    section = text.partition("**A laptop.**")[2].partition("**One GPU box.**")[0]
    first, *lines = re.findall(r"^    (.*)$", section, flags=re.MULTILINE)
    assert first == "make up"
    own = {
        "http://127.0.0.1:4200/api": laptop.api_url,
        "~/.prefect/lmpipe-auth-string": str(laptop.secret),
        ".venv/bin/lmpipe run demo": f"{sys.executable} -m deployments.cli run demo"
        f" --set store.root={tmp_path / 'store'}",
    }
    script = "\n".join(lines)
    for written, here in own.items():
        assert written in script
        script = script.replace(written, here)
    environment = {k: v for k, v in laptop.environment.items() if not k.startswith("PREFECT_API")}
    done = subprocess.run(
        ["bash", "-euc", script],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    plan, approved = (line.rpartition("/")[2] for line in done.stdout.splitlines())
    assert laptop.wait_for(plan) == "COMPLETED"
    pipeline = laptop.queued_by(plan)
    assert laptop.wait_for(approved, frozenset({"PAUSED"})) == "PAUSED"
    assert laptop.state(pipeline) in ("SCHEDULED", "PENDING", "RUNNING")
    laptop.cancel(pipeline)
    laptop.request("POST", f"/flow_runs/{approved}/resume", {})
    assert laptop.wait_for(approved, frozenset({"COMPLETED"})) == "COMPLETED"
    queued = laptop.request("GET", f"/flow_runs/{laptop.queued_by(approved)}")
    assert re.fullmatch(r"demo · pipeline, select anew · [-\d]+ [:\d]+", queued["name"])
    laptop.cancel(queued["id"])
    assert laptop.wait_for(pipeline, frozenset({"CANCELLED"})) == "CANCELLED"


def test_sigterm_ends_all_its_processes(laptop: Laptop) -> None:
    family = laptop.family()
    assert len(family) >= 4  # up, its keeper, server, worker
    os.kill(laptop.process.pid, signal.SIGTERM)
    wait_until(lambda: gone(family), timeout_seconds=60, what="the end of all processes")
    assert "ended server" in laptop.process.log_path.read_text()


def test_killed_by_9_in_mid_run_it_leaves_no_process_and_keeps_its_secret(
    laptop: Laptop, tmp_path: Path
) -> None:
    secret = laptop.auth_string
    laptop.start()
    assert laptop.auth_string == secret
    sleeper = laptop.create_deployment("tests/stack/sample_flows.py:block_in_children", pool="cpu")
    pids = tmp_path / "pids"
    laptop.submit(sleeper, pid_file=str(pids))
    wait_until(lambda: pids.exists() and pids.read_text() != "", timeout_seconds=60, what="the run")
    family = laptop.family()
    assert {int(pid) for pid in pids.read_text().split()} <= {p.pid for p in family}
    os.kill(laptop.process.pid, signal.SIGKILL)
    wait_until(lambda: gone(family), timeout_seconds=90, what="the end of all processes")
