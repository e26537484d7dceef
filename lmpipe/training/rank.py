"""The main program of one rank: dies with its parent, runs the entry, reports by JSON lines."""

import importlib
import json
import os
import sys
import time
import traceback
from pathlib import Path

from lmpipe.artifacts.events import Emitter, PipeSink, Sink, discard
from lmpipe.errors import LmpipeError, TrainingError
from lmpipe.runtime import Runtime
from lmpipe.runtime.processes import die_with_parent

_CHECKPOINT_WAIT_SECONDS = 3600.0


class RankContext(Emitter):
    """What an entry gets beside its job: who it is, and a line to the stage's Output.

    The events of rank 0 reach the stage; those of other ranks are dropped, so that code emits them
    without asking for its rank.

    Attributes:
        started: when the rank's main program began (time.time()), for start-up times.
        scratch: folder on this host, the same for all ranks, that is deleted when the job has
            ended, however it did; without a job, the runtime's.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        device: str,
        runtime: Runtime,
        pipe: Sink,
        scratch: Path | None = None,
    ) -> None:
        super().__init__(pipe if rank == 0 else discard)
        self.rank = rank
        self.world_size = world_size
        self.device = device
        self.runtime = runtime
        self.scratch = scratch or runtime.scratch_folder()
        self.started = time.time()
        self._last_checkpoint: Path | None = None

    def save_checkpoint(self, step: int, folder: Path) -> None:
        """Hand a written folder to the stage's process, which stores and then deletes it.

        Training goes on meanwhile; the next call waits until the previous folder is stored, so that
        a slow store can never fill the scratch disk.
        """
        if self.rank != 0:
            return
        deadline = time.monotonic() + _CHECKPOINT_WAIT_SECONDS
        while self._last_checkpoint is not None and self._last_checkpoint.exists():
            if time.monotonic() > deadline:
                raise TrainingError(
                    f"the checkpoint in {self._last_checkpoint} was not stored within "
                    f"{_CHECKPOINT_WAIT_SECONDS:.0f} s; see whether the store answers"
                )
            time.sleep(0.05)
        self._last_checkpoint = folder
        keep = self.runtime.keep_checkpoints
        self.emit({"type": "checkpoint", "step": step, "folder": str(folder), "keep": keep})


def main(argv: list[str]) -> int:
    """Run the entry that the job file names."""
    job_path, event_descriptor, parent_pid = argv
    die_with_parent(int(parent_pid))
    request = json.loads(Path(job_path).read_text(encoding="utf-8"))
    pipe = PipeSink(int(event_descriptor))
    context = RankContext(
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        device=request["device"],
        runtime=Runtime.model_validate(request["runtime"]),
        pipe=pipe,
        scratch=Path(job_path).parent,
    )
    try:
        module, _, function = request["entry"].partition(":")
        result = getattr(importlib.import_module(module), function)(request["job"], context)
    except Exception as error:  # the process's edge: the parent gets the message, stderr the trace
        traceback.print_exc()
        message = str(error) if isinstance(error, LmpipeError) else repr(error)
        pipe({"type": "error", "error": type(error).__name__, "message": message})
        return 1
    context.emit({"type": "result", "value": result})
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # not sys.exit: tearing torch and its threads down takes seconds and can hang on a dead peer
    os._exit(code)
