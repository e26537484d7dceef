"""Direct preference optimisation, inside a rank: sample, pair, score once, train."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lmpipe.alignment.config import DpoConfig
from lmpipe.alignment.logprobs import Logits, pad_rows, token_logprobs
from lmpipe.alignment.pairs import Pair, make_pairs
from lmpipe.alignment.policy_run import PolicyRun, describe_rollouts
from lmpipe.alignment.preference import dpo_loss
from lmpipe.alignment.rollouts import (
    Rollout,
    Sampling,
    read_rollouts,
    sample_rollouts,
    write_rollouts,
)
from lmpipe.alignment.task import problems
from lmpipe.token_data.order import SequenceOrder
from lmpipe.training.engine import StepResult
from lmpipe.training.rank import RankContext

ROLLOUTS = "rollouts.parquet"
PROMPTS_AT_ONCE = 128
FIGURES = (
    "preference_loss",
    "chosen_loss_per_token",
    "chosen_reward",
    "rejected_reward",
    "margin",
    "accuracy",
)


def main(job: dict[str, Any], context: RankContext) -> dict[str, Any]:
    """Make pairs from the policy's own rollouts and train on them; return the metrics."""
    config = DpoConfig.model_validate(job["config"])
    run = PolicyRun("dpo", config, job, context)
    run.share(config.pairs_per_step, "pairs_per_step")
    start = run.resume()
    if start == 0:
        run.evaluate(0)
    rollouts, stored = collect_rollouts(run)
    pairs, report = make_pairs(rollouts, config.max_pairs_per_prompt)
    run.metrics.update(pairs=report.as_dict(), rollouts=describe_rollouts(rollouts))
    run.context.table("pairs", [{"what": k, "count": v} for k, v in report.as_dict().items()])
    reference = score_pairs(run, run.load_policy(run.device), pairs)
    order = SequenceOrder(len(pairs), config.seed)
    for step in range(start, config.num_steps):
        picked = order.numbers(step * config.pairs_per_step, config.pairs_per_step).tolist()
        result, values = train_step(run, pairs, reference, picked)
        run.record_step(step + 1, result, **values)
        if (step + 1) % config.evaluate_every == 0 and step + 1 < config.num_steps:
            run.evaluate(step + 1)
        run.checkpoint_if_due(step + 1, [stored])
    run.metrics.update(preference_metrics(run, pairs, reference))
    return run.finish()


def collect_rollouts(run: PolicyRun[DpoConfig]) -> tuple[list[Rollout], Path]:
    """Sample the rollouts, or take an earlier attempt's; return them and their file."""
    config = run.config
    path = Path(run.job["result"]) / ROLLOUTS
    if run.job["resume"]:
        rollouts = read_rollouts(Path(run.job["resume"]) / ROLLOUTS)
    else:
        rollouts = []
        sampling = Sampling(config.rollouts_per_prompt, config.max_new_tokens, config.temperature)
        run.policy.eval()
        for first in range(0, config.num_prompts, PROMPTS_AT_ONCE):
            count = min(PROMPTS_AT_ONCE, config.num_prompts - first)
            asked = problems(run.task, config.seed, "train", first, count)
            seed = config.seed + first
            part = sample_rollouts(run.policy, run.chat, run.task, asked, sampling, seed)
            rollouts += [_shifted(rollout, first) for rollout in part]
            run.context.progress(
                first + count, config.num_prompts, unit="prompts", label="rollouts"
            )
        run.policy.train()
    if run.context.rank == 0:
        write_rollouts(rollouts, path)
    return rollouts, path


def _shifted(rollout: Rollout, first: int) -> Rollout:
    return Rollout(**{**vars(rollout), "group": rollout.group + first})


class PairLogprobs(NamedTuple):
    """Summed log-probabilities of both sides of each pair."""

    chosen_B: Tensor
    rejected_B: Tensor


