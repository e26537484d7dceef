import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deployments.cli import app
from lmpipe.artifacts.build import build
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import Documents
from lmpipe.errors import ConfigError, InputError, StoreError
from lmpipe.runtime import Runtime
from tests.artifacts.stages import CopyConfig, CountConfig, copy, count


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


@pytest.fixture
def documents(store: Store) -> Documents:
    return build(count, CountConfig(), {}, store=store, runtime=Runtime())


def command(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_ls_and_show_find_an_artifact_by_stage_or_start_of_its_id(store, documents):
    assert documents.id[:12] in command("ls", "--store", store.root)
    for name in ("count", documents.id[:8], f"count/{documents.id[:6]}"):
        shown = json.loads(command("show", name, "--store", store.root))
        assert shown["id"] == documents.id
    with pytest.raises(StoreError, match="must name one artifact"):
        command("show", "ffffffff", "--store", store.root)


def test_diff_names_fields_and_metrics(store, documents):
    other = build(count, CountConfig(lines=5), {}, store=store, runtime=Runtime())
    text = command("diff", documents.id[:10], other.id[:10], "--store", store.root)
    assert "config.lines: 3 → 5" in text and "metric.lines: 6 → 10" in text


def test_verify_finds_a_flipped_bit_and_says_so_by_its_exit_code(store, documents):
    assert "1 artifacts, 0 bad objects" in command("verify", "--store", store.root)
    path = Path(store.full(documents.record("kept/00000.txt").path))
    path.write_bytes(b"9" + path.read_bytes()[1:])
    result = CliRunner().invoke(app, ["verify", "--store", store.root])
    assert result.exit_code == 1 and "kept/00000.txt" in result.output


def test_plan_needs_no_server_and_prints_why(store, monkeypatch):
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    text = command("plan", "demo", "--set", f"store.root={store.root}", "--until", "extract")
    assert "never built" in text and "after the last stage asked for" in " ".join(text.split())


def test_a_bad_key_stops_the_run_before_anything_is_written(store):
    with pytest.raises(ConfigError, match="did you mean 'bands'"):
        command("run", "demo", "--set", f"store.root={store.root}", "--set", "dedup.bnds=3")
    with pytest.raises(ConfigError, match="did you mean 'dedup'"):
        command("run", "demo", "--set", f"store.root={store.root}", "--only", "dedpu")
    assert not Path(store.full("")).exists()


def test_report_says_that_there_is_none_yet(store):
    with pytest.raises(ConfigError, match="run it first"):
        command("report", "demo", "--set", f"store.root={store.root}")


def test_why_says_when_no_ledger_knows_a_document(store, documents):
    build(copy, CopyConfig(), {"documents": documents}, store=store, runtime=Runtime())
    with pytest.raises(StoreError, match="no ledger"):
        command("why", "0" * 32, "--store", store.root)


def test_a_damaged_manifest_is_named_and_the_other_artifacts_are_still_seen(store, documents):
    store.create("odd/0123/manifest.json", b"{")
    assert documents.id[:12] in command("ls", "--store", store.root)
    result = CliRunner().invoke(app, ["verify", "--store", store.root])
    assert result.exit_code == 1
    assert "odd/0123/manifest.json is not JSON" in result.output.replace("\n", "")
    assert "1 bad objects" in result.output


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ('sources.crawl.paths=["a', "is no YAML value"),
        ("stage_runtime.select.stop_host_documents=abc", "stop_host_documents"),
    ],
)
def test_a_value_that_cannot_be_read_is_an_error_that_names_its_key(store, change, said):
    root = f"store.root={store.root}"
    with pytest.raises(ConfigError, match=said):
        command("plan", "demo", "--set", root, "--set", change)


def test_contamination_needs_whole_files_with_something_in_them(tmp_path):
    import gzip

    texts, items, empty = (
        tmp_path / name for name in ("texts.jsonl", "items.jsonl", "empty.jsonl")
    )
    texts.write_text('{"text": "a question of some words"}\n')
    items.write_text('{"question": "one two three four five six seven eight", "answer": "nine"}\n')
    empty.write_text("")
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress(texts.read_bytes() * 50)[:-9])
    to = ("--to", str(tmp_path / "report.json"))
    for file, benchmark, said in (
        (texts, empty, "no eval items in"),
        (empty, items, "no records in"),
        (cut, items, r"cut\.jsonl\.gz is no whole gzip file"),
    ):
        with pytest.raises(InputError, match=said):
            command("contamination", str(file), "--benchmarks", str(benchmark), *to)
    assert not (tmp_path / "report.json").exists()
    missing = CliRunner().invoke(app, ["contamination", "none", "--benchmarks", str(items)])
    assert missing.exit_code == 2 and "does not exist" in missing.output


@pytest.mark.parametrize(
    "arguments",
    [
        ["report", "demo", "--to", "OUT"],
        ["cost", "7B", "--to", "OUT"],
        ["bench", "demo", "--json", "OUT"],
        ["contamination", "FILE", "--benchmarks", "FILE", "--to", "OUT"],
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_any_work(
    arguments: list[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("{}")
    for out, problem in (
        (tmp_path / "nowhere" / "x.html", f"there is no folder {tmp_path}/nowhere; make it first"),
        (tmp_path, "is a folder; name a file in it"),
    ):
        given = {"OUT": str(out), "FILE": str(tmp_path / "file")}
        with pytest.raises(ConfigError, match=problem):
            command(*(given.get(word, word) for word in arguments))


@pytest.mark.parametrize(
    "arguments",
    [
        ["export", ".", "OUT"],
        ["accounting", "--store", "STORE", "--to", "OUT"],
        ["data", "common-crawl", "--snapshot", "CC", "--num-files", "1", "--to", "OUT"],
    ],
)
def test_a_folder_that_cannot_be_made_is_refused_before_any_work(
    arguments: list[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("{}")
    given = {"OUT": str(tmp_path / "file" / "deeper"), "STORE": str(tmp_path / "store")}
    with pytest.raises(ConfigError, match=f"{tmp_path}/file is a file; name a folder"):
        command(*(given.get(word, word) for word in arguments))


def test_ls_says_where_it_found_nothing_and_which_stages_there_are(
    store, documents, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert f"no artifacts in file://{tmp_path}/typo\n" == command(
        "ls", "--store", f"{tmp_path}/typo"
    )
    assert "of stage 'cuont'; it has count\n" in command("ls", "cuont", "--store", store.root)


def test_the_list_of_artifacts_fits_eighty_columns(store, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    artifact = build(copy, CopyConfig(), {"documents": build(
        count, CountConfig(), {}, store=store, runtime=Runtime())},
        store=store, runtime=Runtime())  # fmt: skip
    text = command("ls", "--store", store.root)
    assert "…" not in text and artifact.id[:12] in text
    assert max(len(line) for line in text.splitlines()) <= 80
