"""Flows that run one stage through the bridge, as a deployment's flow does."""

from pathlib import Path

from prefect import flow
from prefect.runtime import flow_run

from flows.run import Silent
from lmpipe.artifacts.manifest import Origin
from lmpipe.artifacts.store import Store
from lmpipe.report.config import ReportConfig
from lmpipe.report.report import report
from lmpipe.runtime import Runtime
from lmpipe.training.pretrain import pretrain
from tasks.bridge import PrefectConductor, as_task
from tasks.conductor import Settings, conducted_by
from tasks.selection import Selection
from tests.report.fake_run import make_run
from tests.stack.stages import LoudConfig, RanksConfig, SlowConfig, loud, ranked, slow

ranked_task = as_task(ranked, retries=2, retry_delay_seconds=0)
loud_task = as_task(loud)
pretrain_task = as_task(pretrain, retries=3, retry_delay_seconds=0)
report_task = as_task(report)
slow_task = as_task(slow, retries=2, retry_delay_seconds=5)


def _conductor(store: str, *stages: str) -> PrefectConductor:
    settings = Settings(Store(store), Runtime(ranks=2, device="cpu", threads_per_rank=1))
    return PrefectConductor(
        settings, Selection(), set(stages), Silent(), Origin(flow_run=str(flow_run.get_id()))
    )


@flow(name="run_ranked")
def run_ranked(store: str, folder: str, children: bool = False) -> None:
    """Run the stage with ranks."""
    with conducted_by(_conductor(store, "ranked")):
        ranked_task(RanksConfig(folder=folder, children=children))


@flow(name="run_loud")
def run_loud(store: str, lines: int) -> None:
    """Run the stage that prints."""
    with conducted_by(_conductor(store, "loud")):
        loud_task(LoudConfig(lines=lines))


@flow(name="run_slow")
def run_slow(store: str, num_shards: int, seconds: float) -> None:
    """Run the stage of many shards."""
    with conducted_by(_conductor(store, "slow")):
        slow_task(SlowConfig(num_shards=num_shards, seconds=seconds))


@flow(name="run_report")
def run_report(store: str) -> None:
    """Report on invented artifacts whose texts are hostile."""
    everything = make_run(Path(store))
    with conducted_by(_conductor(store, "report")):
        report_task(ReportConfig(), everything)


@flow(name="run_pretrain")
def run_pretrain(store: str) -> None:
    """Train a tiny model through DeepSpeed for longer than anyone waits."""
    from tests.training.test_pretrain import CONFIG, Nothing, counting_shards, no_tokenizer

    endless = CONFIG.model_copy(update={"total_tokens": 10**9, "validation_every": 0})
    with conducted_by(_conductor(store, "counting_shards", "no_tokenizer", "pretrain")):
        shards = as_task(counting_shards)(Nothing())
        pretrain_task(endless, shards, as_task(no_tokenizer)(Nothing()))