def pair_logprobs(model: Logits, pairs: Sequence[Pair], run: PolicyRun[DpoConfig]) -> PairLogprobs:
    """Score both sides of some pairs in one forward pass: the chosen first, then the rejected."""
    both = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]
    prompts, completions = [r.prompt_tokens for r in both], [r.tokens for r in both]
    rows = pad_rows(prompts, completions, run.chat.begin, run.device)
    scored = token_logprobs(model, *rows, temperature=run.config.temperature)
    chosen_B, rejected_B = scored.logprobs_BT.sum(1).chunk(2)
    return PairLogprobs(chosen_B, rejected_B)


def micro_pairs(run: PolicyRun[DpoConfig], pairs: Sequence[Pair]) -> int:
    """Return how many pairs go through the model at once."""
    sides = [side for pair in pairs for side in (pair.chosen, pair.rejected)]
    longest = max(len(side.prompt_tokens) + len(side.tokens) for side in sides)
    return max(1, run.micro_batch_size(longest) // 2)


@torch.no_grad()
def score_pairs(run: PolicyRun[DpoConfig], model: Logits, pairs: Sequence[Pair]) -> PairLogprobs:
    """Score all pairs without gradients."""
    size = micro_pairs(run, pairs)
    parts = [pair_logprobs(model, pairs[n : n + size], run) for n in range(0, len(pairs), size)]
    return PairLogprobs(
        torch.cat([p.chosen_B for p in parts]), torch.cat([p.rejected_B for p in parts])
    )


def train_step(
    run: PolicyRun[DpoConfig], pairs: Sequence[Pair], reference: PairLogprobs, picked: list[int]
) -> tuple[StepResult, dict[str, float]]:
    """Take one step on the picked pairs; return it with the implied rewards."""
    mine = picked[run.context.rank :: run.context.world_size]
    size = micro_pairs(run, pairs)
    run.engine.begin_step(float(len(mine)))
    sums = torch.zeros(len(FIGURES), dtype=torch.float64)
    for start in range(0, len(mine), size):
        part = mine[start : start + size]
        scored = pair_logprobs(run.engine, [pairs[n] for n in part], run)
        frozen = (reference.chosen_B[part], reference.rejected_B[part])
        loss = dpo_loss(*scored, *frozen, run.config.beta)
        lengths = [len(pairs[n].chosen.tokens) for n in part]
        likelihood_B = -scored.chosen_B / torch.tensor(lengths, device=run.device)
        total = (loss.loss_B + run.config.likelihood_weight * likelihood_B).sum()
        run.engine.accumulate(total, last=start + size >= len(mine))
        margin_B = loss.chosen_reward_B - loss.rejected_reward_B
        values = (
            loss.loss_B.detach(),
            likelihood_B.detach(),
            loss.chosen_reward_B,
            loss.rejected_reward_B,
            margin_B,
            (margin_B > 0).float(),
        )
        sums += torch.stack([value.sum().double().cpu() for value in values])
    result = run.engine.step()
    run.tokens += sum(len(r.tokens) for n in picked for r in (pairs[n].chosen, pairs[n].rejected))
    totals = [run.engine.sum_over_ranks(float(value)) / len(picked) for value in sums]
    return result, dict(zip(FIGURES, totals, strict=True))


def preference_metrics(
    run: PolicyRun[DpoConfig], pairs: Sequence[Pair], reference: PairLogprobs
) -> dict[str, float]:
    """Return implied-reward accuracy and margin over all pairs under the trained policy."""
    scored = score_pairs(run, run.policy, pairs)
    loss = dpo_loss(*scored, *reference, run.config.beta)
    margin_B = loss.chosen_reward_B - loss.rejected_reward_B
    return {
        "implied_reward_accuracy": float((margin_B > 0).double().mean()),
        "implied_reward_margin": float(margin_B.mean()),
        "preference_loss": float(loss.loss_B.mean()),
    }
