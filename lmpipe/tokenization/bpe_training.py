"""Learn byte-pair merges from counted pre-tokens.

Rule: merge the pair with the highest count; among equals the one whose (left bytes, right bytes) is
lexicographically greater. Overlapping pairs count at every position ("aaa" has two "aa"), and a
merge replaces from left to right. Both as in the usual trainers, so merges are comparable; the tie
rule is ours, and makes the result independent of hashes, workers and document order.

The loop is incremental. A pair's count only falls after the step that made its newer symbol, which
gives three savings: a pair is put on the heap once, when that step ends, and pushed back when it
comes out with an old count; pairs born under the minimum frequency are never stored; and the
pre-tokens of the pairs of one step are laid side by side, so that a merge reads memory in order.
Linked lists of pre-tokens per pair would be shorter to write, at a cache miss per pre-token.

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
Int = int | np.int64


# places in the state of a run
NUM_PAIRS, NUM_OCCURRENCES, HEAP_SIZE, NUM_DONE, TOP = range(5)
FIRST_PASS, CHOOSE = -1, -2  # of TOP, which is else the pair in work


class PreTokens(NamedTuple):
    """The symbols of every pre-token: pre-token i has length[i] of them from edges[i] on."""

    symbol: I32
    edges: I64
    length: I32
    frequency: I64


class Pairs(NamedTuple):
    """Every pair ever seen, by number, and an open-addressing table from pair to number."""

    table: I32
    left: I32
    right: I32
    total: I64
    start: I64  # where the pair's pre-tokens stand in the list of occurrences
    length: I64
    heap_total: I64
    heap_pair: I32


class Found(NamedTuple):
    """What one step found: pair beside pre-token, then the pre-tokens of all pairs side by side."""

    pair: I32
    pre_token: I32
    occurrence: I32


class Symbols(NamedTuple):
    """The bytes of every symbol, one after the other."""

    data: U8
    edges: I64


@compiled
def _slot(table: I32, left: I32, right: I32, a: Int, b: Int) -> Any:
    """Return the slot where the pair is, or the free one where it would be."""
    mask = table.size - 1
    key = (np.uint64(a) << np.uint64(32)) | np.uint64(b)
    key *= np.uint64(0x9E3779B97F4A7C15)
    slot = np.int64(key >> np.uint64(24)) & mask
    while table[slot] >= 0 and (left[table[slot]] != a or right[table[slot]] != b):
        slot = (slot + 1) & mask
    return slot


@compiled
def _fill(table: I32, left: I32, right: I32, num_pairs: int) -> None:
    for number in range(num_pairs):
        a, b = np.int64(left[number]), np.int64(right[number])
        table[_slot(table, left, right, a, b)] = number


@compiled
def _compare(symbols: Symbols, a: Int, b: Int) -> Any:
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
def _sift_up(pairs: Pairs, symbols: Symbols, size: int) -> None:
    """Move the last entry of the heap to its place."""
    place = size - 1
    count, pair = pairs.heap_total[place], pairs.heap_pair[place]
    while place > 0:
        parent = (place - 1) >> 1
        if not _before(
            pairs, symbols, count, pair, pairs.heap_total[parent], pairs.heap_pair[parent]
        ):
            break
        pairs.heap_total[place], pairs.heap_pair[place] = (
            pairs.heap_total[parent],
            pairs.heap_pair[parent],
        )
        place = parent
    pairs.heap_total[place], pairs.heap_pair[place] = count, pair


@compiled
def _sift_down(pairs: Pairs, symbols: Symbols, size: int) -> None:
    """Move the first entry of the heap to its place."""
    place = 0
    count, pair = pairs.heap_total[0], pairs.heap_pair[0]
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and _before(
            pairs,
            symbols,
            pairs.heap_total[child + 1],
            pairs.heap_pair[child + 1],
            pairs.heap_total[child],
            pairs.heap_pair[child],
        ):
            child += 1
        if not _before(
            pairs, symbols, pairs.heap_total[child], pairs.heap_pair[child], count, pair
        ):
            break
        pairs.heap_total[place], pairs.heap_pair[place] = (
            pairs.heap_total[child],
            pairs.heap_pair[child],
        )
        place = child
    pairs.heap_total[place], pairs.heap_pair[place] = count, pair


@compiled
def _lose(pairs: Pairs, a: Int, b: Int, count: Int) -> None:
    """Take the occurrences of a pair off its total."""
    pair = pairs.table[_slot(pairs.table, pairs.left, pairs.right, a, b)]
    if pair >= 0:
        pairs.total[pair] -= count


@compiled
def _replace(
    pre_tokens: PreTokens, pairs: Pairs, found: Found, state: I64, a: Int, b: Int, new: Int
) -> Int:
    """Replace the pair (a, b) in its pre-tokens and count the pairs that arise; return how many.

    In the first pass nothing is replaced, and every pair arises.
    """
    top, num_found, num_pairs = state[TOP], 0, state[NUM_PAIRS]
    first_pass = top < 0
    todo = np.int64(0) if first_pass else pairs.start[top]
    stop = pre_tokens.frequency.size if first_pass else todo + pairs.length[top]
    while todo < stop:
        pre_token = todo if first_pass else np.int64(found.occurrence[todo])
        todo += 1
        begin, size, count = (
            pre_tokens.edges[pre_token],
            pre_tokens.length[pre_token],
            pre_tokens.frequency[pre_token],
        )
        read, write = 0, 0
        before: Int = np.int64(-1)  # the symbol before `read`, as it was
        was_new = False
        while read < size:
            current: Int = np.int64(pre_tokens.symbol[begin + read])
            merged = current == a and read + 1 < size and pre_tokens.symbol[begin + read + 1] == b
            if merged:
                # pairs that are the merged one itself go to zero at the end anyway
                if before >= 0 and not was_new:
                    _lose(pairs, before, current, count)
                if read + 2 < size:
                    _lose(pairs, b, np.int64(pre_tokens.symbol[begin + read + 2]), count)
                before, current = b, new
                read += 2
            else:
                before = current
                read += 1
            if write > 0 and (first_pass or merged or was_new):
                previous = np.int64(pre_tokens.symbol[begin + write - 1])
                slot = _slot(pairs.table, pairs.left, pairs.right, previous, current)
                if pairs.table[slot] < 0:
                    pairs.table[slot] = num_pairs
                    pairs.left[num_pairs], pairs.right[num_pairs] = previous, current
                    pairs.total[num_pairs], pairs.length[num_pairs] = 0, 0
                    pairs.start[num_pairs] = -1  # the last pre-token found, until the step ends
                    num_pairs += 1
                pair = pairs.table[slot]
                pairs.total[pair] += count
                if pairs.start[pair] != pre_token:
                    pairs.start[pair] = pre_token
                    pairs.length[pair] += 1
                    found.pair[num_found], found.pre_token[num_found] = pair, pre_token
                    num_found += 1
            pre_tokens.symbol[begin + write] = current
            write += 1
            was_new = merged
        pre_tokens.length[pre_token] = write
    if top >= 0:
        pairs.total[top] = 0
    state[NUM_PAIRS] = num_pairs
    return num_found


@compiled
def _settle(
    pairs: Pairs, symbols: Symbols, found: Found, state: I64, first: Int, num_found: Int, least: int
) -> None:
    """Put the pairs from `first` on onto the heap, and lay their pre-tokens side by side."""
    for pair in range(first, state[NUM_PAIRS]):
        if pairs.total[pair] < least:
            pairs.start[pair] = -1
            continue
        pairs.start[pair] = state[NUM_OCCURRENCES]
        state[NUM_OCCURRENCES] += pairs.length[pair]
        pairs.length[pair] = 0
        size = state[HEAP_SIZE]
        pairs.heap_total[size], pairs.heap_pair[size] = pairs.total[pair], pair
        state[HEAP_SIZE] = size + 1
        _sift_up(pairs, symbols, size + 1)
    for i in range(num_found):
        pair = found.pair[i]
        if pairs.start[pair] >= 0:
            found.occurrence[pairs.start[pair] + pairs.length[pair]] = found.pre_token[i]
            pairs.length[pair] += 1


@compiled
def _choose(pairs: Pairs, symbols: Symbols, state: I64, least: int) -> Int:
    """Take the pair to be merged off the heap, or return FIRST_PASS when there is none."""
    while state[HEAP_SIZE] > 0:
        total, pair = pairs.heap_total[0], np.int64(pairs.heap_pair[0])
        now = pairs.total[pair]
        if total == now or now < least:
            last = state[HEAP_SIZE] - 1
            pairs.heap_total[0], pairs.heap_pair[0] = pairs.heap_total[last], pairs.heap_pair[last]
            state[HEAP_SIZE] = last
        else:
            pairs.heap_total[0] = now
        _sift_down(pairs, symbols, state[HEAP_SIZE])
        if total == now:
            return pair
    return FIRST_PASS


class Room(NamedTuple):
    """How many entries the arrays need to have."""

    pairs: Int
    found: Int
    occurrences: Int
    symbol_bytes: Int


@compiled
def _need(pre_tokens: PreTokens, pairs: Pairs, found: Found, symbols: Symbols, state: I64) -> Any:
    """Return the room that the next step may need."""
    top = state[TOP]
    positions, num_bytes = np.int64(0), np.int64(0)
    if top < 0:
        positions, num_new = np.int64(pre_tokens.symbol.size), np.int64(1 << 16)
    else:
        for i in range(pairs.start[top], pairs.start[top] + pairs.length[top]):
            positions += pre_tokens.length[found.occurrence[i]]
        for symbol in (pairs.left[top], pairs.right[top]):
            num_bytes += symbols.edges[symbol + 1] - symbols.edges[symbol]
        num_new = 2 * (np.int64(257) + state[NUM_DONE])  # one symbol's neighbours on two sides
    return Room(
        state[NUM_PAIRS] + min(positions, num_new),
        positions,
        state[NUM_OCCURRENCES] + positions,
        symbols.edges[256 + state[NUM_DONE]] + num_bytes,
    )


@compiled
def _learn(
    pre_tokens: PreTokens,
    pairs: Pairs,
    found: Found,
    symbols: Symbols,
    merges: I64,
    state: I64,
    least: int,
) -> bool:
    """Learn merges until they are complete (True) or until arrays must grow (False)."""
    while True:
        if state[TOP] == CHOOSE:
            if state[NUM_DONE] == merges.shape[0]:
                return True
            top = _choose(pairs, symbols, state, least)
            if top < 0:
                return True
            state[TOP] = top
        need = _need(pre_tokens, pairs, found, symbols, state)
        if (
            need.pairs > pairs.total.size
            or need.found > found.pair.size
            or need.occurrences > found.occurrence.size
            or need.symbol_bytes > symbols.data.size
        ):
            return False
        top, new = state[TOP], 256 + state[NUM_DONE]
        a, b = np.int64(-1), np.int64(-1)
        if top >= 0:
            a, b = np.int64(pairs.left[top]), np.int64(pairs.right[top])
            merges[state[NUM_DONE], 0], merges[state[NUM_DONE], 1] = a, b
            end = symbols.edges[new]
            for part in (a, b):
                for i in range(symbols.edges[part], symbols.edges[part + 1]):
                    symbols.data[end] = symbols.data[i]
                    end += 1
            symbols.edges[new + 1] = end
            state[NUM_DONE] += 1
        first = state[NUM_PAIRS]
        num_found = _replace(pre_tokens, pairs, found, state, a, b, new)
        _settle(pairs, symbols, found, state, first, num_found, least)
        state[TOP] = CHOOSE


def _grown(array: Any, room: int) -> Any:
    return array if array.size >= room else np.resize(array, max(room, 2 * array.size))


def _grow(
    pre_tokens: PreTokens, pairs: Pairs, found: Found, symbols: Symbols, state: I64
) -> tuple[Pairs, Found, Symbols]:
    """Return arrays with room for the next step, at least doubled where they are short."""
    need = _need(pre_tokens, pairs, found, symbols, state)
    if need.pairs > pairs.total.size:
        columns = [_grown(column, need.pairs) for column in pairs[1:]]
        # a power of two, at most half full
        table = np.full(1 << (2 * columns[0].size - 1).bit_length(), -1, np.int32)
        _fill(table, columns[0], columns[1], int(state[NUM_PAIRS]))
        pairs = Pairs(table, *columns)
    found = Found(
        _grown(found.pair, need.found),
        _grown(found.pre_token, need.found),
        _grown(found.occurrence, need.occurrences),
    )
    return pairs, found, Symbols(_grown(symbols.data, need.symbol_bytes), symbols.edges)


def learn_merges(
    text: U8, edges: I64, counts: I64, *, num_merges: int, min_frequency: int
) -> list[tuple[int, int]]:
    """Learn up to num_merges merges; symbol 256 + i is the i-th merge.

    Args:
        text: the bytes of the distinct pre-tokens, pre-token i at [edges[i], edges[i+1]).
        counts: how often each pre-token occurs.
        min_frequency: pairs with a lower count are never merged.

    Cost: time in the bytes of distinct pre-tokens times a logarithm; memory about 40 bytes for
    each.
    """
    pre_tokens = PreTokens(
        text.astype(np.int32), edges.copy(), np.diff(edges).astype(np.int32), counts.copy()
    )
    narrow, wide = np.empty(1024, np.int32), np.empty(1024, np.int64)
    pairs = Pairs(
        np.full(2048, -1, np.int32),
        narrow.copy(),
        narrow.copy(),
        wide.copy(),
        wide.copy(),
        wide.copy(),
        wide.copy(),
        narrow.copy(),
    )
    found = Found(narrow.copy(), narrow.copy(), narrow.copy())
    symbols = Symbols(np.arange(256, dtype=np.uint8), np.zeros(num_merges + 257, np.int64))
    symbols.edges[:257] = np.arange(257)
    merges = np.empty((num_merges, 2), np.int64)
    state = np.array([0, 0, 0, 0, FIRST_PASS], np.int64)
    while not _learn(pre_tokens, pairs, found, symbols, merges, state, max(1, min_frequency)):
        pairs, found, symbols = _grow(pre_tokens, pairs, found, symbols, state)
    return [(int(left), int(right)) for left, right in merges[: state[NUM_DONE]].tolist()]
