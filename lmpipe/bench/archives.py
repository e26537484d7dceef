"""`lmpipe bench archives`: what every file of a set of real and damaged archives gives.

Each file is read as the stage extract reads it, and each page goes through the cascade. All of its
records are counted: pages with text, pages removed by reason, records that are no pages, and what
was lost, with the first offset that could not be read. Then each file is cut at `num_cuts` places
and read again: a cut that raised anything, or lost a record without naming it, is `undefined`.
"""

import tempfile
import time
from collections import Counter
from glob import glob
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from lmpipe.bench import Row, row
from lmpipe.errors import InputError

_MAX_PAGE_BYTES = 10_000_000


class Options(BaseModel):
    """Which files to read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    paths: list[str] = Field(min_length=1, description="WARC, ARC and WET files or globs.")
    num_cuts: int = Field(0, ge=0, description="Also read each file cut at so many places.")


def run(options: dict[str, Any]) -> list[Row]:
    """Return the counts of each file."""
    settings = Options.model_validate(options)
    paths = [Path(found) for path in settings.paths for found in sorted(glob(path))]  # noqa: PTH207
    if not paths:
        raise InputError(f"paths={settings.paths} match no file")
    rows: list[Row] = []
    for path in paths:
        start = time.perf_counter()
        counts = read_file(path)
        for metric, value in counts.items():
            rows.append(row("archives", "lmpipe", path.name, metric, value, ""))
        seconds = time.perf_counter() - start
        rows.append(row("archives", "lmpipe", path.name, "time", seconds, "s"))
        if settings.num_cuts:
            undefined = num_undefined(path, settings.num_cuts)
            case = f"{path.name}, {settings.num_cuts} cuts"
            rows.append(row("archives", "lmpipe", case, "undefined", undefined, "cuts"))
    return rows


def read_file(path: Path) -> dict[str, float]:
    """Count a file's records, its pages with text and by reason, and name its first bad offset."""
    from lmpipe.curation.crawl.warc import Census, WarcPages
    from lmpipe.curation.extraction.extractors import MainText

    census = Census()
    outcomes: Counter[str] = Counter()
    first_unreadable = -1.0
    pages = WarcPages(path, path.name, "archives", _MAX_PAGE_BYTES, census).run()
    for page in MainText("cascade", 20.0, 2 << 30).run(pages):
        reason = page.metadata.get("removed")
        outcomes[f"removed: {reason}" if reason else "with text"] += 1
        if reason == "unreadable_archive" and first_unreadable < 0:
            first_unreadable = page.metadata["score"]
    assert outcomes.total() == census.records["pages"]
    counts: dict[str, float] = {"records": census.records.total(), **outcomes}
    return {**counts, "first unreadable byte": first_unreadable} if census.unreadable else counts


def num_undefined(path: Path, num_cuts: int) -> int:
    """Count the cuts of a file that raise, or lose records and do not say so."""
    data = path.read_bytes()
    whole = _pages(path)
    undefined = 0
    with tempfile.TemporaryDirectory() as folder:
        part = Path(folder) / path.name
        for number in range(1, num_cuts + 1):
            size = len(data) * number // (num_cuts + 1)
            part.write_bytes(data[:size])
            try:
                found = _pages(part)
            except Exception:  # what is counted here
                undefined += 1
                continue
            lost = [place for id, (place, _) in whole.items() if id not in found and place < size]
            named = [place for place, reason in found.values() if reason]
            invented = any(not found[id][1] for id in found.keys() - whole.keys())
            undefined += invented or (bool(lost) and min(named, default=size) > min(lost))
    return undefined


def _pages(path: Path) -> dict[str, tuple[int, str]]:
    """Return {id: (offset, reason for removal or an empty string)} of a file's pages."""
    from lmpipe.curation.crawl.warc import Census, WarcPages

    pages = WarcPages(path, path.name, "archives", _MAX_PAGE_BYTES, Census()).run()
    return {
        page.id: (page.metadata["warc_offset"], page.metadata.get("removed", "")) for page in pages
    }
