"""Sharded training over NCCL on two CUDA devices of one host: what gloo shows on CPU.

Besides: a stage on two devices is charged for both, and gives their memory back when it is ended.
"""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("deepspeed")

from lmpipe.artifacts.build import build  # noqa: E402
from lmpipe.artifacts.store import Store  # noqa: E402
from lmpipe.artifacts.types import Checkpoint  # noqa: E402
from lmpipe.model.config import ModelConfig  # noqa: E402
from lmpipe.runtime import Runtime  # noqa: E402
from lmpipe.runtime.processes import end_tree  # noqa: E402
from lmpipe.training.config import PretrainConfig  # noqa: E402
from lmpipe.training.launch import run_ranks  # noqa: E402
from lmpipe.training.optimizer import OptimizerConfig  # noqa: E402
from lmpipe.training.pretrain import pretrain  # noqa: E402
from tests.training.engine_entries import check_stages  # noqa: E402
from tests.training.test_engine import reference  # noqa: E402, F401
from tests.training.test_launch import Recorder, environment_with_project  # noqa: E402
from tests.training.test_pretrain import Nothing, counting_shards, no_tokenizer  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices"),
    pytest.mark.filterwarnings("ignore"),  # other versions of torch and DeepSpeed, other warnings
    pytest.mark.timeout(400),
]

STAGES = [1, 2, 3]
BF16_ROUNDING = 2**-8
CONFIG = PretrainConfig(
    model=ModelConfig(num_layers=4, d_model=256, num_heads=4, num_kv_heads=2, max_seq_len=256),
    total_tokens=200 * 16 * 256,
    batch_tokens=16 * 256,
    sequence_length=256,
    optimizer=OptimizerConfig(learning_rate=3e-3),
    validation_every=100,
    validation_tokens=10 * 256,
    accept_contamination=("unreported",),
)


def trained(root: str, ranks: int, config: PretrainConfig = CONFIG, stage: int = 2) -> Checkpoint:
    store = Store(root)
    quiet = Runtime()
    inputs: dict[str, Any] = {
        "shards": build(counting_shards, Nothing(), {}, store=store, runtime=quiet),
        "tokenizer": build(no_tokenizer, Nothing(), {}, store=store, runtime=quiet),
    }
    runtime = Runtime(ranks=ranks, device="cuda", attention="triton", zero_stage=stage)
    return build(pretrain, config, inputs, store=store, runtime=runtime)


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    job = {"stages": STAGES, "folder": str(tmp_path_factory.mktemp("states"))}
    answer: dict[str, Any] = run_ranks(
        check_stages, job, Recorder(), Runtime(ranks=2, device="cuda")
    )
    return answer


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("how", ["straight", "ragged"])
def test_any_split_trains_as_the_full_batch_does_to_bf16_rounding(
    two_ranks: dict[str, Any],
    reference: list[list[float]],  # noqa: F811
    stage: int,
    how: str,
) -> None:
    for got, wanted in zip(two_ranks[str(stage)][how], reference, strict=True):
        assert got[0] == pytest.approx(wanted[0], rel=4 * BF16_ROUNDING)  # loss
        assert got[1] == pytest.approx(wanted[1], rel=10 * BF16_ROUNDING)  # gradient norm
        assert got[2] == pytest.approx(wanted[2], rel=1e-9)  # learning rate


@pytest.mark.parametrize("stage", STAGES)
def test_a_run_resumed_twice_equals_the_uninterrupted_one_to_the_bit(
    two_ranks: dict[str, Any], stage: int
) -> None:
    answer = two_ranks[str(stage)]
    assert answer["resumed"] == answer["straight"]
    assert answer["same_weights"]


@pytest.mark.parametrize("stage", STAGES)
def test_a_step_that_is_not_finite_on_one_device_is_skipped_by_both(
    two_ranks: dict[str, Any], stage: int
) -> None:
    skip = two_ranks[str(stage)]["skip"]
    for poison in ("inf", "nan"):
        skipped, same_weights, rate = skip[poison]
        assert skipped and same_weights and rate == skip["rate_before"]
    assert skip["same_weights"] and skip["after"][:2] == skip["expected_after"]


def test_a_stage_on_two_devices_learns_and_is_charged_for_both(tmp_path: Path) -> None:
    made = trained(f"file://{tmp_path}/store", ranks=2)
    assert made.metrics["validation_loss"] < 0.8 * made.metrics["unigram_entropy"]
    said = made.manifest.provenance
    assert len(said.devices) == 2
    for number, device in enumerate(said.devices):
        assert device == f"cuda:{number} {torch.cuda.get_device_name(number)}"
    rounding = 2 * 0.001 / 3600  # a manifest gives milliseconds
    assert said.gpu_hours == pytest.approx(2 * said.seconds / 3600, abs=rounding)
    print(f"\n{said.seconds:.1f} s on {said.devices}: {said.gpu_hours:.5f} GPU-hours")


def test_ending_a_stage_gives_the_memory_of_both_devices_back(tmp_path: Path) -> None:
    """As a cancelled run does: SIGTERM to the stage's process, SIGKILL to what is left after it."""
    before = _used()
    code = f"from {__name__} import CONFIG, trained; trained('file://{tmp_path}/store', 2, LONG)"
    code = code.replace("LONG", "CONFIG.model_copy(update={'total_tokens': 10**10})")
    process = subprocess.Popen([sys.executable, "-c", code], env=environment_with_project())
    deadline = time.monotonic() + 120
    while min(now - then for now, then in zip(_used(), before, strict=True)) < 600e6:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.5)
    time.sleep(5)  # in the middle of its steps
    assert process.poll() is None
    held = _used()
    begun = time.monotonic()
    ended = end_tree(process.pid, 15)
    process.wait()
    while max(now - then for now, then in zip(_used(), before, strict=True)) > 50e6:
        assert time.monotonic() - begun < 40, (before, held, _used())
        time.sleep(0.1)
    seconds = time.monotonic() - begun
    print(f"\n{ended}: {[round(x / 1e6) for x in held]} MB given back in {seconds:.1f} s")


def _used() -> list[int]:
    """Bytes that all processes hold, by device."""
    pairs = [torch.cuda.mem_get_info(number) for number in range(2)]
    return [total - free for free, total in pairs]
