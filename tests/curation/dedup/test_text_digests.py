import unicodedata

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from lmpipe.curation.dedup.text_digests import text_digests


def plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split())


BLANKS = "\t\n\r\x0b\x1c \x85\xa0\u1680\u2003\u2028\u202f\u205f\u3000"
CHARACTERS = "ab+-\u200b\u0301eé。—дйガ゙한ᄒ\u212b\u0483漢\uf900"


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(alphabet=BLANKS + CHARACTERS, max_size=24), max_size=8))
def test_texts_are_equal_exactly_if_their_normal_forms_are(texts: list[str]):
    digests = [tuple(row) for row in text_digests(texts).tolist()]
    forms = [plain(text) for text in texts]
    for one, first in zip(digests, forms, strict=True):
        for two, second in zip(digests, forms, strict=True):
            assert (one == two) == (first == second), (first, second)


def test_case_punctuation_signs_and_order_count():
    texts = ["a + b", "a - b", "A + b", "a + b.", "b + a", "a+b", "", "a", "aa", "a" * 8, "a" * 16]
    assert len({tuple(row) for row in text_digests(texts).tolist()}) == len(texts)


def test_arrow_slices_and_nulls_hash_like_lists():
    column = pa.array(["skip", None, "zwei  é", "e\u0301"]).slice(1)
    assert text_digests(column).tolist() == text_digests(["", "zwei é", "é"]).tolist()
