"""The sweep inside one rank: every width's run, branched into a decay at each budget.

After each point the finished points and the state before the decay go to the stage as a
checkpoint, so that a kill costs at most one budget's training.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from lmpipe.model.config import ModelConfig
from lmpipe.model.decoder import Decoder
from lmpipe.model.initialisation import learning_rate_scale
from lmpipe.runtime.micro_batch import micro_batch_size
from lmpipe.scaling.config import ScaleConfig
from lmpipe.token_data.block_cache import BlockCache
from lmpipe.token_data.dataset import TokenReader
from lmpipe.token_data.order import SequenceOrder
from lmpipe.training.data import cut
from lmpipe.training.engine import TrainingEngine, join_ranks
from lmpipe.training.loop import language_model_loss, measure_loss
from lmpipe.training.mixing import open_reference
from lmpipe.training.rank import RankContext
from lmpipe.training.schedule import Schedule

Point = dict[str, Any]


def main(job: dict[str, Any], context: RankContext) -> list[Point]:
    """Train every series of the job; return the measured points."""
    return Sweep(job, context).run()


class Sweep:
    """The series still to train, and the points measured so far."""

    def __init__(self, job: dict[str, Any], context: RankContext) -> None:
        self.config = ScaleConfig.model_validate(job["config"])
        self.series: list[dict[str, Any]] = job["series"]
        self.context = context
        self.device = join_ranks(context.device)
        length = self.config.model.max_seq_len
        shards = open_reference(job["shards"])
        cache = BlockCache(int(context.runtime.token_cache_gb * 1e9))
        self.train = TokenReader.of(shards, "train", length, cache=cache)
        self.validation = TokenReader.of(shards, "validation", length, cache=cache)
        self.order = SequenceOrder(self.train.num_sequences, self.config.seed)
        self.batch = max(context.world_size, self.config.batch_tokens // length)
        self.micro_batch = micro_batch_size(context.runtime, "scale", self.device.type, length)
        self.points: list[Point] = []
        self.state: Path | None = None
        if job["resume"]:
            resume = Path(job["resume"])
            self.points = json.loads((resume / "points.json").read_text())
            self.state = resume / "state"
            context.log(f"{len(self.points)} points were finished by an earlier attempt")

    def run(self) -> list[Point]:
        """Train what an earlier attempt left over; return all points in the order of the job."""
        done = len(self.points)
        for series in self.series:
            budgets = series["budgets"]
            skip = min(done, len(budgets))
            done -= skip
            if skip < len(budgets):
                # the stored state is of this series exactly when a part of it is finished
                self._train_series(series, skip, self.state if skip else None)
        return self.points

    def steps(self, tokens: int) -> int:
        """Optimizer steps of a budget."""
        return max(1, tokens // (self.batch * self.config.model.max_seq_len))

    def _train_series(self, series: dict[str, Any], skip: int, state: Path | None) -> None:
        engine = self._engine(series)
        trunk = engine.schedule
        if state is not None:
            engine.load(state)
        for budget in series["budgets"][skip:]:
            steps = self.steps(budget)
            branched = self._decaying(steps)
            self._train(engine, steps - branched.decay_steps)
            branch = self.context.scratch / f"sweep-{len(self.points)}"
            engine.save(branch / "state")
            engine.schedule = branched
            loss = self._train(engine, steps)
            self._measure(series, budget, steps, loss, engine)
            engine.load(branch / "state")
            engine.schedule = trunk
            self._hand_over(branch)

    def _hand_over(self, branch: Path) -> None:
        torch.distributed.barrier()
        if self.context.rank == 0:
            (branch / "points.json").write_text(json.dumps(self.points))
            self.context.save_checkpoint(len(self.points), branch)

    def _decaying(self, steps: int) -> Schedule:
        """Return a budget's schedule; its last step at least decays."""
        schedule = self.config.schedule.over(steps)
        decay = max(1, schedule.decay_steps)
        warmup = min(schedule.warmup_steps, steps - decay)
        return replace(schedule, decay_steps=decay, warmup_steps=warmup)

    def _engine(self, series: dict[str, Any]) -> TrainingEngine:
        shape = ModelConfig.model_validate(series["shape"])
        model = Decoder(shape, self.context.runtime.attention).initialise(self.config.seed)
        settings = self.config.optimizer.model_copy(update={"learning_rate": series["rate"]})
        longest = self.config.schedule.over(self.steps(series["budgets"][-1]))
        return TrainingEngine(
            model,
            settings,
            replace(longest, decay_steps=0),
            self.context.runtime,
            device=self.device,
            scale=learning_rate_scale(shape),
        )

    def _train(self, engine: TrainingEngine, until: int) -> float:
        """Take steps up to `until`; return the last one's loss."""
        loss = float("nan")
        while engine.position.steps < until:
            step = engine.position.steps
            numbers = self.order.numbers(step * self.batch, self.batch).tolist()
            share = (engine.rank, engine.world_size, self.micro_batch)
            parts = cut(self.train, numbers, share, self.device, document_masking=False)
            engine.begin_step(sum(part.num_targets for part in parts))
            for index, part in enumerate(parts):
                engine.accumulate(language_model_loss(engine, part), last=index == len(parts) - 1)
            loss = engine.step().loss
        return loss

    def _validate(self, engine: TrainingEngine) -> float:
        """Mean loss of the first validation sequences, shared out over the ranks."""
        wanted = -(-self.config.validation_tokens // self.config.model.max_seq_len)
        count = min(self.validation.num_sequences, wanted)
        return measure_loss(
            engine, self.validation, count, self.micro_batch, document_masking=False
        ).nats_per_token

    def _measure(
        self, series: dict[str, Any], budget: int, steps: int, loss: float, engine: TrainingEngine
    ) -> None:
        tokens = steps * self.batch * self.config.model.max_seq_len
        point = {
            "parameters": series["parameters"],
            "tokens": tokens,
            "budget": budget,
            "width": series["shape"]["d_model"],
            "layers": series["shape"]["num_layers"],
            "epochs": tokens / (self.train.num_sequences * self.config.model.max_seq_len),
            "training_loss": loss,
            "loss": self._validate(engine),
            "held_out": series["held_out"],
        }
        self.points.append(point)
        total = sum(len(s["budgets"]) for s in self.series)
        self.context.progress(len(self.points), total, unit="runs")
        self.context.series(len(self.points), loss=point["loss"])
