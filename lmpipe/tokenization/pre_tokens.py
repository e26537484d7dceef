r"""Count pre-tokens: a compiled scanner of the published patterns, and a table of counts.

The scanner walks UTF-8 as it lies in Arrow's buffers and needs no Python object per pre-token; it
releases the GIL, so threads share the work. It is a hand-written matcher: each alternative of the
patterns is decided by one look ahead, except o200k's words, whose only way back is stated there.
The alternative, the module `regex`, takes about 1 µs a pre-token and holds the GIL.

The tests hold it equal to `regex` and to tiktoken on random Unicode.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from lmpipe.tokenization.compiled import compiled
from lmpipe.tokenization.patterns import FAMILIES, PatternName, max_digits

U8 = NDArray[np.uint8]
I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]

# numpy integers, because each literal that a compiled function is called with compiles it again
LETTER, NUMBER, SPACE, NEWLINE, UPPER, LOWER = (cast(int, np.int64(1 << bit)) for bit in range(6))
SHORT_BYTES = 15  # pre-tokens whose bytes are their key
ONE = cast(int, np.int64(1))
ANY_CASE = cast(bool, np.bool_(True))
_GPT2, _CL100K, _O200K = FAMILIES["gpt2"], FAMILIES["cl100k"], FAMILIES["o200k"]
_WHITE_SPACE = [*range(9, 14), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B)]
_WHITE_SPACE += [0x2028, 0x2029, 0x202F, 0x205F, 0x3000]

NUM_PRE_TOKENS, DOCUMENT, POSITION = range(3)  # places in a table's state


class Table(NamedTuple):
    """Pre-tokens and their counts.

    A slot is four words: key, key, number of the pre-token, and one unused, so that no slot spans
    two cache lines. The second is 0 in a free slot.
    """

    slots: U64
    words: U8  # the bytes of all pre-tokens
    ends: I64
    counts: I64
    state: I64  # at NUM_PRE_TOKENS, and where a scan stands: DOCUMENT, POSITION


@cache
def character_kinds() -> NDArray[np.uint8]:
    """Return the classes of every code point as bits.

    From a file and not from the module `regex`, whose tables are newer than tiktoken's: the same
    text would be cut otherwise by the two, and otherwise again after an upgrade.
    """
    lines = (Path(__file__).parent / "characters.txt").read_text(encoding="utf-8").splitlines()
    runs = np.array([line.split() for line in lines if line[0] != "#"])
    starts, bits = (np.array([int(field, 16) for field in column]) for column in runs.T)
    kinds = np.repeat(bits.astype(np.uint8), np.diff(starts, append=0x110000))
    kinds[_WHITE_SPACE] |= np.uint8(SPACE)
    kinds[[10, 13]] |= np.uint8(NEWLINE)
    return kinds


@compiled
def _decode(
    text: U8,
    i: int,
    stop: int,
) -> tuple[Any, int]:
    """Return the code point at i and where the next one starts; broken UTF-8 counts as bytes."""
    lead = np.int64(text[i])
    if lead < 0x80:
        return lead, i + 1
    size = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
    if lead < 0xC0 or i + size > stop:
        return np.int64(0), i + 1
    code = lead & (0x7F >> size)
    for k in range(1, size):
        code = (code << 6) | (np.int64(text[i + k]) & 0x3F)
    return (code if code < 0x110000 else np.int64(0)), i + size


@compiled
def _run(
    text: U8,
    i: int,
    stop: int,
    kinds: U8,
    wanted: int,
    limit: int,
) -> int:
    """Return the end of the run of characters from i that have one of the wanted bits."""
    count = 0
    while i < stop and count < limit:
        if text[i] < 0x80:  # most text: no decoding
            if not kinds[text[i]] & wanted:
                break
            i += 1
            count += 1
            continue
        code, after = _decode(text, i, stop)
        if not kinds[code] & wanted:
            break
        i = after
        count += 1
    return i


@compiled
def _others(
    text: U8,
    i: int,
    stop: int,
    kinds: U8,
) -> int:
    """Return the end of the run of [^\\s\\p{L}\\p{N}] from i."""
    while i < stop:
        code, after = _decode(text, i, stop)
        if kinds[code] & (LETTER | NUMBER | SPACE):
            break
        i = after
    return i


@compiled
def _contraction(
    text: U8,
    i: int,
    stop: int,
    any_case: bool,
) -> int:
    """Return the end of 's, 't, 're, 've, 'm, 'll or 'd at i, or i."""
    if i + 1 >= stop or text[i] != 39:
        return i
    fold = 0x20 if any_case else 0
    a = text[i + 1] | fold
    if a == 115 or a == 100 or a == 109 or a == 116:  # s d m t
        return i + 2
    if i + 2 < stop:
        b = text[i + 2] | fold
        if (a == 108 and b == 108) or ((a == 118 or a == 114) and b == 101):  # ll ve re
            return i + 3
        # U+017F, the long s, is an s to any matcher that folds case
        if any_case and text[i + 1] == 0xC5 and text[i + 2] == 0xBF:
            return i + 3
    return i


