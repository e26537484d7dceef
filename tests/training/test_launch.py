import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from pydantic import Field

from lmpipe.artifacts.build import build
from lmpipe.artifacts.output import Output
from lmpipe.artifacts.stage import StageConfig, stage
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import Checkpoint
from lmpipe.errors import ConfigError, InputError, TrainingError
from lmpipe.runtime import Runtime
from lmpipe.training import launch
from lmpipe.training.launch import parse_hostfile, reference, resolve_num_ranks, run_ranks
from tests.training import rank_entries


class RankedConfig(StageConfig):
    """A job that its ranks do at once."""

    folder: str = Field(description="Where the ranks note what they do.")


@stage(version=1, kind="statistical")
def ranked(out: Output[Checkpoint], config: RankedConfig, *, runtime: Runtime) -> Checkpoint:
    """Let ranks report and write what rank 0 said."""
    job = {"folder": config.folder, "word": "ja"}
    out.write_json("meta.json", run_ranks(rank_entries.report, job, out, runtime))
    return out.commit()


class Recorder:
    """An Output that remembers its events."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def emit(self, event: dict[str, Any]) -> None:
        self.events.append(event)

    def use_devices(self, names: list[str]) -> None:
        self.emit({"type": "devices", "names": names})

    def log(self, message: str, level: str = "info") -> None:
        self.emit({"type": "log", "message": message})

    def save_checkpoint(self, step: int, local: Path, keep: int = 2) -> None:
        self.events.append((step, (local / "weights").read_text(), keep))


def environment_with_project() -> dict[str, str]:
    root = str(Path(__file__).resolve().parents[2])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_rank_0_s_events_and_result_reach_the_stage_and_all_output_bears_its_rank(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    out = Recorder()
    job = {"folder": str(tmp_path), "word": "ja"}
    result = run_ranks(rank_entries.report, job, out, Runtime(ranks=2, device="cpu"))
    assert result == {"rank": 0, "world_size": 2, "echo": "ja"}
    named, told = out.events[:2], out.events[2:]
    assert [event["name"] for event in named] == ["rank 0", "rank 1"]
    assert told == [
        {"type": "progress", "done": 2, "total": 2, "unit": "steps", "label": ""},
        {"type": "series", "step": 1, "values": {"loss": 0.5}},
        {"type": "log", "level": "info", "message": "logged"},
        (1, "1", 2),
        (2, "2", 2),
    ]
    assert list(tmp_path.iterdir()) == []  # stored checkpoints are deleted
    captured = capfd.readouterr()
    assert {"[rank 0] hello from 0", "[rank 1] hello from 1"} <= set(captured.out.splitlines())
    assert "[rank 1] careful" in captured.err.splitlines()


@pytest.mark.parametrize(
    ("how", "error", "says"),
    [
        ("sigkill", TrainingError, ["rank 1", "SIGKILL", "out of memory", "GiB", "allocating"]),
        ("exit", TrainingError, ["rank 1", "exit code 3"]),
        ("training", TrainingError, ["rank 1", "exit code 1", "ten steps in a row", "Traceback"]),
        ("config", ConfigError, ["batch_tokens=7 must divide by 3; try 6"]),
        ("input", InputError, ["no pairs: no prompt has a right completion; change the task"]),
    ],
)
def test_a_rank_that_dies_ends_the_others_and_is_named(
    tmp_path: Path, how: str, error: type[Exception], says: list[str]
):
    started = time.monotonic()
    with pytest.raises(error) as caught:
        run_ranks(
            rank_entries.fail,
            {"how": how, "folder": str(tmp_path)},
            Recorder(),
            Runtime(ranks=3, device="cpu", scratch=str(tmp_path / "scratch")),
        )
    assert list((tmp_path / "scratch").iterdir()) == []
    assert time.monotonic() - started < 10
    for text in says:
        assert text in str(caught.value)
    assert all(is_gone(int(path.read_text())) for path in tmp_path.glob("pid*"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_rank_outlives_a_stage_process_that_is_ended(tmp_path: Path, number: signal.Signals):
    program = f"""
