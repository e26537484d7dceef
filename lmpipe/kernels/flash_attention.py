"""Exact attention that never writes the T x S score matrix to memory, forward and backward.

    score_TS = scale * query_TK @ key_SK.T          scale = 1 / sqrt(K)
    weight_TS = softmax over the visible S of score_TS
    out_TK = weight_TS @ value_SK

Query t sees key s when s - t <= S - T (causal, the last query sees every key) and document_t ==
document_s (packing). A query that sees nothing gives zeros.

Forward walks the keys in blocks and keeps a running maximum and sum per query (online softmax); the
log-sum-exp that remains is all that backward needs to rebuild the weights. Backward is split in
two: one kernel owns a block of keys and sums dK and dV over the queries, one owns a block of
queries and sums dQ over the keys. Alternative not taken: one fused kernel that adds dQ by atomics.
It does 5 matrix products where the split does 7, but was slower at every size tried on an H200 (340
against 373 TFLOP/s at K=64, S=8k), spills at K=128, and its sums depend on the order of arrival;
here gradients are bit-equal between runs.

Grouped heads are never expanded: query head h reads key head h // (H / G), and the kernel of a key
head sums over its H / G query heads itself.

Source: Dao, FlashAttention-2 (2023), algorithms 1 and 2; Milakov and Gimelshein, Online normalizer
calculation for softmax (2018).
"""

# Triton compiles the kernels from their source: their pointers and strides have no Python types.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from lmpipe.errors import ConfigError

Backend = Literal["triton", "reference"]

MAX_HEAD_SIZE = 256
_TRITON_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


# --- reference ----------------------------------------------------------------------------------


def visible_mask(
    num_queries: int,
    num_keys: int,
    *,
    causal: bool,
    document_BT: Tensor | None,
    device: torch.device,
) -> Tensor:
    """Return which keys each query sees, as bool of shape (1 or B, T, S)."""
    visible_BTS = torch.ones(1, num_queries, num_keys, dtype=torch.bool, device=device)
    if causal:
        visible_BTS = visible_BTS.tril(num_keys - num_queries)
    if document_BT is not None:
        visible_BTS = visible_BTS & (document_BT[:, :, None] == document_BT[:, None, :])
    return visible_BTS


def attention_reference(
    query_BTHK: Float[Tensor, "B T H K"],
    key_BSGK: Float[Tensor, "B S G K"],
    value_BSGK: Float[Tensor, "B S G K"],
    *,
    causal: bool,
    document_BT: Int[Tensor, "B T"] | None = None,
) -> Float[Tensor, "B T H K"]:
    """Compute attention as the formula reads, in the inputs' dtype: the kernels are held to it."""
    group_size = query_BTHK.shape[2] // key_BSGK.shape[2]
    key_BSHK = key_BSGK.repeat_interleave(group_size, dim=2)
    value_BSHK = value_BSGK.repeat_interleave(group_size, dim=2)
    score_BHTS = torch.einsum("bthk,bshk->bhts", query_BTHK, key_BSHK)
    score_BHTS = score_BHTS / math.sqrt(query_BTHK.shape[3])
    visible_BTS = visible_mask(
        query_BTHK.shape[1],
        key_BSGK.shape[1],
        causal=causal,
        document_BT=document_BT,
        device=query_BTHK.device,
    )
    visible_B1TS = visible_BTS[:, None]
    # The lowest finite number, not -inf: a row that sees nothing stays finite, and is then zeroed.
    score_BHTS = score_BHTS.masked_fill(~visible_B1TS, torch.finfo(score_BHTS.dtype).min)
    weight_BHTS = score_BHTS.softmax(dim=-1).masked_fill(~visible_B1TS, 0)
    return torch.einsum("bhts,bshk->bthk", weight_BHTS, value_BSHK)


def _torch_sdpa(
    query_BTHK: Tensor,
    key_BSGK: Tensor,
    value_BSGK: Tensor,
    causal: bool,
    document_BT: Tensor | None,
) -> Tensor:
    """The same through torch's scaled_dot_product_attention, fast where there is no Triton."""
    num_queries, num_keys = query_BTHK.shape[1], key_BSGK.shape[1]
    # torch aligns is_causal to the first query, we to the last: the same only when T == S.
    plain_causal = causal and document_BT is None and num_queries == num_keys
    mask_B1TS = None
    if document_BT is not None or (causal and not plain_causal):
        mask_B1TS = visible_mask(
            num_queries, num_keys, causal=causal, document_BT=document_BT, device=query_BTHK.device
        )[:, None]
    out_BHTK = functional.scaled_dot_product_attention(
        query_BTHK.transpose(1, 2),
        key_BSGK.transpose(1, 2),
        value_BSGK.transpose(1, 2),
        attn_mask=mask_B1TS,
        is_causal=plain_causal,
        enable_gqa=query_BTHK.shape[2] != key_BSGK.shape[2],
    )
    return out_BHTK.transpose(1, 2)


