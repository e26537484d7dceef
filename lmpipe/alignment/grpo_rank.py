"""Group-relative policy optimisation, inside a rank: sample, score, update, again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmpipe.alignment.config import GrpoConfig
from lmpipe.alignment.logprobs import Logits, Padded, pad_rows, token_logprobs
from lmpipe.alignment.policy_gradient import (
    clipped_policy_loss,
    group_advantages,
    kl_estimate,
    sequence_weights,
    weighted_sum,
)
from lmpipe.alignment.policy_run import PolicyRun
from lmpipe.alignment.rollouts import Rollout, Sampling, sample_rollouts, summarise
from lmpipe.alignment.task import problems
from lmpipe.training.engine import StepResult
from lmpipe.training.rank import RankContext

FIGURES = ("kl", "clip_fraction", "entropy", "sampler_mismatch")


def main(job: dict[str, Any], context: RankContext) -> dict[str, Any]:
    """Improve the policy on the task's reward; return the metrics."""
    config = GrpoConfig.model_validate(job["config"])
    run = PolicyRun("grpo", config, job, context)
    run.share(config.prompts_per_step * config.rollouts_per_prompt, "rollouts per step")
    reference = run.load_policy(run.device).eval()
    if config.updates_per_batch == 1:
        run.context.log("on-policy: one update per batch, so the ratio is 1 and nothing is clipped")
    start = run.resume()
    if start == 0:
        run.evaluate(0)
    for step in range(start, config.num_steps):
        rollouts = collect_rollouts(run, step)
        batch = prepare(run, reference, rollouts)
        run.tokens += batch.num_tokens
        run.record(step + 1, **batch.values)
        if batch.teaches:
            updates = [update(run, batch) for _ in range(config.updates_per_batch)]
            result, values = updates[-1]
            values["sampler_mismatch"] = updates[0][1]["sampler_mismatch"]
            run.record_step(step + 1, result, **values)
        if (step + 1) % config.evaluate_every == 0 and step + 1 < config.num_steps:
            run.evaluate(step + 1)
        run.checkpoint_if_due(step + 1)
    return run.finish()


def collect_rollouts(run: PolicyRun[GrpoConfig], step: int) -> list[Rollout]:
    """Sample the step's groups from the policy as it is now."""
    config = run.config
    first = step * config.prompts_per_step
    asked = problems(run.task, config.seed, "train", first, config.prompts_per_step)
    sampling = Sampling(config.rollouts_per_prompt, config.max_new_tokens, config.temperature)
    run.policy.eval()
    rollouts = sample_rollouts(run.policy, run.chat, run.task, asked, sampling, config.seed + first)
    run.policy.train()
    return rollouts


@dataclass(frozen=True)
class MicroBatch:
    """Rows of one forward pass with what the loss needs beside the new log-probabilities."""

    rows: Padded
    advantages_B: Tensor
    weights_B: Tensor
    reference_BT: Tensor
    sampled_BT: Tensor
    old_BT: Tensor | None  # None: on-policy, the new ones are the old ones


@dataclass(frozen=True)
class Batch:
    """A rank's micro-batches of one step, and the whole step's figures."""

    micro_batches: list[MicroBatch]
    num_tokens: int
    teaches: bool
    values: dict[str, float]


def prepare(run: PolicyRun[GrpoConfig], reference: Logits, rollouts: Sequence[Rollout]) -> Batch:
    """Take advantages and weights over the whole step, then lay out this rank's rows."""
    config = run.config
    rewards_BR = torch.tensor([r.reward for r in rollouts], dtype=torch.float64).reshape(
        config.prompts_per_step, config.rollouts_per_prompt
    )
    group = group_advantages(rewards_BR, config.advantage)
    constant_B = group.zero_variance_B.repeat_interleave(config.rollouts_per_prompt)
    lengths_B = torch.tensor([len(r.tokens) for r in rollouts])
    weights_B = sequence_weights(
        lengths_B,
        config.aggregation,
        max_length=config.max_new_tokens,
        counted_B=~constant_B if config.zero_variance == "drop" else None,
    )
    mine = range(run.context.rank, len(rollouts), run.context.world_size)
    longest = max(len(r.prompt_tokens) + len(r.tokens) for r in rollouts)
    size = run.micro_batch_size(longest)
    parts = [list(mine[start : start + size]) for start in range(0, len(mine), size)]
    advantages_B = group.advantages_BR.flatten()
    micro_batches = [
        _micro_batch(
            run, reference, [rollouts[n] for n in part], advantages_B[part], weights_B[part]
        )
        for part in parts
    ]
    summary = summarise(rollouts)
    values = {
        "reward": summary.reward,
        "exact": summary.exact,
        "length": summary.length,
        "finished": summary.finished,
        "reward_errors": float(summary.errors),
        "zero_variance_fraction": float(group.zero_variance_B.double().mean()),
    }
    return Batch(micro_batches, int(lengths_B.sum()), bool(weights_B.any()), values)


