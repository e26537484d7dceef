"""A stage that makes documents of what a test says."""

from pydantic import Field

from lmpipe.artifacts.output import Output
from lmpipe.artifacts.stage import StageConfig, stage
from lmpipe.artifacts.types import Documents
from lmpipe.documents.ledger import write_ledger
from lmpipe.documents.read import read_documents, read_removed
from lmpipe.documents.schema import document_id
from lmpipe.documents.write import DocumentWriter
from lmpipe.runtime import Runtime

Row = tuple[str, str, str]  # key, host, text


class GivenConfig(StageConfig):
    shards: tuple[tuple[Row, ...], ...] = Field(description="Documents by shard.")


@stage(version=1, kind="exact")
def given(out: Output[Documents], config: GivenConfig, *, runtime: Runtime) -> Documents:
    for number, rows in enumerate(config.shards):
        name = f"kept/{number:05d}.parquet"
        with out.open(name, "wb") as file, DocumentWriter(file) as writer:
            for key, host, text in rows:
                url = f"https://{host}/{key}"
                writer.write(
                    {"id": document_id("test", key), "text": text, "url": url, "host": host}
                )
        out.set_rows(name, len(rows))
    write_ledger(out, [])
    return out.commit()


def shards(*shards: dict[str, str], host: str = "a.example") -> GivenConfig:
    """Make documents of texts by key; all of one host."""
    return GivenConfig(
        shards=tuple(tuple((key, host, text) for key, text in shard.items()) for shard in shards)
    )


def id_of(key: str) -> str:
    return document_id("test", key)


def kept(documents: Documents) -> dict[str, str]:
    """Return the kept texts by id."""
    return {
        row["id"]: row["text"]
        for batch in read_documents(documents, ["id", "text"])
        for row in batch.to_pylist()
    }


def removed(documents: Documents) -> dict[str, dict[str, object]]:
    """Return the ledger's rows by id."""
    return {row["id"]: row for batch in read_removed(documents) for row in batch.to_pylist()}


class MeasuredConfig(StageConfig):
    shards: tuple[tuple[dict[str, str | float | None], ...], ...] = Field(
        description="Columns of documents by shard; `key` names a document."
    )


@stage(version=1, kind="exact")
def measured(out: Output[Documents], config: MeasuredConfig, *, runtime: Runtime) -> Documents:
    """Documents whose signals a test says; every rule's measure is 0 where it says nothing."""
    from lmpipe.curation.quality.rules import RULES

    plain = {rule.column: (False if rule.kind == "flag" else 0) for rule in RULES}
    for number, rows in enumerate(config.shards):
        name = f"kept/{number:05d}.parquet"
        with out.open(name, "wb") as file, DocumentWriter(file) as writer:
            for row in rows:
                key = str(row["key"])
                columns = {name: value for name, value in row.items() if name != "key"}
                facts = {"id": document_id("test", key), "text": f"text of {key}", "host": "h"}
                known = {"language_score": 0.9, "num_words": 100}
                writer.write({**plain, **known, **facts, "url": f"https://h/{key}", **columns})
        out.set_rows(name, len(rows))
    write_ledger(out, [])
    return out.commit()
