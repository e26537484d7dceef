"""What became of attempts that no manifest tells of: failed, killed, or replaced by a forced one.

A published attempt's account is its manifest. A failed one writes `<stage>/<id>/history/<attempt>
.json` on its way out; one killed with -9 cannot, so its lock keeps saying how long it had been at
work, and whoever takes that lock over writes it down. gc keeps these records as it keeps manifests.
"""

import contextlib
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from lmpipe.artifacts.manifest import Manifest, Origin
from lmpipe.artifacts.provenance import gpu_hours
from lmpipe.artifacts.store import Store
from lmpipe.errors import StoreError

FOLDER = "history"
Outcome = Literal["published", "replaced", "failed", "killed", "unfinished"]


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


def record(store: Store, attempt: Attempt | None) -> None:
    """Write down what became of an attempt; a store that is away costs the account only."""
    if attempt is not None:
        path = f"{attempt.stage}/{attempt.id}/{FOLDER}/{attempt.attempt}.json"
        with contextlib.suppress(StoreError, OSError):
            store.create(path, attempt.model_dump_json(indent=1).encode())
