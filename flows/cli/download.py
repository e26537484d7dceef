"""Downloading with progress in a terminal."""

from pathlib import Path

from rich.console import Console
from rich.progress import DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from lmpipe.sources import common_crawl


def download_common_crawl(
    console: Console, snapshot: str, num_files: int, to: Path, seed: int, base_url: str
) -> None:
    """Download WARC files of a snapshot with a bar for each, and print their paths."""
    bars: dict[str, TaskID] = {}
    columns = (TextColumn("{task.description}"), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True) as bar:

        def show(name: str, done: int, total: int) -> None:
            if name not in bars:
                bars[name] = bar.add_task(name, total=total or None)
            bar.update(bars[name], completed=done)

        url = base_url or common_crawl.BASE_URL
        paths = common_crawl.download(
            snapshot, num_files, to, base_url=url, seed=seed, progress=show
        )
    for path in paths:
        console.print(str(path), markup=False, highlight=False, soft_wrap=True)
