"""The page of a cost estimate: what a run costs, and what another choice would change.

The first figures are those that `lmpipe cost` prints; the page adds the roofline's plots, and
tables by ZeRO stage, checkpointing mode and batch.
"""

from __future__ import annotations

from dataclasses import replace

from lmpipe.model import communication, cost, memory
from lmpipe.model.cost_estimate import RESERVED_FRACTION, CostEstimate
from lmpipe.report.blocks import Cell, Page, Section, Table, Text, Tile, Tiles
from lmpipe.report.roofline import roofline
from lmpipe.report.svg import number
from lmpipe.report.wording import count, percent, period, size

BATCHES = (1, 8, 64, 256)
STAGES, MICRO_BATCHES = (4, 8, 16), (8, 32, 128)  # of a pipeline


def summary(estimate: CostEstimate) -> list[Tile]:
    """Return the figures that matter, each with what it rests on."""
    plan, device = estimate.plan, estimate.plan.device
    held = sum(estimate.memory_bytes.values())
    ranks = f"{plan.ranks:,} × {device.name}"
    result = [
        Tile("parameters", count(estimate.parameters.total), _groups(estimate)),
        Tile(
            "tokens",
            count(estimate.tokens),
            f"{estimate.tokens / estimate.parameters.total:.3g} a parameter",
        ),
        Tile("training FLOPs", number(estimate.flops), _against_6nd(estimate)),
        Tile("time", period(estimate.seconds), f"{ranks} at {plan.mfu:.0%} MFU (assumed)"),
        Tile("device-hours", _hours(estimate.device_hours), ranks),
        Tile(
            "memory a device",
            size(held),
            f"{'fits' if estimate.fits else 'does not fit'} in {size(device.memory_bytes)}"
            f" with {RESERVED_FRACTION:.0%} left; ZeRO-{plan.zero_stage}",
        ),
        Tile(
            "sent a step",
            size(estimate.sent_bytes_per_step),
            f"{period(estimate.wire_seconds_per_step)} on the wire,"
            f" {period(estimate.step_seconds)} of computing",
        ),
        Tile("MFU on the roofline", percent(estimate.mfu_bound), "at most; all S × S scores count"),
        Tile("KV cache", size(estimate.cache_bytes), f"a sequence of {plan.length:,} tokens"),
    ]
    if estimate.price is not None:
        result.insert(5, Tile("price", _money(estimate.price), f"{plan.price:,} a device-hour"))
    return result


def _groups(estimate: CostEstimate) -> str:
    groups = estimate.parameters
    embedding = groups.embedding + groups.positions
    return (
        f"embedding {count(embedding)}, attention {count(groups.attention)}, feed-forward"
        f" {count(groups.feed_forward)}, norms {count(groups.norm)}, output "
        + ("tied" if groups.tied else count(groups.unembedding))
    )


def _hours(hours: float) -> str:
    return count(hours) if hours >= 100 else f"{hours:.3g}"


def _money(price: float) -> str:
    return f"{price:,.2f}" if price < 1000 else count(price)


def _against_6nd(estimate: CostEstimate) -> str:
    plan = estimate.plan
    simple = cost.training_flops(estimate.parameters.total, estimate.tokens)
    forward = cost.forward_flops_per_token(plan.config, plan.length)
    backward = cost.backward_flops_per_token(plan.config, plan.length)
    return (
        f"{estimate.flops / simple:.2f} × 6ND; a token {number(forward)} forward,"
        f" {number(backward)} backward"
    )


def make_page(estimate: CostEstimate, name: str) -> Page:
    """Describe a cost estimate."""
    plan = estimate.plan
    shape = plan.config
    subtitle = (
        f"{shape.num_layers} layers of width {shape.d_model:,}, {shape.num_heads} query and"
        f" {shape.num_kv_heads} key heads, vocabulary {shape.vocab_size:,} · sequences of"
        f" {plan.length:,} tokens · {plan.ranks:,} × {plan.device.name}"
    )
    first = Section(
        "cost",
        "The cost estimate",
        "Computed from the model's shape and the device's datasheet; nothing here was measured.",
        [Tiles(summary(estimate))],
    )
    sections = [
        first,
        roofline(estimate),
        _memory(estimate),
        _wires(estimate),
        _inference(estimate),
        _papers(estimate),
    ]
    return Page(f"What {name} costs", subtitle, sections)


# --- memory, wires, inference -------------------------------------------------------------------


def _memory(estimate: CostEstimate) -> Section:
    plan, held = estimate.plan, estimate.memory_bytes
    total = sum(held.values())
    result = Section(
        "memory",
        "Memory of a device in training",
        f"Precision {plan.precision}: {memory.PRECISIONS[plan.precision].bytes_per_parameter} bytes"
        f" a parameter. Checkpointing: {plan.checkpointing}.",
    )
    parts: list[list[Cell | str]] = [
        [name, size(value), Cell(percent(value / total), value / total)]
        for name, value in held.items()
    ]
    result.add(Table(["held", "bytes", "share"], parts, (1,), f"{size(total)} in all"))
    stages = [replace(plan, zero_stage=stage) for stage in (0, 1, 2, 3)]
    rows = [[f"ZeRO-{each.zero_stage}", *_held(CostEstimate(each))] for each in stages]
    result.add(Table(["stage", "state", "in all", "fits"], rows, (1, 2), "By ZeRO stage"))
    modes = [replace(plan, checkpointing=mode) for mode in memory.CHECKPOINTING]
    rows = [[each.checkpointing, *_kept(CostEstimate(each))] for each in modes]
    columns = ["mode", "activations", "in all", "fits"]
    result.add(Table(columns, rows, (1, 2), "By checkpointing"))
    return result


