"""Elements that are mostly links: lists of related pages, menus, tags under an article.

The tests are trafilatura's, and so are the limits. Only elements that hold links are looked at, a
link's text is measured once, and an element's no further than the decision needs: trafilatura
joins the words of every div again, of the outermost the whole page's.
"""

import math
from typing import Any, NamedTuple

from trafilatura.htmlprocessing import is_paragraph_listing
from trafilatura.utils import LINK_FARM_RATIO
from trafilatura.xml import delete_element

from lmpipe.curation.extraction.line_breaks import MARK, mark_after

# An element with less text, as the last of its siblings and else, goes if most of it is links.
_BESIDE_LINKS = {"div": (300, 100), "list": (300, 100), "p": (60, 30)}


class _Link(NamedTuple):
    element: Any
    size: int  # characters of its text


def delete_link_farms(frame: Any) -> None:
    """Delete the divs, lists and paragraphs within an element that are mostly links."""
    if _delete_once(frame):
        _delete_once(frame)  # what was around them may be mostly links now


def _delete_once(frame: Any) -> bool:
    is_changed = True
    num_farms = 0
    for tag in _BESIDE_LINKS:
        if is_changed:
            links_of = _links_by_element(frame)
        farms = [
            element
            for element, links in links_of[tag].items()
            if _is_link_farm(element, links)
            and not (tag == "p" and element.getparent().tag in ("item", "td", "th"))
        ]  # of an item's paragraph the whole list is judged
        for element in farms:
            mark_after(element)
            delete_element(element)
        is_changed = bool(farms)
        num_farms += len(farms)
    return num_farms > 0


def _links_by_element(frame: Any) -> dict[str, dict[Any, list[_Link]]]:
    """Return, by tag, the elements that hold links, with these."""
    links_of: dict[str, dict[Any, list[_Link]]] = {tag: {} for tag in _BESIDE_LINKS}
    for reference in frame.iter("ref"):
        link = _Link(reference, len(squeeze(reference.text_content())))
        for element in reference.iterancestors():
            if (elements := links_of.get(element.tag)) is not None:
                elements.setdefault(element, []).append(link)
            if element is frame:
                break
    return links_of


def _is_link_farm(element: Any, links: list[_Link]) -> bool:
    text = element.text_content()
    sizes = [link.size for link in links if link.size]
    total = sum(sizes)
    if len(links) == 1 and total > 100 and not _has_more(text, _below(total, 0.9)):
        return True
    limit = _BESIDE_LINKS[element.tag][element.getnext() is not None]
    if _has_more(text, limit - 1):
        return (
            len(links) > 4
            and total < 100 * len(sizes)  # longer ones are entries of a catalogue
            and not _has_more(text, _below(total, LINK_FARM_RATIO))
            and not is_paragraph_listing([link.element for link in links])
        )
    size = len(squeeze(text))
    num_short = sum(length < 10 for length in sizes)
    is_mostly_links = total > 0.8 * size or (len(sizes) > 1 and num_short > 0.8 * len(sizes))
    is_small_menu = element.tag == "div" and len(element) > 2 and size < 100
    return not sizes or is_mostly_links or is_small_menu


def _below(size: int, fraction: float) -> int:
    """Return the largest whole number of which `size` is more than a fraction."""
    return math.ceil(size / fraction) - 1


def _has_more(text: str, num_characters: int) -> bool:
    """Say whether a text is longer, with runs of spaces as one; reads no more than it must."""
    if len(text) <= num_characters:
        return False
    head = text[: 2 * num_characters + 100]
    return len(squeeze(head)) > num_characters or len(squeeze(text)) > num_characters


def squeeze(text: str) -> str:
    """Return a text with each run of white space as one space, without marks.

    trafilatura's `trim` does so too, and remembers the last 1,024 texts whatever their size.
    """
    return " ".join(text.replace(MARK, "").split())
