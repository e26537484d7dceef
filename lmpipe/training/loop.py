"""The pretraining loop, inside one rank; may be called many times, so a sweep pays one start."""

import json
import math
import resource
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from lmpipe.errors import ConfigError, TrainingError
from lmpipe.model import cost
from lmpipe.model.accelerators import accelerator_of
from lmpipe.model.config import ModelConfig
from lmpipe.model.initialisation import learning_rate_scale
from lmpipe.training.config import PretrainConfig
from lmpipe.training.data import IGNORED, GlobalBatches, MicroBatch, Order, Sequences, cut
from lmpipe.training.engine import TrainingEngine
from lmpipe.training.loss_watch import LossWatch
from lmpipe.training.optimizer import LearningRateScale
from lmpipe.training.rank import RankContext


@dataclass(frozen=True)
class TrainingData:
    """What a run reads.

    Attributes:
        validation: read in order from its start.
        token_bytes: bytes of text that each token stands for, for bits per byte; None if nobody
            knows.
        order: of a mixture; else a shuffle of all training sequences.
    """

    train: Sequences
    validation: Sequences
    token_bytes: list[int] | None
    order: Order | None = None


@dataclass
class TrainingRun:
    """A run in progress, or finished.

    Attributes:
        curve: one row per step; validation fields are None where none was made.
    """

    config: PretrainConfig
    engine: TrainingEngine
    micro_batch_size: int
    curve: list[dict[str, Any]] = field(default_factory=list)

    @property
    def validation_loss(self) -> float:
        """The newest validation loss, in nats per token."""
        losses = [
            row["validation_loss"] for row in self.curve if row["validation_loss"] is not None
        ]
        return float(losses[-1])


def train(
    config: PretrainConfig,
    data: TrainingData,
    context: RankContext,
    device: torch.device,
    *,
    resume: Path | None = None,
    scratch: Path | None = None,
    scale: LearningRateScale | None = None,
) -> TrainingRun:
    """Train a model from its seed, or go on from a saved state, to the config's last step.

    All ranks call it. Afterwards `run.engine.full_weights()` has the weights.

    Args:
        config: `config.model.vocab_size` resolved.
        device: from engine.join_ranks.
        resume: folder of a checkpoint that this loop wrote.
        scratch: where checkpoints are written on their way to the store; none are, if left out.
        scale: per-parameter learning-rate factors; those of the model (muP) if left out.
    """
    runtime = context.runtime
    model = config.build_model(runtime.attention)
    engine = TrainingEngine(
        model,
        config.optimizer,
        config.schedule.over(config.total_steps),
        runtime,
        device=device,
        scale=scale or learning_rate_scale(config.model),
    )
    rows = runtime.micro_batch_size or automatic_micro_batch_size(
        config, context.world_size, device
    )
    run = TrainingRun(config, engine, rows)
    batches = global_batches(config, data)
    if resume is not None:
        _resume(run, batches, resume)
        context.log(f"resumed at step {engine.position.steps} of {config.total_steps}")
    watch = LossWatch(runtime, context, (row["loss"] for row in run.curve))
    last_saved = time.monotonic()
    while engine.position.steps < config.total_steps:
        started = time.monotonic()
        row = _train_step(run, batches, context)
        row["seconds"] = time.monotonic() - started
        _add_speed(run, row)
        done = engine.position.steps
        if done == config.total_steps or (
            config.validation_every and done % config.validation_every == 0
        ):
            measured = validate(run, data)
            row["validation_loss"] = measured.nats_per_token
            row["bits_per_byte"] = measured.bits_per_byte
        run.curve.append(row)
        _publish(run, row, context)
        watch.see(row["step"], row["loss"])
        due = time.monotonic() - last_saved >= runtime.checkpoint_every_seconds
        # rank 0's clock decides for all
        if scratch is not None and engine.max_over_ranks(int(due and context.rank == 0)):
            last_saved = time.monotonic()
            save_checkpoint(run, batches, context, scratch)
    return run


def global_batches(config: PretrainConfig, data: TrainingData) -> GlobalBatches:
    """Return the batches of a run."""
    return GlobalBatches(
        data.train,
        config.seed,
        config.batch_sequences,
        document_masking=config.document_masking,
        order=data.order,
    )


