"""Which artifacts stay: the policy, and its verdict on each artifact of a store.

An artifact stays for any one of these reasons, and with it everything it was made from:

    alias       it has a name
    run         one of the last runs of a recipe's flow built or found it
    last        it is one of the last that a step of a recipe built
    best        it is the best of its stage by a metric
    young       something was written to it lately
    in use      a build or a run that may be alive uses it

What nobody has finished and can be gone on with, a training with a whole checkpoint, stays too, and
is named with what it would cost again; it goes when it is old and the policy says so.

Of an artifact that stays, attempts that its manifest names nothing of and checkpoints inside the
stage go, once they are old. Manifests, locks and accounts of attempts stay in any case: lineage,
`show`, `diff` and the nearest relative in a plan need no more than those.

Runs are counted and not only artifacts, because a nightly run that finds its tokenizer, built a
year ago, uses it as much as one that builds it.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from lmpipe.artifacts.manifest import Adoption, InputRecord, Manifest
from lmpipe.artifacts.tombstone import Tombstone, names_any

DAY = 86400.0
CHECKPOINTS = "checkpoints"


class BestOf(BaseModel):
    """A metric by which the best artifact of a stage stays."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stage: str = Field(min_length=1, description="Stage, such as pretrain.")
    metric: str = Field(min_length=1, description="Metric in its manifest, such as bits_per_byte.")
    lowest: bool = Field(True, description="Whether the lowest value is the best.")

    def __str__(self) -> str:
        return f"{'lowest' if self.lowest else 'highest'} {self.metric}"


class RetentionPolicy(BaseModel):
    """What gc keeps."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    last: int = Field(
        3,
        ge=0,
        le=10_000,
        description="How many runs of each recipe's flow keep what they used, and how many built"
        " artifacts each step of a recipe keeps.",
    )
    best: tuple[BestOf, ...] = Field(
        (
            BestOf(stage="pretrain", metric="bits_per_byte", lowest=True),
            BestOf(stage="grpo", metric="heldout_reward", lowest=False),
        ),
        max_length=100,
        description="Metrics by which the best artifact of a stage stays.",
    )
    days: float = Field(
        7.0,
        ge=0,
        le=36_500,
        description="Everything written to within so many days stays, unfinished attempts too.",
    )
    unfinished: bool = Field(
        False,
        description="Whether unfinished trainings that have a checkpoint to go on from go as well, "
        "once they are older than that.",
    )


@dataclass(frozen=True)
class StoredAttempt:
    """What lies in an attempt's folder."""

    bytes: int
    written: float
    checkpoint_bytes: int
    step: int = -1  # of its newest whole checkpoint; -1: none
    replaces: str = ""  # the published attempt that it was forced to replace


@dataclass
class Stored:
    """One artifact as the store holds it."""

    home: str
    manifest: Manifest | None
    manifest_etag: str | None
    is_whole: bool
    attempts: dict[str, StoredAttempt]
    log_bytes: dict[str, int]
    word: Tombstone
    word_etag: str | None
    how_far: str = ""  # of its unfinished attempt, as the stage counts
    lost_seconds: float = 0.0  # what its unpublished attempts took
    lost_gpu_hours: float = 0.0

    @property
    def unfinished(self) -> str:
        """The attempt that the next one goes on from, or ""; it takes the highest step."""
        published = self.manifest.attempt if self.manifest else ""
        steps = {
            token: attempt.step
            for token, attempt in self.attempts.items()
            if attempt.step >= 0 and attempt.replaces == published
            if not {token, f"{token}/{CHECKPOINTS}"} & set(self.word.collected)
        }
        return max(steps, key=steps.__getitem__, default="")

    @property
    def bytes(self) -> int:
        """What it takes, manifest and lock aside."""
        return sum(a.bytes for a in self.attempts.values()) + sum(self.log_bytes.values())

    @property
    def written(self) -> float:
        """When something was last written to one of its attempts."""
        return max((attempt.written for attempt in self.attempts.values()), default=0.0)

    @property
    def is_collected(self) -> bool:
        """Whether gc took what the manifest names."""
        return self.manifest is not None and names_any(self.word.collected, self.manifest)

    def bytes_of(self, entry: str) -> int:
        """Return what deleting an entry of a tombstone frees."""
        attempt, _, folder = entry.partition("/")
        if attempt not in self.attempts:
            return 0
        if folder:
            return self.attempts[attempt].checkpoint_bytes
        return self.attempts[attempt].bytes + self.log_bytes.get(attempt, 0)


@dataclass
class Verdict:
    """What becomes of one artifact."""

    stored: Stored
    reasons: list[str] = field(default_factory=list)
    entries: tuple[str, ...] = ()

    @property
    def freed(self) -> int:
        """Bytes that go."""
        return sum(self.stored.bytes_of(entry) for entry in self.entries)


Run = tuple[str, str, list[str]]  # recipe and flow, name of the record, homes of its artifacts


