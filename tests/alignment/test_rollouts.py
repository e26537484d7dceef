from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lmpipe.alignment.chat import ChatTokenizer, question
from lmpipe.alignment.logprobs import pad_rows, token_logprobs
from lmpipe.alignment.rollouts import (
    Rollout,
    Sampling,
    read_rollouts,
    sample_rollouts,
    samples,
    summarise,
    write_rollouts,
)
from lmpipe.alignment.task import problems
from lmpipe.inference.generate import Completion
from lmpipe.model.config import ModelConfig
from lmpipe.model.decoder import Decoder
from lmpipe.rewards.arithmetic import Arithmetic
from lmpipe.rewards.problem import Problem
from lmpipe.rewards.sorting import Sorting
from tests.alignment.toy import toy_tokenizer

SAMPLING = Sampling(num_samples=3, max_new_tokens=6, temperature=1.3)


@pytest.fixture(scope="module")
def chat() -> ChatTokenizer:
    return ChatTokenizer(toy_tokenizer())


@pytest.fixture(scope="module")
def model() -> Decoder:
    shape = ModelConfig(
        vocab_size=261, num_layers=2, d_model=32, num_heads=2, num_kv_heads=1, max_seq_len=64
    )
    return Decoder(shape).initialise(0)


def sample(model: Decoder, chat: ChatTokenizer, count: int, seed: int = 5) -> list[Rollout]:
    asked = problems(Sorting(), 0, "train", 0, count)
    return sample_rollouts(model, chat, Sorting(), asked, SAMPLING, seed)


def test_one_rollout_per_problem_and_sample_in_order(model: Decoder, chat: ChatTokenizer) -> None:
    rollouts = sample(model, chat, 5)
    assert [r.group for r in rollouts] == [n for n in range(5) for _ in range(3)]
    for rollout in rollouts:
        problem = Sorting().problem(0, rollout.group, "train")
        assert (rollout.prompt, rollout.answer) == (problem.prompt, problem.answer)
        assert rollout.prompt_tokens == chat.render_prompt(question(problem.prompt))
        assert len(rollout.tokens) == len(rollout.logprobs) <= 6


def test_trainer_gives_sampled_ids_the_sampler_s_own_logprobs(
    model: Decoder, chat: ChatTokenizer
) -> None:
    rollouts = sample(model, chat, 4)
    # random weights sample bytes whose text would be encoded as other tokens: ids are kept
    assert any(chat.encode(r.completion) != r.tokens for r in rollouts)
    rows = pad_rows([r.prompt_tokens for r in rollouts], [r.tokens for r in rollouts], padding=0)
    for row, rollout in enumerate(rollouts):
        assert rows.tokens_BT[row][rows.targets_BT[row]].tolist() == rollout.tokens
    scored = token_logprobs(model, *rows, temperature=SAMPLING.temperature).logprobs_BT
    sampled = torch.tensor([value for rollout in rollouts for value in rollout.logprobs])
    torch.testing.assert_close(scored[rows.targets_BT], sampled, rtol=1e-4, atol=1e-4)
    untempered = token_logprobs(model, *rows).logprobs_BT[rows.targets_BT]
    assert (untempered - sampled).abs().mean() > 0.05


