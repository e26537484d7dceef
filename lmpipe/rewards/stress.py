"""Attack a reward before a policy does.

A policy finds every completion that is paid more than it deserves: an empty answer, the prompt
echoed, the right answer hidden among others. `stress` runs a fixed set of such attacks on a task
and reports what each was paid; a reward is sound when every one stays below the right answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lmpipe.rewards.problem import Problem, Task


@dataclass(frozen=True)
class Attack:
    """An adversarial completion and the most that it was paid over the problems tried."""

    name: str
    worst_reward: float
    worst_completion: str
    right_reward: float

    @property
    def sound(self) -> bool:
        """Whether the attack was paid less than the right answer."""
        return self.worst_reward < self.right_reward


def adversarial_completions(problem: Problem) -> dict[str, str]:
    """Return named completions that are wrong, however near to the right one they come."""
    question = problem.prompt.partition(": ")[2]
    answer = problem.answer
    return {
        "empty": "",
        "blank": " \n ",
        "prompt echo": problem.prompt,
        "question echo": question,
        "wrong numbers in order": "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19",
        "one number": "7" if answer != "7" else "8",
        "first number repeated": " ".join([answer.split(" ")[0]] * 3),
        "answer twice": f"{answer} {answer}",
        "answer with one more": f"{answer} {answer.split(' ')[-1]}",
        "answer backwards": answer[::-1] if answer[::-1] != answer else f"{answer}9",
        "answer cut short": answer[:-1],
        "extra words before": f"The answer is {answer}",
        "extra words after": f"{answer} is sorted",
        "guesses in turn": f"{question} {answer}",
        "thinking markup": f"<think></think>{answer}",
        "boxed": f"\\boxed{{{answer}}}",
        "commas": answer.replace(" ", ", ") + ",",
        "full-width digits": answer.translate({48 + d: 0xFF10 + d for d in range(10)}),
        "leading zeros": f"00{answer}",
        "special token": f"{answer}<|end|>",
        "turns around": f"<|user|><|user|><|assistant|>{answer}<|user|>",
        "turn within": f"{answer[:-1]}<|user|>{answer[-1:]}",
        "counting on": " ".join(map(str, range(200))),
        "very long": "1 " * 5_000,
    }


def stress(task: Task, problems: Iterable[Problem]) -> list[Attack]:
    """Run every attack on every problem; return the highest pay of each."""
    worst: dict[str, Attack] = {}
    for problem in problems:
        right = task.reward(problem, problem.answer)
        for name, completion in adversarial_completions(problem).items():
            paid = task.reward(problem, completion)
            if name not in worst or paid - right > worst[name].worst_reward - right:
                worst[name] = Attack(name, paid, completion, right)
    return list(worst.values())
