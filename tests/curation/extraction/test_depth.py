"""Pages nested deeper than the parser reads."""

import pytest

from lmpipe.curation.extraction.depth import flattened, readable
from lmpipe.curation.extraction.html_blocks import parse_page


@pytest.mark.parametrize("tag", ["div", "font"])
@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize("depth", [100, 255, 300, 5000])
def test_a_page_of_any_depth_is_read_to_its_end(tag: str, is_closed: bool, depth: int) -> None:
    end = f"</{tag}>" * depth if is_closed else ""
    page = f"<html><body><p>before</p>{f'<{tag}>' * depth}deep{end}<p>after</p></body></html>"
    assert "".join(parse_page(page).itertext()) == "beforedeepafter"
    assert "after" in readable(page)


def test_a_page_of_usual_depth_is_not_rewritten() -> None:
    page = "<html><body>" + "<p>one <b>two</b></p>" * 300 + "</body></html>"
    assert readable(page) is page


def test_words_of_deep_blocks_stay_apart() -> None:
    deep = b"<div>" * 300
    assert b"one<br>two" in flattened(deep + b"one<p>two").replace(b"<br><br>", b"<br>")
    assert flattened(deep + b"o<b>n</b>e").endswith(b"one")
