"""The order in which records are trained on, as a function of (seed, position) alone."""

from __future__ import annotations

import numpy as np


class RowOrder:
    """The order of rows: a new permutation each epoch, a function of (seed, position) alone."""

    def __init__(self, num_rows: int, seed: int) -> None:
        self.num_rows, self.seed = num_rows, seed

    def take(self, start: int, count: int) -> np.ndarray:
        """Return the rows at positions `start` to `start + count` of the endless stream."""
        positions = np.arange(start, start + count)
        epochs = positions // self.num_rows
        rows = np.empty(count, dtype=np.int64)
        for epoch in np.unique(epochs):
            permutation = np.random.default_rng((self.seed, int(epoch))).permutation(self.num_rows)
            here = epochs == epoch
            rows[here] = permutation[positions[here] % self.num_rows]
        return rows
