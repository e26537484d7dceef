"""Right against wrong: preference pairs out of scored rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from lmpipe.alignment.rollouts import Rollout
from lmpipe.errors import InputError


@dataclass(frozen=True)
class Pair:
    """Two completions of one prompt; the right one has reward 1, the wrong one less."""

    right: Rollout
    wrong: Rollout


@dataclass(frozen=True)
class PairReport:
    """What became of the sampled prompts."""

    prompts: int
    prompts_with_pairs: int
    prompts_all_right: int
    prompts_none_right: int
    pairs: int

    def as_dict(self) -> dict[str, int]:
        """Return the counts as a manifest metric."""
        return asdict(self)


def make_pairs(rollouts: Sequence[Rollout], max_per_prompt: int) -> tuple[list[Pair], PairReport]:
    """Pair the k-th distinct right with the k-th distinct wrong completion of each prompt.

    A completion that was sampled twice counts once: repeating a pair would only raise its weight by
    how sure the policy already is.

    Raises:
        InputError: no prompt has both.
    """
    groups: dict[int, list[Rollout]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.group, []).append(rollout)
    pairs: list[Pair] = []
    with_pairs = all_right = none_right = 0
    for group in groups.values():
        distinct = list({tuple(rollout.tokens): rollout for rollout in group}.values())
        right = [rollout for rollout in distinct if rollout.reward == 1.0]
        wrong = [rollout for rollout in distinct if rollout.reward < 1.0]
        made = [Pair(r, w) for r, w in zip(right, wrong, strict=False)][:max_per_prompt]
        pairs += made
        with_pairs += bool(made)
        all_right += not wrong
        none_right += not right
    if not pairs:
        raise InputError(
            f"no pairs: of {len(groups)} prompts {all_right} had only right and {none_right} no "
            "right completions; change the task, the temperature or rollouts_per_prompt"
        )
    return pairs, PairReport(len(groups), with_pairs, all_right, none_right, len(pairs))
