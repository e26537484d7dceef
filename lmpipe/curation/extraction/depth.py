"""Pages nested deeper than libxml2 reads: it stops at level 256, and the rest of the page is lost.

Old forums leave hundreds of elements open (`<font>` without an end). Browsers go on by putting what
lies deeper than 512 levels side by side. Here tags beyond a level are taken out before the parser
sees them, and those of blocks leave a line break. Only such pages are rewritten: asking the parser
for more depth (2048 levels) would end in recursion in everything that walks the tree.
"""

import re

from lxml import etree

MAX_LEVELS = 200
_TAG = re.compile(rb"<(/?)([A-Za-z][A-Za-z0-9]*)(?:[^<>\"']|\"[^\"]*\"|'[^']*')*>")
_VOID = frozenset(b"area base br col embed hr img input link meta param source track wbr".split())
_INLINE = frozenset(
    b"a abbr b bdi bdo big cite code em font i ins kbd mark s small span strike strong sub sup tt u"
    b" var".split()
)  # fmt: skip


def is_too_deep(parser: etree.HTMLParser) -> bool:
    """Say whether a parser stopped for depth: that is then the last thing it said."""
    last = parser.error_log.last_error
    return last is not None and "depth" in last.message


def readable(html: str) -> str:
    """Return a page as a parser reads it to its end: itself, or flattened.

    Cost:
        One pass of the parser, about 1 ms a page of 44 kB.
    """
    if html.count("<") <= MAX_LEVELS:
        return html
    data = html.encode("utf-8", "replace")
    parser = etree.HTMLParser(encoding="utf-8")
    etree.fromstring(data, parser)
    return flattened(data).decode() if is_too_deep(parser) else html


def flattened(data: bytes) -> bytes:
    """Return a page without the tags that lie deeper than MAX_LEVELS."""
    level = 0

    def shallow(match: re.Match[bytes]) -> bytes:
        nonlocal level
        name = match[2].lower()
        if name in _VOID:
            return match[0]
        level = max(0, level - 1) if match[1] else level + 1
        if level + bool(match[1]) <= MAX_LEVELS:
            return match[0]
        return b"" if name in _INLINE else b"<br>"

    return _TAG.sub(shallow, data)
