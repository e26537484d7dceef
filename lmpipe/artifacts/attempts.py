"""What became of attempts that no manifest tells of: failed, killed, or replaced by a forced one.

A published attempt's account is its manifest. A failed one writes `<stage>/<id>/history/<attempt>
.json` on its way out; one killed with -9 cannot, so its lock keeps saying how long it had been at
work, and whoever takes that lock over writes it down. gc keeps these records as it keeps manifests.
"""

import contextlib
import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from lmpipe.artifacts.lock import RELEASED, is_dead
from lmpipe.artifacts.lookup import list_stages
from lmpipe.artifacts.manifest import Manifest, Origin
from lmpipe.artifacts.provenance import gpu_hours
from lmpipe.artifacts.store import Store
from lmpipe.errors import StoreError

FOLDER = "history"
READS_AT_A_TIME = 16
Outcome = Literal["published", "replaced", "failed", "killed", "unfinished"]
RANK = {"unfinished": 0, "killed": 1, "failed": 2, "replaced": 3, "published": 4}


class Attempt(BaseModel):
    """One attempt at an artifact, and what it took."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stage: str
    id: str
    attempt: str
    outcome: Outcome
    error: str = ""
    started: str
    seconds: float
    host: str
    devices: tuple[str, ...] = ()
    gpu_hours: float = 0.0
    cpu_hours: float | None = None
    reason: str = ""
    origin: Origin = Origin()


def of_manifest(manifest: Manifest, outcome: Outcome = "published") -> Attempt:
    """Return the account of a published attempt."""
    made = manifest.provenance
    return Attempt(
        stage=manifest.stage,
        id=manifest.id,
        attempt=manifest.attempt,
        outcome=outcome,
        started=made.started,
        seconds=made.seconds,
        host=made.host,
        devices=tuple(made.devices),
        gpu_hours=made.gpu_hours,
        cpu_hours=made.cpu_hours,
        reason=made.reason,
        origin=made.origin,
    )


def of_lock(home: str, said: dict[str, Any], outcome: Outcome) -> Attempt | None:
    """Return the account of an attempt as its lock tells it; it is exact to one heartbeat."""
    if not said.get("attempt"):
        return None  # it had not begun, or gc held the lock
    stage, _, artifact = home.rpartition("/")
    seconds, devices = float(said["seconds"]), list(said["devices"])
    return Attempt(
        stage=stage,
        id=artifact,
        attempt=said["attempt"],
        outcome=outcome,
        started=said["started"],
        seconds=seconds,
        host=said["host"],
        devices=tuple(devices),
        gpu_hours=gpu_hours(devices, seconds),
        reason=said["reason"],
        origin=Origin.model_validate(said["origin"]),
    )


def read_attempts(store: Store) -> list[Attempt]:
    """Return the accounts of all attempts in a store, oldest first.

    From manifests, from `history/`, and from locks that are held or were when their holder died.
    Artifacts of before manifests named their run are found in the records of runs.
    """
    found: dict[tuple[str, str], Attempt] = {}
    built = _built_by_runs(store)
    with ThreadPoolExecutor(READS_AT_A_TIME) as pool:
        for stage in list_stages(store):
            paths = [path for path, size in store.sizes(stage).items() if _tells(path, size)]
            read = pool.map(lambda path: _account(store, path), paths)
            # an attempt that is told of twice is told of best by its manifest
            for attempt in sorted(filter(None, read), key=lambda one: RANK[one.outcome]):
                key = (f"{attempt.stage}/{attempt.id}", attempt.attempt)
                origin = attempt.origin if attempt.origin.flow_run else built.get(key[0])
                found[key] = attempt.model_copy(update={"origin": origin or attempt.origin})
    return sorted(found.values(), key=lambda attempt: attempt.started)


def spent_on(store: Store, home: str, paths: Iterable[str]) -> dict[str, tuple[float, float]]:
    """Return seconds and GPU-hours of each attempt at an artifact that came to nothing.

    Args:
        paths: objects of the artifact.
    """
    told = [p for p in paths if p.startswith((f"{home}/{FOLDER}/", f"{home}/lock.json"))]
    found = {a.attempt: a for path in told if (a := _account(store, path)) is not None}
    lost = [a for a in found.values() if a.outcome not in ("published", "replaced")]
    return {a.attempt: (a.seconds, a.gpu_hours) for a in lost}


def _tells(path: str, size: int) -> bool:
    parts = path.split("/")
    if len(parts) == 3:
        return parts[2] == "manifest.json" or (parts[2] == "lock.json" and size > len(RELEASED))
    return len(parts) == 4 and parts[2] == FOLDER and parts[3].endswith(".json")


def _account(store: Store, path: str) -> Attempt | None:
    data = store.read(path)
    if data is None or data == RELEASED:
        return None
    if path.endswith("/manifest.json"):
        return of_manifest(Manifest.parse(data, store.url(path)))
    if path.endswith("/lock.json"):
        said = json.loads(data)
        outcome: Outcome = "killed" if is_dead(said) else "unfinished"
        return of_lock(path.rpartition("/")[0], said, outcome)
    return None if "/." in path else Attempt.model_validate_json(data)


def _built_by_runs(store: Store) -> dict[str, Origin]:
    built = {}
    for path in store.sizes("runs"):
        if not path.endswith(".json") or "/." in path:
            continue
        run = json.loads(store.read(path) or b"{}")
        for step in run.get("steps", []):
            if step["status"] == "RUN":
                built[f"{step['stage']}/{step['artifact']}"] = Origin(
                    flow_run=run["flow_run"],
                    flow=run["flow"],
                    recipe=run["recipe"]["name"],
                    step=step["name"],
                )
    return built


def record(store: Store, attempt: Attempt | None) -> None:
    """Write down what became of an attempt; a store that is away costs the account only."""
    if attempt is not None:
        path = f"{attempt.stage}/{attempt.id}/{FOLDER}/{attempt.attempt}.json"
        with contextlib.suppress(StoreError, OSError):
            store.create(path, attempt.model_dump_json(indent=1).encode())
