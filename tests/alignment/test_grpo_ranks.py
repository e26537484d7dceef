from dataclasses import asdict
from typing import Any

import pytest

from lmpipe.alignment.chat import ChatTokenizer, question
from lmpipe.alignment.grpo import GrpoConfig
from lmpipe.alignment.rollouts import Rollout
from lmpipe.artifacts.build import build
from lmpipe.artifacts.store import Store
from lmpipe.runtime import Runtime
from lmpipe.training.launch import run_ranks
from tests.alignment.stages import RandomBaseConfig, random_base
from tests.alignment.toy import toy_tokenizer

CONFIG = GrpoConfig(prompts_per_step=2, rollouts_per_prompt=4, learning_rate=1e-2, max_new_tokens=9)


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


@pytest.mark.parametrize("aggregation", ["token_mean"])
def test_two_ranks_take_the_step_of_one_rank_whatever_the_micro_batch(
    tmp_path: Any, aggregation: str
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
        "config": CONFIG.model_copy(update={"aggregation": aggregation}).identity(),
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
        entry = "tests.alignment.ranks:grpo_step_on_given_rollouts"
        return dict(run_ranks(entry, job, Quiet(), runtime))  # type: ignore[arg-type]

    one, two = step(1, 8), step(2, 1)
    assert (one["micro_batches"], two["micro_batches"]) == (1, 4)
    assert one["grad_norm"] > 0
    assert two["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-4)
    assert two["loss"] == pytest.approx(one["loss"], abs=1e-5)
    for name in ("kl", "entropy", "clip_fraction", "sampler_mismatch"):
        assert two["values"][name] == pytest.approx(one["values"][name], rel=1e-4, abs=1e-6)
    for name, value in one["weights"].items():
        assert two["weights"][name] == pytest.approx(value, rel=1e-3, abs=1e-3), name
