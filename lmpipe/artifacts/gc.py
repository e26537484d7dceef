"""Collecting garbage: what a policy does not keep is deleted, and never what somebody uses.

Builds and runs go on meanwhile, on other machines, and any of them may hit an artifact that is
about to go. The protocol needs no clock and no pause of theirs:

    a run                                   gc
    1  write a lease (a run's record,      1  condemn: write a tombstone, by a conditional put
       or the inputs in a build's lock)     2  read aliases, leases and locks again; take the word
    2  read the tombstone: condemned, then     back where one names the artifact
       take it back by a conditional put;   3  take the artifact's build lock, without waiting
       collected, then it is a miss         4  collect: the second conditional put, on the etag of
                                               the first
                                            5  delete the objects, let the lock go

Each side writes before it reads, so of a lease and a condemnation at the same moment at least one
side sees the other's. If only the run sees it, the run's put in 2 and gc's in 4 depend on the same
etag: one of them fails, and whoever fails gives way. A builder cannot adopt what gc deletes: it
needs the lock that gc holds, and it passes over what is collected in any case, which covers a gc
that was frozen, lost its lock and goes on.

Who is dead: a run or builder that is known to have ended (same boot and pid namespace), or is
silent for its lease on gc's own clock. gc waits for that only if there is one that it cannot see.

Killed at any moment, gc leaves a condemned artifact, which the next hit or the next gc takes back,
or a collected one with objects left, which the next gc deletes. Two at once are in order, too: the
second waits for the first.

The alternative, deleting what is older than a grace period and trusting clocks, deletes the input
of a training run that has lasted longer than the grace.
"""

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from lmpipe.artifacts.alias import list_aliases
from lmpipe.artifacts.attempts import spent_on
from lmpipe.artifacts.leases import (
    SILENCE_SECONDS,
    Holder,
    delete_dead_leases,
    find_holders,
    find_silent,
)
from lmpipe.artifacts.lock import LEASE_SECONDS, RELEASED, BuildLock, Watch
from lmpipe.artifacts.lookup import list_stages, read_manifest
from lmpipe.artifacts.output import HOW_FAR
from lmpipe.artifacts.provenance import gpu_hours, now
from lmpipe.artifacts.retention import (
    CHECKPOINTS,
    RetentionPolicy,
    Run,
    Stored,
    StoredAttempt,
    Verdict,
    judge,
)
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.tombstone import Tombstone, covers, read_tombstone, write_tombstone

READS_AT_A_TIME = 16
DELETES_PER_CHECK = 2000  # objects deleted between two looks whether the lock is still ours
LOCK = "gc/lock.json"
Say = Callable[[str], None]


@dataclass(frozen=True)
class Collected:
    """What a collection deleted."""

    artifacts: int
    objects: int
    bytes: int
    spared: tuple[str, ...]  # homes that somebody began to use meanwhile


def preview(store: Store, policy: RetentionPolicy) -> list[Verdict]:
    """Return what a collection would do now; changes nothing."""
    return _judge(store, policy, _survey(store), _maybe_alive(store, {}))


def collect(
    store: Store,
    policy: RetentionPolicy,
    *,
    say: Say = lambda text: None,
    lock_seconds: float = LEASE_SECONDS,
    lease_seconds: float = SILENCE_SECONDS,
) -> Collected:
    """Delete what the policy does not keep.

    Args:
        store: where.
        policy: what stays.
        say: hears what is being done.
        lock_seconds: silence after which an unseen builder counts as dead.
        lease_seconds: the same for an unseen run.
    """

    def on_wait(holder: str) -> None:
        say(f"waiting for the gc of {holder}")

    with BuildLock(store, LOCK, lease_seconds=lock_seconds, on_wait=on_wait):
        silent = find_silent(
            store,
            find_holders(store, _held_locks(store)),
            lock_seconds=lock_seconds,
            lease_seconds=lease_seconds,
            on_wait=say,
        )
        delete_dead_leases(store, silent)
        holders = _maybe_alive(store, silent)
        condemned = _condemn(store, _judge(store, policy, _survey(store), holders))
        # from here on nobody can begin to use what is condemned without taking the word back
        used, named = _used(_maybe_alive(store, silent)), _aliases(store)
        objects = num_bytes = taken = 0
        spared = []
        for verdict, etag in condemned:
            home = verdict.stored.home
            gone = None
            is_wanted = home in used or (home in named and not verdict.reasons)
            if not is_wanted:
                gone = _take(store, verdict, etag, silent)
            if gone is None:
                spared.append(home)
                _retract(store, home, etag)
                continue
            say(f"{home}: {len(gone)} objects")
            taken, objects, num_bytes = taken + 1, objects + len(gone), num_bytes + sum(gone)
    return Collected(taken, objects, num_bytes, tuple(spared))


