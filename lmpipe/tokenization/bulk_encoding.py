"""Encode whole buffers of documents: scan, look pre-tokens up, merge the few that are new.

Text comes as it lies in Arrow's buffers and tokens go into one array, so there is no Python object
per pre-token or per token, and the GIL is free. A table maps pre-tokens to their tokens: it begins
with the vocabulary and keeps pre-tokens that had to be merged. Keys of up to 15 bytes are compared
as two words beside their value, so a common pre-token costs one cache line.

The merge rule is tiktoken's, over the same ranks: a pre-token that is a token is that token; else
the neighbours whose joined bytes have the lowest rank are joined first, from the left. tiktoken
itself spends most of its time in a general regular expression and in a list of Python integers
(LOG).
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmpipe.tokenization.compiled import compiled
from lmpipe.tokenization.pre_tokens import (
    SHORT_BYTES,
    character_kinds,
    find_pre_token,
    next_pre_token,
    pre_token_key,
)

U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]

NO_RANK = 1 << 30
MAX_KEPT_BYTES = 64  # longer pre-tokens are merged anew each time
SCAN_BYTES = 48  # up to here a scan for the lowest rank beats a heap
MAX_KEPT_PRE_TOKENS = 1 << 17

# places in the state
NUM_LONG, NUM_STORED, NUM_KEPT, DOCUMENT, POSITION, FILLED, ROOM = range(7)


class Tables(NamedTuple):
    """What an encoder looks up; all of it is shared by the calls of one thread."""

    slots: U64  # four words each: key, key, value, unused; the second is 0 in a free one
    pairs: U64  # two words each: left and right token plus 1, rank
    words: U8  # bytes of the long pre-tokens
    ends: I64
    stored: U32  # tokens of the pre-tokens that have several
    state: I64


class Scratch(NamedTuple):
    """Room to merge one pre-token in, per byte of it."""

    symbol: I64
    rank: I64
    following: I64
    previous: I64
    heap: I64


@compiled
def _put(tables: Tables, text: U8, start: int, stop: int, place: int, value: Any) -> bool:
    """Store a pre-token in a free slot; False when there is no room for its bytes."""
    low, high = pre_token_key(text, start, stop)
    size = stop - start
    if size > SHORT_BYTES:
        word = tables.state[NUM_LONG]
        begin = tables.ends[word]
        if word + 2 > tables.ends.size or begin + size > tables.words.size:
            return False
        for k in range(size):
            tables.words[begin + k] = text[start + k]
        tables.ends[word + 1] = begin + size
        tables.state[NUM_LONG] = word + 1
        high |= np.uint64(word)
    tables.slots[place], tables.slots[place + 1] = low, high
    tables.slots[place + 2] = value
    return True


@compiled
def _add_tokens(tables: Tables, data: U8, edges: I64, ids: I64) -> None:
    """Put every token of the vocabulary into the table."""
    for i in range(ids.size):
        low, high = pre_token_key(data, edges[i], edges[i + 1])
        place = find_pre_token(tables, data, edges[i], edges[i + 1], low, high)
        _put(
            tables, data, edges[i], edges[i + 1], place,
            (np.uint64(ids[i]) << np.uint64(8)) | np.uint64(1),
        )  # fmt: skip


@compiled
def _pair_place(pairs: U64, left: Any, right: Any) -> Any:
    """Return the place of a pair of tokens, or the free one where it would be."""
    key = ((np.uint64(left) << np.uint64(32)) | np.uint64(right)) + np.uint64(1)
    mask = np.uint64(pairs.size // 2 - 1)
    mixed = key * np.uint64(0x9E3779B97F4A7C15)
    slot = (mixed ^ (mixed >> np.uint64(32))) & mask
    while pairs[np.int64(slot) * 2] != 0 and pairs[np.int64(slot) * 2] != key:
        slot = (slot + np.uint64(1)) & mask
    return np.int64(slot) * 2


@compiled
def _rank(pairs: U64, left: Any, right: Any) -> Any:
    place = _pair_place(pairs, left, right)
    return np.int64(pairs[place + 1]) if pairs[place] != 0 else np.int64(NO_RANK)


@compiled
def _add_pairs(tables: Tables, data: U8, edges: I64, ids: I64) -> int:
    """Find every way to cut a token into two; return how many, and store them if there is room."""
    count = 0
    room = tables.pairs.size // 4
    for i in range(ids.size):
        start, stop = edges[i], edges[i + 1]
        for middle in range(start + 1, stop):
            low, high = pre_token_key(data, start, middle)
            left = find_pre_token(tables, data, start, middle, low, high)
            low, high = pre_token_key(data, middle, stop)
            right = find_pre_token(tables, data, middle, stop, low, high)
            if tables.slots[left + 1] == 0 or tables.slots[right + 1] == 0:
                continue
            count += 1
            if count <= room:
                a = tables.slots[left + 2] >> np.uint64(8)
                b = tables.slots[right + 2] >> np.uint64(8)
                place = _pair_place(tables.pairs, a, b)
                tables.pairs[place] = ((a << np.uint64(32)) | b) + np.uint64(1)
                tables.pairs[place + 1] = np.uint64(ids[i])
    return count


@compiled
def _merge_by_scan(pairs: U64, size: int, work: Scratch) -> int:
    """Merge symbols in place, looking at all ranks for each merge; return how many are left."""
    symbol, rank = work.symbol, work.rank
    for k in range(size - 1):
        rank[k] = _rank(pairs, symbol[k], symbol[k + 1])
    while size > 1:
        best, at = np.int64(NO_RANK), 0
        for k in range(size - 1):
            if rank[k] < best:
                best, at = rank[k], k
        if best == NO_RANK:
            break
        symbol[at] = best
        size -= 1
        for k in range(at + 1, size):
            symbol[k] = symbol[k + 1]
        for k in range(at + 1, size - 1):
            rank[k] = rank[k + 1]
        if at + 1 < size:
            rank[at] = _rank(pairs, best, symbol[at + 1])
        if at > 0:
            rank[at - 1] = _rank(pairs, symbol[at - 1], best)
    return size


@compiled
def _push(heap: I64, size: int, entry: Any) -> int:
    place = size
    while place > 0 and heap[(place - 1) >> 1] > entry:
        heap[place] = heap[(place - 1) >> 1]
        place = (place - 1) >> 1
    heap[place] = entry
    return size + 1


@compiled
def _pop(heap: I64, size: int) -> int:
    """Take the least entry off the heap; return the size that is left."""
    size -= 1
    entry, place = heap[size], 0
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= entry:
            break
        heap[place] = heap[child]
        place = child
    heap[place] = entry
    return size


@compiled
def _merge_by_heap(pairs: U64, size: int, work: Scratch) -> int:
    """Merge symbols in place by a heap of (rank, position); return how many are left."""
    symbol, rank, following, previous = work.symbol, work.rank, work.following, work.previous
    heap_size = 0
    for k in range(size):
        following[k], previous[k] = k + 1, k - 1
        rank[k] = _rank(pairs, symbol[k], symbol[k + 1]) if k + 1 < size else NO_RANK
        if rank[k] != NO_RANK:
            heap_size = _push(work.heap, heap_size, (rank[k] << 32) | k)
    while heap_size > 0:
        entry = work.heap[0]
        heap_size = _pop(work.heap, heap_size)
        at, best = entry & 0xFFFFFFFF, entry >> 32
        if rank[at] != best:
            continue  # one of the two has been merged since
        gone = following[at]
        symbol[at], rank[gone] = best, -1
        after = following[gone]
        following[at] = after
        rank[at] = NO_RANK
        if after < size:
            previous[after] = at
            rank[at] = _rank(pairs, best, symbol[after])
            if rank[at] != NO_RANK:
                heap_size = _push(work.heap, heap_size, (rank[at] << 32) | at)
        before = previous[at]
        if before >= 0:
            rank[before] = _rank(pairs, symbol[before], best)
            if rank[before] != NO_RANK:
                heap_size = _push(work.heap, heap_size, (rank[before] << 32) | before)
    count, at = 0, 0
    while at < size:
        symbol[count] = symbol[at]
        count += 1
        at = following[at]
    return count


@compiled
def _new_pre_token(
    tables: Tables, byte_ids: I64, work: Scratch, text: U8, start: int, end: int, place: int,
    out: U32, filled: int,
) -> int:  # fmt: skip
    """Merge a pre-token that is not in the table, keep it there, and return where tokens end."""
    size = end - start
    for k in range(size):
        work.symbol[k] = byte_ids[text[start + k]]
    if size <= SCAN_BYTES:
        count = _merge_by_scan(tables.pairs, size, work)
    else:
        count = _merge_by_heap(tables.pairs, size, work)
    for k in range(count):
        out[filled + k] = work.symbol[k]
    state = tables.state
    begin = state[NUM_STORED]
    if (
        size <= MAX_KEPT_BYTES
        and state[NUM_KEPT] < MAX_KEPT_PRE_TOKENS
        and begin + count <= tables.stored.size
    ):
        value = (np.uint64(begin) << np.uint64(8)) | np.uint64(count)
        if count == 1:
            value = (np.uint64(work.symbol[0]) << np.uint64(8)) | np.uint64(1)
        if _put(tables, text, start, end, place, value):
            for k in range(count):
                tables.stored[begin + k] = work.symbol[k]
            state[NUM_STORED] = begin + count
            state[NUM_KEPT] += 1
    return filled + count


@compiled
def _encode(
    tables: Tables, byte_ids: I64, work: Scratch, rules: I64, kinds: U8, text: U8, edges: I64,
    out: U32, out_edges: I64,
) -> bool:  # fmt: skip
    """Encode documents from where the state says; False when a pre-token needs more scratch."""
    family, digits, end_token = rules[0], rules[1], rules[2]
    state = tables.state
    filled = state[FILLED]
    while state[DOCUMENT] < edges.size - 1:
        stop = edges[state[DOCUMENT] + 1]
        position = max(state[POSITION], edges[state[DOCUMENT]])
        while position < stop:
            end = next_pre_token(text, position, stop, kinds, family, digits)
            low, high = pre_token_key(text, position, end)
            place = find_pre_token(tables, text, position, end, low, high)
            if tables.slots[place + 1] != 0:
                value = tables.slots[place + 2]
                count = np.int64(value & np.uint64(0xFF))
                payload = np.int64(value >> np.uint64(8))
                if count == 1:
                    out[filled] = payload
                else:
                    for k in range(count):
                        out[filled + k] = tables.stored[payload + k]
                filled += count
            else:
                if end - position > work.symbol.size:
                    state[POSITION], state[FILLED], state[ROOM] = position, filled, end - position
                    return False
                filled = _new_pre_token(
                    tables, byte_ids, work, text, position, end, place, out, filled
                )
            position = end
        if end_token >= 0:
            out[filled] = end_token
            filled += 1
        state[DOCUMENT] += 1
        out_edges[state[DOCUMENT]] = filled
    state[FILLED] = filled
    return True


class BufferEncoder:
    """Encodes documents that lie in one buffer. One thread at a time; `copy` gives another.

    Args:
        ranks: the bytes of every ordinary token and its id; all 256 bytes are among them.
        family, digits: the pattern, as `pre_tokens.next_pre_token` takes it.
        end_token: put behind every document; below zero: nothing.
    """

    def __init__(
        self, ranks: dict[bytes, int], family: int, digits: int, end_token: int = -1
    ) -> None:
        assert all(bytes([byte]) in ranks for byte in range(256)), "a byte has no token"
        assert max(ranks.values()) < NO_RANK, "an id does not fit"
        data = np.frombuffer(b"".join(ranks), np.uint8)
        sizes = np.fromiter(map(len, ranks), np.int64, len(ranks))
        edges = np.concatenate([[0], np.cumsum(sizes)])
        ids = np.fromiter(ranks.values(), np.int64, len(ranks))
        self._byte_ids = np.array([ranks[bytes([byte])] for byte in range(256)], np.int64)
        self._rules = np.array([family, digits, end_token], np.int64)
        num_slots = 1 << (2 * (len(ranks) + MAX_KEPT_PRE_TOKENS)).bit_length()
        long_bytes = int(sizes[sizes > SHORT_BYTES].sum())
        self._tables = Tables(
            np.zeros(4 * num_slots, np.uint64),
            np.zeros(8, np.uint64),
            np.empty(long_bytes + 16 * MAX_KEPT_PRE_TOKENS, np.uint8),
            np.zeros(len(ranks) + MAX_KEPT_PRE_TOKENS + 1, np.int64),
            np.empty(4 * MAX_KEPT_PRE_TOKENS, np.uint32),
            np.zeros(7, np.int64),
        )
        _add_tokens(self._tables, data, edges, ids)
        num_pairs = _add_pairs(self._tables, data, edges, ids)
        pairs = np.zeros(2 << (2 * num_pairs + 1).bit_length(), np.uint64)
        self._tables = self._tables._replace(pairs=pairs)
        _add_pairs(self._tables, data, edges, ids)
        self._scratch = _scratch(1 << 10)

    def copy(self) -> "BufferEncoder":
        """Return an encoder for another thread, with what this one has learnt so far."""
        other = object.__new__(type(self))
        other._byte_ids, other._rules = self._byte_ids, self._rules
        mine = self._tables
        other._tables = Tables(
            mine.slots.copy(), mine.pairs, mine.words.copy(), mine.ends.copy(),
            mine.stored.copy(), mine.state.copy(),
        )  # fmt: skip
        other._scratch = _scratch(1 << 10)
        return other

    def encode(self, text: U8, edges: I64) -> tuple[U32, I64]:
        """Encode document i, UTF-8 at [edges[i], edges[i+1]).

        Returns:
            All tokens, and the edges of each document's.
        """
        num_documents = edges.size - 1
        out = np.empty(int(edges[-1] - edges[0]) + num_documents, np.uint32)
        out_edges = np.zeros(num_documents + 1, np.int64)
        state = self._tables.state
        state[DOCUMENT:] = 0
        while not _encode(
            self._tables, self._byte_ids, self._scratch, self._rules, character_kinds(), text,
            edges, out, out_edges,
        ):  # fmt: skip
            self._scratch = _scratch(2 * int(state[ROOM]))
        return out[: state[FILLED]], out_edges


def _scratch(size: int) -> Scratch:
    # a merge pushes at most two entries, and there are fewer merges than bytes
    symbol, rank, following, previous = (np.empty(size, np.int64) for _ in range(4))
    return Scratch(symbol, rank, following, previous, np.empty(3 * size, np.int64))
