"""The stage `grpo`: reinforcement learning from a verifiable reward, without a value model.

Each step samples several completions per problem, scores them, and moves probability from those
below the mean of their own group to those above it. A learned value function, PPO's way to a
baseline, costs a second model and a second loss; a group's own mean is unbiased and free.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lmpipe.alignment.config import GrpoConfig
from lmpipe.alignment.launch import run_alignment
from lmpipe.artifacts.output import Output
from lmpipe.artifacts.stage import stage
from lmpipe.artifacts.types import Checkpoint
from lmpipe.runtime import Runtime
from lmpipe.training.launch import check_ranks

if TYPE_CHECKING:
    from lmpipe.training.rank import RankContext


def check_start(config: GrpoConfig, given: frozenset[str], runtime: Runtime | None) -> None:
    """Refuse ranks that cannot be had, or have no equal shares."""
    rollouts = config.prompts_per_step * config.rollouts_per_prompt
    check_ranks(runtime, **{"grpo.prompts_per_step × rollouts_per_prompt": rollouts})


def grpo_in_rank(job: dict[str, Any], context: RankContext) -> dict[str, Any]:
    """Do a rank's part; what it needs is imported there, torch among it."""
    from lmpipe.alignment.grpo_rank import main

    return main(job, context)


@stage(version=2, kind="statistical", check=check_start)
def grpo(
    out: Output[Checkpoint], config: GrpoConfig, policy: Checkpoint, *, runtime: Runtime
) -> Checkpoint:
    """Improve the policy on the task's reward, measured on held-out problems."""

    return run_alignment(grpo_in_rank, config, policy, out, runtime, {})
