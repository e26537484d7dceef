"""A KenLM model of a few sentences as an ARPA file, so that a test needs no lmplz."""

import math
from collections import Counter
from collections.abc import Sequence

from lmpipe.curation.quality.perplexity import normalise_lines


def arpa(texts: Sequence[str]) -> str:
    """Return an add-one unigram model; KenLM demands bigrams, so one that never occurs is there."""
    words = Counter(
        word for text in texts for line in normalise_lines(text) for word in line.split(" ")
    )
    words["</s>"] = len(texts)
    total = sum(words.values()) + len(words) + 1
    rows = [f"{math.log10((n + 1) / total):.6f}\t{w}\t0" for w, n in sorted(words.items())]
    rows += ["-99\t<s>\t0", f"{math.log10(1 / total):.6f}\t<unk>\t0"]
    first = next(word for word in sorted(words) if word != "</s>")
    head = f"\\data\\\nngram 1={len(rows)}\nngram 2=1\n\n\\1-grams:\n"
    return head + "\n".join(rows) + f"\n\n\\2-grams:\n-9\t{first} {first}\n\n\\end\\\n"
