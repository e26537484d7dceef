"""Processes that use a store while others collect its garbage; each is a main program.

python -m tests.artifacts.gc_processes use STORE SECONDS SEED
python -m tests.artifacts.gc_processes collect STORE SECONDS
python -m tests.artifacts.gc_processes die_deleting STORE NUM_OBJECTS
"""

import os
import random
import signal
import sys
import time

from lmpipe.artifacts.build import build
from lmpipe.artifacts.gc import collect
from lmpipe.artifacts.lookup import identify
from lmpipe.artifacts.retention import RetentionPolicy
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.uses import RunUses
from lmpipe.runtime import Runtime
from tests.artifacts.stages import CopyConfig, CountConfig, copy, count

NOTHING_STAYS = RetentionPolicy(last=0, days=0, best=())
NUM_ARTIFACTS = 4


def use(root: str, seconds: float, seed: int) -> None:
    """Run small flows: find or build two artifacts and read every object of both, again and again.

    Whatever such a run has taken must stay readable until it ends.
    """
    store, choice, end = Store(root), random.Random(seed), time.monotonic() + seconds
    runs = built = 0
    while time.monotonic() < end:
        config = CountConfig(lines=1 + choice.randrange(NUM_ARTIFACTS), num_shards=3)
        with RunUses(store, f"user {seed}") as uses:
            uses.take("count", identify(count, config, {}))
            events: list[dict[str, object]] = []
            made = build(count, config, {}, store=store, runtime=Runtime(), sink=events.append)
            inputs = {"documents": made}
            uses.take("copy", identify(copy, CopyConfig(), inputs))
            copied = build(copy, CopyConfig(), inputs, store=store, runtime=Runtime())
            time.sleep(choice.random() * 0.05)
            for artifact in (made, copied):
                assert artifact.corrupt() == [], f"{artifact!r} lost {artifact.missing()} in use"
        runs += 1
        built += any(event["type"] == "attempt" for event in events)
    print(f"runs={runs} built={built}")


def collect_on(root: str, seconds: float) -> None:
    """Collect everything that is not in use, again and again."""
    store, end, objects = Store(root), time.monotonic() + seconds, 0
    while time.monotonic() < end:
        objects += collect(store, NOTHING_STAYS).objects
    print(f"objects={objects}")


def die_deleting(root: str, num_objects: int) -> None:
    """Collect, and be killed once some objects are gone."""
    real, deleted = Store.delete, 0

    def delete(self: Store, path: str) -> None:
        nonlocal deleted
        real(self, path)
        deleted += 1
        if deleted >= num_objects:
            os.kill(os.getpid(), signal.SIGKILL)

    Store.delete = delete  # type: ignore[method-assign]
    collect(Store(root), NOTHING_STAYS)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["use", root, seconds, seed]:
            use(root, float(seconds), int(seed))
        case ["collect", root, seconds]:
            collect_on(root, float(seconds))
        case ["die_deleting", root, num_objects]:
            die_deleting(root, int(num_objects))
