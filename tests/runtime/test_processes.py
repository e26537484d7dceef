import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from lmpipe.runtime.processes import (
    describe_exit,
    end_tree,
    end_trees,
    memory_limit_bytes,
)

SLEEP = "import time; time.sleep(60)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
PARENT_OF_A_SESSION = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {SLEEP!r}], start_new_session=True)
print(child.pid, flush=True)
time.sleep(60)
"""
PARENT_WHOSE_CHILD_DIES_WITH_IT = """
import os, subprocess, sys, time
code = ("import os, time; from lmpipe.runtime.processes import die_with_parent;"
        f"die_with_parent({os.getpid()}); print(os.getpid(), flush=True); time.sleep(60)")
subprocess.Popen([sys.executable, "-c", code])
time.sleep(60)
"""


def start(code: str) -> "subprocess.Popen[str]":
    root = str(Path(__file__).resolve().parents[2])
    search_path = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": search_path}
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=env
    )


def first_number(process: "subprocess.Popen[str]") -> int:
    assert process.stdout is not None
    number = int(process.stdout.readline())
    process.stdout.close()
    return number


def is_gone(pid: int, within_seconds: float = 5) -> bool:
    deadline = time.monotonic() + within_seconds
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


def test_end_tree_reaches_a_grandchild_in_a_session_of_its_own():
    parent = start(PARENT_OF_A_SESSION)
    grandchild = first_number(parent)
    ended = end_tree(parent.pid, grace_seconds=5, names={parent.pid: "rank 0"})
    assert f"rank 0 (pid {parent.pid})" in ended
    assert any(f"pid {grandchild}" in name for name in ended)
    assert is_gone(grandchild)
    assert parent.wait() == -signal.SIGTERM


def test_end_trees_kills_what_ignores_sigterm_after_one_grace_for_all():
    stubborn = [start(STUBBORN + "print(1, flush=True);" + SLEEP) for _ in range(2)]
    for process in stubborn:
        first_number(process)
    started = time.monotonic()
    end_trees([process.pid for process in stubborn], grace_seconds=2)
    assert [process.wait() for process in stubborn] == [-signal.SIGKILL] * 2
    assert 2 <= time.monotonic() - started < 3.9  # one after the other: 4


def test_end_tree_names_nothing_when_all_had_ended():
    process = start("pass")
    assert process.stdout is not None
    process.stdout.close()
    process.wait()
    assert end_tree(process.pid, grace_seconds=1) == []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="prctl is Linux's")
def test_a_child_dies_with_a_parent_that_is_killed():
    parent = start(PARENT_WHOSE_CHILD_DIES_WITH_IT)
    child = first_number(parent)
    parent.kill()
    parent.wait()
    assert is_gone(child)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="prctl is Linux's")
def test_a_child_whose_parent_died_before_it_could_ask_ends_at_once():
    code = (
        "from lmpipe.runtime.processes import die_with_parent; die_with_parent(1); print('alive')"
    )
    process = start(code)
    assert process.communicate() == ("", None)
    assert process.returncode == 1


@pytest.mark.parametrize(
    ("returncode", "expected"),
    [(1, "exit code 1"), (-15, "SIGTERM (exit code -15)"), (139, "SIGSEGV (exit code 139)")],
)
def test_an_exit_is_described_by_its_signal(returncode: int, expected: str):
    assert describe_exit(returncode) == expected


@pytest.mark.parametrize("returncode", [-9, 137])
def test_a_sigkill_is_likely_the_memory_killer_and_names_the_limit(returncode: int):
    text = describe_exit(returncode)
    assert "likely out of memory" in text
    assert f"{memory_limit_bytes() / 2**30:.1f} GiB" in text
