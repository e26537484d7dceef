"""signals: documents → the same documents with every column that select may ask for.

No threshold decides anything here, so a threshold is changed without computing again. Cheap
signals come first: language (one line for fastText) and the rules' measures; where the config
names a gate, documents that break one of its rules are spared the costly scores, which stay null.
"""

from functools import partial
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from lmpipe.artifacts.output import Output, ShardOutput
from lmpipe.artifacts.stage import StageConfig, stage
from lmpipe.artifacts.types import Documents, Model, Source
from lmpipe.curation.rules import LanguageThresholds, Thresholds
from lmpipe.errors import InputError
from lmpipe.runtime import Runtime

BATCH_ROWS = 256


class SignalsConfig(StageConfig):
    """What is computed for which documents."""

    language_sample_characters: int = Field(
        400,
        ge=30,
        le=1_000_000,
        description="How much of a document's body is looked at first for its language.",
    )
    language_more_characters: int = Field(
        10_000, ge=30, le=1_000_000, description="How much where shorter looks leave doubt."
    )
    language_certain: float = Field(
        0.5, ge=0, le=1, description="Probability from which one look at the language is enough."
    )
    gate: Thresholds | None = Field(
        None,
        description="Documents that break one of these rules get no costly scores (classifiers, "
        "perplexity); null: all get them. Use select's own thresholds or looser ones.",
    )
    gate_by_language: LanguageThresholds = Field(
        default_factory=dict,
        description="What differs in the gate by language, as select's thresholds_by_language.",
    )

    @model_validator(mode="after")
    def _there_is_a_gate(self) -> Self:
        if self.gate_by_language and self.gate is None:
            raise ValueError(
                f"gate_by_language names {sorted(self.gate_by_language)}, and gate is null: nothing"
                " is gated; give gate: {} for the published bounds, or take gate_by_language out"
            )
        return self


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
    from lmpipe.curation.language import known_languages
    from lmpipe.curation.language_policy import FILE, by_models_codes
    from lmpipe.curation.perplexity import models_by_language
    from lmpipe.documents.ledger import assert_conserved, write_ledger
    from lmpipe.documents.read import count_documents, shard_names

    names = {Path(name).stem: name for name in shard_names(documents)}
    known = known_languages(_only_file(language_model))
    gate = by_models_codes(config.gate_by_language, known, "gate_by_language")
    config = config.model_copy(update={"gate_by_language": gate})
    models = models_by_language(perplexity_model.names() if perplexity_model else [], known)
    work = partial(
        _score_shard,
        config=config,
        documents=documents,
        names=names,
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
    records = out.run_shards(list(names), work, runtime)
    num_kept = sum(int(record.counts["kept"]) for record in records)
    assert_conserved("signals", count_documents(documents), num_kept, write_ledger(out, []))
    out.write_json(FILE, known)
    out.metric("input", num_kept)
    out.metric("kept", num_kept)
    out.metric("gated", sum(int(record.counts["gated"]) for record in records))
    out.metric("languages", _languages(records))
    if models:
        named = {language or "others": name for language, name in models.items()}
        out.metric("perplexity_models", named)
    return out.commit()


def _only_file(source: Source) -> Path:
    names = source.names()
    if len(names) != 1:
        raise InputError(f"source {source.name!r} must pin one model file, it pins {names}")
    return source.local(names[0])


def _score_shard(
    shard: ShardOutput,
    key: str,
    *,
    config: SignalsConfig,
    documents: Documents,
    names: dict[str, str],
    language_model: Path,
    classifiers: dict[str, tuple[Path, str]],
    block_lists: Source | None,
    perplexity_models: dict[str, Path],
) -> None:
    from lmpipe.curation.block_lists import read_block_lists
    from lmpipe.curation.language import known_languages
    from lmpipe.curation.scores import Scorer
    from lmpipe.documents.read import read_shard
    from lmpipe.documents.write import DocumentWriter

    known = known_languages(language_model)
    lists = read_block_lists(block_lists, known) if block_lists else None
    scorer = Scorer(config, language_model, classifiers, perplexity_models, lists)
    name = f"kept/{key}.parquet"
    with shard.open(name, "wb") as file, DocumentWriter(file) as writer:
        for batch in read_shard(documents, names[key], batch_rows=BATCH_ROWS):
            writer.write_table(scorer(batch))
    shard.set_rows(name, writer.num_rows)
    shard.counts.update({"kept": writer.num_rows, "gated": scorer.num_gated})
    shard.info["languages"] = dict(scorer.languages)


def _languages(records: list[Any]) -> dict[str, int]:
    total: dict[str, int] = {}
    for record in records:
        for language, count in record.info["languages"].items():
            total[language] = total.get(language, 0) + count
    return dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))
