"""The stage `sft`: teach a base model to answer, from conversations.

The loss is on what the assistant says and on its end token, the same token mean over the whole step
whatever the packing (see chat.py and packing.py). Conversations come from the task's own generator,
from a pinned JSONL source, or from both.
"""

from __future__ import annotations

from pydantic import Field

from lmpipe.alignment.config import AlignmentConfig, AlignmentOptimizer
from lmpipe.alignment.packing import Overflow
from lmpipe.artifacts.output import Output
from lmpipe.artifacts.stage import stage
from lmpipe.artifacts.types import Checkpoint, Source
from lmpipe.errors import ConfigError
from lmpipe.eval_items.contamination_record import (
    ACCEPT_DESCRIPTION,
    FILE,
    LIMIT_DESCRIPTION,
    ContaminationRecord,
    check,
    merge,
    record_in,
    record_of_files,
)
from lmpipe.runtime import Runtime
from lmpipe.training.launch import check_ranks
from lmpipe.training.optimizer import LearningRate


class SftOptimizer(AlignmentOptimizer):
    """AdamW at a rate that teaches a format in tens of steps."""

    learning_rate: LearningRate = 1e-3


class SftConfig(AlignmentConfig):
    """What is taught, how rows are packed, and how long."""

    num_examples: int = Field(
        8192, ge=0, le=100_000_000, description="Conversations made from the task; 0 for none."
    )
    sequence_length: int = Field(
        0, ge=0, le=1_048_576, description="Tokens of a packed row; 0 takes the model's longest."
    )
    rows_per_step: int = Field(16, ge=1, le=1_000_000, description="Packed rows per step.")
    overflow: Overflow = Field(
        "error", description="What happens to a conversation longer than a row."
    )
    optimizer: SftOptimizer = Field(SftOptimizer(), description="AdamW's settings.")
    max_contaminated_fraction: float = Field(0.0, ge=0, le=1, description=LIMIT_DESCRIPTION)
    accept_contamination: tuple[str, ...] = Field((), description=ACCEPT_DESCRIPTION)


def contamination_gate(
    config: SftConfig, base: Checkpoint, conversations: Source | None
) -> ContaminationRecord:
    """Return what is known of all data that the model will have seen; see `check` for refusals."""
    seen = record_in(base)
    if conversations is None:
        return seen
    own = record_of_files(conversations)
    limit, accepted = config.max_contaminated_fraction, config.accept_contamination
    return merge([seen, check(own, limit, accepted, "sft")])


def check_start(config: SftConfig, given: frozenset[str], runtime: Runtime | None) -> None:
    """Refuse a run with nothing to learn from, or ranks that cannot be had."""
    if config.num_examples == 0 and "conversations" not in given:
        raise ConfigError(
            "sft.num_examples=0 and no conversations: there is nothing to learn from; set "
            "sft.num_examples to at least 1, or give the stage a source of conversations"
        )
    check_ranks(runtime, **{"sft.rows_per_step": config.rows_per_step})


@stage(version=2, kind="statistical", gate=contamination_gate, check=check_start)
def sft(
    out: Output[Checkpoint],
    config: SftConfig,
    base: Checkpoint,
    conversations: Source | None,
    *,
    runtime: Runtime,
) -> Checkpoint:
    """Fine-tune on conversations; held-out reward is measured before, during and after.

    A source of conversations brings its own contamination.json (`lmpipe contamination` writes it);
    the task's generator draws numbers and needs none.

    Raises:
        ConfigError: there is nothing to learn from.
        InputError: the conversations have no contamination report, or are over the limit.
    """
    from lmpipe.alignment.launch import run_alignment

    contamination = contamination_gate(config, base, conversations)
    given = conversations.names() if conversations else []
    names = [name for name in given if name.rsplit("/", 1)[-1] != FILE]
    paths = [conversations.local(name) for name in names] if conversations else []
    job = {"conversations": [str(path) for path in paths]}
    entry = "lmpipe.alignment.sft_rank:main"
    return run_alignment(entry, config, base, out, runtime, job, contamination)