@compiled
def _cased_word(
    text: U8,
    i: int,
    stop: int,
    kinds: U8,
    need_lower: bool,
) -> int:
    """Return the end of UPPER* LOWER+ (need_lower) or UPPER+ LOWER* at i, or i."""
    j, last_both = i, i
    while j < stop:
        code, after = _decode(text, j, stop)
        if not kinds[code] & UPPER:
            break
        j = after
        if kinds[code] & LOWER:
            last_both = after
    end = _run(text, j, stop, kinds, LOWER, stop)
    if need_lower:
        # UPPER* took all: it gives back as far as the last letter that LOWER can take
        return end if end > j else last_both
    return end if j > i else i


@compiled
def _o200k_word(
    text: U8,
    i: int,
    stop: int,
    kinds: U8,
    bare: int,
) -> int:
    """Return the end of o200k's two word alternatives at i; bare is i past an optional prefix."""
    for need_lower in (True, False):
        if bare > i:
            end = _cased_word(text, bare, stop, kinds, need_lower)
            if end > bare:
                return _contraction(text, end, stop, ANY_CASE)
        end = _cased_word(text, i, stop, kinds, need_lower)
        if end > i:
            return _contraction(text, end, stop, ANY_CASE)
    return i


@compiled
def _white_space(
    text: U8,
    i: int,
    stop: int,
    kinds: U8,
    family: int,
) -> int:
    """Return the end of the white-space pre-token at i."""
    j, last, last_newline = i, i, i
    while j < stop:
        code, after = _decode(text, j, stop)
        if not kinds[code] & SPACE:
            break
        last, j = j, after
        if kinds[code] & NEWLINE:
            last_newline = after
    if family != _GPT2 and last_newline > i:
        return last_newline
    # the last one goes with the word that follows, unless it stands alone
    return last if j < stop and last > i else j


@compiled
def next_pre_token(
    text: U8,
    i: int,
    stop: int,
    kinds: U8,
    family: int,
    digits: int,
) -> int:
    """Return the end of the pre-token that starts at i < stop."""
    code, after = _decode(text, i, stop)
    kind = kinds[code]
    if code == 39 and family != _O200K:
        end = _contraction(text, i, stop, family == _CL100K)
        if end > i:
            return end
    if family == _O200K:
        prefix = not kind & (NEWLINE | LETTER | NUMBER)
        end = _o200k_word(text, i, stop, kinds, after if prefix else i)
        if end > i:
            return end
    elif kind & LETTER:
        return _run(text, after, stop, kinds, LETTER, stop)
    if kind & NUMBER:
        return _run(text, after, stop, kinds, NUMBER, digits - 1)
    if after < stop and (code == 32 or family == _CL100K):
        next_kind = kinds[_decode(text, after, stop)[0]]
        if next_kind & LETTER and not kind & NEWLINE and family != _O200K:
            return _run(text, after, stop, kinds, LETTER, stop)
        if code == 32 and family == _GPT2 and next_kind & NUMBER:
            return _run(text, after, stop, kinds, NUMBER, digits)
    end = _others(text, after if code == 32 else i, stop, kinds)
    if end > after or (code != 32 and end > i):
        while family != _GPT2 and end < stop:
            byte = text[end]
            if byte != 10 and byte != 13 and (byte != 47 or family != _O200K):
                break
            end += 1
        return end
    return _white_space(text, i, stop, kinds, family)


