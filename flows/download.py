"""Downloading with progress in a terminal."""

from pathlib import Path

from lmpipe.sources import common_crawl
from rich.console import Console


def download_common_crawl(
    console: Console, snapshot: str, num_files: int, to: Path, seed: int, base_url: str
) -> None:
    """Download WARC files of a snapshot, with a line per file."""
    options = {"base_url": base_url} if base_url else {}
    paths = common_crawl.download(snapshot, num_files, to, seed=seed, **options)
    for path in paths:
        console.print(str(path), markup=False, highlight=False, soft_wrap=True)
