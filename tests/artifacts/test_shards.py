import os
import sys
import threading
from pathlib import Path

import pytest

from lmpipe.artifacts.build import build
from lmpipe.artifacts.shards import _progress
from lmpipe.artifacts.store import Store
from lmpipe.errors import ConfigError, StageFailed, StoreUnavailable
from lmpipe.runtime import Runtime
from tests.artifacts.stages import CountConfig, count

# Takes the script that sbatch would get, keeps it, and runs the tasks of its array one by one.
SBATCH = """#!{python}
import os, re, subprocess, sys
script = open(sys.argv[-1]).read()
with open({kept!r}, "a") as kept:
    kept.write(script)
found = re.search("--array=0-([0-9]+)", script)
if "launch_pickled_pipeline" in script:
    for number in range(int(found.group(1)) + 1):
        variables = os.environ | {{"SLURM_ARRAY_TASK_ID": str(number), "SLURM_NODELIST": "here"}}
        done = subprocess.run(["bash", sys.argv[-1]], env=variables, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
print("Submitted batch job 7")
"""


def test_slurm_jobs_are_rendered_submitted_once_and_give_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    kept = tmp_path / "scripts"
    (bin_ / "sbatch").write_text(SBATCH.format(python=sys.executable, kept=str(kept)))
    (bin_ / "scontrol").write_text("#!/bin/sh\necho here\n")
    for name in ("sbatch", "scontrol"):
        (bin_ / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")
    # A node imports the stage by its name; this one's module is installed nowhere.
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    runtime = Runtime(
        executor="slurm", workers=2, scratch=str(tmp_path / "shared"), slurm_partition="cpu"
    )
    by_slurm = build(count, CountConfig(), {}, store=Store(str(tmp_path / "a")), runtime=runtime)
    local = build(count, CountConfig(), {}, store=Store(str(tmp_path / "b")), runtime=Runtime())
    assert by_slurm.digest == local.digest
    lines = kept.read_text().splitlines()
    assert "#SBATCH --partition=cpu" in lines
    assert "#SBATCH --wait" in lines
    assert "#SBATCH --mem-per-cpu=4G" in lines
    assert any(line.startswith("#SBATCH --array=0-") and line.endswith("%2") for line in lines)


def test_slurm_without_a_shared_folder_or_a_partition_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"runtime\.slurm_partition, and runtime\.scratch"):
        build(
            count,
            CountConfig(),
            {},
            store=Store(str(tmp_path)),
            runtime=Runtime(executor="slurm", workers=2),
        )


@pytest.mark.parametrize("error", [StoreUnavailable("no answer"), OSError("no such host")])
def test_progress_goes_on_after_a_store_was_away(error: Exception) -> None:
    answers: list[Exception | list[str]] = [error, ["00000.json"]]
    shown = threading.Event()

    class Away:
        def children(self, prefix: str) -> list[str]:
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
            if isinstance(answer, Exception):
                raise answer
            return answer

    class Listening:
        store = Away()

        def marker(self, key: str) -> str:
            return f"done/{key}.json"

        def progress(self, done: float, total: float, unit: str) -> None:
            if (done, total) == (3, 4):
                shown.set()

    with _progress(Listening(), ["00000", "00001"], already=2):  # type: ignore[arg-type]
        assert shown.wait(30)


def test_a_worker_that_is_killed_fails_the_stage_and_the_next_attempt_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory killer takes one worker of several; datatrove's own pool waits for it for ever."""
    store, runtime = Store(str(tmp_path / "store")), Runtime(workers=2)
    config = CountConfig(num_shards=6, die_at="00004")
    with pytest.raises(StageFailed, match=r"a worker process ended.*fewer runtime\.workers.*kept"):
        build(count, config, {}, store=store, runtime=runtime)
    done = [path.stem for path in (tmp_path / "store").rglob("done/*.json")]
    assert {"00000", "00001"} <= set(done) and "00004" not in done
    monkeypatch.setenv("SURVIVE", "1")
    said: list[str] = []
    made = build(
        count, config, {}, store=store, runtime=runtime,
        sink=lambda event: said.append(str(event.get("message"))),
    )  # fmt: skip
    assert made.metrics["lines"] == 18
    assert any(f"adopted {len(done)} of 6 shards" in message for message in said)
