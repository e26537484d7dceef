"""`lmpipe bench demo`: the demo from an empty store, by stage, and a second run.

Memory is PSS of the process tree: it counts a page that several processes share once in all, so it
says what the run takes from the machine. RSS would count torch's libraries once per rank.
"""

import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
from pydantic import BaseModel, ConfigDict, Field

from lmpipe.bench import Row, row

BENCH = "demo"
SAMPLE_SECONDS = 2.0  # reading smaps of seven processes costs 0.1 s of CPU
STARTED = re.compile(r"^(\S+): started$")
ENDED = re.compile(r"^(RUN|HIT)\s+([\d.]+ s)?\s+(\S+) (?:built|found)")


class Options(BaseModel):
    """Where to run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    store: str = Field("", description="Root of an empty store; empty: a temporary folder.")


def run(options: dict[str, Any]) -> list[Row]:
    """Run the demo twice and return its rows."""
    settings = Options.model_validate(options)
    with tempfile.TemporaryDirectory() as folder:
        store = settings.store or folder
        first = _Watched(store)
        second = _Watched(store)
    rows = [
        row(BENCH, "lmpipe", stage, "seconds", seconds, "s")
        for stage, seconds in first.seconds_by_stage.items()
    ]
    rows += [
        row(BENCH, "lmpipe", stage, "peak PSS", peak / 2**30, "GiB")
        for stage, peak in first.peak_by_stage.items()
    ]
    rows += [
        row(BENCH, "lmpipe", "whole run", "seconds", first.seconds, "s"),
        row(
            BENCH,
            "lmpipe",
            "whole run",
            "peak PSS",
            max(first.peak_by_stage.values()) / 2**30,
            "GiB",
        ),
        row(BENCH, "lmpipe", "second run", "seconds", second.seconds, "s"),
        row(BENCH, "lmpipe", "second run", "seconds in its stages", second.seconds_in_stages, "s"),
    ]
    return rows


class _Watched:
    """One run of the demo, watched from outside."""

    def __init__(self, store: str) -> None:
        self.seconds_by_stage: dict[str, float] = {}
        self.peak_by_stage: dict[str, float] = {}
        self._stage = "start"
        started = time.monotonic()
        lmpipe = Path(sys.executable).with_name("lmpipe")
        self._process = subprocess.Popen(
            [str(lmpipe), "run", "demo", "--set", f"store.root={store}"],
            stdout=subprocess.PIPE,
            text=True,
        )
        sampler = threading.Thread(target=self._sample, daemon=True)
        sampler.start()
        first_step = last_step = started
        assert self._process.stdout is not None
        for line in self._process.stdout:
            print(line, end="", file=sys.stderr)
            if begun := STARTED.match(line):
                self._stage = begun[1]
            if ended := ENDED.match(line):
                last_step = time.monotonic()
                first_step = min(first_step, last_step) if first_step != started else last_step
                if ended[2]:
                    self.seconds_by_stage[ended[3]] = float(ended[2].removesuffix(" s"))
        if self._process.wait() != 0:
            raise RuntimeError(f"the demo failed with exit code {self._process.returncode}")
        sampler.join()
        self.seconds = time.monotonic() - started
        self.seconds_in_stages = last_step - first_step

    def _sample(self) -> None:
        while self._process.poll() is None:
            total = _pss(self._process.pid)
            self.peak_by_stage[self._stage] = max(self.peak_by_stage.get(self._stage, 0), total)
            time.sleep(SAMPLE_SECONDS)


def _pss(pid: int) -> float:
    """Return the proportional set size of a process and all its descendants, in bytes."""
    total = 0.0
    try:
        root = psutil.Process(pid)
        tree = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return total
    for process in tree:
        try:
            total += process.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total