def _held(estimate: CostEstimate) -> list[str]:
    total = sum(estimate.memory_bytes.values())
    return [size(total - estimate.memory_bytes["activations"]), size(total), _yes(estimate.fits)]


def _kept(estimate: CostEstimate) -> list[str]:
    return [
        size(estimate.memory_bytes["activations"]),
        size(sum(estimate.memory_bytes.values())),
        _yes(estimate.fits),
    ]


def _yes(fits: bool) -> str:
    return "yes" if fits else "no"


def _wires(estimate: CostEstimate) -> Section:
    plan = estimate.plan
    result = Section(
        "wires",
        "Communication of a step",
        f"What each of {plan.ranks:,} ranks sends, as a ring does; micro-batches of its own:"
        f" {plan.micro_batches}. Computing hides it as long as it takes less time. A pipeline"
        f" sends {size(_border_bytes(estimate))} over each border for a micro-batch.",
    )
    rows = []
    for stage in (0, 1, 2, 3):
        each = CostEstimate(replace(plan, zero_stage=stage))
        name = "DDP" if stage == 0 else f"ZeRO-{stage}"
        sent, wire = each.sent_bytes_per_step, each.wire_seconds_per_step
        rows.append([name, size(sent), period(wire), percent(wire / each.step_seconds)])
    columns = ["data parallel", "sent", "on the wire", "of computing"]
    result.add(
        Table(columns, rows, (1, 2, 3), f"A step computes for {period(estimate.step_seconds)}")
    )
    tensor = [
        [
            str(n),
            size(_tensor_bytes(estimate, n)),
            period(_tensor_bytes(estimate, n) / _link(estimate)),
        ]
        for n in (2, 4, 8)
    ]
    caption = "Tensor parallel, a micro-batch"
    result.add(Table(["ranks", "sent", "on the wire"], tensor, (1, 2), caption))
    bubbles = [
        [str(stages), *(percent(communication.bubble_fraction(stages, m)) for m in MICRO_BATCHES)]
        for stages in STAGES
    ]
    columns = ["stages", *(f"m = {m}" for m in MICRO_BATCHES)]
    caption = "Pipeline: idle over busy, m micro-batches"
    result.add(Table(columns, bubbles, (1, 2, 3), caption))
    return result


def _link(estimate: CostEstimate) -> float:
    return estimate.plan.device.link_bytes_per_second


def _tensor_bytes(estimate: CostEstimate, ranks: int) -> float:
    plan, shape = estimate.plan, estimate.plan.config
    layer = communication.tensor_parallel_elements(
        plan.micro_batch, plan.length, shape.d_model, ranks
    )
    return plan.element_bytes * shape.num_layers * layer


def _border_bytes(estimate: CostEstimate) -> float:
    plan = estimate.plan
    return plan.element_bytes * communication.pipeline_parallel_elements(
        plan.micro_batch, plan.length, plan.config.d_model
    )


def _inference(estimate: CostEstimate) -> Section:
    plan, device = estimate.plan, estimate.plan.device
    result = Section(
        "inference",
        "Serving",
        "A step of decoding reads every weight and every sequence's cache once; nothing else is"
        f" counted. Weights and caches in bf16, {plan.length:,} tokens a sequence.",
    )
    rows = []
    for batch in BATCHES:
        seconds = cost.decode_seconds(plan.config, device, seq_len=plan.length, batch=batch)
        cache = cost.kv_cache_bytes(plan.config, plan.length, batch)
        total = 2 * estimate.parameters.total + cache
        rows.append(
            [str(batch), size(cache), size(total), _yes(total <= device.memory_bytes),
             period(seconds), count(batch / seconds)]
        )  # fmt: skip
    columns = ["sequences", "KV cache", "with weights", "fits", "a token", "tokens/s"]
    result.add(Table(columns, rows, (0, 1, 2, 4, 5), f"Decoding on one {device.name}"))
    return result


def _papers(estimate: CostEstimate) -> Section:
    plan = estimate.plan
    result = Section("papers", "As papers count", "A law's N is not another law's.")
    counts = [[name, f"{value:,}"] for name, value in estimate.parameters.conventions().items()]
    result.add(Table(["parameters", "N"], counts, (1,)))
    flops = cost.flops_conventions(plan.config, plan.length)
    rows = [[name, number(value)] for name, value in flops.items()]
    result.add(Table(["training FLOPs", "a token"], rows, (1,)))
    result.add(Text("MFU is taken with PaLM's products: attention counts all S × S scores."))
    return result
