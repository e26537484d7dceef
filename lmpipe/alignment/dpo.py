"""The stage `dpo`: prefer right answers (chosen) to others (rejected), all the policy's own.

One job samples rollouts from the policy, scores them with the task's reward, stores them
(`rollouts.parquet`), pairs a chosen with a rejected completion of one prompt, takes the frozen
policy's log-probabilities once, and trains. Pairs of the policy's own making are on its
distribution; pairs from elsewhere, the alternative, mostly move probability between answers that
the policy gives to neither.

DPO asks for a difference only, and on near-identical pairs it is reached by lowering both sides:
the margin grows while samples get worse. `likelihood_weight` adds the chosen side's own loss
against that, as Llama 3 does (Dubey et al. 2024, section 4.1.4, weight 0.2).
"""

from __future__ import annotations

from pydantic import Field

from lmpipe.alignment.config import AlignmentConfig
from lmpipe.artifacts.output import Output
from lmpipe.artifacts.stage import stage
from lmpipe.artifacts.types import Checkpoint
from lmpipe.runtime import Runtime
from lmpipe.training.launch import check_ranks


class DpoConfig(AlignmentConfig):
    """How many rollouts are sampled, how they are paired, and how hard pairs pull."""

    num_prompts: int = Field(512, ge=1, le=10_000_000, description="Problems that are sampled.")
    rollouts_per_prompt: int = Field(4, ge=2, le=1024, description="Completions per problem.")
    max_pairs_per_prompt: int = Field(2, ge=1, le=1024, description="Pairs from one problem.")
    pairs_per_step: int = Field(32, ge=1, le=1_000_000, description="Pairs per optimizer step.")
    beta: float = Field(
        0.1, gt=0, le=100, description="Strength of the pull back to the frozen policy."
    )
    likelihood_weight: float = Field(
        0.2,
        ge=0,
        le=100,
        description="Weight of -log p per token of the chosen completion; 0 is DPO as published.",
    )
    num_steps: int = Field(40, ge=1, le=10_000_000, description="Optimizer steps.")


def check_start(config: DpoConfig, given: frozenset[str], runtime: Runtime | None) -> None:
    """Refuse ranks that cannot be had, or have no equal shares."""
    check_ranks(runtime, **{"dpo.pairs_per_step": config.pairs_per_step})


@stage(version=2, kind="statistical", check=check_start)
def dpo(
    out: Output[Checkpoint], config: DpoConfig, policy: Checkpoint, *, runtime: Runtime
) -> Checkpoint:
    """Train on pairs of the policy's own rollouts with the DPO loss."""
    from lmpipe.alignment.launch import run_alignment

    return run_alignment("lmpipe.alignment.dpo_rank:main", config, policy, out, runtime, {})
