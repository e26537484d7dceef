"""A stage in a process of its own, seen from the child: read the job, build, say the result.

Run as `python -m lmpipe.artifacts.child FD` with the job as JSON on stdin. Whatever goes wrong is
said as an event, so that the parent can raise the same class of error.
"""

import importlib
import json
import os
import signal
import sys
import traceback
from types import FrameType
from typing import Any

from lmpipe.artifacts.build import build
from lmpipe.artifacts.events import PipeSink
from lmpipe.artifacts.lookup import read_manifest
from lmpipe.artifacts.manifest import Origin
from lmpipe.artifacts.stage import Inputs, Role, Stage
from lmpipe.artifacts.store import FULL, Store
from lmpipe.artifacts.types import Artifact, open_artifact
from lmpipe.errors import StoreError
from lmpipe.runtime import Runtime
from lmpipe.runtime.processes import die_with_parent


def main(descriptor: int) -> int:
    """Build the job's artifact; return the exit code."""
    job = json.load(sys.stdin)
    die_with_parent(job["parent"])
    signal.signal(signal.SIGTERM, _leave)
    sink = PipeSink(descriptor)
    try:
        stage = load_stage(job["stage"])
        store, runtime = Store(job["store"]), Runtime.model_validate(job["runtime"])
        artifact = build(
            stage,
            stage.config_type.model_validate(job["config"]),
            _inputs(stage, store, job["inputs"]),
            store=store,
            runtime=runtime,
            force=job["force"],
            sink=sink,
            reason=job["reason"],
            origin=Origin.model_validate(job["origin"]),
        )
    except Exception as error:
        is_full = isinstance(error, OSError) and error.errno in FULL
        remedy = "no space left in the store or in runtime.scratch; free space and run again"
        sink(
            {
                "type": "error",
                "class": "StoreError" if is_full else type(error).__name__,
                "message": f"{remedy} ({error})" if is_full else str(error),
                "traceback": traceback.format_exc(),
            }
        )
        return 1
    sink({"type": "result", "id": artifact.id, "digest": artifact.digest})
    return 0


def load_stage(reference: str) -> Stage[Any]:
    """Import a stage from `module:name`."""
    module, _, name = reference.partition(":")
    stage = getattr(importlib.import_module(module), name)
    assert isinstance(stage, Stage), reference
    return stage


def _inputs(stage: Stage[Any], store: Store, given: dict[str, list[dict[str, Any]]]) -> Inputs:
    return {role.name: _input(role, store, given[role.name]) for role in stage.roles}


def _input(
    role: Role, store: Store, references: list[dict[str, Any]]
) -> Artifact | list[Artifact] | None:
    found = [_open(role, store, reference) for reference in references]
    if role.many:
        return found
    return found[0] if found else None


def _open(role: Role, store: Store, reference: dict[str, Any]) -> Artifact:
    entry = read_manifest(store, reference["stage"], reference["id"])
    if entry is None:
        raise StoreError(
            f"input {role.name}: {reference['stage']}/{reference['id']} is not in {store.root}"
        )
    return open_artifact(store, entry[0], reference["locations"])


def _leave(number: int, frame: FrameType | None) -> None:
    """Leave on SIGTERM through the normal way out, so that locks are released and ranks ended."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    code = main(int(sys.argv[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # native thread pools of torch and friends have crashed in interpreter shutdown
