"""Entries that tests run in ranks of their own."""

from typing import Any

from lmpipe.alignment import grpo_rank
from lmpipe.alignment.config import GrpoConfig
from lmpipe.alignment.policy_run import PolicyRun
from lmpipe.alignment.rollouts import Rollout
from lmpipe.training.rank import RankContext


def grpo_step_on_given_rollouts(job: dict[str, Any], context: RankContext) -> dict[str, Any]:
    """Take one GRPO step on the job's rollouts; return its figures and a digest of the update."""
    run = PolicyRun("grpo", GrpoConfig.model_validate(job["config"]), job, context)
    rollouts = [Rollout(**rollout) for rollout in job["rollouts"]]
    batch = grpo_rank.prepare(run, run.load_policy(run.device), rollouts)
    result, values = grpo_rank.update(run, batch)
    weights = run.engine.full_weights()
    sums = {name: float(weight.double().sum()) for name, weight in weights.items()}
    return {
        "grad_norm": result.grad_norm,
        "loss": result.loss,
        "values": values,
        "weights": sums,
        "micro_batches": len(batch.micro_batches),
    }
