"""mask: documents → the same documents with personal data replaced by its type, such as [EMAIL].

It stands after the selection, where least text is left, and before the tokenizer, so that neither
vocabulary nor model sees what was masked. Nothing is removed: the ledger is empty, and the counts
by type are in the metrics.
"""

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Literal

from pydantic import Field

from lmpipe.artifacts.output import Output, ShardOutput
from lmpipe.artifacts.stage import StageConfig, stage
from lmpipe.artifacts.types import Documents
from lmpipe.runtime import Runtime

PersonalType = Literal["email", "iban", "card", "ssn", "ip", "phone"]


class MaskConfig(StageConfig):
    """What is masked."""

    types: tuple[PersonalType, ...] = Field(
        ("email", "iban", "card", "ssn", "ip", "phone"),
        min_length=1,
        description="Kinds of personal data to replace; the others stay as they are.",
    )


@stage(version=2, kind="exact")
def mask(
    out: Output[Documents], config: MaskConfig, documents: Documents, *, runtime: Runtime
) -> Documents:
    """Replace e-mail, phone, public IP, card, IBAN and SSN by their types."""
    from lmpipe.documents.ledger import assert_conserved, write_ledger
    from lmpipe.documents.read import count_documents, shard_names

    names = {Path(name).stem: name for name in shard_names(documents)}
    work = partial(_mask_shard, config=config, documents=documents, names=names)
    records = out.run_shards(list(names), work, runtime)
    kept = sum(int(record.counts["kept"]) for record in records)
    assert_conserved("mask", count_documents(documents), kept, write_ledger(out, []))
    masked: Counter[str] = Counter()
    for record in records:
        masked.update(record.info["masked"])
    out.metric("input", kept)
    out.metric("kept", kept)
    out.metric("documents_masked", sum(int(record.counts["touched"]) for record in records))
    out.metric("masked", dict(sorted(masked.items())))
    return out.commit()


def _mask_shard(
    shard: ShardOutput, key: str, *, config: MaskConfig, documents: Documents, names: dict[str, str]
) -> None:
    import pyarrow as pa

    from lmpipe.curation.pii import find
    from lmpipe.curation.pii import mask as mask_text
    from lmpipe.documents.read import read_shard
    from lmpipe.documents.write import DocumentWriter

    masked: Counter[str] = Counter()
    touched = 0
    name = f"kept/{key}.parquet"
    with shard.open(name, "wb") as file, DocumentWriter(file) as writer:
        for batch in read_shard(documents, names[key]):
            texts = []
            for text in batch.column("text").to_pylist():
                spans = [span for span in find(text) if span.type in config.types]
                masked.update(span.type for span in spans)
                touched += bool(spans)
                texts.append(mask_text(text, spans))
            table = pa.Table.from_batches([batch])
            at = table.schema.get_field_index("text")
            field = table.schema.field(at)
            writer.write_table(table.set_column(at, field, pa.array(texts, field.type)))
    shard.set_rows(name, writer.num_rows)
    shard.counts.update({"kept": writer.num_rows, "touched": touched})
    shard.info["masked"] = dict(masked)
