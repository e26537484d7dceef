"""Where and how a stage runs: all that may differ between machines and must not change a result.

A `Runtime` never enters an artifact's identity. The rule for a new field: if two values of it could
give different bytes in an exact stage, it belongs in that stage's config instead.
"""

import tempfile
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Runtime(BaseModel):
    """Machine-dependent settings of a stage run, with defaults that fit a laptop."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    workers: int = Field(1, ge=1, le=4096, description="Worker processes of a data stage.")
    executor: Literal["local", "ray", "slurm"] = Field(
        "local", description="Which of datatrove's executors runs the shards of a data stage."
    )
    slurm_partition: str = Field("", description="Partition of the jobs of executor=slurm.")
    slurm_time: str = Field("24:00:00", description="Time limit of such a job.")
    slurm_memory_gb: int = Field(4, ge=1, le=4096, description="Memory of such a job.")
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Where tensors live; auto takes CUDA where the machine has a GPU."
    )
    ranks: int = Field(
        0, ge=0, le=4096, description="Training processes; 0: one per GPU, else cpu_ranks."
    )
    cpu_ranks: int = Field(
        1, ge=1, le=4096, description="Training processes where ranks is 0 and there is no GPU."
    )
    threads_per_rank: int = Field(
        0, ge=0, le=1024, description="CPU threads of each rank; 0 shares the cores evenly."
    )
    micro_batch_size: int = Field(
        0, ge=0, le=65536, description="Sequences per forward pass and rank; 0 chooses by memory."
    )
    zero_stage: int = Field(
        1, ge=0, le=3, description="DeepSpeed ZeRO stage: what is sharded over the ranks."
    )
    attention: Literal["auto", "triton", "reference"] = Field(
        "auto", description="Attention backend; auto takes triton on CUDA and reference elsewhere."
    )
    compile: bool = Field(False, description="Compile the model with torch.compile (CUDA).")
    hostfile: str = Field(
        "", description="DeepSpeed hostfile of a multi-node job; empty: one node."
    )
    gpu_limit: str = Field(
        "",
        description="Prefect's global concurrency limit that a stage tagged gpu takes a slot a"
        " device of; empty: none. `lmpipe deploy` makes one named gpu.",
    )
    checkpoint_every_seconds: float = Field(
        600.0, gt=0, description="Seconds between checkpoints inside a training stage."
    )
    keep_checkpoints: int = Field(
        2, ge=1, le=1000, description="How many checkpoints inside a training stage are kept."
    )
    alarm_kept_fraction: float = Field(
        0.02,
        ge=0,
        le=1,
        description="Alarm if a curation stage keeps a smaller share of its documents; 0: never.",
    )
    stop_kept_below: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Stop if a curation stage keeps a smaller share of its documents; "
        "stage_runtime.STAGE.… for one alone.",
    )
    stop_kept_above: float = Field(
        1.0, ge=0, le=1, description="Stop if a curation stage keeps a larger share."
    )
    stop_host_lost_fraction: float = Field(
        0.95,
        ge=0,
        le=1,
        description="Stop if a curation stage takes a larger share of a host with "
        "stop_host_documents or more; 1: off; stage_runtime.STAGE.… for one alone.",
    )
    stop_host_documents: int = Field(
        200, ge=1, le=10**9, description="Documents from which a host's losses are looked at."
    )
    alarm_contaminated_fraction: float = Field(
        0.05,
        ge=0,
        le=1,
        description="Alarm if a larger share of the documents holds evaluation items; 1: never.",
    )
    alarm_loss_deviations: float = Field(
        8.0,
        ge=0,
        le=1e6,
        description="Alarm if a training loss is this many robust standard deviations above the"
        " median of the last alarm_loss_steps; 0: never.",
    )
    alarm_loss_steps: int = Field(
        64, ge=8, le=10_000, description="Steps that a loss is compared to; one alarm in as many."
    )
    stop_skipped_in_a_row: int = Field(
        10,
        ge=0,
        le=10**6,
        description="Stop a training run after more steps in a row than this whose gradients are"
        " not finite.",
    )
    sort_memory_mb: int = Field(
        512, ge=16, le=2**20, description="What one sort or join may hold before it spills to disk."
    )
    token_cache_gb: float = Field(
        100.0,
        ge=0,
        le=1e6,
        description="Gigabytes of an object store's token shards that training keeps on a host.",
    )
    scratch: str = Field("", description="Folder for temporary files; empty: the system's own.")
    locations: dict[str, str] = Field(
        default_factory=dict, description="Where the files of a source lie: file name to URL."
    )
    copy_sources: bool = Field(False, description="Copy a source's files into the store.")

    def scratch_folder(self) -> Path:
        """Return the folder for temporary files, created if need be."""
        folder = Path(self.scratch) if self.scratch else Path(tempfile.gettempdir())
        folder.mkdir(parents=True, exist_ok=True)
        return folder
