"""Letters that look alike as one letter: what the search for evaluation items compares.

A copy that was disguised, or read by a machine, has Cyrillic or Greek letters among Latin ones,
the digits 1 and 0 for letters (no other digits), small capitals, strokes. Each is folded here to
the Latin letter that it resembles, in the items and in the texts alike, on top of the folding of
word_hashes.py (full-width and mathematical forms, accents, zero-width characters and soft hyphens).
Operators only separate.

Real Greek and Russian are folded too, upper and lower case alike, so Η and η cannot go to h and n
at once: h, n and v are one letter, and so are i, l and 1, o and 0, u and y. Thirteen such words in
a row are as telling as before. Deduplication does not fold so: there `10` is no `lo`.

Source of the pairs: the shapes of the letters, for Latin, Greek, Cyrillic and Armenian; Unicode's
TR39 has a longer list for all scripts, at the price of a data file to keep up with.
"""

import functools
import re
import unicodedata
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lmpipe.curation.text.word_hashes import CODE, LIGATURE, SIGN, Words, fold_table, hash_words

# the letter, and after it what is folded to it: lower case, as fold_table leaves it
_ALIKE = """
aаαɑ bвьβƅ cсϲ dԁ eеεєҽ fғ gɡցԍ hннһհηnпոvνѵ iіιlӏ1ıɩǀ jјյϳ kкκĸ mмμ oоοσς0օө pрρϼ qԛզ rгᴦ sѕꜱ tтτ
uυyуγүս wωшԝѡ xхχ zζ 3зӡ 6б
"""
_NAMED = re.compile(
    r"LATIN (?:SMALL LETTER|CAPITAL LETTER|LETTER SMALL CAPITAL) ([A-Z])(?: WITH .*)?$"
)


@functools.cache
def look_alike_table() -> NDArray[np.uint32]:
    """Map each code point to the letter that stands for those like it; see `fold_table`."""
    table = fold_table().copy()
    table[(table & SIGN) != 0] = 0
    alike = {ord(other): ord(group[0]) for group in _ALIKE.split() for other in group}
    for code in np.flatnonzero((table > 1) & (table <= CODE)).tolist():
        letter = int(table[code])
        table[code] = alike.get(letter) or alike.get(_plain(letter), _plain(letter))
    for code in np.flatnonzero(table & LIGATURE).tolist():
        letters = [int(table[code]) >> 7 * n & 0x7F for n in range(3)]
        folded = [alike.get(letter, letter) for letter in letters]
        table[code] = int(LIGATURE) | sum(letter << 7 * n for n, letter in enumerate(folded))
    table.flags.writeable = False
    return table


def _plain(code: int) -> int:
    """Return the letter without stroke, hook or small-capital form; a raised digit lowered."""
    if code < 0x80:
        return code
    named = _NAMED.match(unicodedata.name(chr(code), ""))
    if named:
        return ord(named[1].lower())
    lowered = unicodedata.normalize("NFKD", chr(code))
    return ord(lowered) if len(lowered) == 1 else code


def hash_look_alikes(texts: Sequence[str] | pa.Array | pa.ChunkedArray) -> Words:
    """Split texts into words and hash them, letters that look alike as one."""
    return hash_words(texts, look_alike_table())
