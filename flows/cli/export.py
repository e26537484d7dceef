"""The command `lmpipe export`: a checkpoint as other tools open it."""

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.outputs import check_folder
from flows.cli.stores import Recipe, Root, open_store
from lmpipe.errors import ConfigError

app = typer.Typer()


@app.command("export")
def export(
    checkpoint: Annotated[
        str, typer.Argument(help="A folder with a model, or the start of a checkpoint's id.")
    ],
    folder: Annotated[Path, typer.Argument(help="New folder to write to.")],
    to: Annotated[str, typer.Option("--to", help="hf: a model class of transformers.")] = "hf",
    store: Root = "",
    recipe: Recipe = "",
) -> None:
    """Write a checkpoint so that transformers' AutoModelForCausalLM opens it, with its tokenizer.

    What has no equivalent there is refused by the option's name.
    """
    if to != "hf":
        raise ConfigError(f"--to {to!r}: no such format; known is hf")
    check_folder("folder", folder)
    from lmpipe.model.huggingface import export_model

    architecture = export_model(_model_folder(checkpoint, store, recipe), folder)
    print(f"{architecture}: {folder}")


def _model_folder(checkpoint: str, store: str, recipe: str) -> Path:
    """Return the folder that has the model: the one named, or a checkpoint's."""
    named = Path(checkpoint)
    if named.is_dir():
        return named if (named / "config.json").is_file() else named / "model"
    from lmpipe.artifacts.alias import find_by_prefix
    from lmpipe.artifacts.types import Checkpoint, open_artifact

    opened = open_store(store, recipe)
    artifact = open_artifact(opened, find_by_prefix(opened, checkpoint))
    if not isinstance(artifact, Checkpoint):
        raise ConfigError(
            f"{artifact.stage}/{artifact.id} is no checkpoint; give one of pretrain, sft, dpo, grpo"
        )
    return artifact.local_dir("model")
