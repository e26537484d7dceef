import pytest
from typer.testing import CliRunner

from deployments.cli import app
from lmpipe.artifacts.alias import list_aliases
from lmpipe.artifacts.types import Documents
from lmpipe.curation.dedup import index as module
from lmpipe.curation.dedup.config import DedupConfig
from lmpipe.curation.dedup.dedup import dedup
from lmpipe.curation.dedup.index import (
    add_crawl,
    dependents,
    open_index,
    read_index,
    remove_crawl,
)
from lmpipe.errors import ConfigError, InputError, StoreError
from tests.curation.conftest import Workbench
from tests.curation.dedup.test_dedup import prose
from tests.curation.given import given, id_of, kept, shards


def crawl(bench: Workbench, numbers: range, *earlier: Documents, **options: object) -> Documents:
    texts = {f"{numbers.start}:{n}": " ".join(prose(n)) for n in numbers}
    return bench.run(dedup, DedupConfig(**options), bench.run(given, shards(texts)), list(earlier))


def test_an_index_grows_by_crawls_and_gives_one_back(bench: Workbench):
    store = bench.store
    first = crawl(bench, range(6))
    assert read_index(store, "web") == [] and add_crawl(store, "web", first.id[:12]) == [first.id]
    second = crawl(bench, range(4, 9), *open_index(store, "web"))
    assert set(kept(second)) == {id_of(f"4:{n}") for n in (6, 7, 8)}
    assert add_crawl(store, "web", second.id) == [first.id, second.id]
    assert add_crawl(store, "web", second.id) == [first.id, second.id]
    assert {alias.id for alias in list_aliases(store)} == {first.id, second.id}
    crawls = open_index(store, "web")
    assert dependents(first, crawls) == {second.id: 2} and dependents(second, crawls) == {}
    assert remove_crawl(store, "web", first.id[:8]) == [second.id]
    assert [alias.id for alias in list_aliases(store)] == [second.id]
    again = crawl(bench, range(4, 9), *open_index(store, "web"))
    assert len(kept(again)) == 5  # its own artifact is in the index and removes nothing
    third = crawl(bench, range(3, 8), *open_index(store, "web"))
    assert set(kept(third)) == {id_of(f"3:{n}") for n in (3, 4, 5)}


def test_two_that_grow_the_index_at_once_both_succeed(bench: Workbench, monkeypatch):
    one, two = crawl(bench, range(2)), crawl(bench, range(2, 4))
    parse, raced = module._parse, []

    def race(data: bytes, name: str) -> list[str]:
        ids = parse(data, name)
        if not raced:
            raced.append(True)
            add_crawl(bench.store, "web", two.id)
        return ids

    zero = crawl(bench, range(8, 9))
    add_crawl(bench.store, "web", zero.id)
    monkeypatch.setattr(module, "open_index", lambda store, name: [])
    monkeypatch.setattr(module, "_parse", race)
    assert add_crawl(bench.store, "web", one.id) == [zero.id, two.id, one.id]


def test_what_does_not_fit_is_refused(bench: Workbench):
    first, other = crawl(bench, range(2)), crawl(bench, range(2), ngram=7)
    add_crawl(bench.store, "web", first.id)
    with pytest.raises(InputError, match=r"has ngram=7, index 'web' has 5"):
        add_crawl(bench.store, "web", other.id)
    with pytest.raises(InputError, match="is not of dedup"):
        add_crawl(bench.store, "web", f"given/{first.manifest.inputs[0].id}")
    with pytest.raises(ConfigError, match="names 0 of index 'web'"):
        remove_crawl(bench.store, "web", other.id)
    with pytest.raises(ConfigError, match="a letter first"):
        read_index(bench.store, "../up")
    bench.store.delete(f"dedup/{first.id}/manifest.json")
    with pytest.raises(StoreError, match=r"is gone: take it out"):
        open_index(bench.store, "web")


def test_an_index_that_lost_a_crawl_takes_it_out_and_goes_on(bench: Workbench):
    first, second = crawl(bench, range(2)), crawl(bench, range(2, 4))
    add_crawl(bench.store, "web", first.id)
    bench.store.delete(f"dedup/{first.id}/manifest.json")
    assert add_crawl(bench.store, "web", second.id) == [first.id, second.id]
    done = CliRunner().invoke(
        app, ["dedup-index", "web", "--remove", first.id[:12], "--store", bench.store.root]
    )
    assert done.exit_code == 0 and done.output.split() == [f"dedup/{second.id}"]
    assert [found.id for found in open_index(bench.store, "web")] == [second.id]


def test_a_mistyped_index_is_named_beside_the_known_ones(bench: Workbench):
    add_crawl(bench.store, "web", crawl(bench, range(2)).id)
    with pytest.raises(ConfigError, match="no index 'wep' of earlier crawls; known are: web"):
        open_index(bench.store, "wep")
