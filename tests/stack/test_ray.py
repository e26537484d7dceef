"""The data stages' shards, and dedup's joins, on a real local Ray."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lmpipe.artifacts.build import build
from lmpipe.artifacts.store import Store
from lmpipe.curation.dedup.config import DedupConfig
from lmpipe.curation.dedup.dedup import dedup
from lmpipe.runtime import Runtime
from tests.artifacts.stages import CountConfig, count
from tests.curation.dedup.test_dedup import texts
from tests.curation.given import given, removed, shards

pytestmark = [pytest.mark.stack, pytest.mark.filterwarnings("ignore")]
ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def test_ray_gives_the_bytes_that_local_workers_give(local_ray: None, tmp_path: Path) -> None:
    config = CountConfig(num_shards=3)
    by_ray = build(
        count, config, {}, store=Store(str(tmp_path / "a")), runtime=Runtime(executor="ray")
    )
    local = build(count, config, {}, store=Store(str(tmp_path / "b")), runtime=Runtime())
    assert by_ray.digest == local.digest


def test_bands_are_joined_on_ray_to_the_same_bytes(local_ray: None, tmp_path: Path) -> None:
    digests = []
    for executor in ("ray", "local"):
        store, runtime = Store(str(tmp_path / executor)), Runtime(executor=executor)
        documents = build(given, shards(texts()), {}, store=store, runtime=Runtime())
        config = DedupConfig(bands=4, rows=4, verify=False)
        unique = build(dedup, config, dedup.bind((documents,)), store=store, runtime=runtime)
        assert len(removed(unique)) == 4
        digests.append(unique.digest)
        joins = list(tmp_path.glob(f"{executor}/dedup/*/attempts/*/done/joined-*.json"))
        assert len(joins) == (4 if executor == "ray" else 0)
    assert digests[0] == digests[1]
