"""A page's main text from its blocks: how the cascade reads pages that name no content, and code.

The page is a sequence of blocks (paragraph, list item, heading, code, table; see html_blocks.py). A
block is *prose* if it is long and little of it is link text. Every element is an interval of
blocks, and the main content is the element whose prose exceeds its other text by most (Pasternack
and Roth 2009 choose a maximum subsequence of tokens so; an element instead keeps a page's own
borders). Intervals that say by tag, role, class or id that they are navigation, sharing, comments
and the like count as other text, unless they hold most of the page's prose: such names are often
wrong on wrappers.

The result says when not to believe it (`doubt`), mostly where it leaves out prose that no name of
boilerplate explains. Not taken: readability's propagation of scores to grandparents, which needs
weights; a learned classifier of blocks, which needs labelled pages and knows their languages only.
"""

from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from lmpipe.curation.extraction.html_blocks import HEADINGS, MAX_LINK_FRACTION, Block, Markup

_MIN_RESULT_CHARACTERS = 1500
_PROSE_OF_BOILERPLATE = 0.4  # what holds more of a page's prose is content, whatever its name
_PROSE_OF_ARTICLE = 0.5
_MAX_HIDDEN = 1 / 3
_MAX_MISSED = 0.1
_MAX_MISSED_BESIDE_CODE = 0.25  # trafilatura drops much code, the walk none
_SENTENCE_ENDS = (".", "!", "?", "…", ":", ".”", "!”", "?”", '."', "。", "！", "？", "।", "؟", "۔")


class WalkText(NamedTuple):
    """What the walk found, and why it may be wrong; empty if nothing speaks against it."""

    text: str
    doubt: str


def walk_text(root: Any) -> WalkText:
    """Choose the element with the most prose over other text, and say what speaks against it.

    Args:
        root: the page's tree, as `parse_page` returns it; it is used up.
    """
    walk = Markup(root)
    blocks = walk.blocks
    total = sum(block.prose for block in blocks)
    if not blocks or not total:
        return WalkText("\n".join(block.text for block in blocks), "no_prose")
    is_flagged = [False] * len(blocks)
    hidden = 0
    for start, end in reversed(walk.flagged):  # outer ones first
        prose = sum(block.prose for block in blocks[start:end])
        if prose > _PROSE_OF_BOILERPLATE * total or is_flagged[start]:
            continue
        is_flagged[start:end] = [True] * (end - start)
        hidden += prose
    gains = [_gain(block, bad) for block, bad in zip(blocks, is_flagged, strict=True)]
    start, end = _best_interval(walk.intervals, gains, total - hidden)
    kept = [
        block
        for block, bad in zip(blocks[start:end], is_flagged[start:end], strict=True)
        if not bad and not _is_aside(block)
    ]
    kept = _without_bare_ends(kept)
    text = "\n".join(block.text for block in kept)
    inside = sum(blocks[at].prose for at in range(start, end) if is_flagged[at])
    return WalkText(text, _doubt(blocks, kept, total, hidden, inside))


def _gain(block: Block, is_flagged: bool) -> int:
    """Count prose for, and links, short lines and boilerplate against."""
    if is_flagged or not block.prose:
        return -len(block.text)
    return block.prose - block.link_characters


def _best_interval(
    intervals: list[tuple[int, int, str]], gains: list[int], prose: int
) -> tuple[int, int]:
    """Return the interval of the largest sum; an article that holds half of the prose bounds it."""
    sums = [0, *accumulate(gains)]
    positive = [0, *accumulate(max(0, gain) for gain in gains)]
    low, high = 0, len(gains)
    for start, end, tag in reversed(intervals):
        if (
            tag in ("article", "main")
            and low <= start
            and end <= high
            and positive[end] - positive[start] >= _PROSE_OF_ARTICLE * prose
        ):
            low, high = start, end
    best, best_gain = (low, high), sums[high] - sums[low]
    for start, end, _ in intervals:
        if low <= start and end <= high and sums[end] - sums[start] > best_gain:
            best, best_gain = (start, end), sums[end] - sums[start]
    return best


def _without_bare_ends(blocks: list[Block]) -> list[Block]:
    """Drop short lines and headings after the last prose, and headings that nothing follows."""
    while blocks and not blocks[-1].prose and not blocks[-1].text.endswith(_SENTENCE_ENDS):
        blocks.pop()
    return [
        block
        for block, following in pairwise([*blocks, Block("", "h1", 0, 0)])
        if block.kind not in HEADINGS or HEADINGS.get(following.kind, 9) > HEADINGS[block.kind]
    ]


def _doubt(
    blocks: list[Block], kept: list[Block], total: int, hidden: int, hidden_inside: int
) -> str:
    """Return why the result may be wrong, or an empty string.

    Args:
        total: all prose of the page.
        hidden: what of it is under names of boilerplate.
        hidden_inside: what of that is within the chosen element.
    """
    size = sum(len(block.text) for block in kept)
    prose = sum(block.prose for block in kept)
    rest = sum(len(block.text) - block.link_characters for block in blocks)
    is_code = any(block.kind == "pre" for block in kept)
    if size < _MIN_RESULT_CHARACTERS and rest > 2 * size:  # else the page has no more
        return "little_text"
    if hidden > _MAX_HIDDEN * total:
        return "much_hidden"  # under names of boilerplate, which may be wrong
    missed = total - hidden + hidden_inside - prose
    if missed > (_MAX_MISSED_BESIDE_CODE if is_code else _MAX_MISSED) * (missed + prose):
        return "scattered"  # too much prose lies outside of what was chosen
    if prose < 0.6 * size:
        return "fragments"
    return ""


def _is_aside(block: Block) -> bool:
    return _is_links(block) or _is_interface(block)


def _is_interface(block: Block) -> bool:
    """Say whether a short line lies outside of all elements for text and ends in no full stop."""
    return block.kind == "line" and not block.prose and not block.text.endswith(_SENTENCE_ENDS)


def _is_links(block: Block) -> bool:
    share = block.link_characters / len(block.text)
    return share > 0.8 or (share > MAX_LINK_FRACTION and not block.prose)