@torch.no_grad()
def _micro_batch(
    run: PolicyRun[GrpoConfig],
    reference: Logits,
    rollouts: Sequence[Rollout],
    advantages_B: Tensor,
    weights_B: Tensor,
) -> MicroBatch:
    """Lay out rows and score them under the reference, and under the policy if it will move on.

    The ids are the sampler's own. The old log-probabilities are the trainer's: sampler and trainer
    run different kernels, and their difference, though small per token, would enter the ratio.
    """
    config, device = run.config, run.device
    prompts, completions = [r.prompt_tokens for r in rollouts], [r.tokens for r in rollouts]
    rows = pad_rows(prompts, completions, run.chat.begin, device)
    scored_BT = token_logprobs(reference, *rows, temperature=config.temperature).logprobs_BT
    old_BT = None
    if config.updates_per_batch > 1:
        old_BT = token_logprobs(run.policy, *rows, temperature=config.temperature).logprobs_BT
    sampled_BT = torch.zeros_like(scored_BT)
    sampled = [value for rollout in rollouts for value in rollout.logprobs]
    sampled_BT[rows.targets_BT] = torch.tensor(sampled, device=device)
    return MicroBatch(
        rows=rows,
        advantages_B=advantages_B.to(device),
        weights_B=weights_B.to(device),
        reference_BT=scored_BT,
        sampled_BT=sampled_BT,
        old_BT=old_BT,
    )


def update(run: PolicyRun[GrpoConfig], batch: Batch) -> tuple[StepResult, dict[str, float]]:
    """Take one optimizer step on the batch; return it with its figures, means over tokens."""
    config = run.config
    # the weights already divide by the global batch, so all ranks' sum of weights is made 1
    run.engine.begin_step(1 / run.context.world_size)
    sums = torch.zeros(len(FIGURES), dtype=torch.float64)
    last = len(batch.micro_batches) - 1
    for number, micro_batch in enumerate(batch.micro_batches):
        loss, parts = micro_batch_loss(run.engine, micro_batch, config)
        run.engine.accumulate(loss, last=number == last)
        sums += parts.double().cpu()
    result = run.engine.step()
    totals = [run.engine.sum_over_ranks(float(value)) / batch.num_tokens for value in sums]
    return result, dict(zip(FIGURES, totals, strict=True))


def micro_batch_loss(model: Logits, batch: MicroBatch, config: GrpoConfig) -> tuple[Tensor, Tensor]:
    """Return a micro-batch's part of the loss, and the sums of FIGURES over its tokens.

    `sampler_mismatch` is |log p of the trainer − of the sampler|. On the first update after
    sampling it measures nothing but their different arithmetic.
    """
    mask_BT = batch.rows.targets_BT
    scored = token_logprobs(model, *batch.rows, temperature=config.temperature)
    logprobs_BT = scored.logprobs_BT
    old_BT = logprobs_BT if batch.old_BT is None else batch.old_BT
    clip = (config.clip_low, config.clip_high)
    policy = clipped_policy_loss(logprobs_BT, old_BT, batch.advantages_B, mask_BT, clip)
    kl_BT = kl_estimate(logprobs_BT, batch.reference_BT, mask_BT, config.kl_estimator)
    loss_BT = policy.loss_BT + config.kl_coefficient * kl_BT
    mismatch_BT = (logprobs_BT - batch.sampled_BT).abs()
    figures = (kl_BT, policy.clipped_BT, scored.entropy_BT, mismatch_BT)
    sums = torch.stack([figure.detach().float().sum() for figure in figures])
    return weighted_sum(loss_BT, batch.weights_B, mask_BT), sums
