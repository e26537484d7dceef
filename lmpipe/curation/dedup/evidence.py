"""What dedup writes down of each removal: the ledger's row, and the comparison behind it."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lmpipe.artifacts.output import ShardOutput
from lmpipe.curation.dedup.signatures import EXACT, NEAR, REASONS, SAME_WORDS, unpack_id
from lmpipe.documents.ledger import removal

if TYPE_CHECKING:
    from lmpipe.curation.dedup.config import DedupConfig

EVIDENCE_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("keeper", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("similarity", pa.float64()),  # Jaccard; estimated from minima without `verify`
        pa.field("containment", pa.float64()),  # share of its n-grams that the keeper holds
        pa.field("keeper_containment", pa.float64()),  # and the other way round
        pa.field("novel_words", pa.int64()),  # words that no shared n-gram covers: what is lost
        pa.field("num_words", pa.int64(), nullable=False),
    ]
)


def ledger_rows(
    gone: NDArray[Any], ids: list[str], urls: list[str | None], config: "DedupConfig"
) -> list[dict[str, Any]]:
    """Return the ledger's rows of some removals."""
    thresholds = {NEAR: config.min_similarity, EXACT: 1.0, SAME_WORDS: 1.0}
    rows = []
    for row, id_, url in zip(gone, ids, urls, strict=True):
        similarity = None if np.isnan(row["similarity"]) else float(row["similarity"])
        reason = int(row["reason"])
        rows.append(
            removal(
                id_,
                "dedup",
                REASONS[reason],
                score=similarity,
                threshold=thresholds.get(reason),
                keeper=unpack_id(row["keeper"]),
                similarity=similarity,
                url=url,
            )
        )
    return rows


def evidence_table(gone: NDArray[Any], ids: pa.Array) -> pa.Table:
    """Return one row of EVIDENCE_SCHEMA a removal."""
    numbers = ("similarity", "containment", "keeper_containment")
    columns = {
        "id": ids,
        "keeper": pa.array([unpack_id(pair) for pair in gone["keeper"]], pa.string()),
        "reason": pa.array([REASONS[reason] for reason in gone["reason"].tolist()], pa.string()),
        **{name: pa.array(gone[name], from_pandas=True) for name in numbers},
        "novel_words": pa.array(gone["novel_words"], mask=gone["novel_words"] < 0),
        "num_words": pa.array(gone["num_words"]),
    }
    return pa.table(columns, schema=EVIDENCE_SCHEMA)


def write_evidence(shard: ShardOutput, key: str, tables: list[pa.Table]) -> None:
    """Write one shard's evidence."""
    table = pa.concat_tables([EVIDENCE_SCHEMA.empty_table(), *tables])
    name = f"evidence/{key}.parquet"
    with shard.open(name, "wb") as file:
        pq.write_table(table, file, compression="zstd")
    shard.set_rows(name, table.num_rows)
