"""Selections that look at more than one threshold: a draw by hash, and bands of several scores.

A draw depends on (seed, document id) alone, so it is the same for any split, order or number of
workers, and a document keeps its luck when others are added.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from lmpipe.artifacts.stage import StageConfig


class Ensemble(StageConfig):
    """Several scores made one: each becomes a rank, the best (or mean) rank is the document's band.

    The band is a column of what is kept, so that a mixture can weigh bands apart.
    """

    columns: dict[str, float] = Field(
        description="Signal columns and their weights; a negative weight: lower is better.",
        min_length=1,
    )
    num_bands: int = Field(20, ge=2, le=1000, description="Bands of equal size, 0 the worst.")
    combine_by_maximum: bool = Field(
        False, description="Take the best of the ranks in place of their weighted mean."
    )
    min_band: int = Field(10, ge=0, le=999, description="Lowest band that is kept.")


def uniform(ids: Sequence[str], seed: int) -> NDArray[np.float64]:
    """Return a number in [0, 1) for each document, by hash of seed and id."""
    key = seed.to_bytes(8, "little", signed=False)
    hashes = [
        int.from_bytes(hashlib.blake2b(i.encode(), digest_size=8, key=key).digest(), "little") >> 11
        for i in ids
    ]
    return np.array(hashes, dtype=np.float64) / 2.0**53


def pareto_thresholds(ids: Sequence[str], alpha: float, seed: int) -> NDArray[np.float64]:
    """Return the score each document has to exceed: 1 - a draw from Lomax(alpha).

    GPT-3 kept a document if np.random.pareto(9) > 1 - score: good ones nearly always, bad ones
    sometimes. Source: Brown et al. 2020, appendix A.
    """
    draws = (1.0 - uniform(ids, seed)) ** (-1.0 / alpha) - 1.0
    return np.asarray(1.0 - draws)


def quantile_edges(values: NDArray[Any], num_bands: int) -> list[float]:
    """Return the num_bands - 1 inner edges of bands of equal size."""
    shares = np.arange(1, num_bands) / num_bands
    return [float(edge) for edge in np.quantile(values.astype(np.float64), shares)]


def bands(
    columns: Mapping[str, NDArray[Any]], config: Ensemble, edges: Mapping[str, Sequence[float]]
) -> NDArray[np.float64]:
    """Return each document's band: the combined rank of its scores, in whole bands."""
    total = sum(abs(weight) for weight in config.columns.values())
    combined: NDArray[np.float64] | None = None
    for name, weight in config.columns.items():
        rank = np.searchsorted(edges[name], columns[name], side="right").astype(np.float64)
        if weight < 0:
            rank = config.num_bands - 1 - rank
        if config.combine_by_maximum:
            combined = rank if combined is None else np.maximum(combined, rank)
        else:
            share = rank * (abs(weight) / total)
            combined = share if combined is None else combined + share
    assert combined is not None
    return np.floor(combined + 1e-9)