def judge(
    artifacts: Iterable[Stored],
    policy: RetentionPolicy,
    *,
    aliases: dict[str, str],
    runs: list[Run],
    used: dict[str, str],
    now: float,
) -> list[Verdict]:
    """Return the verdict on each artifact.

    Args:
        artifacts: all of a store.
        policy: what stays.
        aliases: home to name.
        runs: records of runs, newest first.
        used: home to who may be using it.
        now: POSIX time.
    """
    verdicts = {stored.home: Verdict(stored) for stored in artifacts}
    whole = [v.stored for v in verdicts.values() if v.stored.is_whole and not v.stored.is_collected]
    reasons: list[tuple[str, str]] = [
        *((home, f"alias {name}") for home, name in aliases.items()),
        *_of_last_runs(runs, policy.last),
        *_last_built(whole, policy.last),
        *(reason for best in policy.best for reason in _best(whole, best)),
        *(
            (v.stored.home, f"younger than {policy.days:g} days")
            for v in verdicts.values()
            if now - v.stored.written < policy.days * DAY and v.stored.manifest is not None
        ),
        *((home, f"in use: {label}") for home, label in used.items()),
    ]
    for home, reason in reasons:
        if home in verdicts:
            verdicts[home].reasons.append(reason)
    _keep_origins(verdicts)
    foreign = _foreign_attempts(verdicts.values())
    for verdict in verdicts.values():
        if verdict.stored.home not in used:
            verdict.entries = _entries(verdict, policy, now, foreign)
    return list(verdicts.values())


def _of_last_runs(runs: list[Run], last: int) -> Iterable[tuple[str, str]]:
    seen: dict[str, int] = defaultdict(int)
    for group, name, homes in runs:
        seen[group] += 1
        if seen[group] <= last:
            yield from ((home, f"run {name}") for home in homes)


def _last_built(whole: list[Stored], last: int) -> Iterable[tuple[str, str]]:
    groups: dict[tuple[str, str, str], list[Stored]] = defaultdict(list)
    for stored in whole:
        assert stored.manifest is not None
        origin = stored.manifest.provenance.origin
        groups[origin.recipe, stored.manifest.stage, origin.step].append(stored)
    for (recipe, stage, step), members in groups.items():
        members.sort(key=_finished, reverse=True)
        of = f" of {recipe}" if recipe else ""
        yield from ((m.home, f"last {last} of {step or stage}{of}") for m in members[:last])


def _finished(stored: Stored) -> str:
    assert stored.manifest is not None
    return stored.manifest.provenance.finished


def _best(whole: list[Stored], best: BestOf) -> Iterable[tuple[str, str]]:
    values = {}
    for stored in whole:
        assert stored.manifest is not None
        value: Any = stored.manifest.metrics.get(best.metric)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if stored.manifest.stage == best.stage and is_number and value == value:  # no NaN
            values[stored.home] = float(value)
    if values:
        choose: Callable[..., str] = min if best.lowest else max
        yield choose(values, key=values.__getitem__), str(best)


def _keep_origins(verdicts: dict[str, Verdict]) -> None:
    """Keep what kept artifacts were made from."""
    waiting = [verdict for verdict in verdicts.values() if verdict.reasons]
    while waiting:
        manifest = waiting.pop().stored.manifest
        if manifest is None:
            continue
        origins: list[InputRecord | Adoption] = [*manifest.inputs]
        if manifest.adopted is not None:
            origins.append(manifest.adopted)
        for record in origins:
            origin = verdicts.get(f"{record.stage}/{record.id}")
            if origin is not None and not origin.reasons:
                origin.reasons.append(f"made into {manifest.stage}/{manifest.id[:12]}")
                waiting.append(origin)


def _foreign_attempts(verdicts: Iterable[Verdict]) -> set[str]:
    """Return attempt folders that a kept manifest of another artifact names objects of."""
    return {
        "/".join(file.path.split("/")[:4])
        for verdict in verdicts
        if verdict.reasons and verdict.stored.manifest is not None
        for file in verdict.stored.manifest.outputs
        if not file.path.startswith(f"{verdict.stored.home}/")
    }


def _entries(
    verdict: Verdict, policy: RetentionPolicy, now: float, foreign: set[str]
) -> tuple[str, ...]:
    """Return what goes of an artifact; what is collected already and has left objects, too."""
    stored, entries = verdict.stored, []
    age, spared = policy.days * DAY, "" if policy.unfinished else stored.unfinished
    outputs = stored.manifest.outputs if stored.manifest else []
    named = {file.path.split("/")[3] for file in outputs if file.path.startswith(stored.home)}
    checkpoints = {f.path.split("/")[3] for f in outputs if f"/{CHECKPOINTS}/" in f.path}
    for token, attempt in stored.attempts.items():
        if token in stored.word.collected:
            entries.append(token)
        elif f"{stored.home}/attempts/{token}" in foreign or token == spared:
            continue
        elif stored.manifest is not None and not verdict.reasons:
            entries.append(token)
        elif now - attempt.written < age:
            continue
        elif token not in named:
            entries.append(token)
        elif attempt.checkpoint_bytes and token not in checkpoints:
            entries.append(f"{token}/{CHECKPOINTS}")
    return tuple(entries)
