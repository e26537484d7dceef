"""A manifest that cannot be read is an error with its place and the remedy."""

import pytest

from lmpipe.artifacts.manifest import Manifest
from lmpipe.errors import StoreError

URL = "s3://bucket/dedup/abc/manifest.json"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"{", "is not JSON"),
        (b"[]", "is no manifest; delete it to rebuild"),
        (b'{"schema_version": 999}', "has schema 999, this lmpipe reads up to"),
        (b'{"stage": 7}', "stage: Input should be a valid string; version: Field required"),
    ],
)
def test_what_is_no_manifest_is_named_with_the_remedy(data: bytes, said: str) -> None:
    with pytest.raises(StoreError) as caught:
        Manifest.parse(data, URL)
    assert URL in str(caught.value)
    assert said in str(caught.value)
    assert "delete it to rebuild" in str(caught.value) or "upgrade lmpipe" in str(caught.value)
