"""Completions sampled from a policy, scored, and kept as they were sampled.

A rollout keeps the token ids that the sampler chose and the log-probabilities it chose them with.
What is trained on are those ids: text decoded and encoded again may come out as other tokens.
Sampling knows a temperature and neither top-k nor top-p: both renormalise the distribution that
acted, and the ratio of policies would carry that constant along.

Ranks sample different problems and then share all rollouts, ids and rewards only, so that each
knows the whole batch's advantages and weights.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from lmpipe.alignment.chat import ChatTokenizer, question
from lmpipe.inference.generate import generate
from lmpipe.model.decoder import Decoder
from lmpipe.rewards.problem import Problem, Task, score_completions

ROWS_AT_ONCE = 1024  # 6 layers, 2 key heads of 32, 64 positions: a KV cache of 0.2 GB


@dataclass(frozen=True)
class Rollout:
    """One scored completion; `tokens` ends with the end marker if `finished`."""

    group: int
    prompt: str
    answer: str
    completion: str
    prompt_tokens: list[int]
    tokens: list[int]
    logprobs: list[float]
    finished: bool
    reward: float
    error: str = ""


@dataclass(frozen=True)
class Sampling:
    """How completions are drawn."""

    num_samples: int
    max_new_tokens: int
    temperature: float = 1.0


@torch.no_grad()
def sample_rollouts(
    model: Decoder,
    chat: ChatTokenizer,
    task: Task,
    problems: Sequence[Problem],
    sampling: Sampling,
    seed: int,
) -> list[Rollout]:
    """Sample completions of each problem on every rank's share and return all of them, in order."""
    rank, world_size = _place()
    mine = list(range(rank, len(problems), world_size))
    at_once = max(1, ROWS_AT_ONCE // sampling.num_samples)
    sampled = [
        rollout
        for start in range(0, len(mine), at_once)
        for rollout in _sample(
            model, chat, task, problems, mine[start : start + at_once], sampling, seed
        )
    ]
    return sorted(_share(sampled), key=lambda rollout: rollout.group)  # stable: samples keep order


def _sample(
    model: Decoder,
    chat: ChatTokenizer,
    task: Task,
    problems: Sequence[Problem],
    mine: Sequence[int],
    sampling: Sampling,
    seed: int,
) -> list[Rollout]:
    prompts = [chat.render_prompt(question(problems[n].prompt)) for n in mine]
    completions = generate(
        model,
        prompts,
        temperature=sampling.temperature,
        max_new_tokens=sampling.max_new_tokens,
        stop_ids=chat.stop_ids,
        seed=seed,
        num_samples=sampling.num_samples,
        stream_numbers=mine,  # the same draws on any number of ranks
    )
    groups = [n for n in mine for _ in range(sampling.num_samples)]
    asked = [problems[n] for n in groups]
    texts = [chat.decode(completion.tokens) for completion in completions]
    is_answer = [c.finished and chat.is_plain(c.tokens) for c in completions]
    scores = score_completions(task, asked, texts, is_answer)
    return [
        Rollout(
            group=group,
            prompt=problem.prompt,
            answer=problem.answer,
            completion=text,
            prompt_tokens=prompts[index // sampling.num_samples],
            tokens=list(completion.tokens),
            logprobs=list(completion.logprobs),
            finished=completion.finished,
            reward=score.reward,
            error=score.error,
        )
        for index, (group, problem, text, completion, score) in enumerate(
            zip(groups, asked, texts, completions, scores, strict=True)
        )
    ]


def _place() -> tuple[int, int]:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def _share(rollouts: list[Rollout]) -> list[Rollout]:
    """Return the rollouts of all ranks on every rank."""
    _, world_size = _place()
    if world_size == 1:
        return rollouts
    gathered: list[Any] = [None] * world_size
    torch.distributed.all_gather_object(gathered, rollouts)
    return [rollout for part in gathered for rollout in part]


@dataclass(frozen=True)
class RewardSummary:
    """Rewards of a set of rollouts as numbers."""

    reward: float
    stderr: float
    exact: float
    finished: float
    length: float
    errors: int

    def as_dict(self, prefix: str = "") -> dict[str, float]:
        """Return the numbers by name."""
        return {f"{prefix}{name}": value for name, value in asdict(self).items()}


def summarise(rollouts: Sequence[Rollout]) -> RewardSummary:
    """Summarise rewards; the standard error is over problems, whose samples are not independent.

    A problem that was drawn twice is one problem: its samples say no more of other problems than
    those of one draw.
    """
    count = len(rollouts)
    mean = sum(rollout.reward for rollout in rollouts) / count
    off: dict[str, float] = defaultdict(float)  # each problem's sum of deviations from the mean
    for rollout in rollouts:
        off[rollout.prompt] += rollout.reward - mean
    correction = len(off) / max(1, len(off) - 1)
    spread = sum(value**2 for value in off.values())
    return RewardSummary(
        reward=mean,
        stderr=math.sqrt(correction * spread) / count,
        exact=sum(r.reward == 1.0 for r in rollouts) / count,
        finished=sum(r.finished for r in rollouts) / count,
        length=sum(len(r.tokens) for r in rollouts) / count,
        errors=sum(bool(r.error) for r in rollouts),
    )


def samples(rollouts: Sequence[Rollout], count: int) -> list[dict[str, Any]]:
    """Return the first `count` rollouts for samples.json."""
    return [
        {
            "prompt": rollout.prompt,
            "answer": rollout.answer,
            "completion": rollout.completion,
            "reward": rollout.reward,
            "finished": rollout.finished,
        }
        for rollout in rollouts[:count]
    ]


def write_rollouts(rollouts: Iterable[Rollout], path: Path) -> None:
    """Store rollouts as Parquet, ids and log-probabilities included."""

    schema = pa.schema(
        [
            ("group", pa.int64()),
            ("prompt", pa.string()),
            ("answer", pa.string()),
            ("completion", pa.string()),
            ("prompt_tokens", pa.list_(pa.int32())),
            ("tokens", pa.list_(pa.int32())),
            ("logprobs", pa.list_(pa.float32())),
            ("finished", pa.bool_()),
            ("reward", pa.float64()),
            ("error", pa.string()),
        ]
    )
    table = pa.Table.from_pylist([asdict(rollout) for rollout in rollouts], schema=schema)
    pq.write_table(table, path, compression="zstd")


def read_rollouts(path: Path) -> list[Rollout]:
    """Read what `write_rollouts` stored."""

    return [Rollout(**row) for row in pq.read_table(path).to_pylist()]
