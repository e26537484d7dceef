from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import Field

from lmpipe.artifacts.build import build
from lmpipe.artifacts.output import Output
from lmpipe.artifacts.stage import StageConfig, stage
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import Documents
from lmpipe.runtime import Runtime

Make = Callable[..., Documents]


class GivenConfig(StageConfig):
    files: list[list[tuple[str, str | None, str]]] = Field(description="(id, language, text) rows.")
    group_rows: int = Field(7, description="Rows in a row group.")


@stage(version=1, kind="exact")
def given_documents(out: Output[Documents], config: GivenConfig, *, runtime: Runtime) -> Documents:
    schema = pa.schema([("id", pa.string()), ("text", pa.string()), ("language", pa.string())])
    for number, rows in enumerate(config.files):
        columns: dict[str, Any] = {
            "id": [row[0] for row in rows],
            "text": [row[2] for row in rows],
            "language": [row[1] for row in rows],
        }
        with out.open(f"kept/{number:05d}.parquet") as file:
            pq.write_table(
                pa.table(columns, schema),
                file,
                row_group_size=config.group_rows,
                use_dictionary=False,
            )
    return out.commit()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store((tmp_path / "store").as_uri())


@pytest.fixture
def make_documents(store: Store) -> Make:
    """Return a function that makes a Documents artifact of lists of texts, one list per file."""

    def make(files: list[list[str]], languages: tuple[str | None, ...] = ("en",)) -> Documents:
        rows: list[list[tuple[str, str | None, str]]] = []
        number = 0
        for texts in files:
            rows.append([])
            for text in texts:
                rows[-1].append((f"{number:032x}", languages[number % len(languages)], text))
                number += 1
        return build(given_documents, GivenConfig(files=rows), {}, store=store, runtime=Runtime())

    return make
