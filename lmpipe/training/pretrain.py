"""Pretraining: token shards in, a base model and its training state out."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmpipe.artifacts.output import Output
from lmpipe.artifacts.stage import stage
from lmpipe.artifacts.types import Checkpoint, Tokenizer, TokenShards
from lmpipe.errors import ConfigError
from lmpipe.eval_items.contamination_record import (
    FILE,
    ContaminationRecord,
    check,
    merge,
    record_of,
)
from lmpipe.model.config import ModelConfig
from lmpipe.runtime import Runtime
from lmpipe.token_data.index import SplitIndex, check_holds_a_sequence
from lmpipe.token_data.packing import lay_out
from lmpipe.token_data.shard_file import verify_shards
from lmpipe.tokenization.encoding import text_bytes_of_tokens
from lmpipe.training.config import PretrainConfig
from lmpipe.training.launch import check_ranks, run_ranks
from lmpipe.training.mixing import check_token_sets, reference

if TYPE_CHECKING:
    from lmpipe.training.rank import RankContext


def contamination_gate(
    config: PretrainConfig, shards: TokenShards, tokenizer: Tokenizer, others: list[TokenShards]
) -> ContaminationRecord:
    """Return what is known of the data, with what was accepted; see `check` for the refusals."""
    return check(
        merge(record_of(part) for part in [shards, *others]),
        config.max_contaminated_fraction,
        config.accept_contamination,
        "pretrain",
    )


def check_start(config: PretrainConfig, given: frozenset[str], runtime: Runtime | None) -> None:
    """Refuse ranks that cannot be had; `stage` has the arguments."""
    check_ranks(runtime)


def pretrain_in_rank(job: dict[str, Any], context: "RankContext") -> dict[str, Any]:
    """Do a rank's part; what it needs is imported there, torch among it."""
    from lmpipe.training.pretrain_rank import main

    return main(job, context)


@stage(version=2, kind="statistical", gate=contamination_gate, check=check_start)
def pretrain(
    out: Output[Checkpoint],
    config: PretrainConfig,
    shards: TokenShards,
    tokenizer: Tokenizer,
    others: list[TokenShards],
    *,
    runtime: Runtime,
) -> Checkpoint:
    """Train a model on the shards; a killed run goes on from its newest checkpoint.

    Args:
        others: the token sets of config.mixture but `main`, in the order of their names.

    Raises:
        InputError: the data have no contamination report, or are over the limit; a shard's tokens
            are not those that were written.
        ConfigError: the mixture does not fit the token sets, or a split has no full sequence.
    """
    sets = [shards, *others]
    contamination = contamination_gate(config, shards, tokenizer, others)
    mixture = _mixture(config, sets)
    config = config.model_copy(update={"model": _sized(config.model, tokenizer)})
    whole = ("validation",) if config.packing == "best_fit" else ("train", "validation")
    for split in whole:
        check_holds_a_sequence(shards, split, config.sequence_length, "pretrain.sequence_length")
    for part in sets:
        verify_shards(part)
    meta = shards.read_json("meta.json")
    token_bytes = text_bytes_of_tokens(tokenizer)
    if token_bytes is None:
        out.log("bits per byte are left out: the tokenizer has no ranks.tiktoken", "warning")
    with out.scratch(runtime) as scratch, out.previous_checkpoint(runtime) as previous:
        job = {
            "config": config.model_dump(mode="json"),
            "token_sets": [reference(part) for part in sets],
            "token_bytes": token_bytes,
            "eos": meta["eos"],
            "scratch": str(scratch),
            "resume": str(previous) if previous else "",
        }
        summary = run_ranks(pretrain_in_rank, job, out, runtime)
        final = scratch / "final"
        write_tokenizer_files(tokenizer, final / "model", config.model.max_seq_len)
        for folder in ("model", "state"):
            out.put_dir(folder, final / folder)
        # times of one run are never those of another, and must not make its content differ
        out.put_file("curves.parquet", final / "curves.parquet", digest=False)
        out.set_rows("curves.parquet", summary["rows"])
    figures = {**summary["metrics"], "unigram_entropy": meta["unigram_entropy_nats"], **mixture}
    for name, value in figures.items():
        if value is not None:
            out.metric(name, value)
    if figures["validation_loss"] >= figures["unigram_entropy"]:
        out.log("the model predicts no better than token frequencies do; see the curves", "warning")
    out.write_json("meta.json", {"kind": "base", **summary["meta"], **summary["results"]})
    out.write_json(FILE, contamination.dump())
    out.metric("contamination", contamination.summary())
    return out.commit()


def _mixture(config: PretrainConfig, sets: list[TokenShards]) -> dict[str, Any]:
    """Check a mixture against its token sets; return what each gives, for the manifest."""
    names = config.mixture.names if config.mixture else ("main",)
    if len(sets) != len(names):
        raise ConfigError(
            f"pretrain.mixture names the token sets {', '.join(names)}, {len(sets)} were given; "
            "give one for each"
        )
    if config.mixture is None:
        return {}
    check_token_sets(dict(zip(names, sets, strict=True)))
    length = config.sequence_length
    sizes = [
        lay_out(SplitIndex.of(part, "train"), length, config.packing).num_sequences for part in sets
    ]
    steps_and_batch = (config.total_steps, config.batch_sequences)
    order = config.mixture.order(sizes, steps_and_batch, config.seed)
    return {"mixture": config.mixture.contributions(order, length)}


def _sized(model: ModelConfig, tokenizer: Tokenizer) -> ModelConfig:
    return model.with_vocab(int(tokenizer.read_json("meta.json")["vocab_size"]))


def write_tokenizer_files(tokenizer: Tokenizer, folder: Path, max_length: int) -> None:
    """Put the tokenizer beside a model, where AutoTokenizer looks for it.

    No chat template: a base model has not been taught one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    meta = tokenizer.read_json("meta.json")
    names = {number: name for name, number in meta["specials"].items()}
    (folder / "tokenizer.json").write_bytes(tokenizer.read_bytes("tokenizer.json"))
    fields: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{f"{role}_token": names[meta[role]] for role in ("eos", "bos", "pad")},
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(fields, indent=1))
