import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lmpipe.tokenization.bpe_training import learn_merges
from tests.tokenization import reference

# few letters give overlaps and ties; any bytes give signs and high values
WORDS = st.dictionaries(
    st.one_of(
        st.text("ab", min_size=1, max_size=9).map(str.encode),
        st.text("abcd", min_size=1, max_size=6).map(str.encode),
        st.binary(min_size=1, max_size=5),
    ),
    st.integers(1, 5),
    max_size=12,
)


def learn(
    words: dict[bytes, int], num_merges: int, min_frequency: int = 1
) -> list[tuple[bytes, bytes]]:
    text = np.frombuffer(b"".join(words), np.uint8)
    edges = np.cumsum([0, *map(len, words)])
    counts = np.array([*words.values()], np.int64)
    rows = learn_merges(text, edges, counts, num_merges=num_merges, min_frequency=min_frequency)
    symbols = [bytes([byte]) for byte in range(256)]
    merges = []
    for left, right in rows:
        merges.append((symbols[left], symbols[right]))
        symbols.append(symbols[left] + symbols[right])
    return merges


@given(WORDS, st.integers(0, 40), st.integers(1, 4))
@settings(deadline=None, max_examples=600)
def test_merges_equal_those_of_the_slow_definition(
    words: dict[bytes, int], num_merges: int, min_frequency: int
) -> None:
    expected = reference.train(words, num_merges, min_frequency)
    assert learn(words, num_merges, min_frequency) == expected


@given(WORDS, st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=200)
def test_the_order_of_pre_tokens_does_not_matter(words: dict[bytes, int], random: object) -> None:
    shuffled = [*words.items()]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert learn(dict(shuffled), 30) == learn(words, 30)


@given(WORDS)
@settings(deadline=None, max_examples=300)
def test_no_two_merges_make_the_same_bytes(words: dict[bytes, int]) -> None:
    made = [left + right for left, right in learn(words, 60)]
    assert len(set(made)) == len(made)


def test_ties_go_to_the_greater_pair_of_byte_strings() -> None:
    assert learn({b"ab": 2, b"cd": 2, b"ca": 2}, 3) == [(b"c", b"d"), (b"c", b"a"), (b"a", b"b")]
    # as pairs, not as joined bytes: ("ab", "b") is above ("a", "bc")
    words = {b"ab": 9, b"bc": 9, b"xabb": 1, b"yabc": 1}
    assert learn(words, 9) == reference.train(words, 9, 1)


def test_the_most_frequent_pair_is_merged_above_two_to_the_31() -> None:
    words = {b"ab": 2**31 + 5, b"cd": 2**31 - 1, b"abx": 2**31, b"ef": 7}
    merges = learn(words, 4, 2)
    assert merges[0] == (b"a", b"b")  # 4.3e9 of them: negative in 32 bits
    assert merges == reference.train(words, 4, 2)


def test_rare_pairs_are_left_alone() -> None:
    assert learn({b"ab": 3, b"cd": 2}, 10, min_frequency=3) == [(b"a", b"b")]
    assert learn({}, 10) == []
