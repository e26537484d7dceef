"""Chosen against rejected: preference pairs out of scored rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from lmpipe.alignment.rollouts import Rollout
from lmpipe.errors import InputError


@dataclass(frozen=True)
class Pair:
    """Two completions of one prompt; the chosen one has reward 1, the rejected one less."""

    chosen: Rollout
    rejected: Rollout


@dataclass(frozen=True)
class PairReport:
    """What became of the sampled prompts."""

    prompts: int
    prompts_with_pairs: int
    prompts_without_rejected: int
    prompts_without_chosen: int
    pairs: int

    def as_dict(self) -> dict[str, int]:
        """Return the counts as a manifest metric."""
        return asdict(self)


def make_pairs(rollouts: Sequence[Rollout], max_per_prompt: int) -> tuple[list[Pair], PairReport]:
    """Pair the k-th distinct chosen with the k-th distinct rejected completion of each prompt.

    A completion that was sampled twice counts once: repeating a pair would only raise its weight by
    how sure the policy already is.

    Raises:
        InputError: no prompt has both.
    """
    groups: dict[int, list[Rollout]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.group, []).append(rollout)
    pairs: list[Pair] = []
    with_pairs = without_rejected = without_chosen = 0
    for group in groups.values():
        distinct = list({tuple(rollout.tokens): rollout for rollout in group}.values())
        chosen = [rollout for rollout in distinct if rollout.reward == 1.0]
        rejected = [rollout for rollout in distinct if rollout.reward < 1.0]
        made = [Pair(*sides) for sides in zip(chosen, rejected, strict=False)][:max_per_prompt]
        pairs += made
        with_pairs += bool(made)
        without_rejected += not rejected
        without_chosen += not chosen
    if not pairs:
        raise InputError(
            f"no pairs: of {len(groups)} prompts {without_rejected} had no completion to reject "
            f"and {without_chosen} none to choose (reward 1); change the task, the temperature or "
            "rollouts_per_prompt"
        )
    counts = (len(groups), with_pairs, without_rejected, without_chosen, len(pairs))
    return pairs, PairReport(*counts)
