"""What each rank of the pretrain stage does."""

import time
from pathlib import Path
from typing import Any

from lmpipe.model import cost
from lmpipe.model.huggingface import save_weights
from lmpipe.token_data.block_cache import BlockCache
from lmpipe.token_data.dataset import TokenReader
from lmpipe.training.config import PretrainConfig
from lmpipe.training.data import GlobalBatches, Order
from lmpipe.training.engine import join_ranks
from lmpipe.training.loop import (
    TrainingData,
    TrainingRun,
    free_disk_check,
    global_batches,
    peak_memory_bytes,
    speed_summary,
    train,
    write_curve,
    write_state,
)
from lmpipe.training.mixing import MixedSequences, open_reference
from lmpipe.training.rank import RankContext


def main(job: dict[str, Any], context: RankContext) -> dict[str, Any]:
    """Train, write the final checkpoint below the scratch folder, and return its figures."""
    config = PretrainConfig.model_validate(job["config"])
    device = join_ranks(context.device)
    context.log(f"{context.world_size} ranks up after {time.time() - context.started:.1f} s")
    scratch = Path(job["scratch"])
    free_disk_check(scratch, cost.count_parameters(config.model).total)
    cache = BlockCache(int(context.runtime.token_cache_gb * 1e9))
    sets = [open_reference(named) for named in job["token_sets"]]
    length = config.sequence_length
    readers = [
        TokenReader.of(part, "train", length, packing=config.packing, cache=cache) for part in sets
    ]
    data = TrainingData(
        train=MixedSequences(readers) if config.mixture else readers[0],
        # one layout for all, so that losses compare across packings
        validation=TokenReader.of(sets[0], "validation", length, cache=cache),
        token_bytes=job["token_bytes"],
        order=_mixed_order(config, readers),
    )
    resume = Path(job["resume"]) if job["resume"] else None
    run = train(config, data, context, device, resume=resume, scratch=scratch)
    batches = global_batches(config, data)
    write_final(run, batches, scratch / "final", job["eos"])
    summary = summarise(run, batches, peak_memory_bytes(device), context.world_size)
    reports = [reader.layout.report().as_dict() for reader in readers]
    names = config.mixture.names if config.mixture else ()
    packing = dict(zip(names, reports, strict=True)) if names else reports[0]
    summary["metrics"]["document_packing"] = packing
    return summary


def _mixed_order(config: PretrainConfig, readers: list[TokenReader]) -> Order | None:
    if config.mixture is None:
        return None
    sizes = [reader.num_sequences for reader in readers]
    steps_and_batch = (config.total_steps, config.batch_sequences)
    return config.mixture.order(sizes, steps_and_batch, config.seed)


def write_final(run: TrainingRun, batches: GlobalBatches, folder: Path, eos: int) -> None:
    """Write the model in Hugging Face's layout, the state beside it, and the curve. Collective."""
    write_state(run, batches, folder / "state")
    weights = run.engine.full_weights()
    if run.engine.rank == 0:
        (folder / "state" / "curve.json").unlink()  # it holds times, and curves.parquet has it all
        save_weights(weights, run.config.model, folder / "model", eos_token_id=eos)
        write_curve(run.curve, folder / "curves.parquet")


def summarise(
    run: TrainingRun, batches: GlobalBatches, memory_bytes: int, world_size: int
) -> dict[str, Any]:
    """Return the figures of a finished run; those that differ between equal runs are metrics."""
    position = run.engine.position
    last = run.curve[-1]
    results = {
        "validation_loss": run.validation_loss,
        "bits_per_byte": last["bits_per_byte"],
        "loss": last["loss"],
        "tokens": last["tokens"],
        "step": position.steps,
        "skipped_steps": position.skipped,
        "epochs": position.steps * run.config.batch_sequences / batches.sequences.num_sequences,
        "parameters": cost.count_parameters(run.config.model).total,
    }
    speed = speed_summary(run.curve)
    places = {"ranks": world_size, "memory_bytes_per_rank": memory_bytes}
    return {
        "rows": len(run.curve),
        "results": results,
        "meta": {"model": run.config.model.model_dump(mode="json")},
        "metrics": {**results, **speed, **places},
    }
