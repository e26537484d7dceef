"""The stage `sft`: teach a base model to answer, from conversations.

The loss is on what the assistant says and on its end token, the same token mean over the whole step
whatever the packing (see chat.py and packing.py). Conversations come from the task's own generator,
from a pinned JSONL source, or from both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lmpipe.alignment.config import SftConfig
from lmpipe.alignment.launch import run_alignment
from lmpipe.artifacts.output import Output
from lmpipe.artifacts.stage import stage
from lmpipe.artifacts.types import Checkpoint, Source
from lmpipe.errors import ConfigError
from lmpipe.eval_items.contamination_record import (
    FILE,
    ContaminationRecord,
    check,
    merge,
    record_in,
    record_of_files,
)
from lmpipe.runtime import Runtime
from lmpipe.training.launch import check_ranks

if TYPE_CHECKING:
    from lmpipe.training.rank import RankContext


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


def sft_in_rank(job: dict[str, Any], context: RankContext) -> dict[str, Any]:
    """Do a rank's part; what it needs is imported there, torch among it."""
    from lmpipe.alignment.sft_rank import main

    return main(job, context)


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

    contamination = contamination_gate(config, base, conversations)
    given = conversations.names() if conversations else []
    names = [name for name in given if name.rsplit("/", 1)[-1] != FILE]
    paths = [conversations.local(name) for name in names] if conversations else []
    job = {"conversations": [str(path) for path in paths]}
    return run_alignment(sft_in_rank, config, base, out, runtime, job, contamination)
