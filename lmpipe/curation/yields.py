"""Stop a run whose selection lost what nobody meant to lose: too much, too little, a whole host.

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


@dataclass(frozen=True)
class Yields:
    """What a stage kept, over all and by host."""

    num_input: int
    num_kept: int
    hosts: dict[str, tuple[int, int]]


def yields_of(records: Iterable[ShardRecord], num_input: int, num_kept: int) -> Yields:
    """Add up what the shards counted."""
    total: dict[str, list[int]] = {}
    for record in records:
        for host, (entered, kept) in record.info["hosts"].items():
            entry = total.setdefault(host, [0, 0])
            entry[0] += entered
            entry[1] += kept
    return Yields(num_input, num_kept, {host: (e, k) for host, (e, k) in total.items()})


def check_yields(out: Output[Any], stage: str, yields: Yields, runtime: Runtime) -> None:
    """Write the table of hosts, and stop the stage where a bound of the runtime is broken.

    Raises:
        InputError: with the figures, the hosts and the setting that lets it pass.
    """
    ranked = sorted(
        yields.hosts.items(), key=lambda item: (item[1][1] - item[1][0], item[0])
    )  # most documents lost first
    rows = [
        {"host": host, "documents": entered, "kept": kept, "lost": f"{1 - kept / entered:.1%}"}
        for host, (entered, kept) in ranked[:MAX_ROWS]
    ]
    out.table("hosts", rows)
    problems = _problems(yields, runtime)
    if problems:
        lines = [
            f"  {row['host']}: {row['kept']} of {row['documents']} kept, {row['lost']} lost"
            for row in rows
        ]
        raise InputError(
            f"{stage} stops: {'; '.join(problems)}\n" + "\n".join(lines) + "\n"
            "Loosen the bounds (`lmpipe whatif` shows what that would do), or set "
            f"stage_runtime.{stage}.stop_… in the recipe if this is meant"
        )


def _problems(yields: Yields, runtime: Runtime) -> list[str]:
    problems = []
    share = yields.num_kept / max(1, yields.num_input)
    if not runtime.stop_kept_below <= share <= runtime.stop_kept_above:
        problems.append(
            f"it keeps {yields.num_kept} of {yields.num_input} documents ({share:.1%}), outside "
            f"stop_kept_below={runtime.stop_kept_below:g} to "
            f"stop_kept_above={runtime.stop_kept_above:g}"
        )
    lost = [
        host
        for host, (entered, kept) in sorted(yields.hosts.items())
        if entered >= runtime.stop_host_documents
        and 1 - kept / entered > runtime.stop_host_lost_fraction
    ]
    if lost:
        shown = ", ".join(lost[:5]) + (f" and {len(lost) - 5} more" if len(lost) > 5 else "")
        problems.append(
            f"it loses over stop_host_lost_fraction={runtime.stop_host_lost_fraction:g} of {shown}"
        )
    return problems