def _condemn(store: Store, verdicts: list[Verdict]) -> list[tuple[Verdict, str]]:
    """Write the first word on all that shall go; return what nobody changed meanwhile."""
    condemned = []
    for verdict in verdicts:
        stored, word = verdict.stored, verdict.stored.word
        if not verdict.entries:
            if word.condemned and stored.word_etag is not None:  # by a gc that was killed
                _retract(store, stored.home, stored.word_etag)
            continue
        fresh = tuple(e for e in verdict.entries if e not in word.collected)
        said = word.model_copy(update={"condemned": fresh})
        etag = write_tombstone(store, stored.home, said, stored.word_etag)
        if etag is not None:
            condemned.append((verdict, etag))
    return condemned


def _retract(store: Store, home: str, etag: str) -> None:
    word, current = read_tombstone(store, home)
    if current == etag and word.condemned:
        write_tombstone(store, home, word.model_copy(update={"condemned": ()}), etag)


def _take(store: Store, verdict: Verdict, etag: str, silent: dict[str, str]) -> list[int] | None:
    """Collect one condemned artifact; return the sizes of what was deleted, or None.

    None: it is being built, was published anew, or somebody has taken the word back.
    """
    stored = verdict.stored
    path = f"{stored.home}/lock.json"
    lock = BuildLock(store, path)
    watch = Watch.of_silent(silent[path]) if path in silent else Watch(LEASE_SECONDS)
    if not lock.take(watch):
        return None
    with lock:
        entry = read_manifest(store, *stored.home.split("/"))
        if (entry[1] if entry else None) != stored.manifest_etag:
            return None
        word, current = read_tombstone(store, stored.home)
        if current != etag:
            return None
        collected = tuple(dict.fromkeys([*word.collected, *word.condemned]))
        final = Tombstone(collected=collected, at=now())
        if write_tombstone(store, stored.home, final, etag) is None:
            return None
        return _delete(store, stored.home, verdict.entries, lock)


def _delete(store: Store, home: str, entries: tuple[str, ...], lock: BuildLock) -> list[int]:
    sizes = {p: n for p, n in store.sizes(f"{home}/attempts").items() if covers(entries, home, p)}
    logs = store.sizes(f"{home}/logs")
    sizes |= {p: n for p, n in logs.items() if p.rpartition("/")[2].removesuffix(".txt") in entries}
    paths = list(sizes)
    for start in range(0, len(paths), DELETES_PER_CHECK):
        lock.check()
        store.delete_all(paths[start : start + DELETES_PER_CHECK])
    return list(sizes.values())


def _judge(
    store: Store, policy: RetentionPolicy, artifacts: list[Stored], holders: list[Holder]
) -> list[Verdict]:
    return judge(
        artifacts,
        policy,
        aliases=_aliases(store),
        runs=_runs(store),
        used=_used(holders),
        now=time.time(),
    )


def _aliases(store: Store) -> dict[str, str]:
    return {f"{alias.stage}/{alias.id}": alias.name for alias in list_aliases(store)}


def _used(holders: Iterable[Holder]) -> dict[str, str]:
    return {home: holder.label for holder in holders for home in sorted(holder.leases)}


