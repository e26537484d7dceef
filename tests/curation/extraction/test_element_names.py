import re
from itertools import product

import pytest
from lxml import etree, html
from trafilatura import xpaths

from lmpipe.curation.extraction.element_names import (
    NameTests,
    drop_comments,
    find_frame,
    unwanted,
)

TAGS = ("div", "section", "p", "ul", "main", "article", "b", "details", "item")


def samples(*expressions: etree.XPath) -> list[str]:
    """Return strings that the expressions look for, roughly, and near misses."""
    found = {"x", ""}
    for expression in expressions:
        for literal in re.findall(r"'([^']+)'", expression.path):
            for token in re.sub(r"\(\?[:!]|\(\^\| \)|[()^?]|\[[-_]+\]", "", literal).split("|"):
                found |= {token, f"a {token}", f"{token}-b c", f"x{token.title()}"}
    return sorted(found)


def page(values: list[str], attributes: tuple[str, ...]) -> etree._Element:
    """Return a flat tree with every tag, and every value in every attribute, alone and in pairs."""
    body = etree.Element("body")
    for tag, value, attribute in product(TAGS, values, attributes):
        for others in ((), *((other,) for other in attributes if other != attribute)):
            for order in ((attribute, *others), (*others, attribute)):
                element = etree.SubElement(body, tag)
                for name in order:
                    element.set(name, value if name == attribute else "x")
                element.text = "text"
    return body


def test_what_is_unwanted_is_what_the_expressions_find() -> None:
    boilerplate, asides = xpaths.OVERALL_DISCARD_XPATH, (
        *xpaths.TEASER_DISCARD_XPATH, *xpaths.DISCARD_IMAGE_ELEMENTS
    )  # fmt: skip
    attributes = ("class", "id", "style", "role", "aria-hidden", "data-component",
                  "data-lp-replacement-content")  # fmt: skip
    tree = page(samples(*boilerplate, *asides), attributes)
    found = unwanted(tree)
    assert set(found[0]) == {element for xpath in boilerplate for element in xpath(tree)}
    assert set(found[1]) == {element for xpath in asides for element in xpath(tree)}
    assert all(len(elements) > 100 for elements in found)


@pytest.mark.parametrize("rank", range(len(xpaths.BODY_XPATH)))
def test_the_first_frame_of_a_rank_is_the_expressions(rank: int) -> None:
    expression = xpaths.BODY_XPATH[rank]
    tree = page(samples(expression), ("class", "id", "role", "itemprop"))
    num_found = 0
    while (frame := next(iter(expression(tree)), None)) is not None:
        assert find_frame(tree, rank) is frame
        frame.getparent().remove(frame)
        num_found += 1
        if num_found == 300:
            break
    assert num_found > 2
    if num_found < 300:
        assert find_frame(tree, rank) is None


def test_comments_go_as_the_expressions_say() -> None:
    values = samples(*xpaths.REMOVE_COMMENTS_AND_LISTS_XPATH, *xpaths.RAW_TREE_PRUNE_XPATH)
    values = [value for value in values if "disqus" not in value and "dsq" not in value]
    left, right = (page(values, ("class", "id")) for _ in range(2))
    drop_comments(left)
    for xpath in (*xpaths.RAW_TREE_PRUNE_XPATH, *xpaths.REMOVE_COMMENTS_AND_LISTS_XPATH):
        for element in xpath(right):
            element.getparent().remove(element)
    assert etree.tostring(left) == etree.tostring(right)
    assert 100 < len(left) < len(page(values, ("class", "id")))


def test_a_test_of_attributes_that_is_not_understood_is_refused() -> None:
    with pytest.raises(ValueError, match="not understood"):
        NameTests(etree.XPath("//div[string-length(@class | @id) > 3 or @id <= @class]"))


def test_memory_of_values_is_bounded() -> None:
    tests = NameTests(etree.XPath("//*[contains(@class, 'ad')]"))
    element = html.Element("div")
    for number in range(40_000):
        element.set("class", f"ad{number}" if number % 2 else "b" * 300 + str(number))
        assert tests.verdict(element) == number % 2
    assert len(tests._memory["class"]) <= 1 << 14
