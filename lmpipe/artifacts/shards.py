"""Running a stage's shards in worker processes, on datatrove's executors.

The split of the input into shards is fixed by the stage; the number of workers is Runtime's. So
the same bytes come from one worker on a laptop and from a thousand Slurm tasks. Completion is
decided by our markers in the store and not by the executor's own log folder, which knows nothing
of artifacts.
"""

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lmpipe.artifacts.output import Output, ShardOutput, ShardRecord
from lmpipe.artifacts.store import Store
from lmpipe.errors import ConfigError, StoreError
from lmpipe.runtime import Runtime
from lmpipe.runtime.preflight import check_machine
from lmpipe.runtime.processes import die_with_parent

if TYPE_CHECKING:
    from datatrove.executor.base import PipelineExecutor

Work = Callable[[ShardOutput, str], None]


class ShardTask:
    """One step of a datatrove pipeline: task number `rank` runs the work of key number `rank`."""

    def __init__(self, store: Store, prefix: str, keys: list[str], work: Work) -> None:
        self._store = store
        self._prefix = prefix
        self._keys = keys
        self._work = work

    def __repr__(self) -> str:
        """Return what datatrove logs of the step."""
        return f"{len(self._keys)} shards of {self._prefix}"

    def __call__(self, data: Any, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        if len(self._keys) > 1 and _in_worker():
            die_with_parent(os.getppid())
            _silence_executor()
        shard = ShardOutput(self._store, self._prefix, self._keys[rank])
        self._work(shard, self._keys[rank])
        shard.finish()
        return iter(())


def run_shards(
    out: Output[Any], keys: list[str], work: Work, runtime: Runtime
) -> list[ShardRecord]:
    """Run `work(shard, key)` once per key in worker processes and register what they wrote.

    The first failure ends the rest.

    Args:
        keys: distinct file-name-safe names, fixed by the input and never by the worker count.
        work: a module-level function or functools.partial; its output may depend on the key and
            its bound arguments only.
        runtime: worker count and executor.

    Returns:
        The shards' records in the order of `keys`, adopted ones included.
    """
    if len(set(keys)) != len(keys):
        raise ConfigError(f"shard keys repeat: {sorted(keys)[:10]}")
    records = out.finished_shards(keys)
    if records:
        out.log(f"adopted {len(records)} of {len(keys)} shards finished by an earlier attempt")
    missing = [key for key in keys if key not in records]
    records |= _run_missing(out, missing, work, runtime, already=len(records))
    for key in keys:
        out.register(records[key])
    return [records[key] for key in keys]


def _run_missing(
    out: Output[Any], keys: list[str], work: Work, runtime: Runtime, already: int
) -> dict[str, ShardRecord]:
    if not keys:
        return {}
    workers = min(runtime.workers, len(keys))
    total = already + len(keys)
    if workers == 1 and runtime.executor == "local":
        # One worker needs no executor: this saves its import and manager process, 1.5 s a stage.
        for index, key in enumerate(keys):
            shard = out.shard(key)
            work(shard, key)
            shard.finish()
            out.progress(already + index + 1, total, unit="shards")
    else:
        task = ShardTask(out.store, out.prefix, keys, work)
        with out.scratch(runtime) as logs, _progress(out, keys, already):
            _executor(task, len(keys), workers, str(logs), runtime).run()
        out.progress(total, total, unit="shards")  # the watch may have looked before the last one
    return {key: _record(out, key) for key in keys}


def _executor(
    task: ShardTask, tasks: int, workers: int, logs: str, runtime: Runtime
) -> "PipelineExecutor":
    if runtime.executor == "local":
        from lmpipe.artifacts.local_executor import LocalExecutor

        _silence_executor()
        return LocalExecutor([task], tasks=tasks, workers=workers, logging_dir=logs)
    if runtime.executor == "ray":
        from datatrove.executor.ray import RayPipelineExecutor

        return RayPipelineExecutor([task], tasks=tasks, workers=workers, logging_dir=logs)
    return _slurm(task, tasks, workers, logs, runtime)


def _slurm(
    task: ShardTask, tasks: int, workers: int, logs: str, runtime: Runtime
) -> "PipelineExecutor":
    """Return an executor that submits one job array and waits for it to end (`sbatch --wait`)."""
    check_machine(runtime)
    from datatrove.executor.slurm import SlurmPipelineExecutor

    _silence_executor()
    return SlurmPipelineExecutor(
        [task],
        tasks=tasks,
        time=runtime.slurm_time,
        partition=runtime.slurm_partition,
        mem_per_cpu_gb=runtime.slurm_memory_gb,
        workers=workers,
        job_name="lmpipe",
        qos="",
        # the jobs find this interpreter and this code, wherever the submitting shell was
        env_command=(
            f"export PATH={os.path.dirname(sys.executable)}:$PATH"  # noqa: PTH120
            f" PYTHONPATH={os.environ.get('PYTHONPATH', '')}"
        ),
        sbatch_args={"wait": ""},
        logging_dir=logs,
        with_srun=False,
    )


@contextmanager
def _progress(out: Output[Any], keys: list[str], already: int) -> Iterator[None]:
    """Report finished shards while the executor blocks, by counting markers once a second."""
    stop = threading.Event()
    folder = out.marker("").rpartition("/")[0]

    def watch() -> None:
        while not stop.wait(1.0):
            try:
                done = len(out.store.children(folder))
            except (StoreError, OSError):
                continue  # the picture stands still while the store is away
            out.progress(already + done, already + len(keys), unit="shards")

    thread = threading.Thread(target=watch, name="shard-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _record(out: Output[Any], key: str) -> ShardRecord:
    data = out.store.read(out.marker(key))
    if data is None:
        raise StoreError(f"shard {key!r} ended without its marker {out.store.url(out.marker(key))}")
    return ShardRecord.model_validate_json(data)


def _silence_executor() -> None:
    """Drop datatrove's per-task chatter: our own progress and errors say more."""
    from datatrove.utils.logging import logger

    logger.remove()


def _in_worker() -> bool:
    import multiprocess

    return (
        multiprocess.current_process().name != "MainProcess"
        or multiprocessing.current_process().name != "MainProcess"
    )
