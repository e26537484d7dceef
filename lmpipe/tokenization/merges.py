"""Learn byte-pair merges from counted pieces.

Rule: merge the pair with the highest count; among equals the one whose (left bytes, right bytes) is
lexicographically greater. Overlapping pairs count at every position ("aaa" has two "aa"), and a
merge replaces from left to right. Both as in the usual trainers, so merges are comparable; the tie
rule is ours, and makes the result independent of hashes, workers and document order.

The loop is incremental. A pair's count only falls after the step that made its newer symbol, which
gives three savings: a pair is put on the heap once, when that step ends, and pushed back when it
comes out with an old count; pairs born under the minimum frequency are never stored; and the pieces
of the pairs of one step are laid side by side, so that a merge reads memory in order. Linked lists
of pieces per pair would be shorter to write, at a cache miss per piece.

No two merges make the same bytes. The merges inside a token never looked over its edges, so they
are those of its bytes alone; hence ranks by bytes (tiktoken) and merges (tokenizers) encode alike.

Source: Sennrich, Haddow and Birch, Neural Machine Translation of Rare Words with Subword Units,
2016, algorithm 1.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmpipe.tokenization.compiled import compiled

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]


class Pairs(NamedTuple):
    """Every pair ever seen, by number, and an open-addressing table from pair to number."""

    table: I32
    left: I32
    right: I32
    total: I64
    start: I64  # where the pair's pieces stand in the list of occurrences
    length: I64


class Symbols(NamedTuple):
    """The bytes of every symbol, one after the other."""

    data: U8
    edges: I64


@compiled
def _grown(array: Any, room: int) -> Any:
    larger = np.empty(room, array.dtype)
    for i in range(array.size):  # a slice would compile numba's message about unequal shapes
        larger[i] = array[i]
    return larger


@compiled
def _slot(table: I32, left: I32, right: I32, a: int, b: int) -> Any:
    """Return the slot where the pair is, or the free one where it would be."""
    mask = table.size - 1
    key = (np.uint64(a) << np.uint64(32)) | np.uint64(b)
    key *= np.uint64(0x9E3779B97F4A7C15)
    slot = np.int64(key >> np.uint64(24)) & mask
    while table[slot] >= 0 and (left[table[slot]] != a or right[table[slot]] != b):
        slot = (slot + 1) & mask
    return slot


@compiled
def _room_for(pairs: Pairs, num_pairs: int) -> Pairs:
    """Return tables with room for one more pair."""
    if num_pairs < pairs.total.size:
        return pairs
    room = 2 * num_pairs
    left, right = _grown(pairs.left, room), _grown(pairs.right, room)
    table = np.full(2 * room, -1, np.int32)
    for number in range(num_pairs):
        table[_slot(table, left, right, left[number], right[number])] = number
    return Pairs(
        table,
        left,
        right,
        _grown(pairs.total, room),
        _grown(pairs.start, room),
        _grown(pairs.length, room),
    )


@compiled
def _compare(symbols: Symbols, a: int, b: int) -> Any:
    """Compare the bytes of two symbols: below, equal to or above zero."""
    i, j = symbols.edges[a], symbols.edges[b]
    end_a, end_b = symbols.edges[a + 1], symbols.edges[b + 1]
    while i < end_a and j < end_b:
        if symbols.data[i] != symbols.data[j]:
            return np.int64(symbols.data[i]) - np.int64(symbols.data[j])
        i += 1
        j += 1
    return (end_a - i) - (end_b - j)


@compiled
def _before(pairs: Pairs, symbols: Symbols, count: int, pair: int, count2: int, pair2: int) -> Any:
    """Tell whether a pair with a count is to be merged before another."""
    if count != count2:
        return count > count2
    if pairs.left[pair] != pairs.left[pair2]:
        order = _compare(symbols, pairs.left[pair], pairs.left[pair2])
        if order != 0:
            return order > 0
    return _compare(symbols, pairs.right[pair], pairs.right[pair2]) > 0


@compiled
def _sift_up(heap_count: I64, heap_pair: I32, size: int, pairs: Pairs, symbols: Symbols) -> None:
    """Move the last entry of the heap to its place."""
    place = size - 1
    count, pair = heap_count[place], heap_pair[place]
    while place > 0:
        parent = (place - 1) >> 1
        if not _before(pairs, symbols, count, pair, heap_count[parent], heap_pair[parent]):
            break
        heap_count[place], heap_pair[place] = heap_count[parent], heap_pair[parent]
        place = parent
    heap_count[place], heap_pair[place] = count, pair


@compiled
def _sift_down(heap_count: I64, heap_pair: I32, size: int, pairs: Pairs, symbols: Symbols) -> None:
    """Move the first entry of the heap to its place."""
    place = 0
    count, pair = heap_count[0], heap_pair[0]
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and _before(
            pairs,
            symbols,
            heap_count[child + 1],
            heap_pair[child + 1],
            heap_count[child],
            heap_pair[child],
        ):
            child += 1
        if not _before(pairs, symbols, heap_count[child], heap_pair[child], count, pair):
            break
        heap_count[place], heap_pair[place] = heap_count[child], heap_pair[child]
        place = child
    heap_count[place], heap_pair[place] = count, pair


@compiled
def _learn(
    symbol: I32, edges: I64, counts: I64, num_merges: int, min_count: int
) -> tuple[I32, int]:
    """Return merges as rows (left, right), and how many there are. Overwrites `symbol`."""
    num_words = counts.size
    length = np.empty(num_words, np.int32)
    for word in range(num_words):
        length[word] = edges[word + 1] - edges[word]

    symbol_data, symbol_edges = np.empty(4096, np.uint8), np.zeros(num_merges + 257, np.int64)
    for byte in range(256):
        symbol_data[byte] = byte
        symbol_edges[byte + 1] = byte + 1
    symbols = Symbols(symbol_data, symbol_edges)

    room = 1 << 12
    pairs = Pairs(
        np.full(2 * room, -1, np.int32),
        np.empty(room, np.int32),
        np.empty(room, np.int32),
        np.empty(room, np.int64),
        np.empty(room, np.int64),
        np.empty(room, np.int64),
    )
    num_pairs = 0
    # what this step found: (pair, word), a word at most once in a row
    found_pair, found_word = np.empty(room, np.int32), np.empty(room, np.int32)
    occurrence, num_occurrences = np.empty(room, np.int32), 0
    heap_count, heap_pair, heap_size = np.empty(room, np.int64), np.empty(room, np.int32), 0
    merges, num_done = np.empty((num_merges, 2), np.int32), 0

    top, a, b, new = -1, -1, -1, -1
    todo_start, todo_stop = 0, num_words
    while True:
        first_pair, num_found = num_pairs, 0
        for todo in range(todo_start, todo_stop):
            word = todo if top < 0 else occurrence[todo]
            begin, size, count = edges[word], length[word], counts[word]
            read, write = 0, 0
            before, was_new = -1, False  # the symbol before `read`, as it was; whether merged
            while read < size:
                current = symbol[begin + read]
                merged = (
                    top >= 0 and current == a and read + 1 < size and symbol[begin + read + 1] == b
                )
                if merged:
                    if before >= 0 and not was_new and not (before == a and current == b):
                        slot = _slot(pairs.table, pairs.left, pairs.right, before, current)
                        if pairs.table[slot] >= 0:
                            pairs.total[pairs.table[slot]] -= count
                    if read + 2 < size:
                        after = symbol[begin + read + 2]
                        slot = _slot(pairs.table, pairs.left, pairs.right, b, after)
                        if pairs.table[slot] >= 0:
                            pairs.total[pairs.table[slot]] -= count
                    before = b
                    current = new
                    read += 2
                else:
                    before = current
                    read += 1
                # a pair is new where it holds the new symbol; at the first pass all are
                if write > 0 and (top < 0 or merged or was_new):
                    previous = symbol[begin + write - 1]
                    pairs = _room_for(pairs, num_pairs)
                    slot = _slot(pairs.table, pairs.left, pairs.right, previous, current)
                    pair = pairs.table[slot]
                    if pair < 0:
                        pair = num_pairs
                        num_pairs += 1
                        pairs.table[slot] = pair
                        pairs.left[pair], pairs.right[pair] = previous, current
                        pairs.total[pair], pairs.length[pair] = 0, 0
                        pairs.start[pair] = -1  # the last word found, until the step ends
                    pairs.total[pair] += count
                    if pairs.start[pair] != word:
                        pairs.start[pair] = word
                        pairs.length[pair] += 1
                        if num_found == found_pair.size:
                            found_pair = _grown(found_pair, 2 * num_found)
                            found_word = _grown(found_word, 2 * num_found)
                        found_pair[num_found], found_word[num_found] = pair, word
                        num_found += 1
                symbol[begin + write] = current
                write += 1
                was_new = merged
            length[word] = write
        if top >= 0:
            pairs.total[top] = 0

        # lay the words of each new pair side by side, and put the pair on the heap
        for pair in range(first_pair, num_pairs):
            if pairs.total[pair] < min_count:
                pairs.start[pair] = -1
                continue
            pairs.start[pair] = num_occurrences
            num_occurrences += pairs.length[pair]
            pairs.length[pair] = 0
            if heap_size == heap_pair.size:
                heap_count = _grown(heap_count, 2 * heap_size)
                heap_pair = _grown(heap_pair, 2 * heap_size)
            heap_count[heap_size], heap_pair[heap_size] = pairs.total[pair], pair
            heap_size += 1
            _sift_up(heap_count, heap_pair, heap_size, pairs, symbols)
        if num_occurrences > occurrence.size:
            occurrence = _grown(occurrence, 2 * num_occurrences)
        for i in range(num_found):
            pair = found_pair[i]
            if pairs.start[pair] >= 0:
                occurrence[pairs.start[pair] + pairs.length[pair]] = found_word[i]
                pairs.length[pair] += 1

        if num_done == num_merges:
            break
        top = -1
        while heap_size > 0:
            count, pair = heap_count[0], heap_pair[0]
            if count == pairs.total[pair]:
                top = pair
            if count == pairs.total[pair] or pairs.total[pair] < min_count:
                heap_size -= 1
                heap_count[0], heap_pair[0] = heap_count[heap_size], heap_pair[heap_size]
            else:
                heap_count[0] = pairs.total[pair]
            _sift_down(heap_count, heap_pair, heap_size, pairs, symbols)
            if top >= 0:
                break
        if top < 0:
            break

        a, b = pairs.left[top], pairs.right[top]
        merges[num_done, 0], merges[num_done, 1] = a, b
        new = 256 + num_done
        num_done += 1
        end = symbols.edges[new]
        for part in (a, b):
            size = symbols.edges[part + 1] - symbols.edges[part]
            if end + size > symbols.data.size:
                symbols = Symbols(_grown(symbols.data, 2 * (end + size)), symbols.edges)
            begin = symbols.edges[part]
            for i in range(size):
                symbols.data[end + i] = symbols.data[begin + i]
            end += size
        symbols.edges[new + 1] = end
        todo_start = pairs.start[top]
        todo_stop = todo_start + pairs.length[top]
    return merges, num_done


def learn_merges(
    text: U8, edges: I64, counts: I64, *, num_merges: int, min_frequency: int
) -> list[tuple[int, int]]:
    """Learn up to num_merges merges; symbol 256 + i is the i-th merge.

    Args:
        text: the bytes of the distinct pieces, piece i at [edges[i], edges[i+1]).
        counts: how often each piece occurs.
        min_frequency: pairs with a lower count are never merged.

    Cost: time in the bytes of distinct pieces times a logarithm; memory about 40 bytes for each.
    """
    merges, num_done = _learn(
        text.astype(np.int32), edges, counts, num_merges, max(1, min_frequency)
    )
    return [(int(left), int(right)) for left, right in merges[:num_done].tolist()]