# --- Triton kernels -----------------------------------------------------------------------------
#
# A tile is BLOCK_T queries by BLOCK_S keys; KP is the head size K padded to a power of two of at
# least 16, the least that a matrix instruction takes. Scores are in base 2, score * (scale * log2
# e): exp2 is what the hardware has, and the multiplication fuses with the subtraction of the
# maximum. Each loop runs twice: over the tiles that every query sees whole, without a mask, and
# over those on an edge (EDGE); bounds are checked only where T or S is no multiple of its block
# (RAGGED). Arguments keep their groups (unformatted).

# fmt: off


@triton.jit
def _load_rows(
    base, first, num_rows, row_stride,
    K: tl.constexpr, ROWS: tl.constexpr, KP: tl.constexpr, EDGE: tl.constexpr,
):
    """Load rows [first, first + ROWS) of a (num_rows, K) matrix; zeros outside it."""
    row = tl.arange(0, ROWS)
    col = tl.arange(0, KP)
    base += tl.cast(first, tl.int64) * row_stride
    # One 32-bit offset an element beside a scalar 64-bit base. Adding the base to the rows first
    # made ptxas (sm_90, K=128) spill 788 bytes in the dK/dV kernel against 312.
    pointers = base + (row[:, None] * row_stride + col[None, :])
    if EDGE:
        inside = (first + row < num_rows)[:, None] & (col < K)[None, :]
        tile = tl.load(pointers, mask=inside, other=0.0)
    elif K < KP:
        tile = tl.load(pointers, mask=(col < K)[None, :], other=0.0)
    else:
        tile = tl.load(pointers)
    return tile


@triton.jit
def _store_rows(
    base, tile, first, num_rows, row_stride, K: tl.constexpr, ROWS: tl.constexpr, KP: tl.constexpr
):
    """Store a tile into rows [first, first + ROWS) of a (num_rows, K) matrix, in its dtype."""
    row = tl.arange(0, ROWS)
    col = tl.arange(0, KP)
    base += tl.cast(first, tl.int64) * row_stride
    pointers = base + (row[:, None] * row_stride + col[None, :])
    inside = (first + row < num_rows)[:, None] & (col < K)[None, :]
    tl.store(pointers, tile.to(base.dtype.element_ty), mask=inside)


@triton.jit
def _documents(document_ptr, row, num_rows, PACKED: tl.constexpr):
    """The document number of each row; any vector of that shape where there are none."""
    document = row
    if PACKED:
        document = tl.load(document_ptr + row, mask=row < num_rows, other=0)
    return document


@triton.jit
def _visible(
    row_T, row_S, document_T, document_S, T, S, CAUSAL: tl.constexpr, PACKED: tl.constexpr
):
    """Which keys the queries see; arguments are (T, 1) and (1, S), or (1, T) and (S, 1)."""
    seen = (row_T < T) & (row_S < S)
    if CAUSAL:
        seen = seen & (row_S <= row_T + (S - T))
    if PACKED:
        seen = seen & (document_T == document_S)
    return seen


@triton.jit
def _key_range(
    first_query, T, S, CAUSAL: tl.constexpr, PACKED: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_S: tl.constexpr,
):
    """Bounds for a block of queries: all see the keys [0, whole), none sees one from `end` on."""
    end = S
    whole = S
    if CAUSAL:
        end = tl.minimum(S, tl.maximum(0, first_query + BLOCK_T + S - T))
        whole = tl.minimum(S, tl.maximum(0, first_query + 1 + S - T))
    whole = whole // BLOCK_S * BLOCK_S
    if PACKED:
        whole = 0
    return whole, end


@triton.jit
def _attend(
    acc, row_sum, row_max, query, key_ptr, value_ptr, document_ptr, document_T, row_T,
    start_at, end_at, stride_ks, stride_vs, T, S, scale_log2,
    CAUSAL: tl.constexpr, PACKED: tl.constexpr, RAGGED: tl.constexpr, EDGE: tl.constexpr,
    PRECISION: tl.constexpr,
    K: tl.constexpr, KP: tl.constexpr, BLOCK_S: tl.constexpr,
):
    """Fold the keys of [start_at, end_at) into the running softmax of one block of queries."""
    for first_key in tl.range(start_at, end_at, BLOCK_S):
        key = _load_rows(key_ptr, first_key, S, stride_ks, K, BLOCK_S, KP, EDGE and RAGGED)
        score = tl.dot(query, tl.trans(key), input_precision=PRECISION)
        if EDGE:
            row_S = first_key + tl.arange(0, BLOCK_S)
            document_S = _documents(document_ptr, row_S, S, PACKED)
            seen = _visible(
                row_T[:, None], row_S[None, :], document_T[:, None], document_S[None, :],
                T, S, CAUSAL, PACKED,
            )
            score = tl.where(seen, score, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(score, 1) * scale_log2)
        # A query that has seen nothing yet has -inf here, and -inf - -inf is NaN: subtract 0
        # instead.
        shift = tl.where(new_max == float("-inf"), 0.0, new_max)
        weight = tl.exp2(score * scale_log2 - shift[:, None])
        decay = tl.exp2(row_max - shift)
        row_sum = row_sum * decay + tl.sum(weight, 1)
        row_max = new_max
        value = _load_rows(value_ptr, first_key, S, stride_vs, K, BLOCK_S, KP, EDGE and RAGGED)
        acc = acc * decay[:, None]
        acc = tl.dot(weight.to(value.dtype), value, acc, input_precision=PRECISION)
    return acc, row_sum, row_max


