"""The attention kernels' conformance kit: cases that cover all features in pairs, and their errors.

Run as a program, it reads cases as JSON and prints their errors: TRITON_INTERPRET is read when the
kernels are defined, once per process, so the interpreter needs a process of its own.
"""

import itertools
import json
import math
import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from lmpipe.kernels import flash_attention_launch
from lmpipe.kernels.flash_attention import (
    Pattern,
    attention_reference,
    document_bounds,
    flash_attention_with_lse,
)


@dataclass(frozen=True)
class Case:
    """One call of flash_attention."""

    lengths: tuple[int, int] = (33, 33)  # queries, keys
    heads: tuple[int, int] = (2, 1)  # query heads, key heads
    head_size: int = 16
    dtype: str = "float32"
    causal: bool = True
    window: int | None = None
    softcap: float | None = None
    documents: int = 0  # how many in a row, 0: not packed
    layout: str = "contiguous"  # contiguous | transposed | strided | expanded
    values: str = "normal"  # normal | scaled | offset
    gluon: bool = True  # Hopper's own kernels, where they apply

    @property
    def pattern(self) -> Pattern:
        return Pattern(self.causal, self.window, self.softcap)

    def is_possible(self) -> bool:
        return not self.documents or self.lengths[0] == self.lengths[1]

    def __str__(self) -> str:
        features = (f"{name}={value}" for name, value in vars(self).items() if value != "normal")
        return " ".join(features).replace(" ", "-")


def pairwise(options: dict[str, list[Any]], seed: int = 0) -> list[Case]:
    """Return few cases in which every possible pair of two options' values occurs.

    Greedy: each case starts from a pair not seen yet and takes, option by option, the value that
    adds most new pairs. About the product of the two longest lists, not of all.
    """
    rng = random.Random(seed)
    names = list(options)
    missing = {
        ((a, x), (b, y))
        for a, b in itertools.combinations(names, 2)
        for x, y in itertools.product(options[a], options[b])
        if Case(**{a: x, b: y}).is_possible()
    }

    def gain(chosen: dict[str, Any], name: str, value: Any) -> int:
        new = (name, value)
        return sum(
            ((new, old) if names.index(name) < names.index(old[0]) else (old, new)) in missing
            for old in chosen.items()
        )

    cases = []
    while missing:
        chosen = dict(rng.choice(sorted(missing, key=repr)))
        for name in rng.sample(names, len(names)):
            if name not in chosen:
                values = rng.sample(options[name], len(options[name]))
                allowed = [v for v in values if Case(**chosen, **{name: v}).is_possible()]
                chosen[name] = max(allowed, key=lambda v: gain(chosen, name, v))
        missing -= set(itertools.combinations([(name, chosen[name]) for name in names], 2))
        cases.append(Case(**chosen))
    return cases


def make_inputs(case: Case, device: str = "cpu", batch: int = 2) -> list[torch.Tensor]:
    """Return query, key, value and the output's gradient, in the case's memory layout."""
    generator = torch.Generator().manual_seed(0)
    (num_queries, num_keys), (heads, groups) = case.lengths, case.heads
    q_shape = (batch, num_queries, heads, case.head_size)
    k_shape = (batch, num_keys, groups, case.head_size)
    tensors = []
    for shape in (q_shape, k_shape, k_shape, q_shape):
        x = torch.randn(shape, generator=generator)
        if case.values == "scaled":
            x = 3 * x
        elif case.values == "offset" and len(tensors) < 3:
            x = x + 8
        x = x.to(device, getattr(torch, case.dtype))
        if case.layout == "transposed":  # as projections of (B, H, T, K) models lie
            x = x.transpose(1, 2).contiguous().transpose(1, 2)
        elif case.layout == "strided":  # every second feature of a wider buffer
            x = torch.stack([x, x], dim=-1).flatten(-2)[..., ::2]
        elif case.layout == "expanded":  # the same row for the whole batch
            x = x[:1].expand(shape)
        tensors.append(x)
    return tensors


def make_bounds(case: Case, device: str = "cpu", batch: int = 2) -> torch.Tensor | None:
    """Return the bounds of documents of random lengths; numbers come back after others."""
    if not case.documents:
        return None
    generator = torch.Generator().manual_seed(1)
    cuts = torch.randint(0, case.lengths[0], (batch, case.documents - 1), generator=generator)
    number_BT = (torch.arange(case.lengths[0])[None, :, None] >= cuts[:, None]).sum(-1) % 3
    return document_bounds(number_BT.to(device))


Results = list[torch.Tensor]  # out, lse, dQ, dK, dV


def with_gradients(
    attend: Any, case: Case, inputs: Iterable[torch.Tensor], bounds: torch.Tensor | None
) -> Results:
    """Return [out, lse, dQ, dK, dV] of `attend`."""
    query, key, value, grad_out = inputs
    leaves = [x.detach().requires_grad_() for x in (query, key, value)]
    out, lse = attend(*leaves, case.pattern, bounds)
    return [out.detach(), lse.detach(), *torch.autograd.grad(out, leaves, grad_out)]