@compiled
def pre_token_key(text: U8, start: int, stop: int) -> tuple[Any, Any]:
    """Return the two words that stand for a pre-token; those of a long one are its hash."""
    low, high = np.uint64(0), np.uint64(0)
    size = stop - start
    if size <= SHORT_BYTES:
        for k in range(min(size, 8)):
            low |= np.uint64(text[start + k]) << np.uint64(8 * k)
        for k in range(8, size):
            high |= np.uint64(text[start + k]) << np.uint64(8 * (k - 8))
        return low, high | (np.uint64(size) << np.uint64(56))
    low = np.uint64(0xCBF29CE484222325)
    for k in range(start, stop):
        low = (low ^ np.uint64(text[k])) * np.uint64(0x100000001B3)
    return low, np.uint64(0xFF) << np.uint64(56)


@compiled
def find_pre_token(table: Any, text: U8, start: int, stop: int, low: Any, high: Any) -> Any:
    """Return the slot of a pre-token, or the free one where it would be."""
    slots = table.slots
    mask = np.uint64(slots.size // 4 - 1)
    mixed = (low ^ (high * np.uint64(0x9E3779B97F4A7C15))) * np.uint64(0xD6E8FEB86659FD93)
    slot = (mixed ^ (mixed >> np.uint64(32))) & mask
    size = stop - start
    while True:
        place = np.int64(slot) * 4
        found = slots[place + 1]
        if found == 0:
            return place
        if slots[place] == low:
            if size <= SHORT_BYTES:
                if found == high:
                    return place
            elif found >> np.uint64(56) == 0xFF:
                word = np.int64(found & np.uint64(0xFFFFFFFF))
                begin = table.ends[word]
                if table.ends[word + 1] - begin == size:
                    k = 0
                    while k < size and table.words[begin + k] == text[start + k]:
                        k += 1
                    if k == size:
                        return place
        slot = (slot + np.uint64(1)) & mask


@compiled
def _insert(table: Table, text: U8, start: int, stop: int, place: int, amount: int) -> bool:
    """Give a pre-token a number and its first count; False when the arrays must grow first."""
    low, high = pre_token_key(text, start, stop)
    size = stop - start
    word = table.state[NUM_PRE_TOKENS]
    used = table.ends[word]
    if word >= table.counts.size or used + size > table.words.size:
        return False
    table.slots[place] = low
    table.slots[place + 1] = high if size <= SHORT_BYTES else high | np.uint64(word)
    table.slots[place + 2] = np.uint64(word)
    for k in range(size):  # slices would compile numba's message about unequal shapes: 4 s
        table.words[used + k] = text[start + k]
    table.ends[word + 1] = used + size
    table.counts[word] = amount
    table.state[NUM_PRE_TOKENS] = word + 1
    return True


@compiled
def _count_documents(table: Table, text: U8, edges: I64, rules: I64, kinds: U8) -> bool:
    """Count pre-tokens of all documents from where `state` says on; False when arrays are full."""
    family, digits, cap = rules[0], rules[1], rules[2]
    state = table.state
    while state[DOCUMENT] < edges.size - 1:
        stop = edges[state[DOCUMENT] + 1]
        position = max(state[POSITION], edges[state[DOCUMENT]])
        while position < stop:
            end = next_pre_token(text, position, stop, kinds, family, digits)
            while position < end:
                # a pre-token over the cap is cut, never inside a character
                cut = end
                if end - position > cap:
                    cut = position + cap
                    while cut > position + 1 and text[cut] & 0xC0 == 0x80:
                        cut -= 1
                low, high = pre_token_key(text, position, cut)
                place = find_pre_token(table, text, position, cut, low, high)
                if table.slots[place + 1] != 0:
                    table.counts[np.int64(table.slots[place + 2])] += ONE
                elif not _insert(table, text, position, cut, place, ONE):
                    state[POSITION] = position
                    return False
                position = cut
        state[DOCUMENT] += 1
    return True


@compiled
def _merge(table: Table, source: U8, source_ends: I64, source_counts: I64) -> bool:
    """Add counted pre-tokens from where `state` says; False when arrays are full."""
    while table.state[DOCUMENT] < source_counts.size:
        i = table.state[DOCUMENT]
        start, stop = source_ends[i], source_ends[i + 1]
        low, high = pre_token_key(source, start, stop)
        place = find_pre_token(table, source, start, stop, low, high)
        if table.slots[place + 1] != 0:
            table.counts[np.int64(table.slots[place + 2])] += source_counts[i]
        elif not _insert(table, source, start, stop, place, source_counts[i]):
            return False
        table.state[DOCUMENT] += 1
    return True


@compiled
def _refill(table: Table) -> None:
    """Put every word into new slots."""
    for word in range(table.state[NUM_PRE_TOKENS]):
        start, stop = table.ends[word], table.ends[word + 1]
        low, high = pre_token_key(table.words, start, stop)
        place = find_pre_token(table, table.words, start, stop, low, high)
        table.slots[place] = low
        table.slots[place + 1] = high if stop - start <= SHORT_BYTES else high | np.uint64(word)
        table.slots[place + 2] = np.uint64(word)


class PreTokenCounts:
    """How often each distinct pre-token occurs.

    Invariants: counts are int64; the counts of two halves added equal the counts of the whole, so
    any number of workers gives the same.

    Args:
        cap: bytes; longer pre-tokens are counted in parts (runs of one character, languages
            without spaces), which bounds the longest token too.
    """

    def __init__(self, pattern: PatternName, digits: int, cap: int) -> None:
        family = FAMILIES.get(pattern, -1)
        limit = max_digits(pattern, digits) if family >= 0 else 0
        self._rules = np.array([family, limit, cap], np.int64)
        self._table = Table(
            np.zeros(4 << 12, np.uint64),
            np.empty(1 << 14, np.uint8),
            np.zeros((1 << 11) + 1, np.int64),
            np.empty(1 << 11, np.int64),
            np.zeros(3, np.int64),
        )

    def __len__(self) -> int:
        return int(self._table.state[NUM_PRE_TOKENS])

    @property
    def counts(self) -> NDArray[np.int64]:
        """The count of each distinct pre-token."""
        return self._table.counts[: len(self)]

    @property
    def edges(self) -> NDArray[np.int64]:
        """Where the bytes of each distinct pre-token start, and the end of the last."""
        return self._table.ends[: len(self) + 1]

    @property
    def text(self) -> NDArray[np.uint8]:
        """The bytes of all distinct pre-tokens, one after the other."""
        return self._table.words[: self.edges[-1]]

    def items(self) -> Iterator[tuple[bytes, int]]:
        """Yield every distinct pre-token and its count."""
        data, edges = self.text.tobytes(), self.edges.tolist()
        for i, count in enumerate(self.counts.tolist()):
            yield data[edges[i] : edges[i + 1]], count

    def add_documents(self, text: NDArray[np.uint8], edges: NDArray[np.int64]) -> None:
        """Cut documents (UTF-8, document i at [edges[i], edges[i+1])) by the published pattern."""
        self._table.state[1:] = 0
        kinds = character_kinds()
        while not _count_documents(self._table, text, edges, self._rules, kinds):
            self._grow()

    def add_pre_tokens(
        self, pre_tokens: list[bytes], amounts: NDArray[np.int64] | None = None
    ) -> None:
        """Count pre-tokens that were cut elsewhere, or that have counts already."""
        sizes = np.fromiter(map(len, pre_tokens), np.int64, len(pre_tokens))
        edges = np.concatenate([[0], np.cumsum(sizes)])
        amounts = np.ones(len(pre_tokens), np.int64) if amounts is None else amounts
        self._add_counted(np.frombuffer(b"".join(pre_tokens), np.uint8), edges, amounts)

    def update(self, other: "PreTokenCounts") -> None:
        """Add the counts of another table."""
        text = other.text
        text.flags.writeable = False  # one compiled variant for Arrow's buffers and for these
        self._add_counted(text, other.edges, other.counts)

    def _add_counted(
        self, text: NDArray[np.uint8], edges: NDArray[np.int64], amounts: NDArray[np.int64]
    ) -> None:
        self._table.state[1:] = 0
        while not _merge(self._table, text, edges, amounts):
            self._grow()

    def _grow(self) -> None:
        """Double what is full; the slots stay at most half full."""
        table = self._table
        if len(self) < table.counts.size:
            self._table = table._replace(words=np.resize(table.words, 2 * table.words.size))
            return
        room = 2 * len(self)
        self._table = Table(
            np.zeros(4 * 2 * room, np.uint64),
            table.words,
            np.resize(table.ends, room + 1),
            np.resize(table.counts, room),
            table.state,
        )
        _refill(self._table)
