import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from lmpipe.artifacts import local_copies
from lmpipe.artifacts.build import build
from lmpipe.artifacts.store import Store
from lmpipe.bench.loader import BenchShardsConfig, bench_shards
from lmpipe.runtime import Runtime

WEEK = 7 * 24 * 3600
HOLDER = """
import sys
from lmpipe.artifacts import local_copies
print(local_copies.folder(*sys.argv[1:]), flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


class Holder:
    """A process that asks for a folder and lives until it is told to end."""

    def __init__(self, key: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, key],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"TMPDIR": tempfile.gettempdir()},
        )
        assert self.process.stdout is not None
        self.folder = Path(self.process.stdout.readline().strip())

    def end(self, *, killed: bool = False) -> None:
        if killed:
            self.process.kill()
        self.process.communicate()

    def age(self, seconds: float) -> None:
        at = (self.folder / local_copies.LOCK).stat().st_mtime - seconds
        os.utime(self.folder / local_copies.LOCK, (at, at))


@pytest.mark.parametrize("killed", [False, True])
def test_a_folder_stays_while_its_process_lives_and_goes_after_a_week_without_one(
    killed: bool,
) -> None:
    holder = Holder("tokens")
    try:
        (holder.folder / "shard.bin").write_bytes(b"tokens")
        holder.age(WEEK + 60)
        assert local_copies.prune(WEEK) == 0
        assert local_copies.prune(0) == 0
    finally:
        holder.end(killed=killed)
    assert local_copies.prune(2 * WEEK) == 0 and (holder.folder / "shard.bin").exists()
    assert local_copies.prune(WEEK) == 1 and not holder.folder.exists()


def test_asking_again_makes_a_folder_young_and_any_first_question_drops_the_old() -> None:
    old, young = Holder("old"), Holder("young")
    old.end()
    young.end()
    for holder in (old, young):
        holder.age(WEEK + 60)
    again = Holder("young")
    again.end()
    assert again.folder == young.folder
    # the first that asked found both old
    assert not old.folder.exists() and young.folder.exists()
    assert local_copies.prune(WEEK) == 0


def test_a_full_disk_costs_the_copies_that_nobody_holds_and_not_the_stage() -> None:
    holder = Holder("of a run that ended")
    (holder.folder / "model.bin").write_bytes(b"0" * 1000)
    tries: list[bool] = []

    def write() -> None:
        tries.append(holder.folder.exists())
        if holder.folder.exists():
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        local_copies.with_room(write)  # it is held: there is nothing to give up
    holder.end()
    tries.clear()
    local_copies.with_room(write)
    assert tries == [True, False]


def test_an_object_is_copied_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = BenchShardsConfig(num_tokens=1000, document_tokens=70)
    store = Store(str(tmp_path / "s"))
    made = build(bench_shards, config, {}, store=store, runtime=Runtime())
    holder = Holder("of a run that ended")
    holder.end()
    get_file = type(store.fs).get_file

    def refuse_until_there_is_room(self: object, path: str, target: str) -> None:
        if holder.folder.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        get_file(self, path, target)

    monkeypatch.setattr(Store, "is_local", False)
    monkeypatch.setattr(type(store.fs), "get_file", refuse_until_there_is_room)
    copy = made.local("meta.json")
    assert copy.parent == made.copies_folder() and copy.read_bytes() == made.read_bytes("meta.json")
