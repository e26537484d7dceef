"""Downloading with progress in a terminal."""

from pathlib import Path

from lmpipe.sources import common_crawl
from rich.console import Console


def download_common_crawl(
    console: Console, snapshot: str, num_files: int, to: Path, seed: int, base_url: str
) -> None:
    """Download WARC files of a snapshot, with a line per file."""
    base_url = base_url or common_crawl.BASE_URL
    paths = common_crawl.download(snapshot, num_files, to, seed=seed, base_url=base_url)
    for path in paths:
        console.print(str(path), markup=False, highlight=False, soft_wrap=True)
