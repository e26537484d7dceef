"""What every stage of documents does: each one that comes in is kept, or is in the ledger.

    @stage(version=1, kind="exact")
    def drop_short(out, config, documents, *, runtime):
        work = partial(_drop_short, min_words=config.min_words)
        return map_documents(out, documents, work, runtime).finish()

    def _drop_short(part: DocumentPart, *, min_words: int) -> None:
        for batch in part.batches():
            ...
            part.settle(batch, kept=batch.filter(mask), removed=rows)

One file of the input is one part of the output, so any number of workers writes the same bytes. A
part counts what enters and what is kept, in all and by host, and holds that nothing is lost
between; `finish` sums up, stops a run that lost what nobody meant to lose (retention.py), and
publishes. A stage that reads something other than documents (archives, files of rows) hands its
own keys to `make_documents`. Passes that only look use `scan_documents`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from lmpipe.artifacts.output import Output, ShardOutput, ShardRecord
from lmpipe.artifacts.shards import run_shards
from lmpipe.artifacts.types import Documents
from lmpipe.documents.ledger import assert_conserved, gather_parts, write_part
from lmpipe.documents.read import count_documents, read_shard, shard_names
from lmpipe.documents.retention import HostCounts, check_hosts, check_retention, hosts_of
from lmpipe.documents.write import DocumentWriter
from lmpipe.errors import InputError
from lmpipe.runtime import Runtime

PART = "part-"
Rows = Iterable[Mapping[str, Any]]


class DocumentPart:
    """One part of the output being written: its kept documents, and why the others went.

    Attributes:
        shard: where files beside the documents and the ledger are written.
        key: names the part, in its files as well.
        counts: numbers that `MappedDocuments.total` sums over the parts.
        info: any other JSON for the stage to gather from `MappedDocuments.records`.
    """

    def __init__(self, shard: ShardOutput, key: str, writer: DocumentWriter) -> None:
        self.shard = shard
        self.key = key
        self.counts: Counter[str] = Counter()
        self.info: dict[str, Any] = {}
        self.removed: list[Mapping[str, Any]] = []
        self.hosts = HostCounts()
        self.num_input = 0
        self._writer = writer

    @property
    def num_kept(self) -> int:
        """How many documents are kept so far."""
        return self._writer.num_rows

    def settle(
        self,
        entered: pa.RecordBatch,
        kept: pa.RecordBatch | pa.Table,
        removed: Rows = (),
        *,
        counted: pa.Array | None = None,
    ) -> None:
        """Write what is kept of a batch, and note the others for the ledger.

        Args:
            entered: the batch as it was read.
            kept: its documents that stay, changed or not.
            removed: rows of the ledger (ledger.removal); they may also be given later.
            counted: which rows of `entered` count for what their hosts lose; all by default.
        """
        self.num_input += entered.num_rows
        hosts = entered if counted is None else entered.filter(counted)
        self.hosts.add_batches(hosts, kept)
        self._writer.write_table(kept)
        self.remove(removed)

    def keep(self, row: Mapping[str, Any]) -> None:
        """Write one new document, by column name."""
        self.num_input += 1
        self.hosts.add([row.get("host")], [True])
        self._writer.write(row)

    def refuse(self, row: Mapping[str, Any], host: str | None = None) -> None:
        """Note for the ledger what could not become a document."""
        self.num_input += 1
        self.hosts.add([host], [False])
        self.removed.append(row)

    def remove(self, rows: Rows) -> None:
        """Note documents of settled batches for the ledger."""
        self.removed.extend(rows)


class StoredPart(DocumentPart):
    """A part that is made of one file of documents."""

    def __init__(
        self, shard: ShardOutput, key: str, writer: DocumentWriter, documents: Documents, name: str
    ) -> None:
        super().__init__(shard, key, writer)
        self._read = partial(read_shard, documents, name)

    def batches(
        self, columns: Sequence[str] | None = None, batch_rows: int = 1024
    ) -> Iterator[pa.RecordBatch]:
        """Yield the file's documents in order."""
        return self._read(columns, batch_rows)


class Scan(Protocol):
    """Work that only looks at one file of documents."""

    def __call__(
        self, shard: ShardOutput, key: str, batches: Callable[..., Iterator[pa.RecordBatch]]
    ) -> None: ...


