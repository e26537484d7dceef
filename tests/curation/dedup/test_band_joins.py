"""Bands joined as tasks, one after another in this process; tests/stack has a real Ray."""

import pytest

from lmpipe.curation.dedup import band_joins
from lmpipe.curation.dedup.config import DedupConfig
from lmpipe.curation.dedup.dedup import dedup
from tests.curation.dedup.test_dedup import changed, prose, texts
from tests.curation.given import given, kept, removed, shards

PAGES = {
    f"{n}-{copy}": " ".join(changed(prose(3000 + n), copy)) for n in range(9) for copy in (0, 2)
}


@pytest.mark.parametrize("size", [80, 10**6])
def test_bands_joined_as_tasks_give_the_bytes_of_one_process(
    new_bench, other_executor, monkeypatch, size
):
    items = list({**texts(), **PAGES}.items())
    config = shards(dict(items[:30]), {}, dict(items[30:]))
    local, tasks = new_bench("local"), new_bench("tasks")
    tasks.runtime = {"executor": "ray", "sort_memory_mb": 16}
    monkeypatch.setattr(band_joins, "BYTES_PER_PAIR", size)  # one part a band, or eight
    digests = []
    for bench in (local, tasks):
        documents = bench.run(given, config)
        first = bench.run(dedup, DedupConfig(), documents)
        new = {"again": texts()["unique3"], "own": " ".join(prose(7777)), "rest": PAGES["3-0"]}
        second = bench.run(dedup, DedupConfig(), bench.run(given, shards(new)), [first])
        digests.append((first.digest, second.digest))
        assert len(removed(first)) == 4 + 9 and len(removed(second)) == 2
        assert len(kept(first)) + len(removed(first)) == len(items)
    assert digests[0] == digests[1]
    joins = [p for p in tasks.root.rglob("done/joined-*.json") if "joined" in p.name]
    assert len(joins) == 2 * 14 * (1 if size == 80 else 8)


def test_a_task_that_was_joined_before_a_kill_is_not_joined_again(
    bench, other_executor, monkeypatch
):
    bench.runtime = {"executor": "ray"}
    documents = bench.run(given, shards(texts()))
    real, done = band_joins.join_part, []

    def die_at_the_ninth(shard, key, **rest):
        done.append(key)
        if len(done) == 9:
            raise KeyboardInterrupt
        real(shard, key, **rest)

    with monkeypatch.context() as patch:
        patch.setattr(band_joins, "join_part", die_at_the_ninth)
        with pytest.raises(KeyboardInterrupt):
            bench.run(dedup, DedupConfig(), documents)
    assert len(removed(bench.run(dedup, DedupConfig(), documents))) == 4
    adopted = [str(e["message"]) for e in bench.events if "adopted" in str(e.get("message"))]
    assert "adopted 8 of 14 shards finished by an earlier attempt" in adopted
