"""Compute all signal columns of a batch of documents; one Scorer per worker and shard."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lmpipe.curation.quality.block_lists import BlockLists
from lmpipe.curation.quality.language import LanguageIdentifier, load_fasttext
from lmpipe.curation.quality.measures import measure
from lmpipe.curation.quality.perplexity import ANY_LANGUAGE, PerplexityModel
from lmpipe.curation.quality.quality_classifier import positive_score
from lmpipe.curation.quality.rules import broken_rules
from lmpipe.documents.schema import DOCUMENT_SCHEMA

if TYPE_CHECKING:
    from lmpipe.curation.quality.config import SignalsConfig


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
        classifiers: dict[str, tuple[Path, str]],
        perplexity_models: Mapping[str, Path],
        block_lists: BlockLists | None = None,
    ) -> None:
        self.num_gated = 0
        self.languages: Counter[str] = Counter()
        self._gate = config.gate
        self._gate_by_language = config.gate_by_language
        self._language = LanguageIdentifier(
            language_model,
            config.language_sample_characters,
            config.language_more_characters,
            config.language_certain,
        )
        self._classifiers = {
            column: (load_fasttext(str(path)), label)
            for column, (path, label) in classifiers.items()
        }
        self._block_lists = block_lists
        self._perplexity_models = perplexity_models

    def __call__(self, batch: pa.RecordBatch) -> pa.Table:
        """Return the batch with every signal that can be computed."""
        texts: list[str] = batch.column("text").to_pylist()
        languages = [self._language(text) for text in texts]
        self.languages.update(language or "none" for language, _ in languages)
        measures = measure(texts)
        spared = self._gated(measures, [language for language, _ in languages])
        self.num_gated += int(spared.sum())
        new: dict[str, Any] = {
            "language": [language for language, _ in languages],
            "language_score": [score for _, score in languages],
            **measures,
        }
        costly = [None if skip else text for skip, text in zip(spared, texts, strict=True)]
        for column, (model, label) in self._classifiers.items():
            new[column] = [
                None if text is None else positive_score(model, text, label) for text in costly
            ]
        if self._block_lists is not None:
            new |= self._lookups(batch, texts, [language for language, _ in languages])
        if self._perplexity_models:
            new["kenlm_perplexity"] = [
                None if text is None else self._perplexity(text, language)
                for text, (language, _) in zip(costly, languages, strict=True)
            ]
        table = pa.Table.from_batches([batch])
        for name, values in new.items():
            field = DOCUMENT_SCHEMA.field(name)
            index = table.schema.get_field_index(name)
            column_array = pa.array(values, field.type)
            if index < 0:  # written before this column was known
                table = table.append_column(field, column_array)
            else:
                table = table.set_column(index, field, column_array)
        return table

    def _lookups(
        self, batch: pa.RecordBatch, texts: list[str], languages: list[str | None]
    ) -> dict[str, Any]:
        lists = self._block_lists
        assert lists is not None
        pairs = zip(batch.column("url").to_pylist(), batch.column("host").to_pylist(), strict=True)
        return {
            "is_blocked": [lists.is_blocked(url, host) for url, host in pairs],
            "num_adult_words": [
                lists.count_words(text, language)
                for text, language in zip(texts, languages, strict=True)
            ],
        }

    def _perplexity(self, text: str, language: str | None) -> float | None:
        """Score a text with its language's model, or the one for all others; None: there is none.

        A model is loaded when the first document asks for it.
        """
        models = self._perplexity_models
        path = models.get(language or ANY_LANGUAGE, models.get(ANY_LANGUAGE))
        return PerplexityModel(path)(text) if path else None

    def _gated(
        self, measures: dict[str, NDArray[Any]], languages: list[str | None]
    ) -> NDArray[np.bool_]:
        spared = np.zeros(len(languages), dtype=np.bool_)
        if self._gate is not None:
            broken = broken_rules(measures, self._gate, self._gate_by_language, languages)
            for breaks in broken.values():
                spared |= breaks
        return spared
