"""Items with typing errors: found by runs of three words where no run of thirteen is whole.

An error in every eighth word leaves no 13-gram of an item, but over half of its 3-grams. A document
holds an item nearly if a stretch of it, a third longer than the item at most, holds `MIN_SHARE` of
the item's 3-grams, and `MIN_REST` of them beside the longest run: twelve words quoted as they are
make one run, and prove no leak. 3-grams of more texts than `MAX_OWNERS` tell nothing and are left
out; they are also what would cost most, so that work grows with the text and hardly with the items.

Of 1,319 GSM8K questions with an error in every 8th (6th, 5th, 4th) word 1,291 (1,241, 838, 69) are
found, 383 (44, 7, 1) by 13-grams alone; 4-grams with a share of .35 find 1,286 (933, 202, 5). Of
7,473 training problems 3 are flagged beside them, of 692 PEPs and 40 novels none.

Not found: an error in more than every fifth word, words joined, parted or put in another order,
numbers and names exchanged throughout, paraphrases and translations, and texts of under
`MIN_WORDS` words, in which an error leaves too little to be told from ordinary language.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lmpipe.curation.text.word_hashes import Words, find_ngrams, hash_filter, ngram_hashes

NGRAM = 3
MIN_WORDS = 13
MIN_SHARE = 0.4
MIN_REST = 0.2
MAX_OWNERS = 8


@dataclass(frozen=True)
class NearMatch:
    """A stretch of a text that nearly is a part of an item.

    Attributes:
        text, part: their numbers.
        share: share of the part's 3-grams in it.
        first, after: its words among those of the whole batch.
    """

    text: int
    part: int
    share: float
    first: int
    after: int


class NearIndex:
    """The 3-grams of the longer parts of items."""

    def __init__(self, words: Words, parts: NDArray[np.int64]) -> None:
        """Index some of the texts of `words` under their own numbers."""
        hashes, offsets = ngram_hashes(words, NGRAM)
        grams = [np.unique(hashes[offsets[part] : offsets[part + 1]]) for part in parts.tolist()]
        numbers = [np.full(len(g), part, np.int64) for g, part in zip(grams, parts, strict=True)]
        joined = np.concatenate([np.empty(0, np.uint64), *grams])
        owners = np.concatenate([np.empty(0, np.int64), *numbers])
        distinct, of, counts = np.unique(joined, return_inverse=True, return_counts=True)
        telling = counts[of] <= MAX_OWNERS
        self._grams = distinct[counts <= MAX_OWNERS]
        order = np.lexsort((owners[telling], joined[telling]))
        self._owners = owners[telling][order]
        starts = np.searchsorted(joined[telling][order], self._grams)
        self._starts = np.append(starts, len(self._owners)).astype(np.int64)
        self._filter = hash_filter(self._grams)
        self._num_words = words.counts
        self._num_grams = np.zeros(len(words.counts), np.int64)
        self._num_grams[parts] = [len(g) for g in grams]

    def scan(self, words: Words) -> list[NearMatch]:
        """Return the best stretch of each text for each part that it nearly holds."""
        rows = find_ngrams(words, np.array([NGRAM]), self._grams, self._filter)
        counts = self._starts[rows[:, 3] + 1] - self._starts[rows[:, 3]]
        row = np.repeat(np.arange(len(rows)), counts)
        within = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        part = self._owners[self._starts[rows[row, 3]] + within]
        text, place, gram = rows[row, 0], rows[row, 1], rows[row, 3]
        order = np.lexsort((place, part, text))
        text, part, place, gram = text[order], part[order], place[order], gram[order]
        changes = (np.diff(text, prepend=-1) != 0) | (np.diff(part, prepend=-1) != 0)
        bounds = np.append(np.flatnonzero(changes), len(text))
        enough = np.diff(bounds) >= MIN_SHARE * self._num_grams[part[bounds[:-1]]]
        found = []
        for group in np.flatnonzero(enough).tolist():
            first, last = int(bounds[group]), int(bounds[group + 1])
            match = self._best(place[first:last].tolist(), gram[first:last].tolist(), part[first])
            if match is not None:
                found.append(NearMatch(int(text[first]), int(part[first]), *match))
        return found

    def _best(
        self, places: list[int], grams: list[int], part: int
    ) -> tuple[float, int, int] | None:
        """Return share, first word and word after the last of the fullest stretch, if enough."""
        reach = self._num_words[part] * 4 // 3
        total = int(self._num_grams[part])
        window: deque[int] = deque()
        held: dict[int, int] = {}
        best, span = 0, (0, 0)
        for index, gram in enumerate(grams):
            window.append(index)
            held[gram] = held.get(gram, 0) + 1
            while places[index] - places[window[0]] > reach:
                left = grams[window.popleft()]
                held[left] -= 1
                if not held[left]:
                    del held[left]
            if len(held) > best:
                best, span = len(held), (window[0], index)
        longest = run = 1
        for index in range(span[0] + 1, span[1] + 1):
            run = run + 1 if places[index] == places[index - 1] + 1 else 1
            longest = max(longest, run)
        if best < MIN_SHARE * total or best - longest < MIN_REST * total:
            return None
        return best / total, places[span[0]], places[span[1]] + NGRAM
