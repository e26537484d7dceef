"""Supervised fine-tuning, inside a rank: pack once, then cross-entropy on what the assistant says.

Every rank packs all conversations itself, in place of one that packs and sends: rows are a function
of the config and the conversations alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from lmpipe.alignment.chat import Rendered, exchange, read_conversations
from lmpipe.alignment.config import SftConfig
from lmpipe.alignment.logprobs import token_logprobs
from lmpipe.alignment.packing import PackedRows, pack
from lmpipe.alignment.policy_run import PolicyRun
from lmpipe.alignment.task import problems
from lmpipe.errors import ConfigError
from lmpipe.token_data.order import SequenceOrder
from lmpipe.training.engine import StepResult
from lmpipe.training.rank import RankContext


def main(job: dict[str, Any], context: RankContext) -> dict[str, Any]:
    """Fine-tune on packed conversations; return the metrics."""
    config = SftConfig.model_validate(job["config"])
    run = PolicyRun("sft", config, job, context)
    rows = pack_conversations(run)
    order = SequenceOrder(len(rows), config.seed)
    run.share(config.rows_per_step, "rows_per_step")
    start = run.resume()
    if start == 0:
        run.evaluate(0)
    for step in range(start, config.num_steps):
        chosen = order.numbers(step * config.rows_per_step, config.rows_per_step)
        result = train_step(run, rows, chosen)
        run.tokens += chosen.size * rows.tokens.shape[1]
        run.record_step(step + 1, result, epoch=(step + 1) * config.rows_per_step / len(rows))
        if (step + 1) % config.evaluate_every == 0 and step + 1 < config.num_steps:
            run.evaluate(step + 1)
        run.checkpoint_if_due(step + 1)
    return run.finish()


def pack_conversations(run: PolicyRun[SftConfig]) -> PackedRows:
    """Render and pack what is taught; report every token and what is supervised."""
    config, chat = run.config, run.chat
    longest = run.policy.config.max_seq_len
    length = config.sequence_length or longest
    if length > longest:
        raise ConfigError(f"sequence_length={length} is longer than the model's {longest}")
    made = problems(run.task, config.seed, "train", 0, config.num_examples)
    rendered: list[Rendered] = [chat.render(exchange(p.prompt, p.answer)) for p in made]
    for path in run.job["conversations"]:
        rendered += [chat.render(c) for c in read_conversations(Path(path))]
    rows, report = pack(rendered, length, overflow=config.overflow, padding=chat.begin)
    run.metrics["packing"] = report.as_dict()
    run.context.table("packing", [{"what": k, "count": v} for k, v in report.as_dict().items()])
    run.context.log(
        f"{report.conversations} conversations in {report.rows} rows of {length}, "
        f"{report.supervised_tokens} of {report.total_tokens} tokens supervised, "
        f"{report.padding_tokens} padding"
    )
    return rows


def train_step(run: PolicyRun[SftConfig], rows: PackedRows, chosen: np.ndarray) -> StepResult:
    """Take one step on the chosen rows; each rank takes every world_size-th of them."""
    mine = chosen[run.context.rank :: run.context.world_size]
    size = run.micro_batch_size(rows.tokens.shape[1])
    run.engine.begin_step(float(rows.targets[mine].sum()))
    for start in range(0, len(mine), size):
        part = mine[start : start + size]
        loss = supervised_loss(run.engine, rows, part, run.device)
        run.engine.accumulate(loss, last=start + size >= len(mine))
    return run.engine.step()


def supervised_loss(
    model: Any, rows: PackedRows, part: np.ndarray, device: torch.device
) -> torch.Tensor:
    """Return the sum of −log p over the targets of some packed rows."""

    def tensor(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array[part]).to(device)

    scored = token_logprobs(
        model,
        tensor(rows.tokens),
        tensor(rows.targets),
        document_BT=tensor(rows.document),
        positions_BT=tensor(rows.position),
    )
    return -scored.logprobs_BT.sum()
