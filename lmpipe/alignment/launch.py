"""Run one post-training job in its ranks and publish what it leaves in its result folder."""

from __future__ import annotations

from typing import Any

import pyarrow.parquet as pq

from lmpipe.alignment.config import AlignmentConfig
from lmpipe.artifacts.output import Output
from lmpipe.artifacts.types import Checkpoint
from lmpipe.eval_items.contamination_record import FILE, ContaminationRecord, record_in
from lmpipe.runtime import Runtime
from lmpipe.training.launch import Entry, run_ranks

# Sampling needs whole weights on every rank, which ZeRO-3 shards away.
LARGEST_ZERO_STAGE = 2


def run_alignment(
    entry: Entry,
    config: AlignmentConfig,
    policy: Checkpoint,
    out: Output[Checkpoint],
    runtime: Runtime,
    job: dict[str, Any],
    contamination: ContaminationRecord | None = None,
) -> Checkpoint:
    """Run `entry` in every rank, resuming from an earlier attempt's checkpoint if there is one.

    Rank 0 leaves the artifact's files in the job's result folder. They enter the artifact under the
    same names; curves hold timings, so their bytes do not count for the content. What the policy's
    data held of the benchmarks goes on with it, unless `contamination` says more.
    """

    if runtime.zero_stage > LARGEST_ZERO_STAGE:
        out.log(f"sampling needs whole weights: ZeRO stage {LARGEST_ZERO_STAGE} here")
        runtime = runtime.model_copy(update={"zero_stage": LARGEST_ZERO_STAGE})
    with out.scratch(runtime) as result, out.previous_checkpoint(runtime) as previous:
        if previous:
            out.log("going on from the checkpoint of an earlier attempt")
        request = {
            **job,
            "config": config.model_dump(mode="json"),
            "policy": str(policy.local_dir("model")),
            "policy_meta": policy.read_json("meta.json"),
            "result": str(result),
            "resume": str(previous) if previous else "",
        }
        metrics = run_ranks(entry, request, out, runtime)
        for path in sorted(p for p in result.rglob("*") if p.is_file()):
            name = path.relative_to(result).as_posix()
            out.put_file(name, path, digest=name != "curves.parquet")
            if path.suffix == ".parquet":
                out.set_rows(name, pq.read_metadata(path).num_rows)
    for name, value in metrics.items():
        out.metric(name, value)
    contamination = contamination or record_in(policy)
    out.write_json(FILE, contamination.dump())
    out.metric("contamination", contamination.summary())
    return out.commit()
