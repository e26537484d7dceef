"""`lmpipe bench contamination`: precision and recall of the search on sets whose truth is known.

- A benchmark's training file against its test file (GSM8K, say): items of which the training file
  holds all n-grams, and items of which it holds any.
- The same file with every `merged_every`th test item merged into it, every second one of those in
  capitals with other punctuation: exactly those items are to be found.
- With `pages`, real documents with one test item pasted into each of the first of them. The others
  are negatives as they are; how many of them flag is the rate of false positives.
"""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from lmpipe.bench import Row, row
from lmpipe.bench.dedup import texts_of
from lmpipe.curation.decontamination.config import DecontaminateConfig
from lmpipe.errors import ConfigError
from lmpipe.eval_items.items import benchmark_name, read_items


class Options(BaseModel):
    """Which files."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    train: str = Field(description="JSONL (.gz) of training items.")
    test: str = Field(description="JSONL (.gz) of evaluation items, in a published shape.")
    merged_every: int = Field(4, ge=1, description="Which share of the test items is merged.")
    pages: list[str] = Field(
        default_factory=list, description="Parquet files with `text`, or WARC files."
    )
    ngram: int = Field(13, ge=1, le=64, description="Words in an n-gram.")


def run(options: dict[str, Any]) -> list[Row]:
    """Return counts, precision and recall."""
    from lmpipe.curation.decontamination.ngram_index import NgramIndex
    from lmpipe.curation.decontamination.scan_files import LocalFiles, texts_of_records

    settings = Options.model_validate(options)
    train, test = Path(settings.train), Path(settings.test)
    for path in (train, test):
        if not path.is_file():
            raise ConfigError(f"there is no file {path}; give train and test as paths of JSONL")
    items = list(read_items(benchmark_name(test.name), LocalFiles([test]), test.name))
    index = NgramIndex(items, settings.ngram, 5)
    own, asked = list(texts_of_records(train)), list(texts_of_records(test))
    chosen = list(range(0, len(asked), settings.merged_every))
    forms = [asked[n] if n % 8 else _reworded(asked[n]) for n in chosen]
    rows = []
    for share, what in ((1.0, "all n-grams"), (0.0, "any n-gram")):
        case = f"{train.name} ({len(own)}) against {test.name} ({len(items)}), {what}"
        found = _found(index, own, share)
        rows.append(row("contamination", "lmpipe", case, "records", len(_of(found, 0)), "flagged"))
        rows.append(row("contamination", "lmpipe", case, "items", len(_of(found, 1)), "flagged"))
        # what the training file says by itself, told above, is no fault of the merged items
        merged = _found(index, [*own, *forms], share)
        truth = {(len(own) + place, number) for place, number in enumerate(chosen)}
        rows += _rates(f"{len(chosen)} test items merged, {what}", merged, truth)
    return rows + (_in_pages(settings, index, asked) if settings.pages else [])


def _in_pages(settings: Options, index: Any, asked: list[str]) -> list[Row]:
    pages = [text for path in settings.pages for text in texts_of(path) if text.strip()]
    found = _found(index, pages, 0.0)
    count = min(len(asked), len(pages) // 2)
    hosts = []
    for number, page in enumerate(pages[:count]):
        middle = page.find(" ", len(page) // 2)
        middle = len(page) if middle < 0 else middle
        text = _reworded(asked[number]) if number % 2 else asked[number]
        hosts.append(f"{page[:middle]}. {text} {page[middle:]}")
    truth = {(number, number) for number in range(count)}
    case = f"{count} items in {len(pages)} pages, any n-gram"
    planted = _found(index, [*hosts, *pages[count:]], 0.0)
    bare = row("contamination", "lmpipe", f"{len(pages)} pages as they are", "flagged",
               len(_of(found, 0)), "pages")  # fmt: skip
    return [bare, *_rates(case, planted, truth)]


def _found(index: Any, texts: list[str], share: float) -> set[tuple[int, int]]:
    """Return which text holds which item."""
    from lmpipe.curation.decontamination.matching import flag_documents, scan_texts

    config = DecontaminateConfig(min_share=share)
    flags, _ = flag_documents(scan_texts(index, texts, 0), index, config)
    return {(flag.document, index.parts[flag.part].item.index) for flag in flags}


def _of(found: set[tuple[int, int]], side: int) -> set[int]:
    return {pair[side] for pair in found}


def _rates(case: str, found: set[tuple[int, int]], truth: set[tuple[int, int]]) -> list[Row]:
    right = len(found & truth)
    values = {"recall": right / max(1, len(truth)), "precision": right / max(1, len(found))}
    rows = [row("contamination", "lmpipe", case, k, 100 * v, "%") for k, v in values.items()]
    wrong = len(found - truth)
    return [*rows, row("contamination", "lmpipe", case, "found beside them", wrong, "pairs")]


def _reworded(text: str) -> str:
    return f"« {' ; '.join(text.split()).swapcase()} »"
