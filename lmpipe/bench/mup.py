"""`lmpipe bench mup`: does the best learning rate of a narrow model fit a wide one?

Small decoders of several widths learn real text, byte by byte, at every rate of a grid whose steps
are factors of 2, in muP and in standard parametrisation. muP holds what it promises if the best
rate of every width lies within one step of the base width's; the last lines say so. Depth, batch,
steps and data are the same for all widths, as muP does not promise anything for those.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field

from lmpipe.bench import Row, row
from lmpipe.errors import InputError
from lmpipe.model.config import ModelConfig
from lmpipe.training.optimizer import OptimizerConfig, parameter_groups
from lmpipe.training.schedule import Schedule

if TYPE_CHECKING:
    import torch


BENCH = "mup"
HEAD = 32
Parametrisation = Literal["mup", "standard"]


class Options(BaseModel):
    """What to train."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    paths: list[str] = Field(min_length=1, description="Parquet files with a column `text`.")
    widths: list[int] = Field([64, 128, 256, 512], description="The first one is muP's base.")
    log2_rates: list[int] = Field(
        [-11, -10, -9, -8, -7, -6, -5], description="Learning rates, as powers of 2."
    )
    parametrisations: list[Parametrisation] = ["mup", "standard"]
    steps: int = Field(120, ge=2, description="Optimizer steps of each run.")
    batch_sequences: int = Field(16, ge=1, description="Sequences of each step.")
    length: int = Field(64, ge=2, description="Bytes of each sequence.")


def run(options: dict[str, Any]) -> list[Row]:
    """Return the loss of each run, the best rate of each width, and the largest distance."""
    import torch

    settings = Options.model_validate(options)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    text = _text(settings).to(device)
    rows: list[Row] = []
    started = time.perf_counter()
    for kind in settings.parametrisations:
        best: dict[int, int] = {}
        for width in settings.widths:
            losses = {
                rate: train(settings, kind, width, 2.0**rate, text) for rate in settings.log2_rates
            }
            rows += [
                row(BENCH, "lmpipe", f"{kind}, width {width}, rate 2^{rate}", "loss", loss, "nats")
                for rate, loss in losses.items()
            ]
            best[width] = min(losses, key=lambda rate: losses[rate])
            if best[width] in (settings.log2_rates[0], settings.log2_rates[-1]):
                rows.append(
                    row(BENCH, "lmpipe", f"{kind}, width {width}", "best at the grid's edge", 1, "")
                )
        rows += [
            row(BENCH, "lmpipe", f"{kind}, width {width}", "log2 of the best rate", rate, "")
            for width, rate in best.items()
        ]
        apart = max(abs(rate - best[settings.widths[0]]) for rate in best.values())
        rows.append(row(BENCH, "lmpipe", kind, "largest distance from the base", apart, "steps"))
    rows.append(row(BENCH, "lmpipe", "all", "time", time.perf_counter() - started, "s"))
    name = torch.cuda.get_device_name() if device == "cuda" else device
    return [made | {"device": name} for made in rows]


def shape(settings: Options, kind: Parametrisation, width: int) -> ModelConfig:
    """Return a width's model: more heads of one size, two layers, bytes as tokens."""
    base = settings.widths[0]
    # At the base width both parametrisations are the same model: 1/K there is 1/sqrt(K).
    mup = {
        "mup_base_width": base,
        "attention_scale": "inverse",
        "attention_multiplier": math.sqrt(HEAD),
    }
    return ModelConfig(
        vocab_size=256,
        num_layers=2,
        d_model=width,
        num_heads=width // HEAD,
        num_kv_heads=width // HEAD,
        d_ff=3 * width,
        max_seq_len=settings.length,
        tied_embeddings=False,
        **(mup if kind == "mup" else {}),
    )


def train(
    settings: Options, kind: Parametrisation, width: int, rate: float, text: torch.Tensor
) -> float:
    """Return the mean loss of the last quarter of the steps; infinity if it diverged."""
    import torch
    from torch.nn.functional import cross_entropy

    from lmpipe.model.decoder import Decoder
    from lmpipe.model.initialisation import learning_rate_scale

    config = shape(settings, kind, width)
    model = Decoder(config).initialise(0).to(text.device)
    chosen = OptimizerConfig(learning_rate=1.0, weight_decay=0.0)  # each step sets its own rate
    groups = parameter_groups(model.named_parameters(), chosen, learning_rate_scale(config))
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    schedule = Schedule("cosine", settings.steps, settings.steps // 10, 0)
    losses = []
    for step, tokens_BT in enumerate(_batches(settings, text)):
        for group in optimizer.param_groups:
            group["lr"] = rate * group["lr_scale"] * schedule(step)
        logits_BTV = model(tokens_BT[:, :-1])
        loss = cross_entropy(logits_BTV.flatten(0, 1), tokens_BT[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.detach())
    last = torch.stack(losses[-max(1, settings.steps // 4) :]).mean()
    return float(last) if torch.isfinite(last) else math.inf


def _batches(settings: Options, text: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the same batches for every run: no byte is seen twice while the text lasts."""
    import torch

    length = settings.length + 1
    order = torch.randperm(len(text) // length, generator=torch.Generator().manual_seed(0))
    sequences = text[: len(order) * length].view(-1, length)
    for step in range(settings.steps):
        at = torch.arange(step * settings.batch_sequences, (step + 1) * settings.batch_sequences)
        yield sequences[order[at % len(order)].to(text.device)].long()


def _text(settings: Options) -> torch.Tensor:
    """Return the texts as bytes.

    Raises:
        InputError: a file is missing, or there is less text than one batch.
    """
    import torch

    read = bytearray()
    for path in settings.paths:
        if not Path(path).is_file():
            raise InputError(f"{path} does not exist; give Parquet files with a column `text`")
        for text in pq.read_table(path, columns=["text"])["text"].to_pylist():
            read += text.encode()
    batch = settings.batch_sequences * (settings.length + 1)
    if len(read) < batch:
        raise InputError(f"{len(read)} bytes of text are less than one batch of {batch}")
    return torch.frombuffer(read, dtype=torch.uint8)