def _runs(store: Store) -> list[Run]:
    """Return the records of all runs, newest first."""
    paths = [p for p in store.sizes("runs") if p.endswith(".json") and "/." not in p]
    paths.sort(key=lambda path: path.rpartition("/")[2], reverse=True)
    with ThreadPoolExecutor(READS_AT_A_TIME) as pool:
        found = [json.loads(data) for data in pool.map(store.read, paths) if data is not None]
    return [
        (
            f"{record['recipe']['name']} {record['flow']}",
            f"{record['recipe']['name']} {record['started'][:16]}",
            [f"{step['stage']}/{step['artifact']}" for step in record["steps"] if step["artifact"]],
        )
        for record in found
    ]


def _held_locks(store: Store) -> list[str]:
    """Return the locks that are not released; by their size, which takes one listing a stage."""
    return [
        path
        for stage in list_stages(store)
        for path, size in store.sizes(stage).items()
        if path.endswith("/lock.json") and path.count("/") == 2 and size != len(RELEASED)
    ]


def _maybe_alive(store: Store, silent: dict[str, str]) -> list[Holder]:
    """Return the builds and runs that may be at work: all but the dead and the silent."""
    found = find_holders(store, _held_locks(store))
    return [holder for holder in found if silent.get(holder.path) != holder.etag]


def _survey(store: Store) -> list[Stored]:
    """Return what lies in the store: one listing a stage, and a few reads an artifact."""
    found: list[Stored] = []
    with ThreadPoolExecutor(READS_AT_A_TIME) as pool:
        for stage in list_stages(store):
            homes: dict[str, dict[str, tuple[int, float]]] = defaultdict(dict)
            for path, what in store.listing(stage).items():
                parts = path.split("/")
                if len(parts) > 2:
                    homes["/".join(parts[:2])][path] = what
            found += pool.map(lambda item: _stored(store, *item), homes.items())
    return found


def _stored(store: Store, home: str, objects: dict[str, tuple[int, float]]) -> Stored:
    entry = read_manifest(store, *home.split("/"))
    word, word_etag = Tombstone(), None
    if f"{home}/gc.json" in objects:
        word, word_etag = read_tombstone(store, home)
    by_attempt: dict[str, list[tuple[str, int, float]]] = defaultdict(list)
    logs = {}
    for path, (size, written) in objects.items():
        folder, name = path.split("/")[2:4] if path.count("/") > 2 else ("", "")
        if folder == "attempts":
            by_attempt[name].append((path, size, written))
        elif folder == "logs":
            logs[name.removesuffix(".txt")] = size
    stored = Stored(
        home=home,
        manifest=entry[0] if entry else None,
        manifest_etag=entry[1] if entry else None,
        is_whole=entry is not None
        and all(
            objects.get(file.path, (file.bytes,))[0] == file.bytes
            and (file.path in objects or not file.path.startswith(f"{home}/"))
            for file in entry[0].outputs
        ),
        attempts={name: _attempt(home, name, parts) for name, parts in by_attempt.items()},
        log_bytes=logs,
        word=word,
        word_etag=word_etag,
    )
    if stored.unfinished:
        spent = spent_on(store, home, objects)
        if told := json.loads(
            store.read(f"{home}/attempts/{stored.unfinished}/{HOW_FAR}") or b"{}"
        ):
            stored.how_far, seconds = told["done"], told["seconds"]
            # killed before the first heartbeat, its lock says nothing of it
            spent.setdefault(stored.unfinished, (seconds, gpu_hours(told["devices"], seconds)))
        stored.lost_seconds = sum(seconds for seconds, _ in spent.values())
        stored.lost_gpu_hours = sum(hours for _, hours in spent.values())
    return stored


def _attempt(home: str, name: str, objects: list[tuple[str, int, float]]) -> StoredAttempt:
    folder = f"{home}/attempts/{name}"
    inner, over = f"{folder}/{CHECKPOINTS}/", f"{folder}/over/"
    ends = [path.split("/")[-2] for path, _, _ in objects if path.endswith("/COMPLETE.json")]
    return StoredAttempt(
        bytes=sum(size for _, size, _ in objects),
        written=max(written for _, _, written in objects),
        checkpoint_bytes=sum(size for path, size, _ in objects if path.startswith(inner)),
        step=max(map(int, ends), default=-1),
        replaces="".join(
            path.removeprefix(over) for path, _, _ in objects if path.startswith(over)
        ),
    )
