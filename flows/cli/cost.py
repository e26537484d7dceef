"""The command `lmpipe cost`: what a named size or a recipe costs, before anything is built."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from flows.cli.outputs import check_file
from lmpipe.errors import ConfigError

if TYPE_CHECKING:
    from lmpipe.model.cost_estimate import CostEstimate

app = typer.Typer()
LARGEST_PASS = 8  # sequences of a recipe's forward pass where micro_batch_size is automatic


@app.command("cost")
def cost(
    what: Annotated[
        str, typer.Argument(help="A size (7B; empty lists them), a recipe's name, or a YAML file.")
    ] = "",
    device: Annotated[str, typer.Option(help="H100, H200, A100 or CPU.")] = "H100",
    ranks: Annotated[int | None, typer.Option(help="Devices, one rank on each.")] = None,
    tokens: Annotated[
        float | None, typer.Option(help="Of the run, such as 2e12; else 20 a parameter.")
    ] = None,
    sequence_length: Annotated[int | None, typer.Option(help="Else the model's longest.")] = None,
    micro_batch: Annotated[int | None, typer.Option(help="Sequences of a forward pass.")] = None,
    batch_tokens: Annotated[int | None, typer.Option(help="Tokens of an optimizer step.")] = None,
    zero: Annotated[int | None, typer.Option(help="ZeRO stage, 0 to 3.")] = None,
    precision: Annotated[
        str, typer.Option(help="fp32, bf16, mixed or deepspeed; rates are bf16's, a CPU's fp32's.")
    ] = "",
    checkpointing: Annotated[
        str, typer.Option(help="none, selective (FlashAttention) or full.")
    ] = "selective",
    mfu: Annotated[float, typer.Option(help="Assumed share of the device's rate.")] = 0.4,
    price: Annotated[float | None, typer.Option(help="Of an hour of one device.")] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a recipe.")
    ] = None,
    to: Annotated[Path | None, typer.Option(help="Write the roofline page there.")] = None,
) -> None:
    """Say what training and serving a model cost: time, memory, wires, and the roofline as a page.

    Nothing is measured and no torch is needed; a price is given only if an hour has one.
    """
    from lmpipe.model.accelerators import accelerator_named
    from lmpipe.model.cost_estimate import CostEstimate, Plan

    check_file("--to", to)
    if not what:
        _list_sizes(Console())
        return
    given = {
        "ranks": ranks,
        "tokens": tokens,
        "seq_len": sequence_length,
        "micro_batch": micro_batch,
        "batch_tokens": batch_tokens,
        "zero_stage": zero,
        "checkpointing": checkpointing,
        "mfu": mfu,
        "price": price,
    }
    chosen = accelerator_named(device)
    settings = _settings(what, changes, {k: v for k, v in given.items() if v is not None})
    default = "fp32" if chosen.name == "CPU" else "deepspeed"
    estimate = CostEstimate(Plan(device=chosen, precision=precision or default, **settings))
    _print(Console(), what, estimate)
    if to is not None:
        from lmpipe.report.cost_page import make_page
        from lmpipe.report.html import write_html

        to.write_text(write_html(make_page(estimate, what)), encoding="utf-8")
        print(f"roofline: {to}")


def _settings(what: str, changes: list[str] | None, given: dict[str, Any]) -> dict[str, Any]:
    """Return a plan's fields for a size or a recipe, with what was given on top."""
    from flows.recipe import RECIPES, load_recipe
    from lmpipe.model.sizes import SIZES, size_named

    if what.upper() in SIZES:
        if changes:
            raise ConfigError(f"--set changes a recipe, and {what} is a size; leave it out")
        return {"config": size_named(what), **given}
    if not what.endswith((".yaml", ".yml")) and not (RECIPES / f"{what}.yaml").is_file():
        recipes = ", ".join(sorted(path.stem for path in RECIPES.glob("*.yaml")))
        raise ConfigError(
            f"no size and no recipe {what!r}; sizes: {', '.join(SIZES)}; recipes: {recipes}, or a"
            " path to a YAML file"
        )
    return _recipe_settings(load_recipe(what, changes), given)


def _recipe_settings(recipe: Any, given: dict[str, Any]) -> dict[str, Any]:
    from lmpipe.runtime import Runtime

    pretrain = recipe.pretrain
    fields = {**recipe.runtime.model_dump(), **recipe.stage_runtime.get("pretrain", {})}
    runtime = Runtime.model_validate(fields)
    settings = {
        "config": pretrain.model.with_vocab(recipe.tokenizer.vocab_size),
        "tokens": pretrain.total_steps * pretrain.batch_tokens,
        "seq_len": pretrain.sequence_length,
        "batch_tokens": pretrain.batch_tokens,
        "ranks": runtime.ranks or 1,
        "zero_stage": runtime.zero_stage,
        **given,
    }
    if "micro_batch" not in settings:
        share = settings["batch_tokens"] // settings["seq_len"] // max(1, settings["ranks"])
        fitting = [n for n in range(1, LARGEST_PASS + 1) if share % n == 0]
        settings["micro_batch"] = runtime.micro_batch_size or max(fitting)
    return settings


def _print(console: Console, what: str, estimate: "CostEstimate") -> None:
    from lmpipe.report.cost_page import summary

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right", style="bold")
    table.add_column(overflow="fold")
    for tile in summary(estimate):
        table.add_row(tile.label, tile.value, tile.note)
    console.print(f"{what}: computed, nothing measured", markup=False, highlight=False)
    console.print(table, highlight=False)


def _list_sizes(console: Console) -> None:
    from lmpipe.model.cost import count_parameters
    from lmpipe.model.sizes import SIZES

    columns = (
        "size",
        "parameters",
        "layers",
        "width",
        "heads",
        "key heads",
        "vocabulary",
        "tokens",
    )
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for name, shape in SIZES.items():
        numbers = (
            count_parameters(shape).total, shape.num_layers, shape.d_model, shape.num_heads,
            shape.num_kv_heads, shape.vocab_size, shape.max_seq_len,
        )  # fmt: skip
        table.add_row(name, *(f"{value:,}" for value in numbers))
    console.print(table)
