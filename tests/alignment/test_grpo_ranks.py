import math
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch

from lmpipe.alignment.chat import ChatTokenizer, question
from lmpipe.alignment.config import GrpoConfig, GrpoOptimizer
from lmpipe.alignment.grpo_rank import FIGURES, MicroBatch, micro_batch_loss
from lmpipe.alignment.logprobs import pad_rows, token_logprobs
from lmpipe.alignment.rollouts import Rollout
from lmpipe.artifacts.build import build
from lmpipe.artifacts.store import Store
from lmpipe.runtime import Runtime
from lmpipe.training.launch import run_ranks
from tests.alignment.ranks import grpo_step_on_given_rollouts
from tests.alignment.stages import RandomBaseConfig, random_base
from tests.alignment.toy import ToyModel, toy_tokenizer

CONFIG = GrpoConfig(
    prompts_per_step=2,
    rollouts_per_prompt=4,
    optimizer=GrpoOptimizer(learning_rate=1e-2),
    max_new_tokens=9,
)


class Quiet:
    """Stands in for a stage's Output."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


def rollout(chat: ChatTokenizer, group: int, text: str, reward: float) -> Rollout:
    prompt = "Sort: 2 1" if group == 0 else "Sort: 9 8 7"
    tokens = [*chat.encode(text), chat.end]
    return Rollout(
        group=group,
        prompt=prompt,
        answer="",
        completion=text,
        prompt_tokens=chat.render_prompt(question(prompt)),
        tokens=tokens,
        logprobs=[-1.0] * len(tokens),
        finished=True,
        reward=reward,
    )


def test_two_ranks_take_the_step_of_one_rank_whatever_the_micro_batch(
    tmp_path: Any,
) -> None:
    base = build(
        random_base,
        RandomBaseConfig(),
        {},
        store=Store(str(tmp_path)),
        runtime=Runtime(device="cpu"),
    )
    chat = ChatTokenizer(toy_tokenizer())
    texts = ["1 2", "2", "1", "2 1 1 2", "7 8 9", "9", "8 7", "7 7"]  # ragged on purpose
    rewards = [1, 0, 0.3, 0.1, 1, 0, 0.5, 0.2]
    job = {
        "config": CONFIG.identity(),
        "policy": str(base.local_dir("model")),
        "rollouts": [
            asdict(rollout(chat, n // 4, text, reward))
            for n, (text, reward) in enumerate(zip(texts, rewards, strict=True))
        ],
    }

    def step(ranks: int, micro_batch_size: int) -> dict[str, Any]:
        runtime = Runtime(
            device="cpu", ranks=ranks, threads_per_rank=1, micro_batch_size=micro_batch_size
        )
        return dict(run_ranks(grpo_step_on_given_rollouts, job, Quiet(), runtime))  # type: ignore[arg-type]

    one, two = step(1, 8), step(2, 1)
    assert (one["micro_batches"], two["micro_batches"]) == (1, 4)
    assert one["grad_norm"] > 0
    assert two["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-4)
    assert two["loss"] == pytest.approx(one["loss"], abs=1e-5)
    for name in ("kl", "entropy", "clip_fraction", "sampler_mismatch"):
        assert two["values"][name] == pytest.approx(one["values"][name], rel=1e-4, abs=1e-6)
    for name, value in one["weights"].items():
        assert two["weights"][name] == pytest.approx(value, rel=1e-3, abs=1e-3), name


def test_a_second_update_on_the_same_rollouts_is_clipped_where_the_policy_has_moved() -> None:
    model = ToyModel()
    rows = pad_rows([[1, 2], [3]], [[5, 6], [7]], padding=0)
    with torch.no_grad():
        now_BT = token_logprobs(model, *rows).logprobs_BT
    batch = MicroBatch(
        rows=rows,
        advantages_B=torch.tensor([1.0, -1.0]),
        weights_B=torch.ones(2),
        reference_BT=now_BT,
        sampled_BT=now_BT,
        old_BT=now_BT - 1,  # every token's ratio is e: above 1 + clip_high
    )
    config = GrpoConfig(updates_per_batch=2, kl_coefficient=0.0, clip_high=0.3)
    loss, sums = micro_batch_loss(model, batch, config)
    figures = dict(zip(FIGURES, sums.tolist(), strict=True))
    assert figures["clip_fraction"] == 2  # the rewarded row; a punished one may always fall further
    assert figures["kl"] == pytest.approx(0, abs=1e-6)
    assert loss.item() == pytest.approx(-2 * 1.3 + math.e, rel=1e-5)
    on_policy, sums = micro_batch_loss(model, replace(batch, old_BT=None), config)
    assert on_policy.item() == pytest.approx(-2 + 1, abs=1e-5)
    assert dict(zip(FIGURES, sums.tolist(), strict=True))["clip_fraction"] == 0
