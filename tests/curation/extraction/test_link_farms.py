import random

import pytest
from lxml import etree, html
from trafilatura.htmlprocessing import delete_by_link_density

from lmpipe.curation.extraction.line_breaks import MARK
from lmpipe.curation.extraction.link_farms import delete_link_farms

WORDS = ("some", "words", "that", "stand", "in", "a", "list", "or", "paragraph", "of", "pages")


def frame(seed: int) -> etree._Element:
    """Return a random tree of divs, lists, items and paragraphs with links of all lengths."""
    draw = random.Random(seed)

    def text(most: int) -> str:
        gap = draw.choice((" ", " ", "\n   ", "\u00a0"))
        return gap.join(draw.choices(WORDS, k=draw.randrange(most))) + draw.choice(("", " "))

    def fill(element: etree._Element, depth: int) -> None:
        element.text = text(draw.choice((2, 8, 40)))
        for _ in range(draw.randrange(5)):
            tag = draw.choice(("ref", "ref", "p", "div", "list", "item") if depth < 4 else ("ref",))
            child = etree.SubElement(element, tag)
            child.tail = text(draw.choice((1, 4, 30)))
            if tag == "ref":
                child.text = text(draw.choice((2, 6, 30)))
            else:
                fill(child, depth + 1)

    root = html.Element("div")
    for _ in range(4):
        fill(html.etree.SubElement(root, draw.choice(("div", "list", "p"))), 0)
    return root


@pytest.mark.parametrize("first", range(0, 400, 50))
def test_the_elements_that_go_are_those_of_trafilatura(first: int) -> None:
    num_changed = 0
    for seed in range(first, first + 50):
        ours, theirs = frame(seed), frame(seed)
        before = etree.tostring(ours)
        delete_link_farms(ours)
        for _ in range(2):
            delete_by_link_density(theirs, "div", backtracking=True)
            delete_by_link_density(theirs, "list")
            delete_by_link_density(theirs, "p")
        assert etree.tostring(ours, encoding="unicode").replace(MARK, "") == etree.tostring(
            theirs, encoding="unicode"
        ), seed
        num_changed += etree.tostring(ours) != before
    assert num_changed > 10