@dataclass
class MappedDocuments:
    """All parts, written and conserved; `finish` publishes them.

    Attributes:
        records: what the parts left behind, in the order of the input.
    """

    out: Output[Documents]
    records: list[ShardRecord]
    runtime: Runtime
    num_input: int
    num_kept: int

    @property
    def reasons(self) -> Counter[str]:
        """Removed documents by first reason."""
        return self.counter("reasons")

    def total(self, name: str) -> int:
        """Sum one of the parts' counts."""
        return sum(int(record.counts.get(name, 0)) for record in self.records)

    def counter(self, name: str) -> Counter[str]:
        """Sum a table of counts that the parts left in their info."""
        total: Counter[str] = Counter()
        for record in self.records:
            total.update(record.info.get(name, {}))
        return total

    def report_reasons(self) -> None:
        """Say what was removed for which first reason, as a metric and as a table."""
        self.out.metric("removed", dict(sorted(self.reasons.items())))
        rows = [{"reason": why, "count": count} for why, count in self.reasons.most_common()]
        self.out.table("removed", rows)

    def require_kept(self, message: str = "") -> None:
        """Refuse to go on with nothing.

        Raises:
            InputError: no document is kept, with the message or the reasons.
        """
        if self.num_kept == 0 and (self.num_input or message):
            raise InputError(
                message
                or f"{self.out.stage_name} keeps none of {self.num_input} documents; removed for "
                + (", ".join(f"{why}: {n}" for why, n in self.reasons.most_common(8)) or "nothing")
            )

    def finish(self, *, guard_hosts: bool = True) -> Documents:
        """Hold the parts against the run's thresholds of retention, and publish them.

        Args:
            guard_hosts: False for a draw, which leaves out most of any host on purpose.

        Raises:
            InputError: nothing is kept, or a threshold of the runtime is crossed.
        """
        stage = self.out.stage_name
        self.out.metric("input", self.num_input)
        self.out.metric("kept", self.num_kept)
        self.require_kept()
        check_retention(self.out, stage, self.num_input, self.num_kept, self.runtime)
        if guard_hosts:
            check_hosts(self.out, stage, hosts_of(self.records), self.runtime)
        return self.out.commit()


def map_documents(
    out: Output[Documents],
    documents: Documents,
    work: Callable[[StoredPart], None],
    runtime: Runtime,
) -> MappedDocuments:
    """Run `work` on every file of documents, in worker processes.

    Args:
        work: a module-level function, or a partial of one, that settles all batches of its part.
    """
    names = _names(documents)
    run = partial(_map_shard, work=work, documents=documents, names=names)
    mapped = _gathered(out, list(names), run, runtime)
    count = count_documents(documents)
    assert mapped.num_input == count, (
        f"{out.stage_name} settled {mapped.num_input} of {count} documents"
    )
    return mapped


def make_documents(
    out: Output[Documents],
    keys: list[str],
    work: Callable[[DocumentPart], None],
    runtime: Runtime,
) -> MappedDocuments:
    """Run `work` once per key, where documents come from something else than documents."""
    return _gathered(out, keys, partial(_make_shard, work=work), runtime)


def scan_documents(
    out: Output[Documents], documents: Documents, name: str, work: Scan, runtime: Runtime
) -> list[ShardRecord]:
    """Run `work` on every file of documents in a pass that writes none, called `name`."""
    names = _names(documents)
    run = partial(_scan_shard, work=work, documents=documents, names=names, prefix=f"{name}-")
    return run_shards(out, [f"{name}-{key}" for key in names], run, runtime)


def part_keys(documents: Documents) -> list[str]:
    """Return the keys of the parts that `map_documents` makes, in the order of the input."""
    return list(_names(documents))


def _names(documents: Documents) -> dict[str, str]:
    return {Path(name).stem: name for name in shard_names(documents)}


def _gathered(
    out: Output[Documents],
    keys: list[str],
    run: Callable[[ShardOutput, str], None],
    runtime: Runtime,
) -> MappedDocuments:
    # "part-": parts that were finished before there was this module have other counts
    records = run_shards(out, [f"{PART}{key}" for key in keys], run, runtime)
    num_input, num_kept = (
        sum(int(record.counts[name]) for record in records) for name in ("input", "kept")
    )
    assert_conserved(out.stage_name, num_input, num_kept, gather_parts(out, keys))
    return MappedDocuments(out, records, runtime, num_input, num_kept)


def _map_shard(
    shard: ShardOutput,
    key: str,
    *,
    work: Callable[[StoredPart], None],
    documents: Documents,
    names: dict[str, str],
) -> None:
    key = key.removeprefix(PART)
    with shard.open(_kept(key), "wb") as file, DocumentWriter(file) as writer:
        part = StoredPart(shard, key, writer, documents, names[key])
        work(part)
    _close(part)


def _make_shard(shard: ShardOutput, key: str, *, work: Callable[[DocumentPart], None]) -> None:
    key = key.removeprefix(PART)
    with shard.open(_kept(key), "wb") as file, DocumentWriter(file) as writer:
        part = DocumentPart(shard, key, writer)
        work(part)
    _close(part)


def _scan_shard(
    shard: ShardOutput,
    key: str,
    *,
    work: Scan,
    documents: Documents,
    names: dict[str, str],
    prefix: str,
) -> None:
    key = key.removeprefix(prefix)
    work(shard, key, partial(read_shard, documents, names[key]))


def _kept(key: str) -> str:
    return f"kept/{key}.parquet"


def _close(part: DocumentPart) -> None:
    """Write the part's share of the ledger and its counts, and hold that nothing is missing."""
    shard = part.shard
    shard.set_rows(_kept(part.key), part.num_kept)
    num_removed = write_part(shard, part.key, part.removed)
    assert_conserved(f"part {part.key}", part.num_input, part.num_kept, num_removed)
    shard.counts.update({**part.counts, "input": part.num_input, "kept": part.num_kept})
    reasons = Counter(str(row["reason"]) for row in part.removed)
    shard.info.update({**part.info, "hosts": part.hosts.counts, "reasons": dict(reasons)})
