"""Compute all signal columns of a batch of documents; one Scorer per worker and shard."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lmpipe.curation.language import LanguageIdentifier, load_fasttext
from lmpipe.curation.measures import measure
from lmpipe.curation.perplexity import PerplexityModel
from lmpipe.curation.quality_classifier import positive_score
from lmpipe.curation.rules import Thresholds, broken_rules
from lmpipe.documents.schema import DOCUMENT_SCHEMA

if TYPE_CHECKING:
    from lmpipe.curation.signals import SignalsConfig


class Scorer:
    """Add the signals to batches of documents.

    Attributes:
        num_gated: documents that were spared the costly scores so far.
        languages: documents per language so far.
    """

    def __init__(
        self,
        config: "SignalsConfig",
        language_model: Path,
        quality: tuple[Path, str] | None,
        perplexity_model: Path | None,
    ) -> None:
        self.num_gated = 0
        self.languages: Counter[str] = Counter()
        self._gate = config.gate
        self._language = LanguageIdentifier(
            language_model,
            config.language_sample_characters,
            config.language_more_characters,
            config.language_certain,
        )
        self._quality = (load_fasttext(str(quality[0])), quality[1]) if quality else None
        self._perplexity = PerplexityModel(perplexity_model) if perplexity_model else None

    def __call__(self, batch: pa.RecordBatch) -> pa.Table:
        """Return the batch with every signal that can be computed."""
        texts: list[str] = batch.column("text").to_pylist()
        languages = [self._language(text) for text in texts]
        self.languages.update(language or "none" for language, _ in languages)
        measures = measure(texts)
        spared = _gated(measures, self._gate, len(texts))
        self.num_gated += int(spared.sum())
        new: dict[str, Any] = {
            "language": [language for language, _ in languages],
            "language_score": [score for _, score in languages],
            **measures,
        }
        costly = [None if skip else text for skip, text in zip(spared, texts, strict=True)]
        if self._quality is not None:
            new["quality_score"] = [
                None if text is None else positive_score(*self._quality_args(text))
                for text in costly
            ]
        if self._perplexity is not None:
            new["kenlm_perplexity"] = [
                None if text is None else self._perplexity(text) for text in costly
            ]
        table = pa.Table.from_batches([batch])
        for name, values in new.items():
            field = DOCUMENT_SCHEMA.field(name)
            index = table.schema.get_field_index(name)
            table = table.set_column(index, field, pa.array(values, field.type))
        return table

    def _quality_args(self, text: str) -> tuple[Any, str, str]:
        assert self._quality is not None
        return self._quality[0], text, self._quality[1]


def _gated(
    measures: dict[str, NDArray[Any]], gate: Thresholds | None, count: int
) -> NDArray[np.bool_]:
    spared = np.zeros(count, dtype=np.bool_)
    if gate is not None:
        for breaks in broken_rules(measures, gate).values():
            spared |= breaks
    return spared
