"""A stage in a process of its own, seen from the parent.

Why a process per stage: its memory goes back when it ends, heavy imports are paid only where they
are used, a crash of native code is an exit code and not the end of the flow, its whole output
(native writes too) can be captured, and it can be killed for certain. The price is one interpreter
start, about 0.4 s.
"""

import collections
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from lmpipe import errors
from lmpipe.artifacts.build import find
from lmpipe.artifacts.events import Event, Sink
from lmpipe.artifacts.lookup import as_list, home
from lmpipe.artifacts.manifest import Origin
from lmpipe.artifacts.stage import A, Inputs, Stage, StageConfig
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import Source
from lmpipe.errors import StageFailed, StoreError
from lmpipe.runtime import Runtime
from lmpipe.runtime.processes import describe_exit, end_tree
from lmpipe.runtime.redaction import Redactor

GRACE_SECONDS = 15.0  # below the 30 s that Prefect grants before it kills the flow itself
LAST_LINES = 20
LineSink = Callable[[str], None]


def build_in_child(
    stage: Stage[A],
    config: StageConfig,
    inputs: Inputs,
    *,
    store: Store,
    runtime: Runtime,
    force: bool = False,
    sink: Sink,
    line_sink: LineSink,
    reason: str = "",
    origin: Origin | None = None,
) -> A:
    """Build an artifact in a child process; see `build` for the arguments that both share.

    Args:
        line_sink: gets every line that the child and its own children write to stdout and stderr.

    Raises:
        StageFailed: the child ended without a result; its exit code or signal is named.
        LmpipeError: of the class that the stage raised.
    """
    job = {
        "stage": stage.reference,
        "config": config.model_dump(mode="json"),
        "inputs": {role: [_reference(a) for a in as_list(value)] for role, value in inputs.items()},
        "store": store.root,
        "runtime": runtime.model_dump(mode="json"),
        "force": force,
        "reason": reason,
        "origin": (origin or Origin()).model_dump(),
        "parent": os.getpid(),
    }
    child = _Child(stage.name, job, sink, line_sink, runtime.scratch_folder())
    result = child.wait()
    found = find(stage, result["id"], store, runtime)
    if found is None:
        raise StageFailed(
            f"stage {stage.name} published {result['id']}, but its objects are not whole"
        )
    return found


class _Child:
    """One running child: its process, the threads that read from it, and what it said last."""

    def __init__(
        self, name: str, job: dict[str, Any], sink: Sink, line_sink: LineSink, scratch: Path
    ) -> None:
        self._name, self._sink, self._line_sink = name, sink, line_sink
        self._result: Event | None = None
        self._error: Event | None = None
        self._attempt: Event | None = None
        self._tail: collections.deque[str] = collections.deque(maxlen=LAST_LINES)
        self._store = Store(job["store"])
        self._redactor = Redactor(os.environ)
        self._log = tempfile.NamedTemporaryFile(  # noqa: SIM115 closed in wait()
            dir=scratch, prefix=f"lmpipe-{name}-", suffix=".txt"
        )
        events_read, events_write = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "lmpipe.artifacts.child", str(events_write)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[events_write],
            # Prefect's worker signals the flow's whole process group when a run is cancelled. In a
            # session of its own the stage is ended by `wait` alone, in order and by name.
            start_new_session=True,
        )
        self._names = {self._process.pid: f"stage {name}"}
        os.close(events_write)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._threads = [
            threading.Thread(target=self._read_lines, args=[self._process.stdout], daemon=True),
            threading.Thread(
                target=self._read_events, args=[os.fdopen(events_read, "rb")], daemon=True
            ),
        ]
        for thread in self._threads:
            thread.start()
        try:
            self._process.stdin.write(json.dumps(job).encode())
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # the child died at once; wait() says how

    def wait(self) -> Event:
        """Return the result event; on any exception, cancellation included, end the whole tree."""
        try:
            code = self._process.wait()
        except BaseException:
            ended = end_tree(self._process.pid, GRACE_SECONDS, names=self._names)
            self._process.wait()
            self._line_sink(f"ended {', '.join(ended) or 'nothing: all had ended'}")
            raise
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # what a killed stage left behind
            for thread in self._threads:
                thread.join(timeout=5.0)  # a daemonised grandchild may keep the pipe open
            self._keep_log()
        if self._result is not None and code == 0:
            return self._result
        if self._error is not None:
            kind = getattr(errors, self._error["class"], None)
            if kind is not None:
                raise kind(self._error["message"])
            raise StageFailed(
                f"stage {self._name} failed with {self._error['class']}: {self._error['message']}\n"
                f"{self._error['traceback']}"
            )
        tail = "\n".join(self._tail)
        raise StageFailed(
            f"stage {self._name} ended by {describe_exit(code)}. Its last lines:\n{tail}"
        )

    def _read_lines(self, pipe: IO[bytes]) -> None:
        with pipe:
            for raw in pipe:
                line = self._redactor.text(raw.decode(errors="replace").rstrip("\n"))
                self._log.write(line.encode() + b"\n")
                self._tail.append(line)
                self._line_sink(line)

    def _read_events(self, pipe: IO[bytes]) -> None:
        with pipe:
            for raw in pipe:
                if not raw.endswith(b"\n"):
                    return  # the child was killed in the middle of a line
                event: Event = json.loads(raw)
                if event["type"] == "result":
                    self._result = event
                elif event["type"] == "error":
                    self._error = self._redactor.value(event)
                elif event["type"] == "attempt":
                    self._attempt = event
                elif event["type"] == "process":
                    self._names[event["pid"]] = event["name"]
                else:
                    self._sink(self._redactor.value(event))

    def _keep_log(self) -> None:
        """Store the child's whole output beside its attempt; a store that is away costs only it."""
        if self._attempt is not None:
            folder = home(self._attempt["stage"], self._attempt["id"])
            self._log.flush()
            try:
                self._store.upload(
                    Path(self._log.name), f"{folder}/logs/{self._attempt['attempt']}.txt"
                )
            except (StoreError, OSError) as error:
                self._line_sink(f"the log could not be stored: {error}")
        self._log.close()


def _reference(artifact: Any) -> dict[str, Any]:
    locations = artifact.locations if isinstance(artifact, Source) else {}
    return {"stage": artifact.stage, "id": artifact.id, "locations": locations}
