"""Commands of curation: `lmpipe dedup-index` and `lmpipe contamination`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.outputs import check_file
from flows.cli.stores import Recipe, Root, open_store
from lmpipe.errors import ConfigError

app = typer.Typer()


@app.command("dedup-index")
def dedup_index(
    name: Annotated[str, typer.Argument(help="The index, as a recipe's dedup_index names it.")],
    add: Annotated[str, typer.Option(help="Add a crawl: the start of a dedup artifact's id.")] = "",
    remove: Annotated[str, typer.Option(help="Take a crawl out.")] = "",
    store: Root = "",
    recipe: Recipe = "",
) -> None:
    """Show or change the list of earlier crawls that a new one is compared with."""
    from lmpipe.curation.dedup.index import (
        add_crawl,
        dependents,
        open_index,
        present_crawls,
        read_index,
        remove_crawl,
    )

    opened = open_store(store, recipe)
    if add and remove:
        raise ConfigError("give either --add or --remove, got both")
    if add:
        add_crawl(opened, name, add)
    if remove:
        crawls = present_crawls(opened, name)
        left = remove_crawl(opened, name, remove)
        for gone in (crawl for crawl in crawls if crawl.id not in left):
            for id_, count in dependents(gone, crawls).items():
                print(f"dedup/{id_} lost {count} documents to it; build it again to have them back")
    if not add and not remove:
        open_index(opened, name)  # says what is missing
    for id_ in read_index(opened, name):
        print(f"dedup/{id_}")


@app.command("contamination")
def contamination(
    files: Annotated[
        list[Path],
        typer.Argument(exists=True, dir_okay=False, help="JSONL files of conversations or texts."),
    ],
    benchmarks: Annotated[
        list[Path],
        typer.Option(exists=True, dir_okay=False, help="Eval items as JSONL; may repeat."),
    ],
    to: Annotated[Path, typer.Option(help="Report, to lie beside the files.")] = Path(
        "contamination.json"
    ),
    ngram: Annotated[int, typer.Option(min=1, max=64, help="Words in an n-gram.")] = 13,
) -> None:
    """Search files of conversations for evaluation items and write the report that sft asks for."""
    from lmpipe.curation.decontamination.scan_files import report_on_files

    check_file("--to", to)
    report = report_on_files(files, benchmarks, ngram)
    to.write_text(json.dumps(report, indent=1, sort_keys=True))
    flagged, count = report["flagged_documents"], report["documents"]
    print(f"{flagged} of {count} records hold evaluation items; see {to}")
