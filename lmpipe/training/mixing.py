"""Several token sets in one run: the recipe's words for it, and the sets as one body of sequences.

`main` is what the recipe curates itself; the others are named in `sources.mixture`. How the order
comes about stands in lmpipe/token_data/mixture.py.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from lmpipe.artifacts.lookup import read_manifest
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import TokenShards, open_artifact
from lmpipe.errors import ConfigError, StoreError
from lmpipe.token_data.dataset import TokenReader
from lmpipe.token_data.mixture import MixtureOrder, MixtureSource, MixtureStage

MAIN = "main"


class MixtureStageConfig(BaseModel):
    """A part of a run, such as pre- or mid-training."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    fraction: float = Field(gt=0, le=1, description="Part of the run's steps.")
    weights: dict[str, float] = Field(
        min_length=1, description="Share of each token set, by tokens; they need not add up to 1."
    )


class MixtureConfig(BaseModel):
    """Which token sets a run reads, in which shares, and how often at most."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    stages: tuple[MixtureStageConfig, ...] = Field(
        min_length=1, max_length=100, description="One after the other; fractions add up to 1."
    )
    max_epochs: dict[str, float] = Field(
        default_factory=dict,
        description="How often a token set may be read at most; one not named: any number.",
    )

    @model_validator(mode="after")
    def _adds_up(self) -> "MixtureConfig":
        total = math.fsum(stage.fraction for stage in self.stages)
        if not math.isclose(total, 1, abs_tol=1e-6):
            raise ConfigError(
                f"mixture: the fractions of the stages add up to {total:g}, they must to 1; "
                f"set the last one to {self.stages[-1].fraction + 1 - total:g}"
            )
        for name, limit in self.max_epochs.items():
            if name not in self.names:
                raise ConfigError(
                    f"mixture.max_epochs names {name!r}, which has no weight; known are "
                    f"{', '.join(self.names)}"
                )
            if limit <= 0:
                raise ConfigError(f"mixture.max_epochs.{name}={limit:g} must be above 0")
        for weights in (stage.weights for stage in self.stages):
            if min(weights.values()) < 0 or not any(weights.values()):
                raise ConfigError(
                    f"mixture: weights={weights} must be at least 0, and one of them above"
                )
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The token sets: main, then the others by name. Their order is that of the inputs."""
        named = {name for stage in self.stages for name in stage.weights}
        return (MAIN, *sorted(named - {MAIN}))

    def steps(self, total_steps: int) -> list[int]:
        """Return the steps of each stage.

        Raises:
            ConfigError: a stage is too short for one.
        """
        ends = np.cumsum([stage.fraction for stage in self.stages])
        ends[-1] = 1
        steps: list[int] = np.diff(np.rint(ends * total_steps).astype(int), prepend=0).tolist()
        if min(steps) < 1:
            raise ConfigError(
                f"mixture: stages of {steps} steps; each needs one. Give a larger fraction or "
                "total_tokens, or a smaller batch_tokens"
            )
        return steps

    def order(
        self, num_sequences: Sequence[int], steps_and_batch: tuple[int, int], seed: int
    ) -> MixtureOrder:
        """Return the order of a run over token sets of these sizes, in the order of `names`.

        Raises:
            ConfigError: an epoch limit does not hold, or the weights repeat too late.
        """
        total_steps, batch = steps_and_batch
        sources = [
            MixtureSource(name, size, self.max_epochs.get(name, math.inf))
            for name, size in zip(self.names, num_sequences, strict=True)
        ]
        stages = [
            MixtureStage(steps * batch, dict(stage.weights))
            for stage, steps in zip(self.stages, self.steps(total_steps), strict=True)
        ]
        return MixtureOrder(sources, stages, seed)

    def contributions(self, order: MixtureOrder, sequence_length: int) -> dict[str, dict[str, Any]]:
        """Return what each token set gives to the whole run, and its share of each stage."""
        ends = np.cumsum([stage.num_sequences for stage in order.stages]).tolist()
        until = [order.contributions(end) for end in ends]
        result: dict[str, dict[str, Any]] = {}
        for name in self.names:
            given = [0, *(int(part[name]["sequences"]) for part in until)]
            result[name] = {
                "tokens": given[-1] * sequence_length,
                "share": given[-1] / ends[-1],
                "epochs": until[-1][name]["epochs"],
                "stage_shares": [
                    (given[i + 1] - given[i]) / stage.num_sequences
                    for i, stage in enumerate(order.stages)
                ],
            }
        return result


class MixedSequences:
    """The sequences of several readers, numbered through."""

    def __init__(self, readers: Sequence[TokenReader]) -> None:
        self.readers = readers
        self._offsets = np.cumsum([0, *(reader.num_sequences for reader in readers)])

    @property
    def num_sequences(self) -> int:
        """Sequences of all token sets."""
        return int(self._offsets[-1])

    def sequence(self, number: int) -> NDArray[np.int64]:
        """Return the T+1 tokens of a sequence."""
        reader, mine = self._place(number)
        return reader.sequence(mine)

    def sequences(self, numbers: Sequence[int]) -> list[NDArray[np.int64]]:
        """Return several sequences, those of a token set together."""
        places = [self._place(number) for number in numbers]
        rows: dict[int, NDArray[np.int64]] = {}
        for reader in self.readers:
            mine = [i for i, place in enumerate(places) if place[0] is reader]
            rows |= zip(mine, reader.sequences([places[i][1] for i in mine]), strict=True)
        return [rows[i] for i in range(len(places))]

    def document_numbers(self, number: int) -> NDArray[np.int64]:
        """Return the document number of each token, in its own token set."""
        reader, mine = self._place(number)
        return reader.document_numbers(mine)

    def is_target(self, number: int) -> NDArray[np.bool_]:
        """Return which of the T+1 tokens are learnt."""
        reader, mine = self._place(number)
        return reader.is_target(mine)

    def _place(self, number: int) -> tuple[TokenReader, int]:
        if not 0 <= number < self.num_sequences:
            raise IndexError(f"sequence {number} of {self.num_sequences}")
        source = int(np.searchsorted(self._offsets, number, side="right")) - 1
        return self.readers[source], number - int(self._offsets[source])


def check_token_sets(sets: Mapping[str, TokenShards]) -> None:
    """Refuse token sets of different tokenizers.

    Raises:
        ConfigError: names them; the same ids would mean different text.
    """
    digests = {n: s.read_json("meta.json").get("tokenizer_digest") for n, s in sets.items()}
    if len(set(digests.values())) > 1:
        listed = ", ".join(f"{name}: {digest}" for name, digest in digests.items())
        raise ConfigError(
            f"the token sets of a mixture must come from one tokenizer, these do not ({listed}); "
            "encode them with the same one"
        )


def reference(shards: TokenShards) -> dict[str, str]:
    """Return plain values from which a rank opens token shards."""
    return {
        "root": shards.store.root,
        "stage": shards.stage,
        "id": shards.id,
        "digest": shards.digest,
    }


def open_reference(named: Mapping[str, str]) -> TokenShards:
    """Open token shards in a rank.

    Raises:
        StoreError: they were removed or built anew since the run began.
    """
    store = Store(named["root"])
    found = read_manifest(store, named["stage"], named["id"])
    if found is None or found[0].digest != named["digest"]:
        raise StoreError(
            f"{named['stage']}/{named['id']} in {store.root} was removed or changed while the run "
            "began; run again"
        )
    artifact = open_artifact(store, found[0])
    assert isinstance(artifact, TokenShards)
    return artifact
