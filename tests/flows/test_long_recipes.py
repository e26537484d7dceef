"""A recipe with thousands of explicit source paths: more than Prefect takes as parameters."""

import json
from pathlib import Path

import pytest

from flows.cli import local
from flows.recipe import PipelineConfig, load_recipe
from flows.remote import SHOWN_PATHS, in_short, submit_rerun
from flows.terminal import Terminal
from lmpipe.errors import ConfigError
from tasks.selection import Selection

NUM_FILES = 4200


@pytest.fixture
def recipe(tmp_path: Path) -> PipelineConfig:
    folder = tmp_path / ("a-rather-long-name-of-a-folder-" * 3)
    paths = [f"{folder}/segment-{number:05d}.warc.gz" for number in range(NUM_FILES)]
    file = tmp_path / "long.yaml"
    file.write_text(
        f"extends: demo\nname: long\nsources: {{crawl: {{paths: {json.dumps(paths)}}}}}"
    )
    loaded = load_recipe(str(file))
    assert len(loaded.model_dump_json()) > 524_288  # what a server takes
    return loaded


def test_a_run_here_takes_thousands_of_paths_and_shows_the_first(
    recipe: PipelineConfig, prefect_server: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect.client.orchestration import get_client
    from prefect.runtime import flow_run

    seen: list[tuple[int, str]] = []

    def execute(name: str, whole: PipelineConfig, *_: object) -> list[object]:
        assert whole.sources.crawl is not None
        seen.append((len(whole.sources.crawl.paths), str(flow_run.get_id())))
        return []

    monkeypatch.setattr(local, "execute", execute)
    from rich.console import Console

    local.run_locally("curate", recipe, Selection(), Terminal(Console()))
    ((count, run_id),) = seen
    assert count == NUM_FILES
    with get_client(sync_client=True) as client:
        shown = client.read_flow_run(run_id).parameters["recipe"]["sources"]["crawl"]["paths"]
    assert len(shown) == SHOWN_PATHS + 1 and shown[-1] == "… and 4100 more"


def test_short_lists_are_shown_whole() -> None:
    demo = load_recipe("demo")
    assert in_short(demo) == demo


def test_a_queued_run_with_thousands_of_paths_is_refused_in_one_line_with_the_remedy(
    recipe: PipelineConfig, prefect_server: None
) -> None:
    with pytest.raises(ConfigError) as caught:
        submit_rerun("curate", recipe, Selection(), approve=False)
    assert "write the paths into a file" in str(caught.value) and "@FILE" in str(caught.value)
    assert len(str(caught.value)) < 250 and "\n" not in str(caught.value)
