"""Exact attention that never writes the T x S score matrix to memory, forward and backward.

    score_TS = scale * query_TK @ key_SK.T          scale = 1 / sqrt(K)
    score_TS = cap * tanh(score_TS / cap)           if there is a soft cap
    weight_TS = softmax over the visible S of score_TS
    out_TK = weight_TS @ value_SK

Query t stands at key position p = t + S - T (the last query at the last key) and sees key s when

    s <= p (causal), p - window < s (and s < p + window if not causal), and both are in one document

so what it sees is an interval of keys. A query that sees nothing gives zeros.

Forward walks the keys in blocks and keeps a running maximum and sum per query (online softmax); the
log-sum-exp that remains is all that backward needs to rebuild the weights. Backward is split in
two: one kernel owns a block of keys and sums dK and dV over the queries, one owns a block of
queries and sums dQ over the keys. Alternative not taken: one fused kernel that adds dQ by atomics.
It does 5 matrix products where the split does 7, but in Triton was slower at every size tried on an
H200 (340 against 373 TFLOP/s at K=64, S=8k), spills at K=128, and its sums depend on the order of
arrival; here gradients are bit-equal between runs.

Grouped heads are never expanded: query head h reads key head h // (H / G), and the kernel of a key
head sums over its H / G query heads itself.

Read on in flash_attention_kernels.py (the kernels in Triton, for every GPU), flash_attention_hopper
(the same in Gluon for Hopper, where it is worth it: 688 TFLOP/s forward for Triton's 499 at K=128)
and flash_attention_launch.py (tile sizes, launches, the differentiable operator).

Source: Dao, FlashAttention-2 (2023), algorithms 1 and 2; Milakov and Gimelshein, Online normalizer
calculation for softmax (2018).
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from lmpipe.errors import ConfigError
from lmpipe.kernels import flash_attention_launch

Backend = Literal["triton", "reference"]


class Pattern(NamedTuple):
    """What a query sees, and how scores are bent; documents apart."""

    causal: bool = True
    window: int | None = None  # a query sees this many keys, its own included
    softcap: float | None = None


# --- reference ----------------------------------------------------------------------------------


def document_bounds(document_BT: Int[Tensor, "B T"]) -> Int[Tensor, "2 B T"]:
    """Return the first position of each position's document, and the one after its last; int32.

    A document is a run of equal numbers. Computed once a batch, for all layers: from these the
    kernels know which blocks to skip.
    """
    edge_BT = torch.ones_like(document_BT, dtype=torch.bool)
    edge_BT[:, 1:] = document_BT[:, 1:] != document_BT[:, :-1]
    # The number of a run is how many began so far; runs lie in order, so their edges are sorted.
    run_BT = edge_BT.cumsum(1).contiguous()
    first_BT = torch.searchsorted(run_BT, run_BT)
    end_BT = torch.searchsorted(run_BT, run_BT, right=True)
    return torch.stack((first_BT, end_BT)).int()


def visible_mask(
    query_BTHK: Tensor, key_BSGK: Tensor, pattern: Pattern, bounds_2BT: Tensor | None
) -> Tensor:
    """Return which keys each query sees, as bool of shape (1 or B, T, S)."""
    num_queries, num_keys, device = query_BTHK.shape[1], key_BSGK.shape[1], query_BTHK.device
    key_S = torch.arange(num_keys, device=device)
    position_T1 = torch.arange(num_queries, device=device)[:, None] + num_keys - num_queries
    visible_BTS = torch.ones(1, num_queries, num_keys, dtype=torch.bool, device=device)
    if pattern.causal:
        visible_BTS = visible_BTS & (key_S <= position_T1)
    if pattern.window is not None:
        visible_BTS = visible_BTS & (key_S > position_T1 - pattern.window)
        visible_BTS = visible_BTS & (key_S < position_T1 + pattern.window)
    if bounds_2BT is not None:
        first_BT1, end_BT1 = bounds_2BT[..., None]
        visible_BTS = visible_BTS & (first_BT1 <= key_S) & (key_S < end_BT1)
    return visible_BTS


def attention_reference(
    query_BTHK: Float[Tensor, "B T H K"],
    key_BSGK: Float[Tensor, "B S G K"],
    value_BSGK: Float[Tensor, "B S G K"],
    pattern: Pattern,
    bounds_2BT: Int[Tensor, "2 B T"] | None = None,
) -> tuple[Float[Tensor, "B T H K"], Float[Tensor, "B H T"]]:
    """Return out and log-sum-exp as the formula reads, in the inputs' dtype: what kernels must hit.

    The log-sum-exp of a query that sees nothing is -inf.
    """
    group_size = query_BTHK.shape[2] // key_BSGK.shape[2]
    key_BSHK = key_BSGK.repeat_interleave(group_size, dim=2)
    value_BSHK = value_BSGK.repeat_interleave(group_size, dim=2)
    score_BHTS = torch.einsum("bthk,bshk->bhts", query_BTHK, key_BSHK)
    score_BHTS = score_BHTS / math.sqrt(query_BTHK.shape[3])
    if pattern.softcap is not None:
        score_BHTS = pattern.softcap * torch.tanh(score_BHTS / pattern.softcap)
    hidden_B1TS = ~visible_mask(query_BTHK, key_BSGK, pattern, bounds_2BT)[:, None]
    # The lowest finite number, not -inf: a row that sees nothing stays finite, and is then zeroed.
    score_BHTS = score_BHTS.masked_fill(hidden_B1TS, torch.finfo(score_BHTS.dtype).min)
    weight_BHTS = score_BHTS.softmax(dim=-1).masked_fill(hidden_B1TS, 0)
    out_BTHK = torch.einsum("bhts,bshk->bthk", weight_BHTS, value_BSHK)
    lse_BHT = score_BHTS.logsumexp(-1).masked_fill(hidden_B1TS.all(-1), -math.inf)
    return out_BTHK, lse_BHT


def _torch_sdpa(
    query_BTHK: Tensor,
    key_BSGK: Tensor,
    value_BSGK: Tensor,
    pattern: Pattern,
    bounds_2BT: Tensor | None,
) -> Tensor:
    """The same through torch's scaled_dot_product_attention, fast where there is no Triton."""
    # torch aligns is_causal to the first query, we to the last: the same only when T == S.
    plain = pattern.window is None and bounds_2BT is None
    plain_causal = plain and pattern.causal and query_BTHK.shape[1] == key_BSGK.shape[1]
    mask_B1TS = None
    if not plain or (pattern.causal and not plain_causal):
        mask_B1TS = visible_mask(query_BTHK, key_BSGK, pattern, bounds_2BT)[:, None]
    out_BHTK = functional.scaled_dot_product_attention(
        query_BTHK.transpose(1, 2),
        key_BSGK.transpose(1, 2),
        value_BSGK.transpose(1, 2),
        attn_mask=mask_B1TS,
        is_causal=plain_causal,
        enable_gqa=query_BTHK.shape[2] != key_BSGK.shape[2],
    )
    return out_BHTK.transpose(1, 2)


