"""`lmpipe bench extraction`: quality and speed of the extractors on labelled pages, in one run.

Quality is that of article-extraction-benchmark: precision and recall over the multiset of 4-grams
of words (`\\w+`), averaged over pages, F1 of the two averages; a page without a prediction has no
precision. Speed is CPU time in this process, page by page in turn, so that what else runs on the
machine meets all extractors alike. The folder holds `ground-truth.json` ({key: {"articleBody"}})
and `html/KEY.html.gz`.
"""

import gzip
import json
import re
import resource
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, Field

from lmpipe.bench import Row, row
from lmpipe.errors import InputError

_WORD = re.compile(r"\w+")


class Options(BaseModel):
    """What to extract, and by whom."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: str = Field(description="Folder with ground-truth.json and html/KEY.html.gz.")
    extractors: list[str] = Field([], description="Which ones; empty: all.")
    repeats: int = Field(1, ge=1, description="Passes over the pages; the fastest of each counts.")


def run(options: dict[str, Any]) -> list[Row]:
    """Return one row per extractor and metric."""
    from lmpipe.curation.extraction.extractors import Extractor, extract_page

    settings = Options.model_validate(options)
    truth, pages = read_labelled(Path(settings.folder))
    extractors: list[Any] = settings.extractors or list(get_args(Extractor))
    texts: dict[str, dict[str, str]] = {extractor: {} for extractor in extractors}
    by_extractor: Counter[str] = Counter()
    seconds: dict[str, float] = dict.fromkeys(extractors, 0.0)
    for key, body in pages.items():
        for extractor in extractors:
            times = []
            for _ in range(settings.repeats + (not texts[extractor])):  # the first call imports
                start = time.process_time()
                text, _, extracted_by = extract_page((extractor, body, None))
                times.append(time.process_time() - start)
            texts[extractor][key] = text
            seconds[extractor] += min(times)
            by_extractor.update([extracted_by] if extractor == "cascade" else [])
    rows = []
    for extractor in extractors:
        impl = "lmpipe" if extractor == "cascade" else extractor.removesuffix("_fast")
        case = f"{extractor}, {len(pages)} pages"
        for metric, value in score(truth, texts[extractor]).items():
            rows.append(row("extraction", impl, case, metric, value, ""))
        speed = len(pages) / seconds[extractor]
        rows.append(row("extraction", impl, case, "speed", speed, "pages/s/core"))
    for extracted_by, count in sorted(by_extractor.items()):
        rows.append(row("extraction", "lmpipe", f"cascade, by {extracted_by}", "pages", count, ""))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    rows.append(row("extraction", "all", "one process", "peak_memory", peak, "MB"))
    return rows


def read_labelled(folder: Path) -> tuple[dict[str, str], dict[str, bytes]]:
    """Return {key: main text} and {key: HTML} of a labelled set."""
    path = folder / "ground-truth.json"
    if not path.is_file():
        raise InputError(f"{path} does not exist; folder= must name a labelled set of pages")
    truth = {
        key: str(entry["articleBody"])
        for key, entry in json.loads(path.read_text(encoding="utf-8")).items()
    }
    pages = {
        key: gzip.decompress((folder / "html" / f"{key}.html.gz").read_bytes()) for key in truth
    }
    return truth, pages


def score(truth: dict[str, str], texts: dict[str, str]) -> dict[str, float]:
    """Return mean precision, mean recall and their F1 over all pages."""
    precisions, recalls = [], []
    for key, text in truth.items():
        wanted, found = shingles(text), shingles(texts[key])
        both = (wanted & found).total()
        if found:
            precisions.append(both / found.total())
        if wanted:
            recalls.append(both / wanted.total())
    precision = statistics.mean(precisions or [0.0])
    recall = statistics.mean(recalls or [0.0])
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return {"precision": precision, "recall": recall, "f1": f1}


def shingles(text: str, size: int = 4) -> Counter[tuple[str, ...]]:
    """Count a text's word 4-grams; a shorter text is one of its own."""
    words = _WORD.findall(text)
    grams = (tuple(words[at : at + size]) for at in range(max(1, len(words) - size + 1)))
    return Counter(gram for gram in grams if gram)