@triton.jit
def _forward_kernel(
    query_ptr, key_ptr, value_ptr, document_ptr, out_ptr, lse_ptr,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_ks, stride_kg,
    stride_vb, stride_vs, stride_vg, stride_ob, stride_ot, stride_oh, stride_db,
    T, S, H, group_size, scale_log2,
    CAUSAL: tl.constexpr, PACKED: tl.constexpr, RAGGED: tl.constexpr, PRECISION: tl.constexpr,
    K: tl.constexpr, KP: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_S: tl.constexpr,
):
    """One block of queries of one head: out, and log-sum-exp in base 2."""
    # Under a causal mask the last queries have the most keys: they start first, the short ones fill
    # the end.
    first_query = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_T
    batch = (tl.program_id(1) // H).to(tl.int64)
    head = tl.program_id(1) % H
    query_ptr += batch * stride_qb + head * stride_qh
    key_ptr += batch * stride_kb + head // group_size * stride_kg
    value_ptr += batch * stride_vb + head // group_size * stride_vg
    out_ptr += batch * stride_ob + head * stride_oh
    lse_ptr += tl.program_id(1).to(tl.int64) * T
    document_ptr += batch * stride_db

    row_T = first_query + tl.arange(0, BLOCK_T)
    document_T = _documents(document_ptr, row_T, T, PACKED)
    query = _load_rows(query_ptr, first_query, T, stride_qt, K, BLOCK_T, KP, RAGGED)
    acc = tl.zeros((BLOCK_T, KP), tl.float32)
    row_sum = tl.zeros((BLOCK_T,), tl.float32)
    row_max = tl.full((BLOCK_T,), float("-inf"), tl.float32)

    whole, end = _key_range(first_query, T, S, CAUSAL, PACKED, BLOCK_T, BLOCK_S)
    if not PACKED:
        acc, row_sum, row_max = _attend(
            acc, row_sum, row_max, query, key_ptr, value_ptr, document_ptr, document_T, row_T,
            0, whole, stride_ks, stride_vs, T, S, scale_log2,
            CAUSAL, PACKED, RAGGED, False, PRECISION, K, KP, BLOCK_S,
        )
    acc, row_sum, row_max = _attend(
        acc, row_sum, row_max, query, key_ptr, value_ptr, document_ptr, document_T, row_T,
        whole, end, stride_ks, stride_vs, T, S, scale_log2,
        CAUSAL, PACKED, RAGGED, True, PRECISION, K, KP, BLOCK_S,
    )

    saw_any = row_sum > 0
    divisor = tl.where(saw_any, row_sum, 1.0)
    _store_rows(out_ptr, acc / divisor[:, None], first_query, T, stride_ot, K, BLOCK_T, KP)
    # +inf makes exp2(score - lse) zero: a query that saw nothing has no gradient either.
    lse = tl.where(saw_any, row_max + tl.log2(divisor), float("inf"))
    tl.store(lse_ptr + row_T, lse, mask=row_T < T)


@triton.jit
def _delta_kernel(
    out_ptr, grad_out_ptr, delta_ptr, stride_ob, stride_ot, stride_oh,
    stride_gb, stride_gt, stride_gh, T, H,
    K: tl.constexpr, KP: tl.constexpr, BLOCK_T: tl.constexpr,
):
    """delta_t = sum over k of out_tk * grad_out_tk, which softmax's backward subtracts."""
    first_query = tl.program_id(0) * BLOCK_T
    batch = (tl.program_id(1) // H).to(tl.int64)
    head = tl.program_id(1) % H
    out_ptr += batch * stride_ob + head * stride_oh
    grad_out_ptr += batch * stride_gb + head * stride_gh
    delta_ptr += tl.program_id(1).to(tl.int64) * T
    out = _load_rows(out_ptr, first_query, T, stride_ot, K, BLOCK_T, KP, True)
    grad_out = _load_rows(grad_out_ptr, first_query, T, stride_gt, K, BLOCK_T, KP, True)
    row_T = first_query + tl.arange(0, BLOCK_T)
    delta = tl.sum(out.to(tl.float32) * grad_out.to(tl.float32), 1)
    tl.store(delta_ptr + row_T, delta, mask=row_T < T)


@triton.jit
def _sum_over_queries(
    grad_key, grad_value, key, value, query_ptr, grad_out_ptr, lse_ptr, delta_ptr,
    document_ptr, document_S, row_S, start_at, end_at, stride_qt, stride_gt, T, S, scale_log2,
    CAUSAL: tl.constexpr, PACKED: tl.constexpr, RAGGED: tl.constexpr, EDGE: tl.constexpr,
    PRECISION: tl.constexpr,
    K: tl.constexpr, KP: tl.constexpr, BLOCK_T: tl.constexpr,
):
    """Add to a block's dK and dV what the queries of [start_at, end_at) of one head give."""
    for first_query in tl.range(start_at, end_at, BLOCK_T):
        row_T = first_query + tl.arange(0, BLOCK_T)
        query = _load_rows(
            query_ptr, first_query, T, stride_qt, K, BLOCK_T, KP, EDGE and RAGGED
        )
        grad_out = _load_rows(
            grad_out_ptr, first_query, T, stride_gt, K, BLOCK_T, KP, EDGE and RAGGED
        )
        lse = tl.load(lse_ptr + row_T, mask=row_T < T, other=float("inf"))
        delta = tl.load(delta_ptr + row_T, mask=row_T < T, other=0.0)
        score_ST = tl.dot(key, tl.trans(query), input_precision=PRECISION)
        weight_ST = tl.exp2(score_ST * scale_log2 - lse[None, :])
        if EDGE:
            document_T = _documents(document_ptr, row_T, T, PACKED)
            seen = _visible(
                row_T[None, :], row_S[:, None], document_T[None, :], document_S[:, None],
                T, S, CAUSAL, PACKED,
            )
            weight_ST = tl.where(seen, weight_ST, 0.0)
        grad_value = tl.dot(
            weight_ST.to(grad_out.dtype), grad_out, grad_value, input_precision=PRECISION
        )
        grad_weight_ST = tl.dot(value, tl.trans(grad_out), input_precision=PRECISION)
        grad_score_ST = weight_ST * (grad_weight_ST - delta[None, :])
        grad_key = tl.dot(grad_score_ST.to(query.dtype), query, grad_key, input_precision=PRECISION)
    return grad_key, grad_value


@triton.jit
def _grad_key_value_kernel(
    query_ptr, key_ptr, value_ptr, document_ptr, grad_out_ptr, lse_ptr, delta_ptr,
    grad_key_ptr, grad_value_ptr,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_ks, stride_kg,
    stride_vb, stride_vs, stride_vg, stride_gb, stride_gt, stride_gh,
    stride_dkb, stride_dks, stride_dkg, stride_db,
    T, S, H, group_size, scale, scale_log2,
    CAUSAL: tl.constexpr, PACKED: tl.constexpr, RAGGED: tl.constexpr, PRECISION: tl.constexpr,
    K: tl.constexpr, KP: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_S: tl.constexpr,
):
    """One block of keys of one key head: dK and dV, summed over the query heads that share it."""
    first_key = tl.program_id(0) * BLOCK_S  # the first keys have the most queries, and start first
    num_groups = H // group_size
    batch = (tl.program_id(1) // num_groups).to(tl.int64)
    group = tl.program_id(1) % num_groups
    key_ptr += batch * stride_kb + group * stride_kg
    value_ptr += batch * stride_vb + group * stride_vg
    document_ptr += batch * stride_db

    row_S = first_key + tl.arange(0, BLOCK_S)
    document_S = _documents(document_ptr, row_S, S, PACKED)
    key = _load_rows(key_ptr, first_key, S, stride_ks, K, BLOCK_S, KP, RAGGED)
    value = _load_rows(value_ptr, first_key, S, stride_vs, K, BLOCK_S, KP, RAGGED)
    grad_key = tl.zeros((BLOCK_S, KP), tl.float32)
    grad_value = tl.zeros((BLOCK_S, KP), tl.float32)

    # Queries from `begin` on see some key of the block; those of [edge, whole) see all of it, in
    # whole tiles. Keys beyond S need no mask: what they gather lies in rows that are not stored.
    begin = 0
    edge = 0
    if CAUSAL:
        begin = tl.maximum(0, first_key - (S - T)) // BLOCK_T * BLOCK_T
        edge = tl.maximum(0, first_key + BLOCK_S - 1 - (S - T))
        edge = (edge + BLOCK_T - 1) // BLOCK_T * BLOCK_T
    if PACKED:
        edge = T
    edge = tl.minimum(edge, T)
    whole = tl.maximum(edge, T // BLOCK_T * BLOCK_T)
    for member in tl.range(0, group_size):
        head = group * group_size + member
        query_head = query_ptr + batch * stride_qb + head * stride_qh
        grad_out_head = grad_out_ptr + batch * stride_gb + head * stride_gh
        row_offset = (batch * H + head) * T
        grad_key, grad_value = _sum_over_queries(
            grad_key, grad_value, key, value, query_head, grad_out_head,
            lse_ptr + row_offset, delta_ptr + row_offset, document_ptr, document_S, row_S,
            begin, edge, stride_qt, stride_gt, T, S, scale_log2,
            CAUSAL, PACKED, RAGGED, True, PRECISION, K, KP, BLOCK_T,
        )
        if not PACKED:
            grad_key, grad_value = _sum_over_queries(
                grad_key, grad_value, key, value, query_head, grad_out_head,
                lse_ptr + row_offset, delta_ptr + row_offset, document_ptr, document_S, row_S,
                edge, whole, stride_qt, stride_gt, T, S, scale_log2,
                CAUSAL, PACKED, RAGGED, False, PRECISION, K, KP, BLOCK_T,
            )
            if RAGGED:
                grad_key, grad_value = _sum_over_queries(
                    grad_key, grad_value, key, value, query_head, grad_out_head,
                    lse_ptr + row_offset, delta_ptr + row_offset, document_ptr, document_S, row_S,
                    whole, T, stride_qt, stride_gt, T, S, scale_log2,
                    CAUSAL, PACKED, RAGGED, True, PRECISION, K, KP, BLOCK_T,
                )

    grad_key_ptr += batch * stride_dkb + group * stride_dkg
    grad_value_ptr += batch * stride_dkb + group * stride_dkg
    _store_rows(grad_key_ptr, grad_key * scale, first_key, S, stride_dks, K, BLOCK_S, KP)
    _store_rows(grad_value_ptr, grad_value, first_key, S, stride_dks, K, BLOCK_S, KP)


@triton.jit
def _sum_over_keys(
    grad_query, query, grad_out, lse, delta, key_ptr, value_ptr, document_ptr, document_T, row_T,
    start_at, end_at, stride_ks, stride_vs, T, S, scale_log2,
    CAUSAL: tl.constexpr, PACKED: tl.constexpr, RAGGED: tl.constexpr, EDGE: tl.constexpr,
    PRECISION: tl.constexpr,
    K: tl.constexpr, KP: tl.constexpr, BLOCK_S: tl.constexpr,
):
    """Add to a block's dQ what the keys of [start_at, end_at) give."""
    for first_key in tl.range(start_at, end_at, BLOCK_S):
        key = _load_rows(key_ptr, first_key, S, stride_ks, K, BLOCK_S, KP, EDGE and RAGGED)
        value = _load_rows(value_ptr, first_key, S, stride_vs, K, BLOCK_S, KP, EDGE and RAGGED)
        score = tl.dot(query, tl.trans(key), input_precision=PRECISION)
        weight = tl.exp2(score * scale_log2 - lse[:, None])
        if EDGE:
            row_S = first_key + tl.arange(0, BLOCK_S)
            document_S = _documents(document_ptr, row_S, S, PACKED)
            seen = _visible(
                row_T[:, None], row_S[None, :], document_T[:, None], document_S[None, :],
                T, S, CAUSAL, PACKED,
            )
            weight = tl.where(seen, weight, 0.0)
        grad_weight = tl.dot(grad_out, tl.trans(value), input_precision=PRECISION)
        grad_score = weight * (grad_weight - delta[:, None])
        grad_query = tl.dot(grad_score.to(key.dtype), key, grad_query, input_precision=PRECISION)
    return grad_query


@triton.jit
def _grad_query_kernel(
    query_ptr, key_ptr, value_ptr, document_ptr, grad_out_ptr, lse_ptr, delta_ptr, grad_query_ptr,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_ks, stride_kg,
    stride_vb, stride_vs, stride_vg, stride_gb, stride_gt, stride_gh,
    stride_dqb, stride_dqt, stride_dqh, stride_db,
    T, S, H, group_size, scale, scale_log2,
    CAUSAL: tl.constexpr, PACKED: tl.constexpr, RAGGED: tl.constexpr, PRECISION: tl.constexpr,
    K: tl.constexpr, KP: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_S: tl.constexpr,
):
    """One block of queries of one head: dQ."""
    first_query = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_T
    batch = (tl.program_id(1) // H).to(tl.int64)
    head = tl.program_id(1) % H
    query_ptr += batch * stride_qb + head * stride_qh
    grad_out_ptr += batch * stride_gb + head * stride_gh
    key_ptr += batch * stride_kb + head // group_size * stride_kg
    value_ptr += batch * stride_vb + head // group_size * stride_vg
    grad_query_ptr += batch * stride_dqb + head * stride_dqh
    row_offset = tl.program_id(1).to(tl.int64) * T
    document_ptr += batch * stride_db

    row_T = first_query + tl.arange(0, BLOCK_T)
    document_T = _documents(document_ptr, row_T, T, PACKED)
    query = _load_rows(query_ptr, first_query, T, stride_qt, K, BLOCK_T, KP, RAGGED)
    grad_out = _load_rows(grad_out_ptr, first_query, T, stride_gt, K, BLOCK_T, KP, RAGGED)
    lse = tl.load(lse_ptr + row_offset + row_T, mask=row_T < T, other=float("inf"))
    delta = tl.load(delta_ptr + row_offset + row_T, mask=row_T < T, other=0.0)
    grad_query = tl.zeros((BLOCK_T, KP), tl.float32)

    whole, end = _key_range(first_query, T, S, CAUSAL, PACKED, BLOCK_T, BLOCK_S)
    if not PACKED:
        grad_query = _sum_over_keys(
            grad_query, query, grad_out, lse, delta, key_ptr, value_ptr, document_ptr,
            document_T, row_T, 0, whole, stride_ks, stride_vs, T, S, scale_log2,
            CAUSAL, PACKED, RAGGED, False, PRECISION, K, KP, BLOCK_S,
        )
    grad_query = _sum_over_keys(
        grad_query, query, grad_out, lse, delta, key_ptr, value_ptr, document_ptr,
        document_T, row_T, whole, end, stride_ks, stride_vs, T, S, scale_log2,
        CAUSAL, PACKED, RAGGED, True, PRECISION, K, KP, BLOCK_S,
    )
    _store_rows(grad_query_ptr, grad_query * scale, first_query, T, stride_dqt, K, BLOCK_T, KP)


# fmt: on
# --- launching ----------------------------------------------------------------------------------


class Tile(NamedTuple):
    """Block shape and launch of one kernel."""

    queries: int
    keys: int
    warps: int
    stages: int


class Tiles(NamedTuple):
    """The three kernels' tiles for one padded head size."""

    forward: Tile
    grad_key_value: Tile
    grad_query: Tile


# H200, bf16, causal, S=8k. Forward at K=128: 64x64 with 4 warps 519 TFLOP/s against 425 for 128x128
# with 8; at K=64: 64x128 with 4 warps 462 against 283. Small tiles leave room for two or more
# blocks an SM, and one block's exponentials then run under another's products. A table instead of
# autotuning: the same kernel, and so the same bits, every run.
_TILES = {
    16: Tiles(Tile(64, 128, 4, 2), Tile(64, 64, 4, 2), Tile(64, 64, 4, 2)),
    32: Tiles(Tile(64, 128, 4, 2), Tile(64, 64, 4, 2), Tile(64, 64, 4, 2)),
    64: Tiles(Tile(64, 128, 4, 2), Tile(64, 64, 4, 2), Tile(64, 64, 4, 2)),
    128: Tiles(Tile(64, 64, 4, 3), Tile(64, 64, 4, 2), Tile(64, 64, 4, 2)),
    # Two 64x256 fp32 sums would take 256 registers a thread of 4 warps: 8 warps.
    256: Tiles(Tile(64, 64, 8, 2), Tile(64, 64, 8, 1), Tile(64, 64, 8, 1)),
}
# fp32 products run on the scalar units, since tf32 would lose 13 bits. They are unrolled whole:
# 32x32 at K=256 spilled 19 KB a thread and compiled for minutes.
_FP32_TILE = Tile(32, 32, 4, 1)
_FP32_LARGE_HEAD_TILE = Tile(16, 16, 4, 1)


def _tiles(padded_head_size: int, dtype: torch.dtype) -> Tiles:
    if dtype != torch.float32:
        return _TILES[padded_head_size]
    tile = _FP32_TILE if padded_head_size < 128 else _FP32_LARGE_HEAD_TILE
    return Tiles(tile, tile, tile)


class _Launch:
    """What the kernels of one call share: sizes, strides of the inputs, compile-time constants."""

    def __init__(
        self,
        query_BTHK: Tensor,
        key_BSGK: Tensor,
        value_BSGK: Tensor,
        document_BT: Tensor | None,
        causal: bool,
    ) -> None:
        self.batch, self.num_queries, self.num_heads, self.head_size = query_BTHK.shape
        self.num_keys, self.num_groups = key_BSGK.shape[1:3]
        self.scale = 1 / math.sqrt(self.head_size)
        padded = max(16, triton.next_power_of_2(self.head_size))
        exact = query_BTHK.dtype == torch.float32
        self.tiles = _tiles(padded, query_BTHK.dtype)
        # Without documents the pointer is never read, but has to point somewhere.
        self.document = query_BTHK if document_BT is None else document_BT
        self.document_stride = 0 if document_BT is None else document_BT.stride(0)
        self.input_strides = (
            *query_BTHK.stride()[:3],
            *key_BSGK.stride()[:3],
            *value_BSGK.stride()[:3],
        )
        self.sizes = (
            self.num_queries,
            self.num_keys,
            self.num_heads,
            self.num_heads // self.num_groups,
        )
        self.head = {"K": self.head_size, "KP": padded}
        self.constants = {
            "CAUSAL": causal,
            "PACKED": document_BT is not None,
            "PRECISION": "ieee" if exact else "tf32",
            **self.head,
        }

    @property
    def scale_log2(self) -> float:
        return self.scale * math.log2(math.e)

    def options(self, tile: Tile) -> dict[str, Any]:
        return {
            **self.constants,
            "RAGGED": bool(self.num_queries % tile.queries or self.num_keys % tile.keys),
            "BLOCK_T": tile.queries,
            "BLOCK_S": tile.keys,
            "num_warps": tile.warps,
            "num_stages": tile.stages,
        }

    def grid_of_queries(self, block: int) -> tuple[int, int]:
        return triton.cdiv(self.num_queries, block), self.batch * self.num_heads

    def grid_of_keys(self, block: int) -> tuple[int, int]:
        return triton.cdiv(self.num_keys, block), self.batch * self.num_groups


# torch.library's operators take the place of an autograd.Function: torch.compile then sees one
# opaque node with known shapes and a known backward, and does not break the graph. The price is
# about 50 us of dispatch a call in eager mode.


@torch.library.custom_op("lmpipe::flash_attention", mutates_args=())
def _flash_attention(
    query_BTHK: Tensor,
    key_BSGK: Tensor,
    value_BSGK: Tensor,
    document_BT: Tensor | None,
    causal: bool,
) -> tuple[Tensor, Tensor]:
    """Return out (B, T, H, K) and log-sum-exp in base 2 (B, H, T; +inf if nothing was seen)."""
    launch = _Launch(query_BTHK, key_BSGK, value_BSGK, document_BT, causal)
    out_BTHK = torch.empty(query_BTHK.shape, dtype=query_BTHK.dtype, device=query_BTHK.device)
    lse_BHT = torch.empty(
        (launch.batch, launch.num_heads, launch.num_queries),
        dtype=torch.float32,
        device=query_BTHK.device,
    )
    tile = launch.tiles.forward
    _forward_kernel[launch.grid_of_queries(tile.queries)](
        query_BTHK, key_BSGK, value_BSGK, launch.document, out_BTHK, lse_BHT,
        *launch.input_strides, *out_BTHK.stride()[:3], launch.document_stride,
        *launch.sizes, launch.scale_log2, **launch.options(tile),
    )  # fmt: skip
    return out_BTHK, lse_BHT


@torch.library.custom_op("lmpipe::flash_attention_backward", mutates_args=())
def _flash_attention_backward(
    grad_out_BTHK: Tensor,
    query_BTHK: Tensor,
    key_BSGK: Tensor,
    value_BSGK: Tensor,
    out_BTHK: Tensor,
    lse_BHT: Tensor,
    document_BT: Tensor | None,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dQ (B, T, H, K), dK and dV (B, S, G, K), each contiguous."""
    launch = _Launch(query_BTHK, key_BSGK, value_BSGK, document_BT, causal)
    grad_out_BTHK = _with_unit_stride(grad_out_BTHK)  # a sum's gradient comes with strides of 0
    grad_query_BTHK = torch.empty_like(query_BTHK, memory_format=torch.contiguous_format)
    grad_key_BSGK = torch.empty_like(key_BSGK, memory_format=torch.contiguous_format)
    grad_value_BSGK = torch.empty_like(value_BSGK, memory_format=torch.contiguous_format)
    delta_BHT = torch.empty_like(lse_BHT)
    grad_strides = grad_out_BTHK.stride()[:3]

    _delta_kernel[launch.grid_of_queries(64)](
        out_BTHK, grad_out_BTHK, delta_BHT, *out_BTHK.stride()[:3], *grad_strides,
        launch.num_queries, launch.num_heads, **launch.head, BLOCK_T=64,
    )  # fmt: skip
    tile = launch.tiles.grad_key_value
    _grad_key_value_kernel[launch.grid_of_keys(tile.keys)](
        query_BTHK, key_BSGK, value_BSGK, launch.document, grad_out_BTHK, lse_BHT, delta_BHT,
        grad_key_BSGK, grad_value_BSGK, *launch.input_strides, *grad_strides,
        *grad_key_BSGK.stride()[:3], launch.document_stride,
        *launch.sizes, launch.scale, launch.scale_log2, **launch.options(tile),
    )  # fmt: skip
    tile = launch.tiles.grad_query
    _grad_query_kernel[launch.grid_of_queries(tile.queries)](
        query_BTHK, key_BSGK, value_BSGK, launch.document, grad_out_BTHK, lse_BHT, delta_BHT,
        grad_query_BTHK, *launch.input_strides, *grad_strides,
        *grad_query_BTHK.stride()[:3], launch.document_stride,
        *launch.sizes, launch.scale, launch.scale_log2, **launch.options(tile),
    )  # fmt: skip
    return grad_query_BTHK, grad_key_BSGK, grad_value_BSGK


@_flash_attention.register_fake
def _(
    query_BTHK: Tensor,
    key_BSGK: Tensor,
    value_BSGK: Tensor,
    document_BT: Tensor | None,
    causal: bool,
) -> tuple[Tensor, Tensor]:
    batch, num_queries, num_heads, _ = query_BTHK.shape
    lse_BHT = query_BTHK.new_empty((batch, num_heads, num_queries), dtype=torch.float32)
    return query_BTHK.new_empty(query_BTHK.shape), lse_BHT


@_flash_attention_backward.register_fake
def _(
    grad_out_BTHK: Tensor,
    query_BTHK: Tensor,
    key_BSGK: Tensor,
    value_BSGK: Tensor,
    out_BTHK: Tensor,
    lse_BHT: Tensor,
    document_BT: Tensor | None,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    inputs = (query_BTHK, key_BSGK, value_BSGK)
    grad_query, grad_key, grad_value = (x.new_empty(x.shape) for x in inputs)
    return grad_query, grad_key, grad_value


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query_BTHK, key_BSGK, value_BSGK, document_BT, ctx.causal = inputs
    ctx.save_for_backward(query_BTHK, key_BSGK, value_BSGK, document_BT, *output)
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, grad_out_BTHK: Tensor, _grad_lse: Tensor) -> tuple[Tensor | None, ...]:
    query_BTHK, key_BSGK, value_BSGK, document_BT, out_BTHK, lse_BHT = ctx.saved_tensors
    grads = _flash_attention_backward(
        grad_out_BTHK, query_BTHK, key_BSGK, value_BSGK, out_BTHK, lse_BHT, document_BT, ctx.causal
    )
    return *grads, None, None


_flash_attention.register_autograd(_differentiate, setup_context=_save_for_backward)


def _with_unit_stride(x: Tensor) -> Tensor:
    """The kernels read heads as contiguous rows of K; every other stride is free."""
    return x if x.stride(-1) == 1 else x.contiguous()


# --- public -------------------------------------------------------------------------------------


def flash_attention(
    query_BTHK: Float[Tensor, "B T H K"],
    key_BSGK: Float[Tensor, "B S G K"],
    value_BSGK: Float[Tensor, "B S G K"],
    *,
    causal: bool,
    document_BT: Int[Tensor, "B T"] | None = None,
    backend: Backend,
) -> Float[Tensor, "B T H K"]:
    """Attend from queries to keys, differentiable in all three inputs.

    Args:
        query_BTHK: bf16, fp16 or fp32, any strides, head size up to 256.
        key_BSGK: H must be a multiple of G.
        causal: query t sees key s when s - t <= S - T.
        document_BT: number of the document at each position (T == S); attention never crosses from
            one to another.
        backend: "triton" (CUDA, or the interpreter) or "reference" (torch's own; any device). Never
            switched silently.

    Raises:
        ConfigError: shapes or dtypes that do not fit, or "triton" on a device without Triton.

    Cost: 4 B H T S K FLOPs forward and 10 backward, half of that when causal; beside inputs and
        outputs B T H fp32 numbers (two of them in backward), never T x S.
    """
    _check_inputs(query_BTHK, key_BSGK, value_BSGK, document_BT)
    if backend == "reference":
        return _torch_sdpa(query_BTHK, key_BSGK, value_BSGK, causal, document_BT)
    if backend != "triton":
        raise ConfigError(f'backend must be "triton" or "reference", got {backend!r}')
    if not query_BTHK.is_cuda and isinstance(_forward_kernel, triton.JITFunction):
        raise ConfigError(
            f'backend="triton" needs CUDA tensors, got {query_BTHK.device}; '
            'use backend="reference", or start Python with TRITON_INTERPRET=1 for the interpreter'
        )
    if query_BTHK.shape[-1] > MAX_HEAD_SIZE:
        raise ConfigError(
            f'backend="triton" takes head sizes up to {MAX_HEAD_SIZE}, got {query_BTHK.shape[-1]}; '
            'use more heads or backend="reference"'
        )
    if query_BTHK.dtype not in _TRITON_DTYPES:
        raise ConfigError(
            f'backend="triton" takes {", ".join(map(str, _TRITON_DTYPES))}, got {query_BTHK.dtype}'
        )
    query_BTHK, key_BSGK, value_BSGK = (
        _with_unit_stride(x) for x in (query_BTHK, key_BSGK, value_BSGK)
    )
    if document_BT is not None:
        document_BT = _with_unit_stride(document_BT)
    out_BTHK: Tensor
    out_BTHK, _ = _flash_attention(query_BTHK, key_BSGK, value_BSGK, document_BT, causal)
    return out_BTHK


def _check_inputs(
    query_BTHK: Tensor, key_BSGK: Tensor, value_BSGK: Tensor, document_BT: Tensor | None
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
    if document_BT is not None and not (document_BT.shape == query[:2] and query[1] == key[1]):
        raise ConfigError(
            f"document_BT {tuple(document_BT.shape)} must be (B, T) with T == S, "
            f"got query {tuple(query)} and key {tuple(key)}"
        )