# --- public -------------------------------------------------------------------------------------


def flash_attention(
    query_BTHK: Float[Tensor, "B T H K"],
    key_BSGK: Float[Tensor, "B S G K"],
    value_BSGK: Float[Tensor, "B S G K"],
    pattern: Pattern,
    bounds_2BT: Int[Tensor, "2 B T"] | None = None,
    *,
    backend: Backend,
) -> Float[Tensor, "B T H K"]:
    """Attend from queries to keys, differentiable in all three inputs.

    Args:
        query_BTHK: bf16, fp16 or fp32, any strides, head size up to 256.
        key_BSGK: H must be a multiple of G.
        pattern: causal, window and soft cap.
        bounds_2BT: `document_bounds` of a packed batch (T == S); attention never crosses from one
            document to another.
        backend: "triton" (CUDA, or the interpreter) or "reference" (torch's own; any device). Never
            switched silently.

    Raises:
        ConfigError: shapes or dtypes that do not fit, or "triton" on a device without Triton.

    Cost: 4 H K FLOPs forward and 10 backward a visible pair of query and key; blocks of which no
        pair is visible are skipped. Beside inputs and outputs B T H fp32 numbers (two of them in
        backward), never T x S.
    """
    _check_inputs(query_BTHK, key_BSGK, value_BSGK, pattern, bounds_2BT)
    if backend == "reference":
        if pattern.softcap is not None:  # torch's own has none
            return attention_reference(query_BTHK, key_BSGK, value_BSGK, pattern, bounds_2BT)[0]
        return _torch_sdpa(query_BTHK, key_BSGK, value_BSGK, pattern, bounds_2BT)
    if backend != "triton":
        raise ConfigError(f'backend must be "triton" or "reference", got {backend!r}')
    return flash_attention_launch.attend(
        query_BTHK, key_BSGK, value_BSGK, bounds_2BT, *_numbers(pattern)
    )[0]


