"""Local folders of artifacts, which ranks and shards of one run ask for at the same moment."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from lmpipe.artifacts.build import build
from lmpipe.artifacts.source import SourceSpec, pin, source
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import Artifact
from lmpipe.documents.read import count_rows, read_shard
from lmpipe.errors import StoreError
from lmpipe.runtime import Runtime
from tests.artifacts.stages import CountConfig, count


@pytest.fixture(params=["in the store", "outside"])
def artifact(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Artifact:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    store = Store(str(tmp_path / "store"))
    if request.param == "in the store":
        return build(count, CountConfig(), {}, store=store, runtime=Runtime())
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(name)
    pinned = pin("s", SourceSpec(paths=("*.txt",)), tmp_path)
    runtime = Runtime(locations=pinned.locations)
    return build(source, pinned.config, {}, store=store, runtime=runtime)


def read(artifact: Artifact) -> dict[str, bytes]:
    folder = artifact.local_dir()
    return {name: (folder / name).read_bytes() for name in artifact.names()}


def test_another_process_may_make_the_same_folder_at_any_moment(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_link: Callable[..., None] = Path.symlink_to

    def beside_another(self: Path, target: Path) -> None:
        monkeypatch.setattr(Path, "symlink_to", make_link)
        artifact.local_dir()
        make_link(self, target)
        for link in artifact.local_dir().rglob("*.txt"):
            link.unlink()
        artifact.local_dir()

    monkeypatch.setattr(Path, "symlink_to", beside_another)
    expected = {name: artifact.read_bytes(name) for name in artifact.names()}
    assert read(artifact) == expected
    assert {path.name for path in artifact.local_dir().rglob("*.txt*")} == {
        Path(name).name for name in expected
    }


def test_a_file_that_moved_is_found_in_the_folder_all_the_same(artifact: Artifact) -> None:
    expected = read(artifact)
    for link in list(artifact.local_dir().rglob("*.txt")):
        assert link.is_symlink()
        moved = link.readlink().rename(link.readlink().with_suffix(".moved"))
        link.unlink()
        link.symlink_to(moved)
        moved.rename(moved.with_suffix(".txt"))
    assert read(artifact) == expected


def test_what_cannot_be_decoded_names_artifact_object_and_verify(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    documents = build(count, CountConfig(), {}, store=store, runtime=Runtime())
    name = documents.names()[0]
    path = documents.local(name)
    for damage in (b"\x01" * 600, b"PAR1" + b"\x01" * 600 + b"PAR1", b""):
        path.write_bytes(damage)
        for read in (
            lambda: list(read_shard(documents, name)),
            lambda: count_rows(documents, name),
            lambda: documents.read_json(name),
        ):
            with pytest.raises(StoreError) as caught:
                read()
            for part in (f"({documents.stage}/{documents.id}) {name}", "is damaged",
                         f"`lmpipe verify {documents.stage}/{documents.id}"):  # fmt: skip
                assert part in str(caught.value)


def test_errors_of_the_reader_itself_are_its_own(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    documents = build(count, CountConfig(), {}, store=store, runtime=Runtime())
    with pytest.raises(KeyError), documents.open(documents.names()[0]):
        raise KeyError("a key")
    with pytest.raises(FileNotFoundError), documents.open(documents.names()[0]):
        Path("/nowhere/at all").read_bytes()
