"""What trafilatura's expressions say of an element by its attributes, each value judged once.

Its main extractor asks every element some sixty regular expressions by XPath, each a call back into
Python: over half of its time. Here the clauses of an expression become one regular expression per
attribute, and what a class or id says is remembered, since the pages of a site share them. The
lists stay trafilatura's; tests compare the two on every clause and on real pages.
"""

import re
from collections.abc import Iterator
from typing import Any

from lxml.etree import XPath
from trafilatura import xpaths
from trafilatura.htmlprocessing import prune_unwanted_nodes
from trafilatura.xml import delete_element

_MAX_MEMORY = 1 << 14  # values of an attribute; a page has about 130 different ones
_MAX_REMEMBERED = 200  # characters of a value
_CLAUSE = re.compile(
    r"re:test\((?P<tested>@[^,]+), '(?P<pattern>[^']*)'(?P<ignore_case>, 'i')?\)"
    r"|(?P<function>contains|starts-with)\((?:translate\((?P<translated>@[\w-]+), ?'(?P<upper>\w+)'"
    r", ?'(?P<lower>\w+)'\)|(?P<searched>@[^,]+)), '(?P<text>[^']*)'\)"
    r"|(?P<compared>@[\w-]+) ?= ?'(?P<value>[^']*)'"
    r"|(?P<present>@[\w-]+)(?=\s*(?:\]|or\b))"
)


class NameTests:
    """Attribute tests of several XPath expressions, without what they say of tags.

    Args:
        expressions: bit k of a verdict is that of the k-th.

    Raises:
        ValueError: an expression has a test of attributes that is not understood.
    """

    def __init__(self, *expressions: XPath) -> None:
        patterns: dict[tuple[str, tuple[str, ...], int], list[str]] = {}
        for number, expression in enumerate(expressions):
            for attributes, pattern in _clauses(expression.path):
                for name in attributes:
                    others = tuple(other for other in attributes if other != name)
                    patterns.setdefault((name, others, 1 << number), []).append(pattern)
        self._tests: dict[str, list[tuple[Any, int, tuple[str, ...]]]] = {}
        for (name, others, bit), alternatives in patterns.items():
            search = re.compile("|".join(alternatives)).search
            self._tests.setdefault(name, []).append((search, bit, others))
        self._memory: dict[str, dict[str, list[tuple[int, tuple[str, ...]]]]] = {
            name: {} for name in self._tests
        }

    def verdict(self, element: Any) -> int:
        """Return the bits of the expressions that an element's attributes fulfil."""
        bits = 0
        memories = self._memory
        for name, value in element.items():
            if (memory := memories.get(name)) is not None:
                if (judgement := memory.get(value)) is None:
                    judgement = self._judge(name, value)
                for bit, others in judgement:
                    # XPath takes the first node of a set: of class and id, what is written first
                    if not others or not _is_preceded(element, name, others):
                        bits |= bit
        return bits

    def _judge(self, name: str, value: str) -> list[tuple[int, tuple[str, ...]]]:
        """Return the bits that a value sets, each with the attributes that must not precede it."""
        memory = self._memory[name]
        if len(memory) >= _MAX_MEMORY:
            memory.clear()
        found = [(bit, others) for search, bit, others in self._tests[name] if search(value)]
        if len(value) <= _MAX_REMEMBERED:
            memory[value] = found
        return found


def _is_preceded(element: Any, name: str, others: tuple[str, ...]) -> bool:
    names = element.keys()
    return any(other in names[: names.index(name)] for other in others)


def _clauses(path: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the tests of an expression: attributes, of which the first counts, and a pattern."""
    seen = 0
    for clause in _CLAUSE.finditer(path):
        groups = clause.groupdict()
        kinds = ("tested", "translated", "searched", "compared", "present")
        subject = next(groups[kind] for kind in kinds if groups[kind])
        pattern = groups["pattern"] or ""
        if groups["ignore_case"]:
            pattern = f"(?i:{pattern})"
        if groups["compared"]:
            pattern = rf"\A{re.escape(groups['value'])}\Z"
        if groups["function"]:
            pattern = re.escape(groups["text"])
            for upper, lower in zip(groups["upper"] or "", groups["lower"] or "", strict=True):
                pattern = pattern.replace(lower, f"[{upper}{lower}]")
            pattern = (r"\A" if groups["function"] == "starts-with" else "") + pattern
        seen += subject.count("@")
        yield tuple(name.strip().removeprefix("@") for name in subject.split("|")), pattern
    if seen != path.count("@"):
        raise ValueError(f"an attribute test of this expression is not understood: {path}")


_FRAME_TAGS = ("article", "div", "main", "section")
_FRAMES = NameTests(*xpaths.BODY_XPATH)
_BY_TAG = {1: "article", 4: "main"}  # of this rank whatever its names
FRAME_RANKS = range(len(xpaths.BODY_XPATH))


def find_frame(tree: Any, rank: int) -> Any:
    """Return the first element that says it holds the content, by one of trafilatura's tests.

    Args:
        tree: the page.
        rank: which test; 0 is the most trusted.
    """
    bit, tag = 1 << rank, _BY_TAG.get(rank)
    if rank == 1:
        return next(tree.iterdescendants(tag), None)
    for element in tree.iterdescendants(*_FRAME_TAGS):
        if element.tag == tag or _FRAMES.verdict(element) & bit:
            return element
    return None


def has_frame(tree: Any) -> bool:
    """Say whether a page names an element that holds its content."""
    if next(tree.iterdescendants(*_BY_TAG.values()), None) is not None:
        return True
    return any(_FRAMES.verdict(element) for element in tree.iterdescendants(*_FRAME_TAGS))


_COMMENT_TAGS = ("div", "list", "section", "details", "ol", "ul")
_COMMENTS = NameTests(*xpaths.REMOVE_COMMENTS_XPATH, *xpaths.RAW_TREE_PRUNE_XPATH)


def drop_comments(tree: Any) -> None:
    """Delete readers' comments, and what a page appends to itself as one scrolls."""
    comments = []
    is_appended = False
    for element in tree.iterdescendants("aside", *_COMMENT_TAGS):
        if bits := _COMMENTS.verdict(element):
            is_appended |= bits > 1
            if bits & 1 and element.tag != "aside":
                comments.append(element)
    if is_appended:
        prune_unwanted_nodes(tree, xpaths.RAW_TREE_PRUNE_XPATH)
    for element in comments:
        delete_element(element)


_BLOCK_TAGS = frozenset(("div", "item", "list", "p", "section", "span"))
_UNWANTED = NameTests(
    *xpaths.OVERALL_DISCARD_XPATH, *xpaths.TEASER_DISCARD_XPATH, *xpaths.DISCARD_IMAGE_ELEMENTS
)


def unwanted(tree: Any) -> tuple[list[Any], list[Any]]:
    """Return what is boilerplate by its names within an element, and its teasers and captions."""
    boilerplate, asides = [], []
    for element in tree.iterdescendants():
        if bits := _UNWANTED.verdict(element):
            is_block = element.tag in _BLOCK_TAGS
            if bits & 2 or (bits & 1 and is_block):
                boilerplate.append(element)
            if bits & 12 and is_block:
                asides.append(element)
    return boilerplate, asides
