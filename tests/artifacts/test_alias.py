from pathlib import Path

import pytest

from lmpipe.artifacts.alias import drop_alias, find_by_prefix, list_aliases, set_alias
from lmpipe.artifacts.build import build
from lmpipe.artifacts.gc import collect
from lmpipe.artifacts.lookup import list_manifests
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import Artifact
from lmpipe.errors import ConfigError, StoreError
from lmpipe.runtime import Runtime
from tests.artifacts.gc_processes import NOTHING_STAYS
from tests.artifacts.stages import CountConfig, count


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def make(store: Store, lines: int = 3) -> Artifact:
    return build(count, CountConfig(lines=lines), {}, store=store, runtime=Runtime())


def test_an_alias_names_an_artifact_until_it_is_moved_or_dropped(store: Store) -> None:
    first, second = make(store, 1), make(store, 2)
    assert set_alias(store, "best-count", first.manifest) is None
    assert find_by_prefix(store, "best-count").id == first.id
    before = set_alias(store, "best-count", second.manifest)
    assert before is not None and before.id == first.id
    assert [alias.id for alias in list_aliases(store)] == [second.id]
    drop_alias(store, "best-count")
    assert list_aliases(store) == []
    with pytest.raises(StoreError, match=r"no alias 'best-count'.*there is none"):
        drop_alias(store, "best-count")
    assert len(list_manifests(store)) == 2


@pytest.mark.parametrize("name", ["", "Upper", "1st", "abc", "a b", "a/b", "x" * 65, "count"])
def test_a_name_that_could_be_an_id_a_stage_or_a_path_is_refused(store: Store, name: str) -> None:
    made = make(store)
    with pytest.raises(ConfigError, match="alias"):
        set_alias(store, name, made.manifest)


def test_of_two_who_move_a_name_at_once_one_is_told(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = make(store, 1), make(store, 2)
    set_alias(store, "mine", first.manifest)
    real = Store.replace

    def somebody_was_faster(self: Store, path: str, data: bytes, etag: str) -> str | None:
        real(self, path, b'{"name": "mine", "stage": "s", "id": "i"}', etag)
        return real(self, path, data, etag)

    monkeypatch.setattr(Store, "replace", somebody_was_faster)
    with pytest.raises(StoreError, match="at the same moment"):
        set_alias(store, "mine", second.manifest)


def test_what_gc_has_taken_can_be_named_only_after_it_is_built_anew(store: Store) -> None:
    made = make(store)
    collect(store, NOTHING_STAYS)
    with pytest.raises(StoreError, match="collected by gc"):
        set_alias(store, "late", made.manifest)
    again = make(store)
    set_alias(store, "late", again.manifest)
    collect(store, NOTHING_STAYS)
    assert again.missing() == []