def triton_attention(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return flash_attention_with_lse(*arguments, backend="triton")


@contextmanager
def kernels_of(case: Case) -> Iterator[None]:
    """Take Hopper's own kernels away from a case that is for Triton's."""
    known = flash_attention_launch.HOPPER_KERNELS
    flash_attention_launch.HOPPER_KERNELS = known if case.gluon else ()
    try:
        yield
    finally:
        flash_attention_launch.HOPPER_KERNELS = known


@contextmanager
def poisoned_buffers() -> Iterator[None]:
    """Let torch.empty return NaN, so that an element which nobody writes shows."""
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(1).isnan()
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def errors(case: Case, device: str = "cpu", batch: int = 2, runs: int = 1) -> dict[str, Any]:
    """Largest errors of out, dQ, dK, dV against float64, plain torch's, and the largest entries."""
    inputs, bounds = make_inputs(case, device, batch), make_bounds(case, device, batch)
    with poisoned_buffers(), kernels_of(case):
        ours, *others = (
            with_gradients(triton_attention, case, inputs, bounds) for _ in range(runs)
        )
    doubles = [x.double() for x in inputs]
    exact = with_gradients(attention_reference, case, doubles, bounds)
    plain = with_gradients(attention_reference, case, inputs, bounds)
    assert all(x.dtype == inputs[0].dtype for x in (ours[0], *ours[2:]))

    def distance(results: Results) -> list[float]:
        pairs = list(zip(results, exact, strict=True))
        del pairs[1]  # the log-sum-exp has its own test below
        return [float((x.double() - y).abs().nan_to_num(1e9).max()) for x, y in pairs]

    lse, exact_lse = ours[1].double(), exact[1]
    seen = exact_lse.isfinite()
    single = with_gradients(attention_reference, case, [x.float() for x in inputs], bounds)[1]
    return {
        "ours": distance(ours),
        "plain": distance(plain),
        "scale": [float(y[y.isfinite()].abs().max()) if y.isfinite().any() else 0.0 for y in exact],
        "cancelled": cancelled_scale(*inputs),
        "same bits": all(all(map(torch.equal, ours, other)) for other in others),
        "blind rows": torch.equal(lse == -math.inf, ~seen)
        and not ours[0].transpose(1, 2)[~seen].any()
        and not ours[2].transpose(1, 2)[~seen].any(),
        "lse": [
            float((x.double() - exact_lse)[seen].abs().max()) if seen.any() else 0.0
            for x in (lse, single)
        ],
    }


def cancelled_scale(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, grad_out: torch.Tensor
) -> float:
    """Largest |dO|·|V| times |K| or |Q| over sqrt(K): what cancels in dS = P (dP - delta).

    The rounding of a sum is bounded by eps times the sum of absolute terms (Higham, section 3.1).
    With one or two keys dS is nearly or exactly zero, and this is all that is left of it.
    """
    per_feature = [x.double().abs().amax((0, 1, 2)) for x in (grad_out, value)]
    magnitude = torch.dot(*per_feature)
    factor = torch.maximum(query.double().abs().max(), key.double().abs().max())
    return float(magnitude * factor / query.shape[-1] ** 0.5)


def failures(error: dict[str, Any], case: Case) -> list[str]:
    """Return what is wrong with a case: nothing, if all is well.

    We may err 2 (out) and 3 (gradients) times as much as plain torch does in that dtype. Plain
    torch can be exact by luck (a single key has no gradient in Q and K), so the unit is at least
    the rounding of the largest entry; in fp32, whose rounding is far below any gradient of
    interest, also that of the weights, which backward rebuilds as exp(score - lse) and so to
    eps |lse|, and for dQ and dK that of the terms that cancel in them.
    """
    half_eps = torch.finfo(getattr(torch, case.dtype)).eps / 2
    out, lse, *gradients = error["scale"]
    rounding = half_eps * max(out, *gradients)
    rebuilt, cancelled = rounding, 0.0
    if case.dtype == "float32":
        rebuilt = rounding * max(lse, 1)
        cancelled = half_eps * error["cancelled"]
    units = [rounding, max(rebuilt, cancelled), max(rebuilt, cancelled), rebuilt]
    limits = [
        factor * max(plain, unit)
        for factor, plain, unit in zip((2, 3, 3, 3), error["plain"], units, strict=True)
    ]
    wrong = [
        f"{name} errs {ours:.2e}, allowed {limit:.2e}"
        for name, ours, limit in zip(("out", "dQ", "dK", "dV"), error["ours"], limits, strict=True)
        if not ours <= limit
    ]
    # Sums of 16-bit products are kept in fp32, whatever the dtype: the log-sum-exp is held to that.
    ours, single = error["lse"]
    if not ours <= 4 * max(single, 1e-6 * lse, 1e-6):
        wrong.append(f"lse errs {ours:.2e}, fp32 {single:.2e}")
    return wrong + [name for name in ("same bits", "blind rows") if not error[name]]


def from_json(fields: dict[str, Any]) -> Case:
    pairs = {name: tuple(fields[name]) for name in ("lengths", "heads")}
    return replace(Case(**fields), **pairs)


def main() -> None:
    cases = [from_json(fields) for fields in json.load(sys.stdin)]
    json.dump([errors(case) for case in cases], sys.stdout)


if __name__ == "__main__":
    main()
