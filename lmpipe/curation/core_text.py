"""trafilatura's main extractor on a page that is parsed already: the slow half of the cascade.

`trafilatura.extract` parses, copies the tree three times, prunes all of it before and measures it
after, to know whether its rescues must start. Of most pages the steps between give the same text in
under half of the time (LOG.md); where they find little, the caller asks for the whole. The price:
these steps are no public interface of trafilatura, so a test compares the two.
"""

from typing import Any

from trafilatura.htmlprocessing import convert_tags, prune_unwanted_nodes, tree_cleaning
from trafilatura.main_extractor import extract_content
from trafilatura.settings import Extractor
from trafilatura.xml import xmltotxt
from trafilatura.xpaths import REMOVE_COMMENTS_AND_LISTS_XPATH

MIN_CORE_CHARACTERS = 250  # below, trafilatura's rescues begin
_OPTIONS = Extractor(output_format="txt", fast=True, comments=False, tables=True, dedup=False)


def core_text(root: Any) -> str:
    """Return the main text of a page, or an empty string where trafilatura fails.

    Args:
        root: the page's tree of `lxml.html.HtmlElement`, if it has one; it is used up.
    """
    if root is None:
        return ""
    try:
        tree = prune_unwanted_nodes(root, REMOVE_COMMENTS_AND_LISTS_XPATH)
        tree = convert_tags(tree_cleaning(tree, _OPTIONS), _OPTIONS, None)
        body, _ = extract_content(tree, _OPTIONS)
        return str(xmltotxt(body, include_formatting=False))
    except (TypeError, ValueError):  # characters that XML does not allow; trafilatura does so too
        return ""
