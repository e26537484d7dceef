"""An S3 that is overloaded: half of all requests get 503 SlowDown, and the stage finishes."""

import json
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
import s3fs

from lmpipe.artifacts import s3
from lmpipe.artifacts.build import build
from lmpipe.artifacts.source import SourceSpec, pin, source
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import Documents
from lmpipe.curation.extraction.config import ImportDocumentsConfig
from lmpipe.curation.extraction.import_documents import import_documents
from lmpipe.runtime import Runtime
from tests.services.refusing_proxy import RefusingProxy
from tests.services.seaweedfs import SeaweedFS

NUM_FILES = 12


@pytest.fixture
def bucket(seaweedfs: SeaweedFS, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name, value in seaweedfs.environment.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    yield f"{seaweedfs.create_bucket('slow-down')}/{secrets.token_hex(4)}"
    s3fs.S3FileSystem.clear_instance_cache()


def import_all(bucket: str, root: str) -> Documents:
    """Pin files of the bucket, and import them into a store under a root of the bucket."""
    store = Store(f"{bucket}/{root}")
    pinned = pin("corpus", SourceSpec(paths=(f"{bucket}/in/*.jsonl",)), Path())
    runtime = Runtime(locations=pinned.locations)
    made = build(source, pinned.config, {}, store=store, runtime=runtime)
    config = ImportDocumentsConfig()
    return build(import_documents, config, {"source": made}, store=store, runtime=runtime)


def test_a_stage_finishes_with_the_same_bytes_where_half_of_all_requests_are_refused(
    bucket: str, seaweedfs: SeaweedFS, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Store(f"{bucket}/in")
    for number in range(NUM_FILES):
        lines = [json.dumps({"text": f"text {number} {line}"}) for line in range(100)]
        assert files.create(f"{number:02d}.jsonl", "\n".join(lines).encode())
    calm = import_all(bucket, "calm")
    monkeypatch.setattr(s3, "MAX_PAUSE_SECONDS", 0.05)  # the proxy does not tire
    with RefusingProxy(seaweedfs.port, share=0.5) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        s3fs.S3FileSystem.clear_instance_cache()
        refused = import_all(bucket, "refused")
        assert proxy.refused > 60 and proxy.passed > 60
        assert refused.digest == calm.digest
        assert refused.metrics["kept"] == 100 * NUM_FILES
        assert refused.missing() == []
