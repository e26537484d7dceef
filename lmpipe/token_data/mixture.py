"""Mixtures of token sets: which source and sequence the n-th step of a run reads, from (seed, n).

Within a stage of the run the sources come in a fixed pattern that repeats: Tijdeman's schedule, in
which a source never is a whole sequence ahead of or behind its share. So shares hold in any
window, to less than two sequences, and exactly in one as long as the pattern; and a position is
found without a log. Drawing each source at random with the weights as probabilities is the
alternative: the shares are then right on average, and only there.

All sequences have the same length, so shares of sequences are shares of tokens (the padding of
packed ones included).

Source: Tijdeman, The chairman assignment problem, 1980.
"""

import hashlib
import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lmpipe.errors import ConfigError
from lmpipe.token_data.order import SequenceOrder

MAX_PERIOD = 100_000


@dataclass(frozen=True)
class MixtureSource:
    """A set of numbered sequences, and how often it may be read."""

    name: str
    num_sequences: int
    max_epochs: float = math.inf


@dataclass(frozen=True)
class MixtureStage:
    """A part of the run with weights of its own, such as pre- and mid-training."""

    num_sequences: int
    weights: dict[str, float]


@dataclass(frozen=True)
class Pattern:
    """A repeating order of sources."""

    source: NDArray[np.int64]
    quota: NDArray[np.int64]  # of each source in one pattern

    def counts(self, length: int) -> NDArray[np.int64]:
        """Return how often each source stands in the first `length` places."""
        whole, rest = divmod(length, self.source.size)
        return whole * self.quota + np.bincount(self.source[:rest], minlength=self.quota.size)


def schedule(shares: list[Fraction]) -> Pattern:
    """Return Tijdeman's order of sources: each prefix holds its share, less than one off."""
    period = math.lcm(*(share.denominator for share in shares))
    if period > MAX_PERIOD:
        raise ConfigError(
            f"the weights repeat after {period} sequences, at most {MAX_PERIOD} are allowed; give "
            "weights with fewer digits, or such that add up to 1"
        )
    quota = [int(share * period) for share in shares]
    active = [i for i, amount in enumerate(quota) if amount]
    if len(active) == 1:
        source = np.full(period, active[0], np.int64)
    else:
        slack = 2 * len(active) - 2
        drawn = [0] * len(quota)
        chosen: list[int] = []
        for place in range(1, period + 1):
            # sigma·period = what a source is behind; eligible from period/slack on
            behind = {i: quota[i] * place - drawn[i] * period for i in active}
            best = min(
                (i for i in active if slack * behind[i] >= period),
                key=lambda i: (Fraction((slack - 1) * period - slack * behind[i], quota[i]), i),
            )
            drawn[best] += 1
            chosen.append(best)
        source = np.array(chosen, np.int64)
    return Pattern(source, np.array(quota, np.int64))


class MixtureOrder:
    """The order of a run over several sources; the n-th place is a function of (seed, n) alone.

    Args:
        sources: their order is part of the run's identity.
        stages: one after the other; reading past the last is an error.

    Raises:
        ConfigError: a weight of no source, or a source that would be read more than max_epochs
            times; the message says what fits.
    """

    def __init__(self, sources: list[MixtureSource], stages: list[MixtureStage], seed: int) -> None:
        self.sources, self.stages = sources, stages
        names = [source.name for source in sources]
        if len(set(names)) < len(names) or not names or not stages:
            raise ConfigError(f"sources {names} must be distinct, and there must be a stage")
        self._orders = [
            SequenceOrder(source.num_sequences, _seed_of(seed, source.name)) for source in sources
        ]
        self._patterns = [schedule(_shares(names, stage)) for stage in stages]
        self._edges = np.cumsum([0, *(stage.num_sequences for stage in stages)])
        drawn = np.zeros(len(sources), np.int64)
        self._before = [drawn]
        for stage, pattern in zip(stages, self._patterns, strict=True):
            drawn = drawn + pattern.counts(stage.num_sequences)
            self._before.append(drawn)
        for source, amount in zip(sources, drawn.tolist(), strict=True):
            if amount > source.max_epochs * source.num_sequences:
                raise ConfigError(
                    f"source {source.name!r} would be read {amount / source.num_sequences:.2f} "
                    f"times ({amount} of {source.num_sequences} sequences), max_epochs="
                    f"{source.max_epochs}; lower its weight or the stage's length, or raise "
                    "max_epochs"
                )

    @property
    def num_sequences(self) -> int:
        """Sequences of the whole run."""
        return int(self._edges[-1])

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """Where each source's numbers begin when all sources are numbered through."""
        return np.cumsum([0, *(source.num_sequences for source in self.sources)])

    def places(self, first: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the source and the number in it of the sequences first … first+count-1."""
        end = first + count
        if first < 0 or end > self.num_sequences:
            raise ConfigError(
                f"sequences {first} to {end} of a run of {self.num_sequences}; make the last stage "
                "longer"
            )
        source, number = np.empty(count, np.int64), np.empty(count, np.int64)
        at = first
        while at < end:
            stage = int(np.searchsorted(self._edges, at, side="right")) - 1
            begin, stop = int(self._edges[stage]), min(end, int(self._edges[stage + 1]))
            pattern, here = self._patterns[stage], slice(at - first, stop - first)
            source[here] = pattern.source[np.arange(at - begin, stop - begin) % pattern.source.size]
            drawn = self._before[stage] + pattern.counts(at - begin)
            for i in np.unique(source[here]).tolist():
                # what a source gives next is a run of its own order
                mine = source[here] == i
                order = self._orders[i]
                number[here][mine] = order.numbers(int(drawn[i]), int(np.count_nonzero(mine)))
            at = stop
        return source, number

    def numbers(self, first: int, count: int) -> NDArray[np.int64]:
        """Return the same as numbers through all sources, as training reads them."""
        source, number = self.places(first, count)
        return self.offsets[source] + number

    def place_of(self, number: int) -> tuple[int, int]:
        """Return the source of a sequence numbered through all sources, and its number there."""
        source = int(np.searchsorted(self.offsets, number, side="right")) - 1
        return source, number - int(self.offsets[source])

    def contributions(self, num_sequences: int) -> dict[str, dict[str, float]]:
        """Return what each source gave to the first sequences of a run: how many, and epochs."""
        drawn = np.zeros(len(self.sources), np.int64)
        for i, pattern in enumerate(self._patterns):
            start, stop = int(self._edges[i]), int(self._edges[i + 1])
            drawn += pattern.counts(min(max(num_sequences - start, 0), stop - start))
        return {
            source.name: {"sequences": amount, "epochs": amount / source.num_sequences}
            for source, amount in zip(self.sources, drawn.tolist(), strict=True)
        }


def _shares(names: list[str], stage: MixtureStage) -> list[Fraction]:
    unknown = sorted(set(stage.weights) - set(names))
    weights = [Fraction(str(stage.weights.get(name, 0))) for name in names]
    if unknown or min(weights) < 0 or not sum(weights) or stage.num_sequences < 1:
        raise ConfigError(
            f"weights={stage.weights} over {stage.num_sequences} sequences: weights must be at "
            f"least 0, one of them above, for the sources {', '.join(names)} only, and a stage "
            "must have a sequence"
        )
    return [weight / sum(weights) for weight in weights]


def _seed_of(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=7).digest())