def _train_step(run: TrainingRun, batches: GlobalBatches, context: RankContext) -> dict[str, Any]:
    engine = run.engine
    step = engine.position.steps
    parts = batches.micro_batches(
        step, engine.rank, engine.world_size, run.micro_batch_size, engine.device
    )
    engine.begin_step(sum(part.num_targets for part in parts))
    for index, part in enumerate(parts):
        loss_sum = language_model_loss(engine, part, run.config.z_loss)
        engine.accumulate(loss_sum, last=index == len(parts) - 1)
    result = engine.step()
    if result.skipped:
        numbers = batches.numbers(step)
        context.log(
            f"step {step} skipped: gradients are not finite ({engine.position.skipped} so far); "
            f"its sequences are {numbers[:8]}{'…' if len(numbers) > 8 else ''}",
            "warning",
        )
    return {
        "step": step,
        "tokens": (step + 1) * run.config.batch_tokens,
        "loss": result.loss,
        "validation_loss": None,
        "bits_per_byte": None,
        "lr": result.learning_rate,
        "grad_norm": result.grad_norm,
        "skipped": result.skipped,
    }


def language_model_loss(
    model: Callable[..., torch.Tensor], batch: MicroBatch, z_loss: float = 0.0
) -> torch.Tensor:
    """Return the sum of a micro-batch's next-token losses in nats, plus z_loss times log(Z)^2."""
    logits_BTV = model(batch.token_BT, document_BT=batch.document_BT)
    logits_NV, target_N = logits_BTV.float().flatten(0, 1), batch.target_BT.flatten()
    loss_sum = torch.nn.functional.cross_entropy(
        logits_NV, target_N, reduction="sum", ignore_index=IGNORED
    )
    if z_loss:
        log_z_N = torch.logsumexp(logits_NV, dim=-1)
        loss_sum = loss_sum + z_loss * (log_z_N.square() * (target_N != IGNORED)).sum()
    return loss_sum


@dataclass(frozen=True)
class MeasuredLoss:
    """The loss of some tokens, and what these very tokens stand for.

    Attributes:
        nats: summed over the targets.
        num_bytes: of the targets' text; 0 if nobody knows.
    """

    nats: float
    num_targets: int
    num_bytes: int

    @property
    def nats_per_token(self) -> float:
        """The mean loss."""
        return self.nats / self.num_targets

    @property
    def bits_per_byte(self) -> float | None:
        """The loss as a figure that does not depend on the tokenizer."""
        return self.nats / math.log(2) / self.num_bytes if self.num_bytes else None


