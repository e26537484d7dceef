"""A store that refuses says so by the object's name; here the refusal itself is made up."""

import errno
import os
from pathlib import Path

import pytest

from lmpipe.artifacts.store import Store
from lmpipe.errors import StoreError


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_store_that_cannot_be_written_is_named_with_the_remedy(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(str(tmp_path / "store"))

    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(StoreError, match=r"runs/a\.json: access refused.*permissions and mount"):
        store.create("runs/a.json", b"{}")