def test_a_part_of_a_batch_samples_what_the_whole_samples(
    model: Decoder, chat: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = sample(model, chat, 5)
    monkeypatch.setattr("lmpipe.alignment.rollouts.ROWS_AT_ONCE", 6)  # two prompts at a time
    assert [r.tokens for r in sample(model, chat, 5)] == [r.tokens for r in whole]
    monkeypatch.setattr("lmpipe.alignment.rollouts._place", lambda: (1, 3))
    monkeypatch.setattr("lmpipe.alignment.rollouts._share", lambda rollouts: rollouts)
    share = sample(model, chat, 5)  # what rank 1 of 3 samples
    assert [r.tokens for r in share] == [r.tokens for r in whole if r.group % 3 == 1]


def test_the_same_seed_samples_the_same(model: Decoder, chat: ChatTokenizer) -> None:
    assert sample(model, chat, 3) == sample(model, chat, 3)
    assert sample(model, chat, 3) != sample(model, chat, 3, seed=6)


def test_a_failing_reward_is_kept_with_its_rollout(model: Decoder, chat: ChatTokenizer) -> None:
    class Broken(Sorting):
        def reward(self, problem: Problem, completion: str) -> float:
            raise RuntimeError("verifier is down")

    asked = problems(Sorting(), 0, "train", 0, 2)  # 2 of 261 tokens end it
    rollouts = sample_rollouts(model, chat, Broken(), asked, Sampling(200, 6), seed=0)
    finished = [r for r in rollouts if r.finished and chat.is_plain(r.tokens)]
    assert finished and all(r.reward == 0 for r in rollouts)
    assert {r.error for r in finished} == {"RuntimeError: verifier is down"}
    assert summarise(rollouts).errors == len(finished)


def test_rollouts_survive_storing(model: Decoder, chat: ChatTokenizer, tmp_path: Path) -> None:
    rollouts = sample(model, chat, 3)
    write_rollouts(rollouts, tmp_path / "rollouts.parquet")
    stored = read_rollouts(tmp_path / "rollouts.parquet")
    assert [r.tokens for r in stored] == [r.tokens for r in rollouts]
    assert [r.reward for r in stored] == [r.reward for r in rollouts]
    assert stored[0].logprobs == pytest.approx(rollouts[0].logprobs)


def test_summary_by_hand_takes_its_error_over_problems() -> None:
    def rollout(group: int, reward: float, length: int) -> Rollout:
        tokens, logprobs = [2] * length, [0.0] * length
        return Rollout(group, f"p{group}", "a", "c", [1], tokens, logprobs, length < 4, reward)

    rollouts = [rollout(0, 1.0, 2), rollout(0, 0.5, 2), rollout(1, 0.25, 4), rollout(1, 0.25, 4)]
    summary = summarise(rollouts)
    assert summary.reward == 0.5
    assert summary.stderr == pytest.approx(0.25)  # means 0.75 and 0.25: sd 0.3536 / sqrt 2
    assert (summary.exact, summary.finished, summary.length) == (0.25, 0.5, 3.0)
    assert len(samples(rollouts, 3)) == 3
    # the same problems drawn once more say nothing new
    again = [replace(r, group=r.group + 2) for r in rollouts]
    assert summarise([*rollouts, *again]) == summary


@pytest.mark.parametrize("answer", ["1 2 3", "42"])
def test_a_control_token_in_an_answer_is_never_paid_in_full(
    model: Decoder, chat: ChatTokenizer, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    problem = Problem("What?", answer)
    first, rest = chat.encode(answer)[:1], chat.encode(answer)[1:]
    said = {
        "right": [*first, *rest, chat.end],
        "marker within": [*first, chat.user, *rest, chat.end],
        "turns around": [chat.user, chat.assistant, chat.user, *first, *rest, chat.end],
        "two ends": [*first, *rest, chat.end, chat.end],
        "another stop": [*first, *rest, chat.begin],
    }

    class Lenient(Sorting):  # takes an answer wherever it stands
        def reward(self, problem: Problem, completion: str) -> float:
            return float(problem.answer[0] in completion)

    monkeypatch.setattr(
        "lmpipe.alignment.rollouts.generate",
        lambda *_, **__: [Completion(0, t, [0.0] * len(t), True) for t in said.values()],
    )
    for task in (Sorting(), Arithmetic(), Lenient()):
        sampling = Sampling(num_samples=len(said), max_new_tokens=9)
        rollouts = sample_rollouts(model, chat, task, [problem], sampling, seed=0)
        paid = dict(zip(said, (r.reward for r in rollouts), strict=True))
        assert paid == {name: float(name == "right") for name in said}
    texts = [r.completion for r in rollouts]
    assert texts[0] == answer
    assert texts[1] == f"{answer[0]}<|user|>{answer[1:]}"  # as another engine shows it
    assert texts[4] == f"{answer}<|endoftext|>"


def test_a_marker_that_is_typed_is_text(chat: ChatTokenizer) -> None:
    typed = [*chat.encode("1 2<|user|> 3"), chat.end]
    assert chat.is_plain(typed)
    assert chat.decode(typed) == "1 2<|user|> 3"