import sys
from lmpipe.runtime import Runtime
from lmpipe.training.launch import run_ranks
from tests.training.rank_entries import wait_with_child
from tests.training.test_launch import Recorder
run_ranks(wait_with_child, {{"folder": {str(tmp_path)!r}}}, Recorder(),
          Runtime(ranks=2, device="cpu"))
"""
    stage = subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment_with_project(),
        stderr=subprocess.PIPE,
        text=True,
    )
    files = [tmp_path / "pid0", tmp_path / "pid1"]
    deadline = time.monotonic() + 30
    while not all(file.exists() for file in files):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    pids = [[int(pid) for pid in file.read_text().split()] for file in files]
    stage.send_signal(number)
    _, stderr = stage.communicate(timeout=15)
    assert stage.returncode == -number
    try:
        if number == signal.SIGTERM:
            assert "rank 0" in stderr and "rank 1" in stderr
            assert all(is_gone(pid) for pair in pids for pid in pair)
        else:  # nobody is left to end the ranks' own children; the kernel ends the ranks
            deadline = time.monotonic() + 5
            while not all(is_gone(rank) for rank, _ in pids):
                assert time.monotonic() < deadline
                time.sleep(0.05)
    finally:
        for _, child in pids:
            if not is_gone(child):
                os.kill(child, signal.SIGKILL)


def test_an_entry_is_named_by_its_module_and_a_function_of_no_module_is_refused() -> None:
    assert reference(rank_entries.report) == "tests.training.rank_entries:report"
    with pytest.raises(AssertionError, match="no rank can import"):
        reference(lambda job, context: None)


def test_a_job_must_be_json():
    with pytest.raises(TypeError):
        run_ranks(rank_entries.report, {"a": object()}, Recorder(), Runtime(device="cpu"))


def test_a_hostfile_is_parsed_and_its_errors_name_the_line():
    assert parse_hostfile("a slots=8\n# note\n\nb slots=2 # two\n") == [("a", 8), ("b", 2)]
    for text, says in [
        ("a", "line 1"),
        ("a slots=0", "line 1"),
        ("a slots=1\na slots=2", "twice"),
        ("# none", "no host"),
    ]:
        with pytest.raises(ConfigError, match=says):
            parse_hostfile(text)


def test_several_hosts_are_refused_and_one_gives_its_slots(tmp_path: Path):
    hostfile = tmp_path / "hosts"
    hostfile.write_text("localhost slots=2\n")
    assert resolve_num_ranks(Runtime(hostfile=str(hostfile)), "cpu") == 2
    with pytest.raises(ConfigError, match="slots"):
        resolve_num_ranks(Runtime(hostfile=str(hostfile), ranks=3), "cpu")
    hostfile.write_text("localhost slots=2\nfar slots=2\n")
    with pytest.raises(ConfigError, match=r"far.*not supported yet"):
        resolve_num_ranks(Runtime(hostfile=str(hostfile)), "cpu")


def test_a_stage_whose_ranks_hold_gpus_is_charged_for_each_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """From the driver's names to the manifest; the ranks themselves touch no device."""
    monkeypatch.setattr(launch, "resolve_device", lambda runtime: "cuda")
    monkeypatch.setattr(launch, "gpu_names", lambda: [f"cuda:{n} NVIDIA H200" for n in range(4)])
    store = Store(str(tmp_path / "store"))
    config = RankedConfig(folder=str(tmp_path))
    made = build(ranked, config, {}, store=store, runtime=Runtime(ranks=2))
    said = made.manifest.provenance
    assert said.devices == ["cuda:0 NVIDIA H200", "cuda:1 NVIDIA H200"]
    rounding = 2 * 0.001 / 3600  # a manifest gives milliseconds
    assert said.gpu_hours == pytest.approx(2 * said.seconds / 3600, abs=rounding)
    assert said.seconds > 0.1
