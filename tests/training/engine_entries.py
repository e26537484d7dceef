"""Rank entries that try out the engine; one start serves many checks, for it costs seconds."""

import time
from pathlib import Path
from typing import Any

import torch

from lmpipe.errors import TrainingError
from lmpipe.runtime import Runtime
from lmpipe.training.checkpoint_state import hash_tensors
from lmpipe.training.engine import StepResult, TrainingEngine, join_ranks
from lmpipe.training.optimizer import OptimizerConfig
from lmpipe.training.rank import RankContext
from lmpipe.training.schedule import Schedule
from tests.training.tiny import SEQUENCES_PER_STEP, TinyModel, loss_sum, sequences

SETTINGS = OptimizerConfig(learning_rate=0.02, gradient_clip=0.5, weight_decay=0.2)
MOST_SKIPPED = 2
SCHEDULE = Schedule("cosine", total_steps=8, warmup_steps=2, final_fraction=0.1)


def new_engine(stage: int, context: RankContext) -> TrainingEngine:
    device = join_ranks(context.device)
    runtime = Runtime(zero_stage=stage, device=context.device, stop_skipped_in_a_row=MOST_SKIPPED)
    return TrainingEngine(TinyModel(), SETTINGS, SCHEDULE, runtime, device=device)


def split(number_of_ranks: int, rank: int, ragged: bool) -> list[list[int]]:
    """This rank's micro-batches of the step's sequences: as even as can be, or 5 to 1."""
    everything = list(range(SEQUENCES_PER_STEP))
    if number_of_ranks == 1:
        return [everything] if not ragged else [[0], [1, 2, 3], [4, 5]]
    if ragged:
        return [[0, 1, 2], [3, 4]] if rank == 0 else [[5], []]
    return [everything[rank::2]]


def train_step(
    engine: TrainingEngine, step: int, ragged: bool = False, poison: float | None = None
) -> StepResult:
    micro_batches = split(engine.world_size, engine.rank, ragged)
    batches = [sequences(step, numbers or [0]).to(engine.device) for numbers in micro_batches]
    for batch, numbers in zip(batches, micro_batches, strict=True):
        if not numbers:
            batch.target_BT.fill_(-100)
    engine.begin_step(sum(int((batch.target_BT != -100).sum()) for batch in batches))
    for index, batch in enumerate(batches):
        loss = loss_sum(engine(batch.token_BT), batch.target_BT)
        if poison is not None and engine.rank == engine.world_size - 1 and index == 0:
            loss = loss * poison
        engine.accumulate(loss, last=index == len(batches) - 1)
    return engine.step()


def run_steps(engine: TrainingEngine, count: int, ragged: bool = False) -> list[list[float]]:
    results = []
    for _ in range(count):
        result = train_step(engine, engine.position.steps, ragged)
        results.append([result.loss, result.grad_norm, result.learning_rate])
    return results


def weights_hash(engine: TrainingEngine) -> str:
    return hash_tensors(engine.full_weights())


def check_stages(job: dict[str, Any], context: RankContext) -> dict[str, Any]:
    """For each stage: a straight run, one resumed twice, a ragged one, one with a bad step."""
    answer: dict[str, Any] = {}
    for stage in job["stages"]:
        folder = Path(job["folder"]) / f"stage{stage}"
        engine = new_engine(stage, context)
        straight = run_steps(engine, 6)
        final = weights_hash(engine)

        engine = new_engine(stage, context)
        resumed = run_steps(engine, 2)
        engine.save(folder / "2", {"next": 12})
        engine = new_engine(stage, context)
        data = engine.load(folder / "2").data
        resumed += run_steps(engine, 2)
        engine.save(folder / "4")
        engine = new_engine(stage, context)
        engine.load(folder / "4")
        resumed += run_steps(engine, 2)
        answer[str(stage)] = {
            "straight": straight,
            "resumed": resumed,
            "same_weights": weights_hash(engine) == final,
            "data": data,
            "ragged": run_steps(new_engine(stage, context), 6, ragged=True),
            "skip": check_skip(stage, context),
        }
    return {**answer, "startup_seconds": time.time() - context.started}


def check_skip(stage: int, context: RankContext) -> dict[str, Any]:
    """Spoil step 1 on one rank only, then three in a row."""
    engine = new_engine(stage, context)
    first = train_step(engine, 0)
    before = weights_hash(engine)
    answer: dict[str, Any] = {"rate_before": SCHEDULE(1) * SETTINGS.learning_rate}
    for name, poison in (("inf", float("inf")), ("nan", float("nan"))):
        result = train_step(engine, 1, poison=poison)
        answer[name] = [result.skipped, weights_hash(engine) == before, result.learning_rate]
    answer["position"] = vars(engine.position).copy()
    after = train_step(engine, 1)
    answer["after"] = [after.skipped, after.loss, after.learning_rate]
    straight = new_engine(stage, context)
    train_step(straight, 0)
    answer["expected_after"] = [False, *vars(train_step(straight, 1)).values()][:2]
    answer["same_weights"] = weights_hash(straight) == weights_hash(engine)
    try:
        for _ in range(5):
            train_step(engine, 2, poison=float("nan"))
    except TrainingError as error:
        answer["error"] = [str(error), engine.position.skipped_in_a_row]
    assert first.skipped is False
    return answer


def go_on(job: dict[str, Any], context: RankContext) -> dict[str, Any]:
    """Load states written by other ranks and stages, and train to the end."""
    answer: dict[str, Any] = {}
    for saved, stage in job["loads"]:
        engine = new_engine(stage, context)
        engine.load(Path(job["folder"]) / saved)
        answer[f"{saved} at {stage}"] = run_steps(engine, 6 - engine.position.steps)
    engine = new_engine(1, context)
    answer["before any update"] = sorted(engine.full_weights())
    engine.save(Path(job["folder"]) / "fresh")
    engine = new_engine(1, context)
    engine.load(Path(job["folder"]) / "fresh")
    answer["ragged"] = run_steps(engine, 6, ragged=True)
    torch.distributed.barrier()
    return answer
