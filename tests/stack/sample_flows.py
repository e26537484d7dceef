"""Flows that the stack tests deploy: the smallest ones that show what a worker does."""

import subprocess
import sys
import time
from pathlib import Path

from prefect import flow, get_run_logger


@flow(name="greet")
def greet(name: str = "world") -> None:
    """Log one line."""
    get_run_logger().info("hello %s from Python %s", name, sys.version_info[:2])


@flow(name="block_in_children")
def block_in_children(pid_file: str) -> None:
    """Start two children that ignore nothing, note their pids, and wait for ever."""
    children = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
    Path(pid_file).write_text(" ".join(str(child.pid) for child in children))
    while True:
        time.sleep(1)
