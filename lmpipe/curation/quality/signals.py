"""signals: documents → the same documents with every column that select may ask for.

No threshold decides anything here, so a threshold is changed without computing again. Cheap
signals come first: language (one line for fastText) and the rules' measures; where the config
names a gate, documents that break one of its rules are spared the costly scores, which stay null.
"""

from functools import partial
from pathlib import Path

from lmpipe.artifacts.output import Output
from lmpipe.artifacts.stage import stage
from lmpipe.artifacts.types import Documents, Model, Source
from lmpipe.curation.quality.config import SignalsConfig
from lmpipe.curation.quality.language import known_languages
from lmpipe.curation.quality.language_policy import FILE, by_models_codes
from lmpipe.documents.stage import StoredPart, map_documents
from lmpipe.errors import InputError
from lmpipe.runtime import Runtime

BATCH_ROWS = 256


@stage(version=5, kind="exact")
def signals(
    out: Output[Documents],
    config: SignalsConfig,
    documents: Documents,
    language_model: Source,
    quality: Model | None,
    perplexity_model: Source | None,
    toxicity: Model | None,
    nsfw: Model | None,
    block_lists: Source | None,
    *,
    runtime: Runtime,
) -> Documents:
    """Compute language, rule measures, learned scores and look-ups in lists for every document.

    Raises:
        ConfigError: gate_by_language names a language that the model never says.
    """
    from lmpipe.curation.quality.perplexity import models_by_language

    known = known_languages(_only_file(language_model))
    gate = by_models_codes(config.gate_by_language, known, "gate_by_language")
    config = config.model_copy(update={"gate_by_language": gate})
    models = models_by_language(perplexity_model.names() if perplexity_model else [], known)
    work = partial(
        _score,
        config=config,
        language_model=_only_file(language_model),
        classifiers={
            column: (model.local("model.bin"), model.read_json("meta.json")["positive_label"])
            for column, model in (
                ("quality_score", quality),
                ("toxicity", toxicity),
                ("nsfw", nsfw),
            )
            if model
        },
        block_lists=block_lists,
        perplexity_models={
            language: perplexity_model.local(name)
            for language, name in models.items()
            if perplexity_model
        },
    )
    mapped = map_documents(out, documents, work, runtime)
    out.write_json(FILE, known)
    out.metric("gated", mapped.total("gated"))
    languages = mapped.counter("languages")
    ordered = sorted(languages.items(), key=lambda item: (-item[1], item[0]))
    out.metric("languages", dict(ordered))
    if models:
        named = {language or "others": name for language, name in models.items()}
        out.metric("perplexity_models", named)
    return mapped.finish()


def _only_file(source: Source) -> Path:
    names = source.names()
    if len(names) != 1:
        raise InputError(f"source {source.name!r} must pin one model file, it pins {names}")
    return source.local(names[0])


def _score(
    part: StoredPart,
    *,
    config: SignalsConfig,
    language_model: Path,
    classifiers: dict[str, tuple[Path, str]],
    block_lists: Source | None,
    perplexity_models: dict[str, Path],
) -> None:
    from lmpipe.curation.quality.block_lists import read_block_lists
    from lmpipe.curation.quality.scores import Scorer

    known = known_languages(language_model)
    lists = read_block_lists(block_lists, known) if block_lists else None
    scorer = Scorer(config, language_model, classifiers, perplexity_models, lists)
    for batch in part.batches(batch_rows=BATCH_ROWS):
        part.settle(batch, scorer(batch))
    part.counts["gated"] = scorer.num_gated
    part.info["languages"] = dict(scorer.languages)
