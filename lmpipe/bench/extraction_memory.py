"""`lmpipe bench extraction_memory`: resident memory of one worker over tens of thousands of pages.

The worker reads archives again and again until `num_pages` pages have been extracted, as the stage
extract does: reader, decoder, and the cascade in its sandbox. Ten rows for the worker and ten for
the sandbox's child give the largest resident size since the row before.
"""

import resource
from collections.abc import Iterator
from glob import glob
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from lmpipe.bench import Row, row
from lmpipe.errors import InputError

_NUM_ROWS = 10


class Options(BaseModel):
    """What to extract."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    paths: list[str] = Field(min_length=1, description="WARC files or globs.")
    num_pages: int = Field(50_000, ge=10, description="Pages in all; files are read repeatedly.")
    max_page_bytes: int = Field(10_000_000, ge=1_000, description="Larger pages are not extracted.")
    extractor: Literal["cascade", "trafilatura", "trafilatura_fast", "resiliparse"] = Field(
        "cascade", description="Which extractor."
    )


def run(options: dict[str, Any]) -> list[Row]:
    """Return the largest resident sizes, in ten rows each for worker and child."""
    from lmpipe.curation.extraction.extractors import MainText

    settings = Options.model_validate(options)
    texts = MainText(settings.extractor, 20.0, 2 << 30)
    largest = {"worker": 0.0, "child": 0.0}
    rows: list[Row] = []
    for number, _ in enumerate(texts.run(_pages(settings)), 1):
        if number % 50 == 0:
            for who, pid in (("worker", "self"), ("child", str(texts.child_pid))):
                largest[who] = max(largest[who], _resident_megabytes(pid))
        if number % max(1, settings.num_pages // _NUM_ROWS) == 0:
            for who, value in largest.items():
                case = f"{who}, {settings.extractor}, up to page {number}"
                rows.append(row("extraction_memory", "lmpipe", case, "resident", value, "MB"))
            largest = dict.fromkeys(largest, 0.0)
        if number == settings.num_pages:
            break
    return rows


def _pages(settings: Options) -> Iterator[Any]:
    from lmpipe.curation.crawl.warc import Census, WarcPages

    paths = [Path(found) for path in settings.paths for found in sorted(glob(path))]  # noqa: PTH207
    while True:
        num_found = 0
        for path in paths:
            pages = WarcPages(path, path.name, "bench", settings.max_page_bytes, Census())
            for page in pages.run():
                if "body" in page.metadata:
                    num_found += 1
                    yield page
        if not num_found:
            raise InputError(f"paths={settings.paths} hold no page to extract")


def _resident_megabytes(pid: str) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])
    return pages * resource.getpagesize() / 1e6
