"""Garbage collection on a real S3 server: what test_gc.py shows on files holds there too."""

import secrets
import signal
from collections.abc import Iterator

import pytest
import s3fs

from lmpipe.artifacts.alias import set_alias
from lmpipe.artifacts.build import build, find
from lmpipe.artifacts.gc import collect, preview
from lmpipe.artifacts.leases import RunLeases
from lmpipe.artifacts.lookup import read_manifest
from lmpipe.artifacts.store import Store
from lmpipe.runtime import Runtime
from tests.artifacts.gc_processes import NOTHING_STAYS, disturb, start
from tests.artifacts.stages import CopyConfig, CountConfig, copy, count
from tests.services.seaweedfs import SeaweedFS


@pytest.fixture(scope="module")
def bucket(seaweedfs: SeaweedFS) -> str:
    return seaweedfs.create_bucket("gc-tests")


@pytest.fixture
def store(seaweedfs: SeaweedFS, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    for name, value in seaweedfs.environment.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    yield Store(f"{bucket}/{secrets.token_hex(4)}")
    s3fs.S3FileSystem.clear_instance_cache()


def objects(store: Store) -> list[str]:
    return [path for path in store.sizes("count") if "/attempts/" in path]


def test_aliased_and_used_artifacts_stay_and_the_rest_goes_but_for_manifests(store: Store) -> None:
    options = {"store": store, "runtime": Runtime()}
    named, used, gone = (build(count, CountConfig(lines=n), {}, **options) for n in (1, 2, 3))
    copied = build(copy, CopyConfig(), {"documents": named}, **options)
    set_alias(store, "production", copied.manifest)
    with RunLeases(store, "nightly") as leases:
        leases.take("count", used.id)
        freed = sum(verdict.freed for verdict in preview(store, NOTHING_STAYS))
        done = collect(store, NOTHING_STAYS)
        assert done.artifacts == 1 and done.bytes == freed > 0
    assert [a.missing() for a in (named, used, copied)] == [[], [], []]
    assert find(count, gone.id, store, Runtime()) is None
    assert read_manifest(store, "count", gone.id) is not None
    again = build(count, CountConfig(lines=3), {}, **options)
    assert again.digest == gone.digest and again.corrupt() == []


def test_a_gc_killed_while_it_deletes_is_finished_by_the_next(store: Store) -> None:
    config = CountConfig(num_shards=15)
    made = build(count, config, {}, store=store, runtime=Runtime())
    killed = start("die_deleting", store.root, "10")
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert 0 < len(objects(store)) < 30
    assert find(count, made.id, store, Runtime()) is None
    again = build(count, config, {}, store=store, runtime=Runtime())
    assert again.corrupt() == []
    set_alias(store, "again", again.manifest)
    collect(store, NOTHING_STAYS)
    assert again.corrupt() == []
    assert all(again.manifest.attempt in path for path in objects(store))


def test_runs_that_hit_and_build_lose_nothing_to_collectors_that_are_killed(store: Store) -> None:
    figures = disturb(store.root, least_runs=4, least_built=2, seconds=2)
    assert all(user["runs"] >= 4 and user["built"] >= 2 for user in figures), figures
    collect(store, NOTHING_STAYS)
    assert objects(store) == []
