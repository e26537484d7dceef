"""`lmpipe adopt`: have one artifact serve as what a recipe now asks for."""

from functools import partial
from typing import Annotated

import typer
from rich.console import Console

from lmpipe.errors import ConfigError

app = typer.Typer()


@app.command("adopt")
def adopt_artifact(
    artifact: Annotated[str, typer.Argument(help="Start of the id of the artifact that serves.")],
    recipe: Annotated[str, typer.Argument(help="The recipe that asks for another one.")],
    but: Annotated[
        list[str] | None,
        typer.Option("--but", metavar="FIELD", help="A field in which they differ, as plan says."),
    ] = None,
    reason: Annotated[str, typer.Option(help="How it is known that the bytes hold.")] = "",
    step: Annotated[str, typer.Option(help="Which use of the stage, such as evaluate[sft].")] = "",
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a value.")
    ] = None,
    flow: Annotated[str, typer.Option(help="The flow that is planned.")] = "pipeline",
) -> None:
    """Let an artifact serve as the one that a recipe asks for, by an operator's word.

    It must come from the same stage and differ in the named fields only; the word and its reason
    stand in the manifest, and plan shows them.
    """
    from flows.recipe import load_recipe
    from flows.run import COMPOSITIONS
    from lmpipe.artifacts.adoption import adopt
    from lmpipe.artifacts.alias import find_by_prefix
    from tasks.plan import calls_with_inputs

    if flow not in COMPOSITIONS:
        raise ConfigError(f"no flow {flow!r}; known are {', '.join(COMPOSITIONS)}")
    loaded = load_recipe(recipe, changes)
    settings = loaded.settings()
    old = find_by_prefix(settings.store, artifact)
    calls = calls_with_inputs(partial(COMPOSITIONS[flow], loaded), settings)
    fitting = [pair for pair in calls if step in ("", pair[0].name)]
    fitting = [(call, bound) for call, bound in fitting if call.stage.name == old.stage]
    if len(fitting) != 1:
        names = ", ".join(call.name for call, _ in fitting)
        raise ConfigError(
            f"{recipe} has several such steps: {names}; name one with --step"
            if fitting
            else f"{recipe} has no step {step or old.stage!r} whose inputs are in the store; "
            "`lmpipe plan` says what is missing"
        )
    ((call, bound),) = fitting
    made = adopt(
        old,
        call.stage,
        call.config,
        bound,
        store=settings.store,
        fields=but or [],
        reason=reason,
    )
    text = f"{made.stage}/{old.id} serves as {made.stage}/{made.id}"
    Console().print(text, markup=False, highlight=False, soft_wrap=True)
