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

from typing import TYPE_CHECKING, Any

from lmpipe.alignment.config import DpoConfig
from lmpipe.alignment.launch import run_alignment
from lmpipe.artifacts.output import Output
from lmpipe.artifacts.stage import stage
from lmpipe.artifacts.types import Checkpoint
from lmpipe.runtime import Runtime
from lmpipe.training.launch import check_ranks

if TYPE_CHECKING:
    from lmpipe.training.rank import RankContext


def check_start(config: DpoConfig, given: frozenset[str], runtime: Runtime | None) -> None:
    """Refuse ranks that cannot be had, or have no equal shares."""
    check_ranks(runtime, **{"dpo.pairs_per_step": config.pairs_per_step})


def dpo_in_rank(job: dict[str, Any], context: RankContext) -> dict[str, Any]:
    """Do a rank's part; what it needs is imported there, torch among it."""
    from lmpipe.alignment.dpo_rank import main

    return main(job, context)


@stage(version=2, kind="statistical", check=check_start)
def dpo(
    out: Output[Checkpoint], config: DpoConfig, policy: Checkpoint, *, runtime: Runtime
) -> Checkpoint:
    """Train on pairs of the policy's own rollouts with the DPO loss."""

    return run_alignment(dpo_in_rank, config, policy, out, runtime, {})