def validate(run: TrainingRun, data: TrainingData) -> MeasuredLoss:
    """Measure the loss of the first validation sequences. Collective."""
    config = run.config
    wanted = max(1, config.validation_tokens // config.sequence_length)
    return measure_loss(
        run.engine,
        data.validation,
        min(wanted, data.validation.num_sequences),
        run.micro_batch_size,
        document_masking=config.document_masking,
        token_bytes=data.token_bytes,
    )


@torch.no_grad()
def measure_loss(
    engine: TrainingEngine,
    sequences: Sequences,
    count: int,
    micro_batch_size: int,
    *,
    document_masking: bool,
    token_bytes: list[int] | None = None,
) -> MeasuredLoss:
    """Measure the loss of the first `count` sequences, at least one. Collective.

    Args:
        token_bytes: bytes of text that each token stands for. They are added up over the targets
            whose loss is taken: those of another sample, such as the whole split, give a figure
            that is of neither (2.440 bits per byte for 1.357 where the split's first documents are
            English and its last ones digits).
    """
    assert count > 0, "the stage checks that the split has a full sequence"
    share = (engine.rank, engine.world_size, micro_batch_size)
    parts = cut(
        sequences, list(range(count)), share, engine.device, document_masking=document_masking
    )
    engine.module.eval()
    nats = sum((language_model_loss(engine, part).double() for part in parts), start=0.0)
    engine.module.train()
    num_bytes = 0
    if token_bytes is not None:
        size_V = torch.tensor(token_bytes, device=engine.device)
        targets = (part.target_BT[part.target_BT != IGNORED] for part in parts)
        num_bytes = sum(int(size_V[target_N].sum()) for target_N in targets)
    num_targets = sum(part.num_targets for part in parts)
    totals = [engine.sum_over_ranks(float(value)) for value in (nats, num_targets, num_bytes)]
    return MeasuredLoss(totals[0], round(totals[1]), round(totals[2]))


def save_checkpoint(
    run: TrainingRun, batches: GlobalBatches, context: RankContext, scratch: Path
) -> None:
    """Write the state and hand it to the stage's process. Collective."""
    steps = run.engine.position.steps
    folder = scratch / f"checkpoint-{steps}"
    write_state(run, batches, folder)
    context.save_checkpoint(steps, folder)


def write_state(run: TrainingRun, batches: GlobalBatches, folder: Path) -> None:
    """Write weights, moments, position and curve, with the ids of the next batch as a proof."""
    run.engine.save(folder, _next_batch(run, batches))
    if run.engine.rank == 0:
        (folder / "curve.json").write_text(json.dumps(run.curve))


def _resume(run: TrainingRun, batches: GlobalBatches, folder: Path) -> None:
    position = run.engine.load(folder)
    expected = _next_batch(run, batches)
    if position.data != expected:
        raise TrainingError(
            f"{folder} would go on with other data than it was saved for: saved {position.data}, "
            f"now {expected}; shards, seed or batch size are not those of the saved run"
        )
    run.curve.extend(json.loads((folder / "curve.json").read_text()))


def _next_batch(run: TrainingRun, batches: GlobalBatches) -> dict[str, Any]:
    steps = run.engine.position.steps
    return {
        "next_sequence": steps * run.config.batch_sequences,
        # a mixture has no step past its last
        "next_numbers": batches.numbers(steps)[:64] if steps < run.config.total_steps else [],
        "num_sequences": batches.sequences.num_sequences,
    }


def _add_speed(run: TrainingRun, row: dict[str, Any]) -> None:
    row["tokens_per_second"] = run.config.batch_tokens / row["seconds"]
    row["mfu"] = None
    if run.engine.device.type == "cuda":
        accelerator = accelerator_of(torch.cuda.get_device_name(run.engine.device))
        if accelerator is not None:
            row["mfu"] = cost.model_flops_utilization(
                run.config.model.model_copy(update={"max_seq_len": run.config.sequence_length}),
                row["tokens_per_second"],
                accelerator,
                num_devices=run.engine.world_size,
            )


def _publish(run: TrainingRun, row: dict[str, Any], context: RankContext) -> None:
    named = ("loss", "validation_loss", "bits_per_byte", "lr", "grad_norm", "tokens_per_second")
    values = {name: row[name] for name in named if row[name] is not None}
    context.series(row["step"], **values)
    total = run.config.total_steps
    context.progress(row["step"] + 1, total, unit="steps", label=f"loss {row['loss']:.3f}")


def automatic_micro_batch_size(
    config: PretrainConfig, world_size: int, device: torch.device
) -> int:
    """Choose the rows of a forward pass: this rank's share of a step, or what memory holds of it.

    Per token: logits and their gradient in fp32 and bf16, and about 34 bytes of activations per
    layer and feature (Korthikanti et al., 2022, section 4, without the scores, which are not kept).
    """
    share = -(-config.batch_sequences // world_size)
    if device.type != "cuda":
        return min(share, 8)  # more rows are no faster on CPU, and each holds its logits
    shape: ModelConfig = config.model
    bytes_per_token = 14 * shape.vocab_size + 34 * shape.d_model * shape.num_layers
    state_bytes = 20 * cost.count_parameters(shape).total
    free_bytes = torch.cuda.mem_get_info(device)[0] - state_bytes
    rows = int(0.7 * free_bytes / bytes_per_token / config.sequence_length)
    if rows < 1:
        raise ConfigError(
            f"one sequence of {config.sequence_length} tokens does not fit into the GPU's memory; "
            "use more GPUs with zero_stage=3, a shorter sequence_length or a smaller model"
        )
    passes = -(-share // min(share, rows))
    return -(-share // passes)  # even passes rather than a full one and a remnant


def peak_memory_bytes(device: torch.device) -> int:
    """Return the most memory this rank has held: on its GPU, or resident on CPU."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def write_curve(rows: list[dict[str, Any]], path: Path) -> None:
    """Write the curve as Parquet; infinite gradient norms of skipped steps stay infinite."""

    floats = ("loss", "validation_loss", "bits_per_byte", "lr", "grad_norm", "seconds")
    schema = pa.schema(
        [("step", pa.int64()), ("tokens", pa.int64()), ("skipped", pa.bool_())]
        + [(name, pa.float64()) for name in (*floats, "tokens_per_second", "mfu")]
    )
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path, compression="zstd")


def free_disk_check(folder: Path, parameters: int) -> None:
    """Refuse a scratch disk that cannot hold two checkpoints on their way to the store."""
    needed = 2 * 12 * parameters
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ConfigError(
            f"scratch has {free / 1e9:.1f} GB free, two checkpoints need {needed / 1e9:.1f} GB; "
            "set Runtime.scratch to a larger disk"
        )


def speed_summary(curve: list[dict[str, Any]]) -> dict[str, float]:
    """Return the median tokens per second and MFU, the first steps left out as warm-up."""
    rows = curve[min(3, len(curve) - 1) :]
    middle = sorted(row["tokens_per_second"] for row in rows)[len(rows) // 2]
    summary = {"tokens_per_second": middle}
    known = sorted(row["mfu"] for row in rows if row["mfu"] is not None)
    if known:
        summary["mfu"] = known[len(known) // 2]
    assert all(math.isfinite(value) for value in summary.values())
    return summary
