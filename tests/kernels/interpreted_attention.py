"""Attention cases and their errors; run as a program, it prints them as JSON.

A process of its own, because TRITON_INTERPRET is read when the kernels are defined, once per
process.
"""

import json
import sys
from dataclasses import dataclass

import torch

from lmpipe.kernels.flash_attention import attention_reference, flash_attention


@dataclass(frozen=True)
class Case:
    """One call of flash_attention."""

    num_queries: int = 33
    num_keys: int = 33
    heads: int = 2
    groups: int = 1
    head_size: int = 16
    dtype: str = "float32"
    causal: bool = True
    documents: str = "none"  # none | sorted | scattered
    layout: str = "contiguous"  # contiguous | transposed | strided


def make_inputs(case: Case, device: str = "cpu", batch: int = 2) -> list[torch.Tensor]:
    """Return query, key, value and the output's gradient, in the case's memory layout."""
    generator = torch.Generator().manual_seed(0)
    q_shape = (batch, case.num_queries, case.heads, case.head_size)
    k_shape = (batch, case.num_keys, case.groups, case.head_size)
    tensors = []
    for shape in (q_shape, k_shape, k_shape, q_shape):
        x = torch.randn(shape, generator=generator).to(device, getattr(torch, case.dtype))
        if case.layout == "transposed":  # as projections of (B, H, T, K) models lie
            x = x.transpose(1, 2).contiguous().transpose(1, 2)
        elif case.layout == "strided":  # every second feature of a wider buffer
            x = torch.stack([x, x], dim=-1).flatten(-2)[..., ::2]
        tensors.append(x)
    return tensors


def make_documents(case: Case, device: str = "cpu", batch: int = 2) -> torch.Tensor | None:
    """Return documents in packing order, or in any order at all."""
    if case.documents == "none":
        return None
    generator = torch.Generator().manual_seed(1)
    document_BT = torch.randint(0, 4, (batch, case.num_queries), generator=generator)
    if case.documents == "sorted":
        document_BT = document_BT.sort(dim=1).values
    return document_BT.to(device)


def with_gradients(attend, inputs, case, document_BT, dtype=None):
    """Return [out, dQ, dK, dV] of `attend`, computed in `dtype`."""
    query, key, value, grad_out = (x if dtype is None else x.to(dtype) for x in inputs)
    leaves = [x.detach().requires_grad_() for x in (query, key, value)]
    out = attend(*leaves, causal=case.causal, document_BT=document_BT)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad_out)]


def errors(case: Case, device: str = "cpu", batch: int = 2) -> dict[str, list[float]]:
    """Largest errors of out, dQ, dK, dV against float64, plain torch's, and the largest entries."""
    inputs, document_BT = make_inputs(case, device, batch), make_documents(case, device, batch)

    def triton_attention(*args, **kwargs):
        return flash_attention(*args, **kwargs, backend="triton")

    exact = with_gradients(attention_reference, inputs, case, document_BT, torch.float64)
    plain = with_gradients(attention_reference, inputs, case, document_BT)
    ours = with_gradients(triton_attention, inputs, case, document_BT)
    assert all(x.dtype == inputs[0].dtype for x in ours)

    def distance(results):
        return [
            float((x.double() - y).abs().nan_to_num(1e9).max())
            for x, y in zip(results, exact, strict=True)
        ]

    return {
        "ours": distance(ours),
        "plain": distance(plain),
        "scale": [float(y.abs().max()) for y in exact],
        "cancelled": [cancelled_scale(*inputs)],
    }


def cancelled_scale(query, key, value, grad_out) -> float:
    """Largest |dO|·|V| times |K| or |Q| over sqrt(K): what cancels in dS = P (dP - delta).

    The rounding of a sum is bounded by eps times the sum of absolute terms (Higham, section 3.1).
    With one or two keys dS is nearly or exactly zero, and this is all that is left of it.
    """
    per_feature = [x.double().abs().amax((0, 1, 2)) for x in (grad_out, value)]
    magnitude = torch.dot(*per_feature)
    factor = torch.maximum(query.double().abs().max(), key.double().abs().max())
    return float(magnitude * factor / query.shape[-1] ** 0.5)


def within_tolerance(error: dict[str, list[float]], dtype: str) -> bool:
    """Whether we err at most 2 (out) and 3 (gradients) times what plain torch does in that dtype.

    Plain torch can be exact by luck (a single key has no gradient in Q and K), so the unit is at
    least the rounding of the largest entry; in fp32, whose rounding is far below any gradient of
    interest, for dQ and dK also that of the terms that cancel in them.
    """
    half_eps = torch.finfo(getattr(torch, dtype)).eps / 2
    rounding = half_eps * max(error["scale"])
    cancelled = half_eps * error["cancelled"][0] if dtype == "float32" else 0.0
    units = [rounding, max(rounding, cancelled), max(rounding, cancelled), rounding]
    limits = [
        factor * max(plain, unit)
        for factor, plain, unit in zip((2, 3, 3, 3), error["plain"], units, strict=True)
    ]
    return all(ours <= limit for ours, limit in zip(error["ours"], limits, strict=True))


def main() -> None:
    cases = [Case(**fields) for fields in json.load(sys.stdin)]
    json.dump([errors(case) for case in cases], sys.stdout)


if __name__ == "__main__":
    main()
