import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmpipe.curation.text.word_hashes import find_ngrams, hash_filter, hash_words, ngram_hashes


def spans(text: str) -> list[str]:
    words = hash_words([text])
    data = text.encode()
    return [data[s:e].decode() for s, e in zip(words.starts, words.ends, strict=True)]


def test_splits_at_everything_but_letters_and_digits():
    assert spans("  Hello,World! don't x_y 3.14\n") == [
        "Hello", "World", "don", "t", "x", "y", "3", "14"
    ]  # fmt: skip


def test_each_character_is_a_word_where_scripts_have_no_spaces():
    assert spans("日本語のPython、ไทย") == ["日", "本", "語", "の", "Python", "ไ", "ท", "ย"]


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("Straße NAÏVE Ⅷ", "straße naive Ⅷ"),
        ("café", "cafe\u0301"),
        ("ｆｕｌｌ width", "full, width"),
        ("soft\u00adhyphen", "softhyphen"),
        ("ÉCOLE  «école»", "école École"),
    ],
)
def test_case_accents_punctuation_and_forms_do_not_count(one: str, two: str):
    first, second = hash_words([one]), hash_words([two])
    assert first.hashes.tolist() == second.hashes.tolist()
    assert (first.digests == second.digests).all()


def test_order_and_word_borders_count():
    texts = ["a b", "b a", "ab", "a b b", "", "a", "ba"]
    digests = {tuple(row) for row in hash_words(texts).digests.tolist()}
    assert len(digests) == len(texts)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=40), max_size=8))
def test_a_batch_equals_its_texts_one_by_one(texts: list[str]):
    batch = hash_words(texts)
    for index, text in enumerate(texts):
        alone = hash_words([text])
        words = slice(batch.offsets[index], batch.offsets[index + 1])
        assert batch.hashes[words].tolist() == alone.hashes.tolist()
        assert batch.digests[index].tolist() == alone.digests[0].tolist()
        assert batch.ends[words].tolist() == alone.ends.tolist()
        assert all(end <= len(text.encode()) for end in alone.ends)


def test_arrow_slices_chunks_and_nulls_hash_like_lists():
    column = pa.chunked_array([["zero", None], ["two 二", ""]])
    expected = hash_words(["zero", "", "two 二", ""])
    assert hash_words(column).hashes.tolist() == expected.hashes.tolist()
    assert hash_words(column.slice(1)).offsets.tolist() == [0, 0, 2, 2]
    sliced = pa.array(["skip me", "two 二"]).slice(1)
    assert hash_words(sliced).hashes.tolist() == hash_words(["two 二"]).hashes.tolist()
    assert hash_words([]).offsets.tolist() == [0]


def test_ngrams_roll_to_the_same_hash_wherever_they_stand():
    words = hash_words(["one two three four five", "zero one two three", "x"])
    hashes, offsets = ngram_hashes(words, 3)
    assert offsets.tolist() == [0, 3, 5, 5]
    assert hashes[0] == hashes[4]
    assert len(set(hashes.tolist())) == 4
    assert len(set(ngram_hashes(words, 2)[0].tolist()) & set(hashes.tolist())) == 0


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=60), st.integers(1, 6))
def test_search_finds_exactly_the_wanted_ngrams(letters: list[str], length: int):
    words = hash_words([" ".join(letters)])
    wanted = np.unique(ngram_hashes(hash_words(["a b c d a b c"]), length)[0])
    found = find_ngrams(words, np.array([length]), wanted, hash_filter(wanted))
    grams = {tuple("abcdabc"[i : i + length]) for i in range(8 - length)}
    expected = [
        i for i in range(len(letters) - length + 1) if tuple(letters[i : i + length]) in grams
    ]
    assert found[:, 1].tolist() == expected
    assert (found[:, 2] - found[:, 1] == length).all()


def test_search_outgrows_its_first_room():
    words = hash_words(["a " * 5000])
    wanted = ngram_hashes(hash_words(["a"]), 1)[0]
    assert len(find_ngrams(words, np.array([1]), wanted, hash_filter(wanted))) == 5000


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("a + b", "a - b"),
        ("a+b", "a-b+"),
        ("a - b", "a b"),
        ("a * b", "a / b"),
        ("written in C++", "written in C#"),
        ("written in C", "written in C#"),
        ("−5 degrees", "5 degrees"),
        ("-5 degrees", "5 degrees"),
        ("–5 degrees", "5 degrees"),
        ("x = -y", "x = y"),
        ("i++", "i--"),
        ("a == b", "a = b"),
        ("a != b", "a = b"),
        ("a!=b", "a=b"),
        ("if (!ready)", "if (ready)"),
        ("a && b", "a || b"),
        ("a <= b", "a < b"),
        ("x ∈ A ∪ B", "x ∈ A ∩ B"),
        ("3 × 4", "3 ÷ 4"),
        ("x² and 10⁵", "x2 and 105"),
        ("½ cup", "1 cup"),
        ("1/2", "1 2"),
        ("5 %", "5"),
        ("$5", "€5"),
        ("कुल", "केल"),
        ("कल", "कल्"),
        ("কলা", "কলি"),
        ("தலை", "தலி"),
        ("ที่", "ทู่"),
        ("ပါ", "ပိ"),
        ("ﬁt", "ﬂt"),
    ],
)
def test_operators_signs_and_vowel_signs_count(one: str, two: str):
    first, second = hash_words([one]), hash_words([two])
    assert first.hashes.tolist() != second.hashes.tolist()
    assert (first.digests != second.digests).any()


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("well-known and/or so", "Well known and or so"),
        ("Wow! It works!!", "wow it works"),
        ("ﬁne ﬂow", "fine flow"),
        ("हिन्दी क़लम", "हिन्दी कलम"),
        ("שָׁלוֹם", "שלום"),
        ("a − b", "a - b"),
        ("a − b", "a － b"),
        ("now – or never — so 2–3", "now or never, so 2 3"),
        ("＋１", "+1"),
        ("zero\u200bwidth \U000e0041x", "zerowidth x"),
    ],
)
def test_hyphens_ligatures_points_and_other_forms_of_a_sign_do_not_count(one: str, two: str):
    assert hash_words([one]).digests.tolist() == hash_words([two]).digests.tolist()


def test_a_run_of_operators_is_a_word_and_its_bytes_are_known():
    assert spans("i+=1; C++ कुल") == ["i", "+=", "1", "C", "++", "कुल"]
    assert spans("ที่") == ["ท", "ี", "่"]
    assert spans("cafe\u0301!") == ["cafe\u0301"]
