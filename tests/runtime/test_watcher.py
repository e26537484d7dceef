import signal
import subprocess
import sys

import psutil
import pytest

SCRIPT = """
import subprocess, sys, time
from lmpipe.runtime.watcher import children_end_with_this_process
children_end_with_this_process()
child = subprocess.Popen(["sleep", "600"])
print(child.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("kill", [True, False])
def test_a_child_that_knows_nothing_of_us_ends_with_us(kill: bool) -> None:
    command = [sys.executable, "-c", SCRIPT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdin is not None and parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        (watcher,) = [p for p in psutil.Process(parent.pid).children() if p != child]
        _, alive = psutil.wait_procs([child, watcher], timeout=2)  # noted twice a second
        assert len(alive) == 2
        if kill:
            parent.send_signal(signal.SIGKILL)
        else:
            parent.stdin.close()
        parent.wait()
    _, alive = psutil.wait_procs([child, watcher], timeout=10)
    assert not alive
