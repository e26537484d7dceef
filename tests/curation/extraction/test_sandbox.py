import os
import time
from pathlib import Path

import pytest

from lmpipe.curation.extraction.extractors import extract_page
from lmpipe.curation.extraction.sandbox import Sandbox, StoppedError

MEGABYTE = 1 << 20


def act(what: str) -> str:
    if what == "spin":
        while True:
            pass
    if what == "eat":
        return str(len(bytearray(1 << 40)))
    if what == "die":
        os._exit(3)  # as a parser that takes its process down
    if what == "recurse":
        return act("recurse")
    if what == "fail":
        raise ValueError("bad page")
    if what == "nap":
        time.sleep(1.0)
    return f"{what} {os.getpid()}"


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("spin", "time_limit"),
        ("eat", "memory_limit"),
        ("die", "extractor_died"),
        ("recurse", "recursion_limit"),
        ("fail", "extractor_error:ValueError"),
    ],
)
def test_a_bad_page_is_stopped_and_the_next_one_is_served(what: str, reason: str) -> None:
    with Sandbox(act, max_seconds=0.5, max_bytes=256 * MEGABYTE) as sandbox:
        with pytest.raises(StoppedError) as stopped:
            sandbox(what)
        assert stopped.value.reason == reason
        assert sandbox("good").startswith("good")


def test_waiting_is_not_counted_as_work() -> None:
    with Sandbox(act, max_seconds=0.3, max_bytes=256 * MEGABYTE) as sandbox:
        assert sandbox("nap").startswith("nap")


def test_one_child_serves_many_pages_and_is_gone_afterwards() -> None:
    with Sandbox(act, max_seconds=5, max_bytes=256 * MEGABYTE) as sandbox:
        pids = {sandbox("x").split()[1] for _ in range(20)}
        assert len(pids) == 1
        assert pids != {str(os.getpid())}
    with pytest.raises(ProcessLookupError):
        os.kill(int(pids.pop()), 0)


HOSTILE = {
    "colspan": b"<table><tr><td colspan=9007199254740991>x</td></tr></table>",
    "nested": b"<div>" * 100_000 + b"deep" + b"</div>" * 100_000,
    "spans": b"<p>" + b"<b><i>" * 30_000 + b"x",
    "svg": b"<svg>" * 20_000 + b"<foreignObject><p>x",
    "attributes": b"<p " + b" ".join(b"a%d=x" % n for n in range(20_000)) + b">x",
    "formatting": b"<a href=x>" * 5_000 + b"<table>" * 5_000,
    "one line": b"word " * 1_000_000,
    "entities": b"<p>&#xD800;&#0;&#x110000;" + b"&amp" * 10_000,
}


@pytest.mark.parametrize("extractor", ["cascade", "trafilatura_fast", "resiliparse"])
def test_hostile_pages_end_in_text_or_in_a_reason(extractor: str) -> None:
    body = b"<html><body><article>%s<p>A sentence that stands.</p></article></body></html>"
    with Sandbox(extract_page, max_seconds=1, max_bytes=1024 * MEGABYTE) as sandbox:
        for name, markup in HOSTILE.items():
            try:
                text, charset, _ = sandbox((extractor, body % markup, None))
            except StoppedError as stopped:
                assert stopped.reason, name
                continue
            text.encode()
            assert "\0" not in text
            assert charset
        text, _, _ = sandbox((extractor, body % b"", None))
        assert "A sentence that stands." in text


def test_memory_stays_flat_over_thousands_of_pages() -> None:
    """The child ends after 1,000 pages whatever it has leaked; a full run is a benchmark."""
    body = b"<html><body>%s<%s>%s</%s></body></html>"
    links = b"".join(b"<li><a href=/%d>Link %d</a></li>" % (n, n) for n in range(8))
    parent: list[float] = []
    children: dict[int, float] = {}
    with Sandbox(extract_page, max_seconds=5, max_bytes=1024 * MEGABYTE) as sandbox:
        for number in range(2500):
            prose = b"<p>" + b"Page %d has a sentence that stands for itself. " % number * 9
            tag, expected = ((b"div", "walk"), (b"main", "trafilatura_core"))[number % 2]
            text, _, extracted_by = sandbox(("cascade", body % (links, tag, prose, tag), None))
            assert extracted_by == expected
            assert "sentence" in text
            if number % 250 == 249:
                parent.append(resident_megabytes("self"))
                children[sandbox.pid] = resident_megabytes(str(sandbox.pid))
    assert len(children) == 3
    assert parent[-1] - parent[1] < 8
    assert max(children.values()) < 1.2 * min(children.values())


def resident_megabytes(pid: str) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MEGABYTE
