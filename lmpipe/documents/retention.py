"""Stop a run that lost what nobody meant to lose: more of a stage's documents, or of one host's.

A filter that is wrong for one site removes that site and leaves the totals plausible: 15 of 113
sources of one published corpus were lost that way, by deduplication. The thresholds are Runtime:
they change no byte. Every stage of curation that removes documents for what they are asks both;
sampling (`resample`) leaves out most of any host on purpose, and asks for the stage's retention
alone.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lmpipe.artifacts.output import Output, ShardRecord
from lmpipe.errors import InputError
from lmpipe.runtime import Runtime

MAX_ROWS = 20
NO_HOST = "no host"  # of documents without an address; never lost as one


@dataclass
class HostCounts:
    """Documents of each host: [entered, kept]."""

    counts: dict[str, list[int]] = field(default_factory=dict)

    def add(self, hosts: Sequence[str | None], keep: Sequence[bool]) -> None:
        """Count one batch."""
        for host, kept in zip(hosts, keep, strict=True):
            entry = self.counts.setdefault(host or NO_HOST, [0, 0])
            entry[0] += 1
            entry[1] += kept

    def add_batches(self, entered: pa.RecordBatch, kept: pa.RecordBatch | pa.Table) -> None:
        """Count one batch by what came in and what was left of it."""
        for place, rows in enumerate((entered, kept)):
            for count in rows.column("host").value_counts().to_pylist():
                entry = self.counts.setdefault(count["values"] or NO_HOST, [0, 0])
                entry[place] += count["counts"]


Hosts = dict[str, tuple[int, int]]  # documents that entered, and were kept


def hosts_of(records: Iterable[ShardRecord]) -> Hosts:
    """Add up what the shards counted."""
    total: dict[str, list[int]] = {}
    for record in records:
        # a shard that an older version finished may have no counts
        for host, (entered, kept) in record.info.get("hosts", {}).items():
            entry = total.setdefault(host, [0, 0])
            entry[0] += entered
            entry[1] += kept
    return {host: (entered, kept) for host, (entered, kept) in total.items()}


def check_retention(out: Any, stage: str, num_input: int, num_kept: int, runtime: Runtime) -> None:
    """Raise an alarm where a stage keeps a smaller share than expected; stop it outside its band.

    Call it after the ledger is written.

    Raises:
        InputError: the share lies outside the run's band; the reasons are listed. Nothing is
            published then.
    """
    limit = runtime.alarm_kept_fraction
    if num_kept < limit * num_input:
        out.alarm(
            "curation.low-yield",
            f"{stage} keeps {num_kept} of {num_input} documents, below "
            f"runtime.alarm_kept_fraction={limit:g}: look at its table of removals",
            documents=num_input,
            kept=num_kept,
            limit=limit,
        )
    share = num_kept / max(1, num_input)
    low, high = runtime.stop_kept_below, runtime.stop_kept_above
    if num_input and not low <= share <= high:
        reasons = [f"  {name}: {count}" for name, count in _reasons(out).most_common(MAX_ROWS)]
        raise InputError(
            f"{stage} stops: it keeps {num_kept} of {num_input} documents ({share:.1%}), outside "
            f"stop_kept_below={low:g} to stop_kept_above={high:g}. Removed, by first reason:\n"
            + "\n".join(reasons or ["  nothing"])
            + f"\nChange what {stage} removes, or set stage_runtime.{stage}.stop_kept_… in the "
            "recipe if this is meant"
        )


def _reasons(out: Any) -> Counter[str]:
    """Count the first reasons in a ledger that was just written."""
    counts: Counter[str] = Counter()
    for name, record in out.files.items():
        if name.startswith("removed/"):
            with out.store.open(record.path) as file:
                counts.update(pq.read_table(file, columns=["reason"])["reason"].to_pylist())
    return counts


def check_hosts(out: Output[Any], stage: str, hosts: Hosts, runtime: Runtime) -> None:
    """Write the table of hosts, and stop the stage where a threshold of the runtime is crossed.

    Raises:
        InputError: with the figures, the hosts and the setting that lets it pass.
    """
    lost = {
        host
        for host, (entered, kept) in hosts.items()
        if host != NO_HOST
        and entered >= runtime.stop_host_documents
        and 1 - kept / entered > runtime.stop_host_lost_fraction
    }
    ranked = sorted(
        hosts, key=lambda host: (host not in lost, hosts[host][1] - hosts[host][0], host)
    )  # those that stop the stage first, then most documents lost
    rows = [
        {"host": host, "documents": entered, "kept": kept, "lost": f"{1 - kept / entered:.1%}"}
        for host in ranked[:MAX_ROWS]
        for entered, kept in (hosts[host],)
    ]
    out.table("hosts", rows)
    if lost:
        shown = ", ".join(ranked[: min(5, len(lost))])
        more = f" and {len(lost) - 5} more" if len(lost) > 5 else ""
        lines = [
            f"  {row['host']}: {row['kept']} of {row['documents']} kept, {row['lost']} lost"
            for row in rows
        ]
        raise InputError(
            f"{stage} stops: it loses over stop_host_lost_fraction="
            f"{runtime.stop_host_lost_fraction:g} of {shown}{more}\n"
            + "\n".join(lines)
            + "\n"
            + REMEDIES.get(stage, "Change what it removes")
            + f", or set stage_runtime.{stage}.stop_host_lost_fraction (1: off) in the recipe if "
            "this is meant"
        )


REMEDIES = {
    "select": "Loosen its thresholds (`lmpipe whatif` shows what that would do)",
    "dedup": "Look at its largest clusters (`lmpipe why ID` compares a document with its keeper)",
}
