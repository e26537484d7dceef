import json
import time
from pathlib import Path

import pytest

from lmpipe.artifacts.leases import RunLeases
from lmpipe.artifacts.lookup import list_manifests
from lmpipe.artifacts.manifest import Origin
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import open_artifact
from lmpipe.errors import ConfigError, RunFailed
from lmpipe.report.config import ReportConfig
from lmpipe.runtime import Runtime
from tasks.bridge import PrefectConductor, as_task
from tasks.conductor import Settings, conducted_by
from tasks.evaluation import report as report_task
from tasks.plan import check_runnable, plan, step_names
from tasks.selection import Selection
from tests.artifacts.stages import (
    CopyConfig,
    CountConfig,
    FollowConfig,
    TrainConfig,
    copy,
    count,
    follow,
    train,
)

pytestmark = pytest.mark.usefixtures("prefect_server")

count_task = as_task(count)
copy_task = as_task(copy)
follow_task = as_task(follow)
train_task = as_task(train, retries=2, retry_delay_seconds=0)


class Recorder:
    def __init__(self):
        self.lines, self.events, self.steps = [], [], []

    def started(self, name): ...

    def event(self, name, event):
        self.events.append((name, event))

    def line(self, name, line):
        self.lines.append(line)

    def finished(self, step):
        self.steps.append((step.name, step.status))


def compose(lines=3, suffix="x", mode=""):
    documents = count_task(CountConfig(lines=lines))
    copied = copy_task(CopyConfig(suffix=suffix), documents)
    return train_task(TrainConfig(mode=mode), copied)


def run(settings, selection=None, run_id="run", **arguments):
    from prefect import flow

    selection = selection or Selection()
    recorder = Recorder()
    names = step_names(lambda: compose(**arguments))
    conductor = PrefectConductor(
        settings, selection, selection.allowed(names), recorder, Origin(flow_run=run_id)
    )

    @flow(name="test")
    def composed():
        with conducted_by(conductor):
            return compose(**arguments)

    composed()
    return recorder


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(Store(str(tmp_path / "store")), Runtime())


def test_a_run_writes_down_what_it_uses_before_it_looks_and_its_manifests_name_it(settings):
    from prefect import flow

    store = settings.store
    run(settings)
    seen = []

    class Looking(Recorder):
        def finished(self, step):
            records = [p for p in store.sizes("uses") if p.endswith(".json")]
            seen.append([set(json.loads(store.read(path))["uses"]) for path in records])
            seen[-1].append(f"{step.stage}/{step.artifact}")

    origin = Origin(flow_run="run-7", flow_run_name="tiny", flow="test", recipe="tiny")
    leases = RunLeases(store, "test")
    names = {"count", "copy", "train"}
    selection = Selection(force=("copy",))
    conductor = PrefectConductor(settings, selection, names, Looking(), origin, leases)

    @flow(name="test")
    def composed():
        with leases, conducted_by(conductor):
            return compose()

    composed()
    assert [len(taken) for taken, _ in seen] == [1, 2, 3]
    assert all(finished in taken for taken, finished in seen)
    assert not [p for p in store.sizes("uses") if p.endswith(".json")]
    (forced,) = [
        m
        for m in list_manifests(store, "copy")
        if m.provenance.origin == origin.model_copy(update={"step": "copy"})
    ]
    assert forced.provenance.reason == "forced by run run-7"


def statuses(settings, selection=None, **arguments):
    steps = plan(lambda: compose(**arguments), settings, selection or Selection())
    return [(step.name, step.status) for step in steps]


def test_a_second_run_finds_every_stage(settings):
    assert [s for _, s in run(settings).steps] == ["RUN"] * 3
    assert [s for _, s in run(settings).steps] == ["HIT"] * 3
    assert statuses(settings) == [("count", "HIT"), ("copy", "HIT"), ("train", "HIT")]


def test_a_plan_builds_nothing_and_says_why(settings):
    assert [s for _, s in statuses(settings)] == ["RUN", "PENDING", "PENDING"]
    assert settings.store.children("") == []
    run(settings)
    steps = plan(lambda: compose(suffix="y"), settings, Selection())
    assert [(s.status) for s in steps] == ["HIT", "RUN", "PENDING"]
    assert "config.suffix: x → y" in steps[1].reason


def test_a_pending_stage_names_what_it_hits_if_bytes_do_not_change(settings):
    run(settings)
    steps = plan(lambda: compose(), settings, Selection(force=("count",)))
    assert [s.status for s in steps] == ["RUN", "PENDING", "PENDING"]
    assert f"hits {steps[1].artifact[:12]}" in steps[1].reason


def test_early_cut_off_leaves_consumers_of_equal_bytes_alone(settings):
    run(settings)
    again = run(settings, Selection(force=("count",)), run_id="second")
    assert again.steps == [("count", "RUN"), ("copy", "HIT"), ("train", "HIT")]


