"""A selection in the codes of the language model that named the documents' languages."""

from typing import Any

from lmpipe.artifacts.types import Documents
from lmpipe.curation.quality.language_policy import FILE, by_models_codes
from lmpipe.curation.selection.config import SelectConfig


def in_models_terms(config: SelectConfig, documents: Documents) -> SelectConfig:
    """Return a selection in the codes of the model that named the documents' languages.

    Raises:
        ConfigError: see `by_models_codes`.
    """
    if FILE not in documents.names():
        return config
    known = documents.read_json(FILE)
    changes: dict[str, Any] = {
        name: by_models_codes(getattr(config, name), known, name)
        for name in ("languages", "thresholds_by_language", "perplexity_bounds")
    }
    if (buckets := config.perplexity_buckets) is not None:
        cutoffs = by_models_codes(buckets.cutoffs, known, "perplexity_buckets.cutoffs")
        changes["perplexity_buckets"] = buckets.model_copy(update={"cutoffs": cutoffs})
    return config.model_copy(update=changes)
