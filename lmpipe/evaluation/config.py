"""Which tasks a checkpoint is scored on."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator

from lmpipe.artifacts.stage import StageConfig
from lmpipe.errors import did_you_mean

TASK_FOLDER = Path(__file__).parent / "tasks"


class EvaluateConfig(StageConfig):
    """What to ask the model."""

    tasks: tuple[str, ...] = Field(
        ("blimp", "docs_cloze", "docs_text"),
        min_length=1,
        max_length=64,
        description="Names of task files in lmpipe/evaluation/tasks.",
    )
    limit: int = Field(0, ge=0, le=10**9, description="Items per task, from the first; 0 for all.")

    def identity_files(self) -> tuple[Path, ...]:
        """Return the tasks' files: what is asked and how it is scored."""
        return tuple(TASK_FOLDER / f"{name}.yaml" for name in self.tasks)

    @field_validator("tasks")
    @classmethod
    def _known(cls, tasks: tuple[str, ...]) -> tuple[str, ...]:
        known = sorted(path.stem for path in TASK_FOLDER.glob("*.yaml"))
        for name in tasks:
            if name not in known:
                raise ValueError(f"unknown task {name!r}; {did_you_mean(name, known)}")
        if len(set(tasks)) != len(tasks):
            raise ValueError(f"a task is named twice in {list(tasks)}")
        return tasks
