"""The slow definitions that the fast code must equal."""

from collections import Counter
from itertools import pairwise

import regex


def train(
    words: dict[bytes, int], num_merges: int, min_frequency: int
) -> list[tuple[bytes, bytes]]:
    """Learn merges by counting all pairs anew at every step."""
    pre_tokens = {word: [bytes([byte]) for byte in word] for word in words}
    merges: list[tuple[bytes, bytes]] = []
    while len(merges) < num_merges:
        pairs: Counter[tuple[bytes, bytes]] = Counter()
        for word, parts in pre_tokens.items():
            for pair in pairwise(parts):
                pairs[pair] += words[word]
        best = max(pairs, key=lambda pair: (pairs[pair], pair), default=None)
        if best is None or pairs[best] < max(1, min_frequency):
            break
        merges.append(best)
        pre_tokens = {word: merge(parts, best) for word, parts in pre_tokens.items()}
    return merges


def merge(parts: list[bytes], pair: tuple[bytes, bytes]) -> list[bytes]:
    """Replace a pair from left to right."""
    out: list[bytes] = []
    i = 0
    while i < len(parts):
        both = tuple(parts[i : i + 2]) == pair
        out.append(parts[i] + parts[i + 1] if both else parts[i])
        i += 2 if both else 1
    return out


def encode(text: str, pattern: str, merges: list[tuple[bytes, bytes]]) -> list[bytes]:
    """Encode by applying the merges in the order in which they were learnt."""
    tokens: list[bytes] = []
    for pre_token in pre_tokens(text, pattern):
        parts = [bytes([byte]) for byte in pre_token.encode()]
        for pair in merges:
            parts = merge(parts, pair)
        tokens += parts
    return tokens


def pre_tokens(text: str, pattern: str) -> list[str]:
    """Cut text by a pattern; \\s is Unicode's White_Space, not this module's."""
    pattern = pattern.replace(r"\s", r"\p{White_Space}").replace(r"\S", r"\P{White_Space}")
    return regex.findall(pattern, text)
