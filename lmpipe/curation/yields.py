"""Stop a run whose selection lost what nobody meant to lose: a whole host.

A filter that is wrong for one site removes that site and leaves the totals plausible: 15 of 113
sources of one published corpus were lost that way. The bounds are Runtime: they change no byte.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lmpipe.artifacts.output import Output, ShardRecord
from lmpipe.errors import InputError
from lmpipe.runtime import Runtime

MAX_ROWS = 20


@dataclass
class HostCounts:
    """Documents of each host: [entered, kept]."""

    counts: dict[str, list[int]] = field(default_factory=dict)

    def add(self, hosts: Sequence[str | None], keep: Sequence[bool]) -> None:
        """Count one batch."""
        for host, kept in zip(hosts, keep, strict=True):
            entry = self.counts.setdefault(host or "none", [0, 0])
            entry[0] += 1
            entry[1] += kept


Hosts = dict[str, tuple[int, int]]  # documents that entered, and were kept


def hosts_of(records: Iterable[ShardRecord]) -> Hosts:
    """Add up what the shards counted."""
    total: dict[str, list[int]] = {}
    for record in records:
        for host, (entered, kept) in record.info["hosts"].items():
            entry = total.setdefault(host, [0, 0])
            entry[0] += entered
            entry[1] += kept
    return {host: (entered, kept) for host, (entered, kept) in total.items()}


def check_hosts(out: Output[Any], stage: str, hosts: Hosts, runtime: Runtime) -> None:
    """Write the table of hosts, and stop the stage where a bound of the runtime is broken.

    Raises:
        InputError: with the figures, the hosts and the setting that lets it pass.
    """
    lost = {
        host
        for host, (entered, kept) in hosts.items()
        if entered >= runtime.stop_host_documents
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
            f"{runtime.stop_host_lost_fraction:g} of {shown}{more}\n" + "\n".join(lines) + "\n"
            "Loosen the bounds (`lmpipe whatif` shows what that would do), or set "
            f"stage_runtime.{stage}.stop_host_lost_fraction in the recipe if this is meant"
        )
