"""A store that refuses says so by the object's name; here the refusal itself is made up."""

import errno
import os
from pathlib import Path

import pytest

from lmpipe.artifacts.lookup import list_manifests
from lmpipe.artifacts.store import Store
from lmpipe.errors import ConfigError, StoreError


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_store_that_cannot_be_written_is_named_with_the_remedy(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(str(tmp_path / "store"))

    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(StoreError, match=r"runs/a\.json: access refused.*permissions and mount"):
        store.create("runs/a.json", b"{}")


@pytest.mark.parametrize(
    ("root", "problem"),
    [
        ("", "names no folder of its own"),
        ("file://", "names no folder of its own"),
        ("/", "names no folder of its own"),
        (__file__, "is a file"),
        ("s3:/bucket/prefix", "two slashes after its colon"),
        ("s3://", "names no bucket"),
        ("s3:///prefix", "'' is no name of a bucket"),
        ("s3://a b/prefix", "'a b' is no name of a bucket"),
        ("S3://bucket", "no conditional writes here"),
        ("gs://bucket", "no conditional writes here"),
    ],
)
def test_a_root_that_is_no_place_is_refused_with_what_is(root: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=rf"{problem}; use a folder, file:///… or s3://"):
        Store(root)


def test_a_root_may_begin_at_home_and_hold_brackets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    store = Store("~/my [store]")
    store.create("runs/a.json", b"{}")
    assert (tmp_path / "my [store]" / "runs" / "a.json").exists()
    assert store.children("runs") == ["a.json"] and list(store.sizes("runs")) == ["runs/a.json"]


def test_a_full_disk_is_named_with_the_object_and_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(StoreError, match=r"no space left for .*a/b: nothing .*free space and run"):
        Store(str(tmp_path / "store")).open("a/b", "wb")


def test_a_file_that_lies_about_in_the_root_is_no_artifact(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    (tmp_path / "notes.txt").write_text("mine")
    assert list_manifests(store) == []
