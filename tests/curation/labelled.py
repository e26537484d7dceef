"""Made-up labelled examples for tests of classifiers: no page of anybody, and no word to blush at.

No free labelled set of unsafe pages was at hand, so what is tested is the path: examples in the
recipe, a classifier, a column, a bound, a table in the report. How well such a classifier does on
real pages depends on the examples that it is given.
"""

import json
import random

UNSAFE = [
    "uncensored",
    "xxx",
    "explicit",
    "nude",
    "erotic",
    "webcam",
    "hardcore",
    "fetish",
    "adults-only",
    "lingerie",
]
PLAIN = [
    "parser",
    "garden",
    "harbour",
    "history",
    "library",
    "recipe",
    "weather",
    "museum",
    "railway",
    "engine",
]
FRAME = (
    "watch the {} {} gallery tonight with {} and free of charge",
    "this page is about the {} and the {} of a {} that we saw",
    "more {} and {} pictures of the {} in the members' area",
    "the {} of the {} was written about in a {} last year",
)


def nsfw_examples(count: int = 400, seed: int = 0) -> str:
    """Return JSONL of {"text", "label"}: half unsafe; every fifth text has a word of the others."""
    rng = random.Random(seed)
    lines = []
    for number in range(count):
        unsafe = number % 2 == 0
        words = rng.choices(UNSAFE if unsafe else PLAIN, k=3)
        if number % 5 == 0:
            words[0] = rng.choice(PLAIN if unsafe else UNSAFE)
        text = " ".join(rng.choice(FRAME).format(*words) for _ in range(3))
        lines.append(json.dumps({"text": text, "label": "nsfw" if unsafe else "safe"}))
    return "\n".join(lines) + "\n"
