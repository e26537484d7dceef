"""Processes that use a store while others collect its garbage; each is a main program.

python -m tests.artifacts.gc_processes use STORE SECONDS SEED
python -m tests.artifacts.gc_processes collect STORE SECONDS
python -m tests.artifacts.gc_processes die_deleting STORE NUM_OBJECTS
"""

import os
import random
import signal
import subprocess
import sys
import time

from lmpipe.artifacts.build import build
from lmpipe.artifacts.gc import collect
from lmpipe.artifacts.leases import RunLeases
from lmpipe.artifacts.lookup import identify
from lmpipe.artifacts.retention import RetentionPolicy
from lmpipe.artifacts.store import Store
from lmpipe.runtime import Runtime
from tests.artifacts.stages import CopyConfig, CountConfig, copy, count

NOTHING_STAYS = RetentionPolicy(last=0, days=0, best=())
NUM_ARTIFACTS = 3
MOST_SECONDS = 150.0  # of a user; it then says how far it came


def use(root: str, least_runs: int, least_built: int, seed: int) -> None:
    """Run small flows: find or build two artifacts and read every object of both, again and again.

    Whatever such a run has taken must stay readable until it ends.
    """
    store, choice, end = Store(root), random.Random(seed), time.monotonic() + MOST_SECONDS
    runs = built = 0
    while (runs < least_runs or built < least_built) and time.monotonic() < end:
        config = CountConfig(lines=1 + choice.randrange(NUM_ARTIFACTS), num_shards=3)
        with RunLeases(store, f"user {seed}") as leases:
            leases.take("count", identify(count, config, {}))
            events: list[dict[str, object]] = []
            made = build(count, config, {}, store=store, runtime=Runtime(), sink=events.append)
            inputs = {"documents": made}
            leases.take("copy", identify(copy, CopyConfig(), inputs))
            copied = build(copy, CopyConfig(), inputs, store=store, runtime=Runtime())
            time.sleep(choice.random() * 0.05)
            for artifact in (made, copied):
                assert artifact.corrupt() == [], f"{artifact!r} lost {artifact.missing()} in use"
        runs += 1
        built += any(event["type"] == "attempt" for event in events)
    print(f"runs={runs} built={built}")


def collect_on(root: str) -> None:
    """Collect everything that is not in use, again and again, and say when one was done."""
    while True:
        collect(Store(root), NOTHING_STAYS)
        print("done", flush=True)


def disturb(root: str, least_runs: int, least_built: int, seconds: float) -> list[dict[str, int]]:
    """Let two users go on while collector after collector is killed; return what each user did.

    Args:
        root: the store.
        least_runs: runs of each user.
        least_built: runs of each user that found nothing and built.
        seconds: most time that a collector has after its first collection.
    """
    users = [start("use", root, str(least_runs), str(least_built), str(seed)) for seed in range(2)]
    choice = random.Random(0)
    while any(user.poll() is None for user in users):
        collector = start("collect", root)
        try:
            assert collector.stdout is not None and collector.stdout.readline() == "done\n"
            time.sleep(choice.random() * seconds)
        finally:
            collector.kill()
            collector.communicate()
    figures = []
    for user in users:
        out, errors = user.communicate()
        assert user.returncode == 0, errors
        figures.append({k: int(v) for k, v in (part.split("=") for part in out.split())})
    return figures


def start(*arguments: str) -> "subprocess.Popen[str]":
    """Start one of the programs above."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.artifacts.gc_processes", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


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
        case ["use", root, least_runs, least_built, seed]:
            use(root, int(least_runs), int(least_built), int(seed))
        case ["collect", root]:
            collect_on(root)
        case ["die_deleting", root, num_objects]:
            die_deleting(root, int(num_objects))