def test_force_acts_once_per_run_however_often_the_run_is_retried(settings):
    selection = Selection(force=("train",))
    run(settings)
    assert dict(run(settings, selection, run_id="a").steps)["train"] == "RUN"
    assert dict(run(settings, selection, run_id="a").steps)["train"] == "HIT"
    assert dict(run(settings, selection, run_id="b").steps)["train"] == "RUN"


def test_until_builds_nothing_after_a_stage(settings):
    steps = run(settings, Selection(until_stage="copy")).steps
    assert steps == [("count", "RUN"), ("copy", "RUN"), ("train", "SKIP")]


def test_only_and_from_need_what_is_before_them(settings):
    for selection in (Selection(only="copy"), Selection(from_stage="copy")):
        steps = plan(lambda: compose(), settings, selection)
        with pytest.raises(ConfigError, match="needs count"):
            check_runnable(steps, selection)
    run(settings, Selection(until_stage="count"))
    steps = run(settings, Selection(only="copy")).steps
    assert steps == [("count", "HIT"), ("copy", "RUN"), ("train", "SKIP")]
    assert run(settings, Selection(from_stage="train")).steps[-1] == ("train", "RUN")


def test_only_what_the_selected_steps_read_may_be_needed(settings):
    def branches(first="x", second="y"):
        documents = count_task(CountConfig())
        copied = copy_task(CopyConfig(suffix=first), documents, label="first")
        train_task(TrainConfig(), copied, label="first")
        copied = copy_task(CopyConfig(suffix=second), documents, label="second")
        train_task(TrainConfig(), copied, label="second")

    def statuses_of(selection, **suffixes):
        steps = plan(lambda: branches(**suffixes), settings, selection)
        check_runnable(steps, selection)
        return {step.name: step.status for step in steps}

    count_only = Selection(until_stage="count")
    assert run(settings, count_only).steps[0] == ("count", "RUN")
    first_is_lost = {"copy[first]": "MISSING", "train[first]": "SKIP"}
    for selection in (Selection(only="copy[second]"), Selection(from_stage="copy[second]")):
        found = statuses_of(selection)
        assert found["copy[second]"] == "RUN" and found.items() >= first_is_lost.items()
    blocked = Selection(only="train")
    with pytest.raises(ConfigError, match=r"train\[first\] needs copy\[first\], copy\[second\]"):
        statuses_of(blocked)


def test_an_unknown_stage_is_named_with_the_nearest_spelling(settings):
    with pytest.raises(ConfigError, match="did you mean 'copy'"):
        statuses(settings, Selection(only="cpoy"))


def test_deleted_shard_is_planned_as_run_with_the_reason(settings):
    run(settings)
    for path in settings.store.sizes("copy"):
        if path.endswith("00000.txt"):
            settings.store.delete(path)
    steps = plan(lambda: compose(), settings, Selection())
    assert steps[1].status == "RUN" and "lost 1 of its objects" in steps[1].reason


def test_a_killed_child_is_retried_and_resumes(settings):
    recorder = run(settings, mode="die")
    assert recorder.steps[-1] == ("train", "RUN")
    with settings.store.open(
        next(p for p in settings.store.sizes("train") if "manifest" in p)
    ) as f:
        assert b'"started_at": 2' in f.read()


def test_broken_input_is_not_retried(settings):
    recorder_lines = []
    with pytest.raises(RunFailed, match=r"train failed: InputError: .*record 7"):
        run(settings, mode="input_error")
    attempts = {p.split("/")[3] for p in settings.store.sizes("train") if "/attempts/" in p}
    assert len(attempts) == 1 and recorder_lines == []


def two_branches(fail=""):
    """One count, two copies of it, a training on each, and a page about both."""
    documents = count_task(CountConfig())
    trained = []
    for label in ("a", "b"):
        copied = copy_task(CopyConfig(suffix=label), documents, label=label)
        mode = "input_error" if label == fail else ""
        trained.append(train_task(TrainConfig(mode=mode), copied, label=label))
    return report_task(ReportConfig(), trained)


def execute_two(settings, compose_two):
    from prefect import flow

    recorder = Recorder()
    names = step_names(compose_two)
    conductor = PrefectConductor(settings, Selection(), set(names), recorder, Origin(flow_run="f"))

    @flow(name="test")
    def composed():
        with conducted_by(conductor):
            compose_two()

    return recorder, composed