def flash_attention_with_lse(
    query_BTHK: Float[Tensor, "B T H K"],
    key_BSGK: Float[Tensor, "B S G K"],
    value_BSGK: Float[Tensor, "B S G K"],
    pattern: Pattern,
    bounds_2BT: Int[Tensor, "2 B T"] | None = None,
    *,
    backend: Backend,
) -> tuple[Float[Tensor, "B T H K"], Float[Tensor, "B H T"]]:
    """Return flash_attention's output and each query's log-sum-exp (fp32; -inf: saw nothing).

    Both are differentiable: parts of a sequence attended to apart can be merged exactly.
    """
    _check_inputs(query_BTHK, key_BSGK, value_BSGK, pattern, bounds_2BT)
    if backend == "reference":
        out, lse = attention_reference(query_BTHK, key_BSGK, value_BSGK, pattern, bounds_2BT)
        return out, lse.float()
    if backend != "triton":
        raise ConfigError(f'backend must be "triton" or "reference", got {backend!r}')
    out, lse_log2 = flash_attention_launch.attend(
        query_BTHK, key_BSGK, value_BSGK, bounds_2BT, *_numbers(pattern)
    )
    return out, lse_log2 * math.log(2)


def _numbers(pattern: Pattern) -> tuple[bool, int, float]:
    """The pattern as the operator takes it: 0 for none."""
    return pattern.causal, pattern.window or 0, pattern.softcap or 0.0


def _check_inputs(
    query_BTHK: Tensor,
    key_BSGK: Tensor,
    value_BSGK: Tensor,
    pattern: Pattern,
    bounds_2BT: Tensor | None,
) -> None:
    query, key = query_BTHK.shape, key_BSGK.shape
    if len(query) != 4 or len(key) != 4 or value_BSGK.shape != key:
        raise ConfigError(
            "attention takes query (B, T, H, K) and key, value (B, S, G, K), "
            f"got {tuple(query)}, {tuple(key)}, {tuple(value_BSGK.shape)}"
        )
    if query[0] != key[0] or query[3] != key[3] or query[2] % key[2]:
        raise ConfigError(
            f"query {tuple(query)} and key {tuple(key)} must agree in batch and head size, "
            "and the query heads be a multiple of the key heads"
        )
    if not query_BTHK.dtype == key_BSGK.dtype == value_BSGK.dtype:
        raise ConfigError(
            f"query, key and value must share a dtype, got {query_BTHK.dtype}, {key_BSGK.dtype}, "
            f"{value_BSGK.dtype}"
        )
    if pattern.window is not None and pattern.window < 1:
        raise ConfigError(f"window must be at least 1 (the query's own key), got {pattern.window}")
    if pattern.softcap is not None and not pattern.softcap > 0:
        raise ConfigError(f"softcap must be above 0, or None for none, got {pattern.softcap}")
    if bounds_2BT is not None and not (
        bounds_2BT.shape == (2, *query[:2])
        and query[1] == key[1]
        and bounds_2BT.dtype == torch.int32
    ):
        raise ConfigError(
            f"bounds_2BT must be document_bounds(document_BT) of shape (2, B, T), with T == S, "
            f"got {tuple(bounds_2BT.shape)} {bounds_2BT.dtype}, query {tuple(query)} and "
            f"key {tuple(key)}"
        )
