"""Print the stage table of docs/stages.md: `python -m tests.architecture.stage_table`."""

import importlib
import inspect

from lmpipe.artifacts.stage import Stage
from tests.architecture.modules import stages

# The order of the pipeline; a stage that is not named here comes last, and the test says so.
ORDER = [
    *("source", "extract", "import_documents", "quality_classifier", "signals", "select"),
    *(
        "dedup",
        "dedup_passages",
        "resample",
        "decontaminate",
        "mask",
        "tokenizer",
        "shards",
        "vocabulary",
        "pretrain",
        "sft",
        "dpo",
        "grpo",
    ),
    *("evaluate", "scale", "report"),
]


def _inputs(stage: Stage) -> str:  # type: ignore[type-arg]  # whatever it makes
    names = []
    for role in stage.roles:
        kind = f"list of {role.type.__name__}" if role.many else role.type.__name__
        names.append(f"{role.name}: {kind}{'?' if role.optional else ''}")
    return ", ".join(names) or "files"


def stage_table() -> str:
    """Return the Markdown table: name, what it does, reads and makes, class and version."""
    lines = ["| stage | does | reads | makes | class |", "| --- | --- | --- | --- | --- |"]
    found = stages()
    for name in sorted(found, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER)):
        module = found[name]
        stage: Stage = getattr(importlib.import_module(module), name)  # type: ignore[type-arg]
        summary = (inspect.getdoc(stage.function) or "").partition("\n")[0].rstrip(".")
        path = "../" + module.replace(".", "/") + ".py"
        lines.append(
            f"| [{name}]({path}) | {summary} | {_inputs(stage)} | {stage.output_type.__name__} "
            f"| {stage.kind}, v{stage.version} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(stage_table())
