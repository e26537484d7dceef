"""The demo on S3, killed with -9 at three places, ends as if nothing had happened.

Smaller than `make demo` where size does not matter: a quarter of the crawl, few training steps.
"""

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import s3fs

from lmpipe.artifacts.lookup import list_manifests
from lmpipe.artifacts.manifest import Manifest
from lmpipe.artifacts.store import Store
from tests.services.prefect_server import REPOSITORY
from tests.services.processes import wait_until
from tests.services.seaweedfs import SeaweedFS

FEWER_PAGES = ["docs-00000", "common-crawl"]
CRAWL = f"sources.crawl.paths={json.dumps([f'demo_data/warc/{n}.warc.gz' for n in FEWER_PAGES])}"
SMALLER = (
    "pretrain.total_tokens=163_840",  # 20 steps
    "pretrain.validation_every=0",
    "pretrain.validation_tokens=8192",
    "sft.num_examples=256",
    "dpo.num_prompts=32",
    "dpo.num_steps=2",
    "grpo.num_steps=12",
    "evaluate.limit=5",
    "runtime.checkpoint_every_seconds=1",
    "runtime.threads_per_rank=1",
)
EXACT = {
    "source",
    "quality_classifier",
    "extract",
    "signals",
    "select",
    "dedup",
    "decontaminate",
    "tokenizer",
    "shards",
}


@dataclass
class Demo:
    """`lmpipe run demo` as a process, and the store it writes to."""

    root: str
    environment: dict[str, str]
    log: Path

    def command(self, *options: str) -> list[str]:
        changes = [f"store.root={self.root}", CRAWL, *options]
        lmpipe = str(Path(sys.executable).with_name("lmpipe"))
        return [lmpipe, "run", "demo", *(f"--set={change}" for change in changes)]

    def start(self) -> "subprocess.Popen[bytes]":
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self.command(*SMALLER),
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def kill_when(self, condition: Callable[[], bool], what: str) -> None:
        """Kill `lmpipe` alone with -9; every process below it must end by itself."""
        started = time.monotonic()
        run = self.start()

        def due() -> bool:
            assert run.poll() is None, f"ended before {what}:\n{self.text()[-5000:]}"
            return condition()

        try:
            wait_until(due, timeout_seconds=400, what=f"{what}; the log: {self.text()[-3000:]}")
            family = psutil.Process(run.pid).children(recursive=True)
            print(f"{what}: killed after {time.monotonic() - started:.0f} s, {len(family)} below")
            assert any("lmpipe.artifacts.child" in " ".join(p.cmdline()) for p in family)
        finally:
            run.kill()
            run.wait()
        _, alive = psutil.wait_procs(family, timeout=20)
        orphans = [process.cmdline() for process in alive if process.is_running()]
        for process in alive:
            process.kill()
        assert not orphans

    def finish(self) -> None:
        started = time.monotonic()
        run = self.start()
        try:
            assert run.wait(timeout=600) == 0, self.text()[-5000:]
        finally:
            run.kill()
        print(f"run to the end: {time.monotonic() - started:.0f} s")

    def text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def objects(self, stage: str, part: str) -> list[str]:
        return [path for path in Store(self.root).sizes(stage) if part in path]

    def manifest(self, stage: str) -> Manifest:
        (found,) = list_manifests(Store(self.root), stage)
        return found

    def stored_logs(self, stage: str) -> str:
        store = Store(self.root)
        return "".join((store.read(p) or b"").decode() for p in self.objects(stage, "/logs/"))


def exact_digests(store: Store) -> dict[str, str]:
    manifests = [m for m in list_manifests(store) if m.stage in EXACT]
    return {f"{m.stage}/{m.id}": m.digest for m in manifests}


@pytest.mark.timeout(2000)
def test_the_demo_on_s3_killed_at_three_places_ends_like_an_undisturbed_one(
    seaweedfs: SeaweedFS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in seaweedfs.environment.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    environment = {name: v for name, v in os.environ.items() if not name.startswith("PREFECT_")} | {
        "PREFECT_HOME": str(tmp_path / "prefect"),
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "300",
        "PYTHONPATH": str(REPOSITORY),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "TMPDIR": str(tmp_path),
        "COLUMNS": "200",
    }
    undisturbed = Demo(str(tmp_path / "artifacts"), environment, tmp_path / "undisturbed.log")
    done = subprocess.run(
        [*undisturbed.command(), "--flow=tokenize"],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr

    bucket = seaweedfs.create_bucket("demo")
    demo = Demo(f"{bucket}/{secrets.token_hex(4)}", environment, tmp_path / "demo.log")
    demo.kill_when(lambda: bool(demo.objects("extract", "/done/")), "first shard of extract")
    assert demo.objects("extract", "/manifest.json") == []
    adopted = demo.objects("extract", "/done/")

    demo.kill_when(lambda: bool(checkpoints(demo, "pretrain")), "first checkpoint of pretrain")
    assert demo.objects("pretrain", "/manifest.json") == []
    attempts = {path.split("/")[3] for path in adopted}
    paths = {record.path.split("/")[3] for record in demo.manifest("extract").outputs}
    assert attempts & paths, "no shard of the killed attempt was adopted"

    demo.kill_when(lambda: bool(demo.objects("grpo", "/attempts/")), "start of grpo")
    resumed = demo.stored_logs("pretrain") + demo.text()
    assert "resumed at step" in resumed
    assert demo.objects("grpo", "/manifest.json") == []

    demo.finish()
    store = Store(demo.root)
    assert exact_digests(store) == exact_digests(Store(undisturbed.root))
    assert {m.stage for m in list_manifests(store)} == EXACT | {
        "vocabulary",  # exact too, but no part of the undisturbed flow
        "pretrain",
        "sft",
        "dpo",
        "grpo",
        "evaluate",
        "report",
    }
    assert len(list_manifests(store, "evaluate")) == 4


def checkpoints(demo: Demo, stage: str) -> list[str]:
    return [path for path in demo.objects(stage, "/checkpoints/") if path.endswith("COMPLETE.json")]
