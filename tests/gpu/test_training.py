"""Training on one CUDA device by DeepSpeed: bf16, Triton attention, ZeRO 1-3. Prints speeds."""

import gc
import math
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("deepspeed")

from lmpipe.artifacts.events import discard  # noqa: E402
from lmpipe.model.config import ModelConfig  # noqa: E402
from lmpipe.runtime import Runtime  # noqa: E402
from lmpipe.training.config import PretrainConfig  # noqa: E402
from lmpipe.training.data import GlobalBatches  # noqa: E402
from lmpipe.training.engine import join_ranks  # noqa: E402
from lmpipe.training.loop import (  # noqa: E402
    TrainingData,
    TrainingRun,
    speed_summary,
    train,
)
from lmpipe.training.rank import RankContext  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore"),  # other versions of torch and DeepSpeed, other warnings
    pytest.mark.timeout(400),
]


class CountingSequences:
    """Documents that count on by a step of their own; a tiny model learns them in some 50 steps."""

    num_sequences = 512

    def __init__(self, length: int, vocab_size: int) -> None:
        self.length = length
        self.vocab_size = vocab_size

    def sequence(self, number: int) -> Any:
        generator = np.random.default_rng(number)
        cut = int(generator.integers(1, self.length))
        parts = []
        for size in (cut, self.length + 1 - cut):
            start, step = generator.integers((0, 1), (self.vocab_size, 5))
            parts.append((start + step * np.arange(size)) % self.vocab_size)
        return np.concatenate(parts).astype(np.int64)

    def sequences(self, numbers: Any) -> Any:
        return [self.sequence(number) for number in numbers]

    def document_numbers(self, number: int) -> Any:
        cut = int(np.random.default_rng(number).integers(1, self.length))
        return (np.arange(self.length + 1) >= cut).astype(np.int64)

    def is_target(self, number: int) -> Any:
        return np.arange(self.length + 1) > 0


def tiny(**changes: Any) -> PretrainConfig:
    shape = ModelConfig(
        vocab_size=256, num_layers=2, d_model=128, num_heads=2, num_kv_heads=1, max_seq_len=256
    )
    fields: dict[str, Any] = {
        "model": shape,
        "batch_tokens": 16 * 256,
        "sequence_length": 256,
        "total_tokens": 60 * 16 * 256,
        "validation_every": 0,
        "validation_tokens": 8 * 256,
        "optimizer": {"learning_rate": 5e-3},
    }
    return PretrainConfig.model_validate({**fields, **changes})


def start(
    config: PretrainConfig,
    runtime: Runtime,
    scratch: Path | None = None,
    resume: Path | None = None,
) -> TrainingRun:
    device = join_ranks("cuda")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    context = RankContext(rank, world_size, "cuda", runtime, discard)
    sequences = CountingSequences(config.sequence_length, config.model.vocab_size)
    data = TrainingData(sequences, sequences, None)
    return train(config, data, context, device, resume=resume, scratch=scratch)


def release(run: TrainingRun) -> None:
    run.engine.deepspeed.destroy()
    gc.collect()
    torch.cuda.empty_cache()


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_tiny_model_learns_and_a_resumed_run_is_equal_to_the_bit(tmp_path: Path, stage: int):
    runtime = Runtime(zero_stage=stage, attention="triton", micro_batch_size=8)
    straight = start(tiny(), runtime)
    losses = [row["loss"] for row in straight.curve]
    print(f"ZeRO-{stage}: loss {losses[0]:.3f} to {losses[-1]:.3f}")
    assert losses[-1] < 0.5 * losses[0]
    weights = straight.engine.full_weights()
    assert all(value.dtype == torch.float32 for value in weights.values())
    # the masters are more than bf16 can hold, or they were rebuilt from it
    assert any(not torch.equal(v, v.bfloat16().float()) for v in weights.values())
    release(straight)

    config = tiny()
    stopped = _stop_and_save(config, runtime, tmp_path / "half", steps=30)
    release(stopped)
    resumed = start(config, runtime, resume=tmp_path / "half")
    assert [row["loss"] for row in resumed.curve] == losses
    again = resumed.engine.full_weights()
    assert all(torch.equal(again[name], value) for name, value in weights.items())
    release(resumed)


def _stop_and_save(
    config: PretrainConfig, runtime: Runtime, folder: Path, steps: int
) -> TrainingRun:
    """Train the first steps of the config's own schedule, stop there, and write the state."""
    from lmpipe.training import loop

    device = join_ranks("cuda")
    context = RankContext(0, 1, "cuda", runtime, discard)
    model = config.build_model(runtime.attention)
    engine = loop.TrainingEngine(
        model,
        config.optimizer,
        config.schedule.over(config.total_steps),
        runtime,
        device=device,
    )
    run = loop.TrainingRun(config, engine, runtime.micro_batch_size)
    sequences = CountingSequences(config.sequence_length, config.model.vocab_size)
    batches = GlobalBatches(
        sequences, config.seed, config.batch_sequences, document_masking=config.document_masking
    )
    for _ in range(steps):
        row = loop._train_step(run, batches, context)
        row["seconds"] = row["tokens_per_second"] = 1.0
        row["mfu"] = None
        run.curve.append(row)
    loop.write_state(run, batches, folder)
    return run


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_an_inf_in_one_micro_batch_skips_the_step_and_changes_nothing(stage: int):
    runtime = Runtime(zero_stage=stage, attention="triton", micro_batch_size=8)
    run = start(tiny(total_tokens=5 * 16 * 256), runtime)
    engine = run.engine
    before = engine.full_weights()
    token_BT = torch.zeros(2, 16, dtype=torch.int64, device=engine.device)
    engine.begin_step(2)
    engine.accumulate(engine(token_BT).float().mean(), last=False)
    engine.accumulate(engine(token_BT).float().mean() * math.inf, last=True)
    result = engine.step()
    assert result.skipped and engine.position.skipped == 1
    after = engine.full_weights()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    release(run)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_100m_model_trains_and_its_speed_is_printed(stage: int, compiled: bool):
    if compiled and stage == 3:
        pytest.skip("ZeRO-3's gathering hooks break the graph at every module")
    shape = ModelConfig(
        vocab_size=32_768,
        num_layers=12,
        d_model=768,
        num_heads=12,
        num_kv_heads=4,
        max_seq_len=1024,
    )
    config = tiny(
        model=shape,
        sequence_length=1024,
        batch_tokens=128 * 1024,
        total_tokens=12 * 128 * 1024,
        validation_tokens=16 * 1024,
        optimizer={"learning_rate": 1e-3},
    )
    runtime = Runtime(zero_stage=stage, attention="triton", compile=compiled)
    torch.cuda.reset_peak_memory_stats()
    begun = time.monotonic()
    run = start(config, runtime)
    speed = speed_summary(run.curve)
    memory = torch.cuda.max_memory_allocated() / 2**30
    print(
        f"\nZeRO-{stage} compile={compiled} micro_batch={run.micro_batch_size}: "
        f"{speed['tokens_per_second']:,.0f} tokens/s, MFU {speed.get('mfu', math.nan):.1%}, "
        f"{memory:.1f} GiB, loss {run.curve[0]['loss']:.2f} to {run.curve[-1]['loss']:.2f}, "
        f"{time.monotonic() - begun:.0f} s in all"
    )
    assert run.curve[-1]["loss"] < run.curve[0]["loss"] - 1
    release(run)
