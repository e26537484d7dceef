"""BPE training from documents: read, pre-tokenise and count on threads, then learn the merges.

Threads and not processes: reading Parquet and scanning release the GIL, a table of counts needs no
pickling, and no worker compiles anything again. Each thread counts into a table of its own; sums
do not depend on who counted what. Memory is bounded by the sample (`max_training_bytes`) and by
one row group per thread.
"""

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import regex

from lmpipe.artifacts.types import Documents
from lmpipe.tokenization.arrow import utf8
from lmpipe.tokenization.bpe_training import learn_merges
from lmpipe.tokenization.patterns import pattern_regex
from lmpipe.tokenization.pre_tokens import PreTokenCounts

if TYPE_CHECKING:
    from lmpipe.tokenization.config import TokenizerConfig

RowGroup = tuple[str, int]


def kept_names(documents: Documents) -> list[str]:
    """Return the files of kept documents, in input order."""
    return [name for name in documents.names("kept/") if name.endswith(".parquet")]


def count_pre_tokens(
    documents: Documents,
    config: "TokenizerConfig",
    *,
    workers: int,
    progress: Callable[[float, float, str], None] = lambda done, total, unit: None,
    keep: Callable[[str], bool] | None = None,
) -> tuple[PreTokenCounts, int]:
    """Count the distinct pre-tokens of all (sampled) documents.

    Args:
        keep: which documents count, by their ids; all, if left out.

    Returns:
        The counts, and how many bytes of text were read for them.
    """
    items, text_bytes = _row_groups(documents)
    fraction = min(1.0, config.max_training_bytes / max(1, text_bytes))
    counter = _Counter(documents, config, fraction, keep)
    with ThreadPoolExecutor(workers) as pool:
        read = 0
        for done, size in enumerate(pool.map(counter.count, items), start=1):
            read += size
            progress(done, len(items), "row groups")
    return counter.total(), read


def train_bpe(
    counts: PreTokenCounts, num_merges: int, min_frequency: int
) -> list[tuple[bytes, bytes]]:
    """Learn merges and return them as pairs of byte strings."""
    rows = learn_merges(
        counts.text, counts.edges, counts.counts,
        num_merges=num_merges, min_frequency=min_frequency,
    )  # fmt: skip
    symbols = [bytes([byte]) for byte in range(256)]
    for left, right in rows:
        symbols.append(symbols[left] + symbols[right])
    return [(symbols[left], symbols[right]) for left, right in rows]


class _Counter:
    """Counts row groups, each thread into a table of its own."""

    def __init__(
        self,
        documents: Documents,
        config: "TokenizerConfig",
        fraction: float,
        keep: Callable[[str], bool] | None,
    ) -> None:
        self._documents = documents
        self._config = config
        self._fraction = fraction
        self._keep = keep
        self._columns = ["id", "text"] if fraction < 1 or keep is not None else ["text"]
        self._custom = None
        if config.pattern == "custom":
            self._custom = regex.compile(pattern_regex("custom", 0, config.custom_pattern))
        self._specials = "|".join(map(regex.escape, sorted(config.specials, key=len)[::-1]))
        self._local = threading.local()
        self._tables: list[PreTokenCounts] = []

    def count(self, item: RowGroup) -> int:
        """Count one row group; return its bytes of text that were used."""
        name, group = item
        with self._documents.open(name) as file:
            table = pq.ParquetFile(file).read_row_group(group, columns=self._columns)
        if self._fraction < 1:
            table = table.filter(pa.array(_sampled(table["id"], self._fraction), pa.bool_()))
        if self._keep is not None:
            kept = [self._keep(document) for document in table["id"].to_pylist()]
            table = table.filter(pa.array(kept, pa.bool_()))
        text = self._without_specials(table["text"])
        counts = self._table()
        if self._custom is None:
            for chunk in text.chunks:
                counts.add_documents(*utf8(chunk))
        else:
            self._count_custom(counts, text)
        return int(pc.sum(pc.binary_length(text)).as_py() or 0)

    def total(self) -> PreTokenCounts:
        """Return the sum of all threads' tables."""
        first = self._table()
        for table in self._tables:
            if table is not first:
                first.update(table)
        return first

    def _table(self) -> PreTokenCounts:
        if not hasattr(self._local, "counts"):
            config = self._config
            self._local.counts = PreTokenCounts(
                config.pattern, config.digits, config.max_piece_bytes
            )
            self._tables.append(self._local.counts)
        table: PreTokenCounts = self._local.counts
        return table

    def _without_specials(self, text: Any) -> Any:
        """Cut documents at spelled specials, which no pre-token may cross or learn."""
        spelled = reduce(pc.or_, (pc.match_substring(text, name) for name in self._config.specials))
        if not pc.any(spelled).as_py():
            return text
        parts = [
            part
            for document in text.filter(spelled).to_pylist()
            for part in regex.split(self._specials, document)
        ]
        plain = text.filter(pc.invert(spelled))
        return pa.chunked_array([*plain.chunks, pa.array(parts, text.type)])

    def _count_custom(self, counts: PreTokenCounts, text: Any) -> None:
        assert self._custom is not None
        pre_tokens: Counter[bytes] = Counter()
        for document in text.to_pylist():
            pre_tokens.update(match.group().encode() for match in self._custom.finditer(document))
        short: Counter[bytes] = Counter()
        for pre_token, count in pre_tokens.items():
            for part in _parts(pre_token, self._config.max_piece_bytes):
                short[part] += count
        counts.add_pre_tokens([*short], np.array([*short.values()], np.int64))


def _row_groups(documents: Documents) -> tuple[list[RowGroup], int]:
    """Return every row group and the bytes of text that the footers announce."""
    items: list[RowGroup] = []
    text_bytes = 0
    for name in kept_names(documents):
        with documents.open(name) as file:
            metadata = pq.ParquetFile(file).metadata
        for group in range(metadata.num_row_groups):
            items.append((name, group))
            row_group = metadata.row_group(group)
            columns = (row_group.column(i) for i in range(row_group.num_columns))
            text_bytes += sum(
                column.total_uncompressed_size
                for column in columns
                if column.path_in_schema == "text"
            )
    return items, text_bytes


def _sampled(ids: Any, fraction: float) -> list[bool]:
    limit = int(fraction * 2**64)
    # salted, so that the sample has nothing to do with the choice of validation documents
    return [
        int.from_bytes(hashlib.blake2b(b"tokenizer" + i.encode(), digest_size=8).digest()) < limit
        for i in ids.to_pylist()
    ]


def _parts(pre_token: bytes, cap: int) -> Iterator[bytes]:
    """Cut a pre-token at most every `cap` bytes, never inside a character."""
    while len(pre_token) > cap:
        cut = cap
        while cut > 1 and pre_token[cut] & 0xC0 == 0x80:
            cut -= 1
        yield pre_token[:cut]
        pre_token = pre_token[cut:]
    yield pre_token


def sample_by_language(documents: Documents, num_bytes: int) -> dict[str, list[str]]:
    """Return the first texts of every language, about num_bytes each, from every file's start."""
    texts: dict[str, list[str]] = {}
    sizes: Counter[str] = Counter()
    for name in kept_names(documents):
        with documents.open(name) as file:
            batches = pq.ParquetFile(file).iter_batches(2048, columns=["text", "language"])
            first = next(batches, None)
            for row in first.to_pylist() if first else []:
                language = row["language"] or "unknown"
                if sizes[language] < num_bytes:
                    texts.setdefault(language, []).append(row["text"])
                    sizes[language] += len(row["text"].encode())
    return texts
