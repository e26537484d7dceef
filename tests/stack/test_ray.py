"""The data stages' shards on a real local Ray."""

from pathlib import Path

import pytest

from lmpipe.artifacts.build import build
from lmpipe.artifacts.store import Store
from lmpipe.runtime import Runtime
from tests.artifacts.stages import CountConfig, count

pytestmark = pytest.mark.stack
ray = pytest.importorskip("ray")


@pytest.mark.filterwarnings("ignore")
def test_ray_gives_the_bytes_that_local_workers_give(tmp_path: Path) -> None:
    config = CountConfig(num_shards=3)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        by_ray = build(
            count, config, {}, store=Store(str(tmp_path / "a")), runtime=Runtime(executor="ray")
        )
    finally:
        ray.shutdown()
    local = build(count, config, {}, store=Store(str(tmp_path / "b")), runtime=Runtime())
    assert by_ray.digest == local.digest
