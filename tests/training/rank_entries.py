"""What the ranks of tests run: entries for lmpipe.training.launch.run_ranks."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from lmpipe.errors import ConfigError, InputError, TrainingError
from lmpipe.training.rank import RankContext


def report(job: dict[str, Any], context: RankContext) -> dict[str, Any]:
    print(f"hello from {context.rank}", flush=True)
    print("careful", file=sys.stderr, flush=True)
    context.progress(2, 2, unit="steps")
    context.series(1, loss=0.5)
    context.log("logged")
    for step in (1, 2):
        folder = Path(job["folder"]) / f"step{step}"
        if context.rank == 0:
            folder.mkdir()
            (folder / "weights").write_text(str(step))
        context.save_checkpoint(step, folder)
    return {"rank": context.rank, "world_size": context.world_size, "echo": job["word"]}


def fail(job: dict[str, Any], context: RankContext) -> None:
    """Rank 1 fails in the way that is asked for; the others would go on for ever."""
    (Path(job["folder"]) / f"pid{context.rank}").write_text(str(os.getpid()))
    (context.scratch / f"half a checkpoint of {context.rank}").touch()
    if context.rank != 1:
        time.sleep(600)
    match job["how"]:
        case "sigkill":
            print("I was allocating", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(3)
        case "training":
            raise TrainingError("ten steps in a row were skipped")
        case "config":
            raise ConfigError("batch_tokens=7 must divide by 3; try 6")
        case "input":
            raise InputError("no pairs: no prompt has a right completion; change the task")


def wait_with_child(job: dict[str, Any], context: RankContext) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    path = Path(job["folder"]) / f"pid{context.rank}"
    path.with_suffix(".tmp").write_text(f"{os.getpid()} {child.pid}")
    path.with_suffix(".tmp").rename(path)
    time.sleep(600)
