"""Alignment on the device: the stages of tests/alignment in bf16 with Triton attention."""

import math
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

from lmpipe.alignment.config import (  # noqa: E402  # noqa: E402
    AlignmentOptimizer,
    DpoConfig,
    GrpoConfig,
    GrpoOptimizer,
    SftConfig,
    SftOptimizer,
)
from lmpipe.alignment.dpo import dpo  # noqa: E402
from lmpipe.alignment.grpo import grpo  # noqa: E402
from lmpipe.alignment.sft import sft  # noqa: E402
from lmpipe.artifacts.build import build  # noqa: E402
from lmpipe.artifacts.store import Store  # noqa: E402
from lmpipe.runtime import Runtime  # noqa: E402
from tests.alignment.stages import RandomBaseConfig, random_base  # noqa: E402

COMMON = {
    "task": {"min_numbers": 2, "max_numbers": 2, "max_value": 9},
    "max_new_tokens": 8,
    "heldout_problems": 8,  # the task has no more of them
    "heldout_samples": 16,
}
SFT_OPTIMIZER = SftOptimizer(learning_rate=5e-3)
SFT = SftConfig(**COMMON, num_examples=512, num_steps=60, rows_per_step=16, optimizer=SFT_OPTIMIZER)
DPO_OPTIMIZER = AlignmentOptimizer(learning_rate=1e-3)
DPO = DpoConfig(**COMMON, num_prompts=64, num_steps=12, pairs_per_step=16, optimizer=DPO_OPTIMIZER)
GRPO = GrpoConfig(
    **COMMON,
    prompts_per_step=16,
    num_steps=12,
    optimizer=GrpoOptimizer(learning_rate=1e-3),
    evaluate_every=6,
)


def test_sft_dpo_and_grpo_run_on_the_device_and_lift_the_reward(tmp_path: Path) -> None:
    store, runtime = Store(str(tmp_path)), Runtime(device="cuda", ranks=1)

    def run(stage: Any, config: Any, *inputs: Any) -> Any:
        return build(stage, config, stage.bind(inputs), store=store, runtime=runtime)

    tuned = run(sft, SFT, run(random_base, RandomBaseConfig()))
    assert tuned.metrics["heldout_reward"] > tuned.metrics["heldout_reward_before"] + 0.3
    reinforced = run(grpo, GRPO, run(dpo, DPO, tuned))
    rows = pq.read_table(reinforced.local("curves.parquet")).to_pylist()
    losses = [row["loss"] for row in rows if row["loss"] is not None]
    assert len(losses) == GRPO.num_steps and all(math.isfinite(loss) for loss in losses)
    print(
        f"\nheld-out reward: sft {tuned.metrics['heldout_reward']:.3f}, "
        f"grpo {reinforced.metrics['heldout_reward']:.3f}; largest sampler mismatch "
        f"{max(row['sampler_mismatch'] or 0 for row in rows):.2e}"
    )
    assert reinforced.metrics["heldout_reward"] > 0.3