def test_a_failing_stage_stops_only_what_depends_on_it_and_the_report_says_what_failed(settings):
    recorder, composed = execute_two(settings, lambda: two_branches(fail="a"))
    with pytest.raises(RunFailed, match=r"train\[a\] failed: InputError: .*record 7"):
        composed()
    assert dict(recorder.steps) == {
        "count": "RUN",
        "copy[a]": "RUN",
        "train[a]": "FAILED",
        "copy[b]": "RUN",
        "train[b]": "RUN",
        "report": "RUN",
    }
    (manifest,) = list_manifests(settings.store, "report")
    assert len(manifest.inputs) == 1
    page = open_artifact(settings.store, manifest).read_bytes("report.md").decode()
    assert "What failed" in page and "record 7" in page and "train[a]" in page.replace("\\", "")
    recorder, composed = execute_two(settings, two_branches)
    composed()
    whole = list_manifests(settings.store, "report")[0]
    page = open_artifact(settings.store, whole).read_bytes("report.md").decode()
    assert len(whole.inputs) == 2 and "What failed" not in page


def test_what_was_not_run_for_want_of_a_failed_stage_is_named_with_it(settings):
    def chain():
        trained = train_task(TrainConfig(mode="input_error"), count_task(CountConfig()))
        follow_task(FollowConfig(), trained)
        return follow_task(FollowConfig(), trained, label="again")

    recorder, composed = execute_two(settings, chain)
    with pytest.raises(RunFailed) as caught:
        composed()
    assert [status for _, status in recorder.steps] == ["RUN", "FAILED", "NOT RUN", "NOT RUN"]
    said = str(caught.value).splitlines()
    assert said[1:] == [
        "  follow was not run: needs train",
        "  follow[again] was not run: needs train",
    ]


def newest_logs(client):
    from prefect.client.schemas.sorting import LogSort

    return client.read_logs(sort=LogSort.TIMESTAMP_DESC, limit=100)


def test_what_children_write_and_say_reaches_prefect(settings):
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey

    recorder = run(settings, mode="print")
    assert "native line" in recorder.lines
    with get_client(sync_client=True) as client:
        filter_ = ArtifactFilter(key=ArtifactFilterKey(any_=["train", "train-progress"]))
        found = client.read_artifacts(artifact_filter=filter_)
        assert {artifact.key for artifact in found} == {"train", "train-progress"}
        deadline = time.monotonic() + 60  # logs travel in batches, behind those of other runs
        while not any("native line" in entry.message for entry in newest_logs(client)):
            assert time.monotonic() < deadline
            time.sleep(0.5)


def test_a_failing_stage_fails_the_run_with_its_exit_code(settings, monkeypatch):
    monkeypatch.setattr("tests.artifacts.stages.CountConfig", CountConfig)
    with pytest.raises(RunFailed, match=r"count failed: StageFailed.*SIGKILL"):
        from prefect import flow

        config = CountConfig(die_at="00000")
        conductor = PrefectConductor(
            settings, Selection(), {"count"}, Recorder(), Origin(flow_run="r")
        )

        @flow(name="test")
        def composed():
            with conducted_by(conductor):
                return count_task(config)

        composed()


def graph_of(flow_run: str) -> tuple[dict[str, set[str]], dict[str, str]]:
    """Return the graph that the UI draws of a flow run: each node's parents, and its state."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        nodes = client.request("GET", f"/flow_runs/{flow_run}/graph-v2").json()["nodes"]
        body = {"flow_runs": {"id": {"any_": [flow_run]}}}
        runs = client.request("POST", "/task_runs/filter", json=body).json()
    labels = {node["id"]: node["label"] for _, node in nodes}
    parents = {n["label"]: {labels[parent["id"]] for parent in n["parents"]} for _, n in nodes}
    return parents, {run["name"]: run["state_name"] for run in runs}


def test_the_graph_in_the_ui_has_an_edge_for_every_input_whether_built_or_found(settings):
    from prefect import flow
    from prefect.events.worker import EventsWorker
    from prefect.runtime import flow_run

    EventsWorker.drain_all(timeout=10)  # an earlier test's may still serve a server that has ended

    @flow(name="test")
    def composed(conductor, suffix):
        with conducted_by(conductor):
            compose(suffix=suffix)
        return flow_run.get_id()

    edges = {"count": set(), "copy": {"count"}, "train": {"copy"}}
    for suffix, ended in (
        ("x", ["Completed", "Completed", "Completed"]),
        ("y", ["Cached", "Completed", "Completed"]),
        ("y", ["Cached", "Cached", "Cached"]),
    ):
        names = step_names(compose)
        conductor = PrefectConductor(
            settings, Selection(), set(names), Recorder(), Origin(flow_run="graph")
        )
        run_id = composed(conductor, suffix)
        expected = (edges, dict(zip(edges, ended, strict=True)))
        deadline = time.monotonic() + 30  # task runs reach the server as events
        while (graph := graph_of(run_id)) != expected and time.monotonic() < deadline:
            time.sleep(0.2)
        assert graph == expected
