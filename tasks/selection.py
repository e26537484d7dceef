"""Which stages of a run may be built: what `--from`, `--only`, `--until` and `--force` mean.

    --from S    everything before S is taken from the store as it is; S and what follows is built
                where it is missing
    --until S   nothing after S
    --only S    both: S alone
    --force S   S is built even if it is there (once per run, however often the run is retried)

A name is a stage (`dedup`) or one use of it (`source[crawl]`).
"""

from pydantic import BaseModel, ConfigDict, Field

from lmpipe.errors import ConfigError, did_you_mean


class Selection(BaseModel):
    """What a run may build. Empty: whatever is missing."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    only: str = Field(
        "", title="Only", description="Build this stage alone; all others must be there."
    )
    from_stage: str = Field(
        "", title="From", description="Take everything before this stage from the store as it is."
    )
    until_stage: str = Field("", title="Until", description="Build nothing after this stage.")
    force: tuple[str, ...] = Field(
        (), title="Force", description="Stages to build even if they are there already."
    )
    reason: str = Field("", title="Reason", description="Why, for the manifest of what is built.")

    @property
    def first(self) -> str:
        """The first stage that may be built, or empty."""
        return self.only or self.from_stage

    @property
    def last(self) -> str:
        """The last stage that may be built, or empty."""
        return self.only or self.until_stage

    def allowed(self, names: list[str]) -> set[str]:
        """Return which of a run's steps (in order) may be built.

        Raises:
            ConfigError: a name fits no step; the nearest spelling is named.
        """
        if self.only and (self.from_stage or self.until_stage):
            raise ConfigError("--only goes alone: leave out --from and --until")
        for name in filter(None, (self.first, self.last, *self.force)):
            if not any(fits(step, name) for step in names):
                raise ConfigError(unknown_step(name, names))
        start = _index(names, self.first, last=False) if self.first else 0
        end = _index(names, self.last, last=True) if self.last else len(names) - 1
        if start > end:
            raise ConfigError(f"--from {self.first} comes after --until {self.last}")
        return {
            step
            for index, step in enumerate(names)
            if start <= index <= end and (not self.only or fits(step, self.only))
        }

    def forces(self, step: str) -> bool:
        """Whether a step is built even if it is there."""
        return any(fits(step, name) for name in self.force)


def fits(step: str, name: str) -> bool:
    """Whether a name means a step: `source` means every `source[…]`."""
    return name in (step, step.partition("[")[0])


def unknown_step(name: str, names: list[str]) -> str:
    """Say that a name fits no step, and which it may have meant."""
    known = list(dict.fromkeys([*(n.partition("[")[0] for n in names), *names]))
    return f"this run has no stage {name!r}; {did_you_mean(name, known)}"


def _index(names: list[str], name: str, *, last: bool) -> int:
    found = [index for index, step in enumerate(names) if fits(step, name)]
    return found[-1] if last else found[0]
