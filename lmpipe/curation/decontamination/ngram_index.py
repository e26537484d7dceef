"""An index of the word n-grams of evaluation items, and the scan of training texts against it.

Each checked text of an item gives the hashes of all its n-grams; a text shorter than n gives one
hash, of the whole. The scan rolls one hash of each needed length over the training words and looks
it up in a bit filter first and by bisection then, so that its time depends on the number of
lengths (1 to 13) and hardly on the number of items.

An answer alone is looked for only if it has n words: a shorter one ("the force of gravity on it")
is ordinary language without its question, with which it is looked for anyway.

Two texts with equal 64-bit hashes are taken as equal. For 10^6 item n-grams against 10^9 words of
training text a wrong match has a chance of 10^6 · 10^9 / 2^64, under one in ten thousand.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lmpipe.curation.decontamination.look_alikes import hash_look_alikes
from lmpipe.curation.decontamination.near_items import MIN_WORDS, NearIndex
from lmpipe.curation.text.word_hashes import Words, find_ngrams, hash_filter, ngram_hashes
from lmpipe.eval_items.items import EvalItem


@dataclass(frozen=True)
class Part:
    """One text of one item, as it is looked for."""

    item: EvalItem
    label: str
    num_words: int
    num_grams: int

    @property
    def is_checked(self) -> bool:
        """False for a text too short to be told from ordinary language."""
        return self.num_grams > 0


@dataclass(frozen=True)
class Hits:
    """Where a batch's texts hold indexed n-grams; one row for each occurrence.

    Attributes:
        texts: number of the text in the batch.
        grams: number of the n-gram in the index.
        starts, ends: bytes of the occurrence within the text.
    """

    texts: NDArray[np.int64]
    grams: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


class NgramIndex:
    """The n-grams of evaluation items.

    Attributes:
        parts: every text of every item, those too short to be checked included.
        grams: sorted distinct n-gram hashes; an n-gram's number is its place here.
        near: the shorter n-grams of long texts, for items with typing errors.
        owners: [pairs, 2] of n-gram number and part number, sorted.
    """

    def __init__(self, items: Sequence[EvalItem], ngram: int, min_words: int) -> None:
        texts = [(item, label, text) for item in items for label, text in item.contaminating]
        words = hash_look_alikes([text for _, _, text in texts])
        counts = words.counts
        least = np.array([ngram if label == "answer" else min_words for _, label, _ in texts])
        lengths = np.where(counts >= least, np.minimum(counts, ngram), 0)
        hashes: list[NDArray[np.uint64]] = []
        numbers: list[NDArray[np.int64]] = []
        num_grams = np.zeros(len(texts), np.int64)
        for length in sorted(set(lengths[lengths > 0].tolist())):
            all_grams, offsets = ngram_hashes(words, length)
            for part in np.flatnonzero(lengths == length).tolist():
                grams = np.unique(all_grams[offsets[part] : offsets[part + 1]])
                num_grams[part] = len(grams)
                hashes.append(grams)
                numbers.append(np.full(len(grams), part, np.int64))
        joined = np.concatenate(hashes) if hashes else np.empty(0, np.uint64)
        self.lengths = np.array(sorted(set(lengths[lengths > 0].tolist())), np.int64)
        self.grams, of = np.unique(joined, return_inverse=True)
        pairs = np.stack([of, np.concatenate(numbers)] if numbers else [of, of], axis=1)
        self.owners = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))].astype(np.int64)
        by_part = pairs[np.lexsort((pairs[:, 0], pairs[:, 1]))].astype(np.int64)
        self._by_part = by_part[:, 0]
        self._part_starts = np.searchsorted(by_part[:, 1], np.arange(len(texts) + 1))
        self._owner_starts = np.searchsorted(self.owners[:, 0], np.arange(len(self.grams) + 1))
        self.parts = [
            Part(item, label, int(count), int(number))
            for (item, label, _), count, number in zip(texts, counts, num_grams, strict=True)
        ]
        self._filter = hash_filter(self.grams)
        long = (lengths > 0) & (counts >= max(ngram, MIN_WORDS))
        asked = {item.name for (item, label, _), is_long in zip(texts, long, strict=True)
                 if is_long and label == "question"}  # fmt: skip
        alone = [label != "item" or item.name not in asked for item, label, _ in texts]
        self.near = NearIndex(words, np.flatnonzero(long & np.array(alone, np.bool)))

    def owners_of(self, gram: int) -> NDArray[np.int64]:
        """Return the numbers of the parts that hold an n-gram."""
        return self.owners[self._owner_starts[gram] : self._owner_starts[gram + 1], 1]

    def grams_of(self, part: int) -> NDArray[np.int64]:
        """Return the numbers of a part's n-grams."""
        return self._by_part[self._part_starts[part] : self._part_starts[part + 1]]

    @functools.cached_property
    def num_owning_items(self) -> NDArray[np.int64]:
        """Return, for each n-gram, how many items hold it: a template's n-grams have many."""
        numbers: dict[str, int] = {}
        items = np.array([numbers.setdefault(p.item.name, len(numbers)) for p in self.parts])
        pairs = np.unique(np.stack([self.owners[:, 0], items[self.owners[:, 1]]], axis=1), axis=0)
        return np.bincount(pairs[:, 0], minlength=len(self.grams)).astype(np.int64)

    def num_grams_among(self, chosen: NDArray[np.bool]) -> NDArray[np.int64]:
        """Return how many of the chosen n-grams each part has."""
        parts = self.owners[chosen[self.owners[:, 0]], 1]
        return np.bincount(parts, minlength=len(self.parts)).astype(np.int64)

    def scan(self, words: Words) -> Hits:
        """Find every indexed n-gram in a batch of texts, in order of text and place."""
        rows = find_ngrams(words, self.lengths, self.grams, self._filter)
        rows = rows[np.lexsort(rows.T[::-1])]
        text, first, after, gram = rows.T
        return Hits(text, gram, words.starts[first], words.ends[after - 1])
