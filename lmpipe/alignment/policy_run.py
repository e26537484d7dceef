"""A post-training run inside one rank: the policy under its engine, its curves, its checkpoints.

sft, dpo and grpo differ in where a step's loss comes from. What surrounds the step is the same and
lies here: opening the checkpoint, measuring held-out reward, recording curves, saving and resuming
inside the stage, and writing the result in the layout of a Checkpoint.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Generic, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from lmpipe.alignment.chat import ChatTokenizer, tokenizer_config
from lmpipe.alignment.config import AlignmentConfig
from lmpipe.alignment.rollouts import (
    RewardSummary,
    Rollout,
    Sampling,
    sample_rollouts,
    samples,
    summarise,
)
from lmpipe.alignment.task import problems
from lmpipe.model.decoder import Decoder
from lmpipe.model.huggingface import load_model, save_weights
from lmpipe.model.initialisation import learning_rate_scale
from lmpipe.runtime.micro_batch import micro_batch_size
from lmpipe.training.engine import StepResult, TrainingEngine, join_ranks
from lmpipe.training.launch import equal_share
from lmpipe.training.loss_watch import LossWatch
from lmpipe.training.rank import RankContext

C = TypeVar("C", bound=AlignmentConfig)

HELDOUT_SEED = 1_000_003  # held-out sampling never shares a random stream with training


class PolicyRun(Generic[C]):
    """Everything around the steps of a post-training job.

    Attributes:
        policy: the model for sampling and scoring; the engine trains this very module.
        curves: one row per recorded step.
        metrics: what the stage's manifest gets.
    """

    def __init__(self, kind: str, config: C, job: dict[str, Any], context: RankContext) -> None:
        self.kind, self.config, self.job, self.context = kind, config, job, context
        self.device = join_ranks(context.device)
        self.folder = Path(job["policy"])
        self.chat = ChatTokenizer.load(self.folder / "tokenizer.json")
        self.task = config.task.build()
        self.heldout_problems = problems(
            self.task, config.seed, "heldout", 0, config.heldout_problems
        )
        self.curves: list[dict[str, Any]] = []
        self.metrics: dict[str, Any] = {}
        self.tokens = 0
        self.heldout: list[Rollout] = []
        self._watch = LossWatch(context.runtime, context)
        self._started = self._last_checkpoint = time.monotonic()
        policy = self.load_policy(torch.device("cpu"))
        self.engine = TrainingEngine(
            policy,
            config.optimizer,
            config.schedule.over(config.num_steps * getattr(config, "updates_per_batch", 1)),
            context.runtime,
            device=self.device,
            scale=learning_rate_scale(policy.config),
        )
        module = self.engine.module
        assert isinstance(module, Decoder)
        self.policy: Decoder = module

    def load_policy(self, device: torch.device) -> Decoder:
        """Return a fresh copy of the policy that the run started from."""
        return load_model(
            self.folder, device, torch.float32, attention=self.context.runtime.attention
        )

    def resume(self) -> int:
        """Return the first step to do: 0, or where an earlier attempt's checkpoint ends."""
        if not self.job["resume"]:
            return 0
        folder = Path(self.job["resume"])
        data = self.engine.load(folder / "state").data or {}
        saved = json.loads((folder / "run.json").read_text())
        self.curves, self.metrics, self.tokens = saved["curves"], saved["metrics"], saved["tokens"]
        losses = [row["loss"] for row in self.curves if "loss" in row]
        self._watch = LossWatch(self.context.runtime, self.context, losses)
        return int(data["step"])

    def share(self, count: int, what: str) -> int:
        """Return a rank's share of a step.

        Raises:
            ConfigError: the ranks cannot have equal shares.
        """
        return equal_share(count, self.context.world_size, what)

    def micro_batch_size(self, length: int) -> int:
        """Return sequences per forward pass: as Runtime says, or by a token budget."""
        return micro_batch_size(self.context.runtime, "post-training", self.device.type, length)

    def evaluate(self, step: int) -> RewardSummary:
        """Sample the held-out problems; the same ones, with the same random numbers, each time."""
        config = self.config
        sampling = Sampling(config.heldout_samples, config.max_new_tokens, config.temperature)
        self.policy.eval()
        self.heldout = sample_rollouts(
            self.policy,
            self.chat,
            self.task,
            self.heldout_problems,
            sampling,
            HELDOUT_SEED + config.seed,
        )
        self.policy.train()
        summary = summarise(self.heldout)
        self.metrics.setdefault("heldout_reward_before", summary.reward)
        self.record(step, **summary.as_dict("heldout_"))
        return summary

    def record(self, step: int, **values: float) -> None:
        """Add values to the curves' row of a step, and show them."""
        if not self.curves or self.curves[-1]["step"] != step:
            self.curves.append({"step": step, "tokens": self.tokens})
        seconds = round(time.monotonic() - self._started, 3)
        self.curves[-1].update(values, seconds=seconds)
        self.context.series(step, **values)

    def record_step(self, step: int, result: StepResult, **values: float) -> None:
        """Record an optimizer step beside the method's own values."""
        self.record(
            step,
            loss=result.loss,
            grad_norm=result.grad_norm,
            lr=result.learning_rate,
            skipped=float(result.skipped),
            **values,
        )
        if self.kind != "grpo":  # a policy-gradient loss measures nothing that could spike
            self._watch.see(step, result.loss)
        self.context.progress(step, self.config.num_steps, unit="steps", label=self.kind)

    def checkpoint_if_due(self, next_step: int, files: Sequence[Path] = ()) -> None:
        """Save state, curves and `files` when the time has come on rank 0. All ranks call it."""
        waited = time.monotonic() - self._last_checkpoint
        due = self.context.rank == 0 and waited >= self.context.runtime.checkpoint_every_seconds
        if self.engine.max_over_ranks(int(due)):
            self.checkpoint(next_step, files)

    def checkpoint(self, next_step: int, files: Sequence[Path] = ()) -> None:
        """Save state, curves and `files`. All ranks call it."""
        folder = self.context.scratch / f"checkpoint-{next_step}"
        self.engine.save(folder / "state", {"step": next_step})
        if self.context.rank == 0:
            run = {"curves": self.curves, "metrics": self.metrics, "tokens": self.tokens}
            (folder / "run.json").write_text(json.dumps(run))
            for path in files:
                shutil.copy(path, folder / path.name)
            self.context.save_checkpoint(next_step, folder)
        self._last_checkpoint = time.monotonic()

    def finish(self) -> dict[str, Any]:
        """Measure once more, write the Checkpoint's files on rank 0, return the metrics."""
        summary = self.evaluate(self.config.num_steps)
        self.metrics.update(summary.as_dict("heldout_"))
        self.metrics["tokens"] = self.tokens
        result = Path(self.job["result"])
        self.engine.save(result / "state", {"step": self.config.num_steps})
        weights = self.engine.full_weights()
        if self.context.rank == 0:
            self._write(result, weights)
        return self.metrics

    def _write(self, result: Path, weights: dict[str, torch.Tensor]) -> None:

        model = self.policy.config
        save_weights(weights, model, result / "model", eos_token_id=self.chat.end)
        shutil.copy(self.folder / "tokenizer.json", result / "model" / "tokenizer.json")
        settings = tokenizer_config(model.max_seq_len)
        generation = {"eos_token_id": self.chat.stop_ids, "bos_token_id": self.chat.begin}
        meta = {
            "kind": self.kind,
            "parameters": sum(weight.numel() for weight in weights.values()),
            "tokens": self.tokens,
            "step": self.config.num_steps,
            "starts_from": self.job["policy_meta"].get("kind", "base"),
            "model": model.model_dump(mode="json"),
            **{name: value for name, value in self.metrics.items() if name != "tokens"},
        }
        kept = samples(self.heldout, self.config.num_stored_samples)
        for name, value in {
            "model/tokenizer_config.json": settings,
            "model/generation_config.json": generation,
            "meta.json": meta,
            "samples.json": kept,
        }.items():
            text = json.dumps(value, indent=1, ensure_ascii=False)
            (result / name).write_text(text, encoding="utf-8")
        names = list(dict.fromkeys(name for row in self.curves for name in row))
        columns = {name: [row.get(name) for row in self.curves] for name in names}
        pq.write_table(pa.table(columns), result / "curves.parquet", compression="zstd")
        self.context.table("held-out samples", kept[:8])


def describe_rollouts(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """Return a summary of rollouts as a manifest metric."""
    return asdict(summarise(rollouts))
