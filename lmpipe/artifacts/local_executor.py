"""datatrove's local executor, in a pool of processes that notices when one of them is killed.

Its own pool (`multiprocessing.Pool`) puts a new worker in the place of one that died, by the memory
killer for example, and waits for the lost task for ever. concurrent.futures' pool fails then; the
shards that are done are adopted by the next attempt. Price: work is pickled and not dilled, so
it must be a function of a module (run_shards asks for that anyway).
"""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool

from datatrove.executor.local import LocalPipelineExecutor

from lmpipe.errors import StageFailed


class LocalExecutor(LocalPipelineExecutor):  # type: ignore[misc]
    """Runs each task once; the first failure ends the rest."""

    def run(self) -> None:
        """Run all tasks.

        Raises:
            StageFailed: a worker process was killed.
        """
        # spawn and not datatrove's default, a fork server: that one stays when this process is
        # killed, and with it its workers, whose parent it is
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(self.workers, context, initializer=_take, initargs=(self,))
        with pool:
            futures = [pool.submit(_run_task, rank) for rank in range(self.tasks)]
            try:
                for future in as_completed(futures):
                    future.result()
            except BrokenProcessPool as error:
                raise StageFailed(
                    "a worker process ended in the middle of a shard: killed, for want of memory "
                    "perhaps (see `dmesg`); fewer runtime.workers need less. Run again: the shards "
                    "that are done are kept"
                ) from error
            finally:  # all is done or lost: an orderly end of the workers would take a second
                workers = list((pool._processes or {}).values())
                pool.shutdown(wait=False, cancel_futures=True)
                for worker in workers:
                    worker.kill()


_taken: list[LocalExecutor] = []  # in a worker: sent once, and not with each of its tasks


def _take(executor: LocalExecutor) -> None:
    _taken.append(executor)


def _run_task(rank: int) -> None:
    _taken[0]._run_for_rank(rank)
