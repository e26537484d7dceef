"""The Triton kernels of flash_attention.py: one forward, three backward; any GPU, any shape.

A program owns a tile of rows of one head and walks the other sequence in tiles. What a row may see
is an interval: query t sees the keys [first_t, end_t), and both ends grow with t, whatever the mask
(causal, window, packed documents, ragged lengths). So the walk needs four numbers, the intervals of
the tile's first and last row, and has three parts:

    begin ....... whole ............... edge ....... end
      left edge     seen by every row     right edge
      masked        no mask at all        masked

Tiles outside [begin, end) are never read: a window or packed documents cost their own area.

Scores are in base 2, score * (scale * log2 e): exp2 is what the hardware has, and the product fuses
with the subtraction of the maximum. KP is the head size K padded to a power of two of at least 16,
the least that a matrix instruction takes; LOWER and UPPER say which end of the interval a masked
tile has to compare with.
"""

# Triton compiles the kernels from their source: their pointers and strides have no Python types.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)

# Arguments keep their groups (unformatted).
# fmt: off


# --- tiles of matrices --------------------------------------------------------------------------


@triton.jit
def matrix(
    base, num_rows, row_stride,
    K: tl.constexpr, ROWS: tl.constexpr, KP: tl.constexpr, TMA: tl.constexpr,
):
    """A (num_rows, K) matrix read in tiles of ROWS rows: a descriptor for the copy engine, or base.

    The copy engine (TMA, Hopper on) takes one instruction a tile and fills with zeros outside the
    matrix; pointers cost each thread 16 loads and their addresses.
    """
    handle = base
    if TMA:
        handle = tl.make_tensor_descriptor(base, [num_rows, K], [row_stride, 1], [ROWS, KP])
    return handle


@triton.jit
def load_rows(
    handle, first, num_rows, row_stride,
    K: tl.constexpr, ROWS: tl.constexpr, KP: tl.constexpr, EDGE: tl.constexpr, TMA: tl.constexpr,
):
    """Load rows [first, first + ROWS); zeros outside the matrix."""
    if TMA:
        tile = handle.load([first, 0])
    else:
        row = tl.arange(0, ROWS)
        col = tl.arange(0, KP)
        # One 32-bit offset an element beside a scalar 64-bit base. Adding the base to the rows
        # first made ptxas (sm_90, K=128) spill 788 bytes in the dK/dV kernel against 312.
        base = handle + tl.cast(first, tl.int64) * row_stride
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
def store_rows(
    base, tile, first, num_rows, row_stride, K: tl.constexpr, ROWS: tl.constexpr, KP: tl.constexpr
):
    """Store a tile into rows [first, first + ROWS) of a (num_rows, K) matrix, in its dtype."""
    row = tl.arange(0, ROWS)
    col = tl.arange(0, KP)
    base += tl.cast(first, tl.int64) * row_stride
    pointers = base + (row[:, None] * row_stride + col[None, :])
    inside = (first + row < num_rows)[:, None] & (col < K)[None, :]
    tl.store(pointers, tile.to(base.dtype.element_ty), mask=inside)


# --- what a program works on --------------------------------------------------------------------


@triton.jit
def place():
    """The number of a program's tile and of its row, batch x head.

    The grid is (heads at a time, tiles, the rest of the heads), the first counted fastest: what a
    few heads walk stays in L2, and of these tile 0 comes first. Head after head, the last head's
    longest tiles ran alone at the end: with 4 query heads a key head, 10% more time backward.
    """
    return tl.program_id(1), tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)


# --- what a row sees ----------------------------------------------------------------------------


@triton.jit
def visible_keys(
    row_T, bounds_ptr, bounds_stride, T, S, window,
    CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, PACKED: tl.constexpr,
):
    """The interval [first, end) of keys that each query sees; rows from T on see nothing."""
    diagonal = row_T + (S - T)
    first = row_T * 0
    end = first + S
    if CAUSAL:
        end = tl.minimum(end, diagonal + 1)
    if WINDOWED:
        first = tl.maximum(first, diagonal - window + 1)
        if not CAUSAL:
            end = tl.minimum(end, diagonal + window)
    if PACKED:
        first = tl.maximum(first, tl.load(bounds_ptr + row_T, mask=row_T < T, other=0))
        last = tl.load(bounds_ptr + bounds_stride + row_T, mask=row_T < T, other=0)
        end = tl.minimum(end, last)
    end = tl.where(row_T < T, end, 0)
    return first, end


@triton.jit
def visible_queries(
    row_S, bounds_ptr, bounds_stride, T, S, window,
    CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, PACKED: tl.constexpr,
):
    """The interval [first, end) of queries that see each key: the same, read by columns."""
    diagonal = row_S - (S - T)
    first = row_S * 0
    end = first + T
    if CAUSAL:
        first = tl.maximum(first, diagonal)
    if WINDOWED:
        end = tl.minimum(end, diagonal + window)
        if not CAUSAL:
            first = tl.maximum(first, diagonal - window + 1)
    if PACKED:
        first = tl.maximum(first, tl.load(bounds_ptr + row_S, mask=row_S < S, other=0))
        last = tl.load(bounds_ptr + bounds_stride + row_S, mask=row_S < S, other=0)
        end = tl.minimum(end, last)
    end = tl.where(row_S < S, end, 0)
    return first, end


@triton.jit
def parts(low_first, low_end, high_first, high_end, BLOCK: tl.constexpr):
    """begin, whole, edge, end of the walk, from the intervals of the tile's first and last row."""
    begin = low_first // BLOCK * BLOCK
    whole = (high_first + BLOCK - 1) // BLOCK * BLOCK
    edge = tl.maximum(whole, low_end // BLOCK * BLOCK)
    return begin, whole, edge, high_end


@triton.jit
def soft_cap(score, scale, SOFTCAP: tl.constexpr):
    """tanh(score * scale / SOFTCAP); times SOFTCAP it is the capped score."""
    x = score * (scale / SOFTCAP)
    magnitude = tl.abs(x)
    decay = tl.exp2(magnitude * (-2 * LOG2_E))
    large = (1 - decay) / (1 + decay)
    # 1 - decay cancels near 0; there the series, whose next term is below 1e-8.
    square = x * x
    series = -17 / 315 + square * (62 / 2835)
    series = 1 + square * (-1 / 3 + square * (2 / 15 + square * series))
    return tl.where(magnitude < 0.25, x * series, tl.where(x < 0, -large, large))


# --- forward ------------------------------------------------------------------------------------


@triton.jit
def attend(
    acc, row_sum, row_max, query, key_mat, value_mat, first_T, end_T, start_at, stop_at,
    stride_ks, stride_vs, S, scale,
    SOFTCAP: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr, RAGGED: tl.constexpr,
    PRECISION: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, BLOCK_S: tl.constexpr,
    TMA: tl.constexpr,
):
    """Fold the keys of [start_at, stop_at) into the running softmax of one tile of queries."""
    EDGE: tl.constexpr = LOWER or UPPER
    for first_key in tl.range(start_at, stop_at, BLOCK_S):
        key = load_rows(key_mat, first_key, S, stride_ks, K, BLOCK_S, KP, EDGE and RAGGED, TMA)
        score = tl.dot(query, tl.trans(key), input_precision=PRECISION)
        to_log2 = scale * LOG2_E
        if SOFTCAP > 0:
            score = soft_cap(score, scale, SOFTCAP)
            to_log2 = SOFTCAP * LOG2_E
        row_S = first_key + tl.arange(0, BLOCK_S)
        if LOWER:
            score = tl.where(row_S[None, :] >= first_T[:, None], score, float("-inf"))
        if UPPER:
            score = tl.where(row_S[None, :] < end_T[:, None], score, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(score, 1) * to_log2)
        shift = new_max
        if EDGE:
            # A query that has seen nothing yet has -inf here, and -inf - -inf is NaN: subtract 0.
            shift = tl.where(new_max == float("-inf"), 0.0, new_max)
        weight = tl.exp2(score * to_log2 - shift[:, None])
        decay = tl.exp2(row_max - shift)
        row_sum = row_sum * decay + tl.sum(weight, 1)
        row_max = new_max
        value = load_rows(value_mat, first_key, S, stride_vs, K, BLOCK_S, KP, EDGE and RAGGED, TMA)
        acc = acc * decay[:, None]
        acc = tl.dot(weight.to(value.dtype), value, acc, input_precision=PRECISION)
    return acc, row_sum, row_max


@triton.jit
def forward_kernel(
    query_ptr, key_ptr, value_ptr, bounds_ptr, out_ptr, lse_ptr,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_ks, stride_kg,
    stride_vb, stride_vs, stride_vg, stride_ob, stride_ot, stride_oh,
    bounds_stride, T, S, H, group_size, window, scale,
    CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, PACKED: tl.constexpr, SOFTCAP: tl.constexpr,
    RAGGED: tl.constexpr, PRECISION: tl.constexpr, TMA: tl.constexpr,
    K: tl.constexpr, KP: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_S: tl.constexpr,
):
    """One tile of queries of one head: out, and log-sum-exp in base 2 (-inf: saw nothing)."""
    # Under a causal mask the last queries have the most keys: they start first, the short ones fill
    # the end.
    number, row = place()
    first_query = (tl.num_programs(1) - 1 - number) * BLOCK_T
    batch = (row // H).to(tl.int64)
    head = row % H
    query_ptr += batch * stride_qb + head * stride_qh
    key_ptr += batch * stride_kb + head // group_size * stride_kg
    value_ptr += batch * stride_vb + head // group_size * stride_vg
    out_ptr += batch * stride_ob + head * stride_oh
    lse_ptr += row.to(tl.int64) * T
    bounds_ptr += batch * T
    key_mat = matrix(key_ptr, S, stride_ks, K, BLOCK_S, KP, TMA)
    value_mat = matrix(value_ptr, S, stride_vs, K, BLOCK_S, KP, TMA)

    row_T = first_query + tl.arange(0, BLOCK_T)
    first_T, end_T = visible_keys(
        row_T, bounds_ptr, bounds_stride, T, S, window, CAUSAL, WINDOWED, PACKED
    )
    low_first, low_end = visible_keys(
        first_query, bounds_ptr, bounds_stride, T, S, window, CAUSAL, WINDOWED, PACKED
    )
    high_first, high_end = visible_keys(
        tl.minimum(first_query + BLOCK_T, T) - 1, bounds_ptr, bounds_stride, T, S, window,
        CAUSAL, WINDOWED, PACKED,
    )
    begin, whole, edge, end = parts(low_first, low_end, high_first, high_end, BLOCK_S)
    LOWER: tl.constexpr = WINDOWED or PACKED
    UPPER: tl.constexpr = CAUSAL or WINDOWED or PACKED or RAGGED

    query = load_rows(query_ptr, first_query, T, stride_qt, K, BLOCK_T, KP, RAGGED, False)
    acc = tl.zeros((BLOCK_T, KP), tl.float32)
    row_sum = tl.zeros((BLOCK_T,), tl.float32)
    row_max = tl.full((BLOCK_T,), float("-inf"), tl.float32)
    if LOWER:
        acc, row_sum, row_max = attend(
            acc, row_sum, row_max, query, key_mat, value_mat, first_T, end_T,
            begin, tl.minimum(whole, end), stride_ks, stride_vs, S, scale,
            SOFTCAP, True, True, RAGGED, PRECISION, K, KP, BLOCK_S, TMA,
        )
    acc, row_sum, row_max = attend(
        acc, row_sum, row_max, query, key_mat, value_mat, first_T, end_T,
        whole, edge, stride_ks, stride_vs, S, scale,
        SOFTCAP, False, False, RAGGED, PRECISION, K, KP, BLOCK_S, TMA,
    )
    if UPPER:
        acc, row_sum, row_max = attend(
            acc, row_sum, row_max, query, key_mat, value_mat, first_T, end_T,
            edge, end, stride_ks, stride_vs, S, scale,
            SOFTCAP, False, True, RAGGED, PRECISION, K, KP, BLOCK_S, TMA,
        )

    divisor = tl.where(row_sum > 0, row_sum, 1.0)
    store_rows(out_ptr, acc / divisor[:, None], first_query, T, stride_ot, K, BLOCK_T, KP)
    tl.store(lse_ptr + row_T, row_max + tl.log2(divisor), mask=row_T < T)


# --- backward -----------------------------------------------------------------------------------


@triton.jit
def delta_kernel(
    out_ptr, grad_out_ptr, lse_ptr, grad_lse_ptr, delta_ptr, stride_ob, stride_ot, stride_oh,
    stride_gb, stride_gt, stride_gh, T, H,
    WITH_LSE: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, BLOCK_T: tl.constexpr,
):
    """delta_t = sum over k of out_tk * grad_out_tk, which softmax's backward subtracts.

    A gradient of the log-sum-exp adds weight_ts * grad_lse_t to every score's: the same place.
    """
    number, row = place()
    first_query = number * BLOCK_T
    batch = (row // H).to(tl.int64)
    head = row % H
    out_ptr += batch * stride_ob + head * stride_oh
    grad_out_ptr += batch * stride_gb + head * stride_gh
    row_T = first_query + tl.arange(0, BLOCK_T)
    row_offset = row.to(tl.int64) * T + row_T
    out = load_rows(out_ptr, first_query, T, stride_ot, K, BLOCK_T, KP, True, False)
    grad_out = load_rows(grad_out_ptr, first_query, T, stride_gt, K, BLOCK_T, KP, True, False)
    delta = tl.sum(out.to(tl.float32) * grad_out.to(tl.float32), 1)
    if WITH_LSE:
        grad_lse = tl.load(grad_lse_ptr + row_offset, mask=row_T < T, other=0.0)
        lse = tl.load(lse_ptr + row_offset, mask=row_T < T, other=float("-inf"))
        delta -= tl.where(lse == float("-inf"), 0.0, grad_lse * LOG2_E)
    tl.store(delta_ptr + row_offset, delta, mask=row_T < T)


@triton.jit
def sum_over_queries(
    grad_key, grad_value, key, value, query_mat, grad_out_mat, lse_ptr, delta_ptr,
    first_S, end_S, start_at, stop_at, stride_qt, stride_gt, T, scale,
    SOFTCAP: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr, RAGGED: tl.constexpr,
    PRECISION: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, BLOCK_T: tl.constexpr,
    TMA: tl.constexpr,
):
    """Add to a tile's dK and dV what the queries of [start_at, stop_at) of one head give."""
    EDGE: tl.constexpr = LOWER or UPPER
    for first_query in tl.range(start_at, stop_at, BLOCK_T):
        row_T = first_query + tl.arange(0, BLOCK_T)
        query = load_rows(
            query_mat, first_query, T, stride_qt, K, BLOCK_T, KP, EDGE and RAGGED, TMA
        )
        grad_out = load_rows(
            grad_out_mat, first_query, T, stride_gt, K, BLOCK_T, KP, EDGE and RAGGED, TMA
        )
        if EDGE and RAGGED:
            lse = tl.load(lse_ptr + row_T, mask=row_T < T, other=0.0)
            delta = tl.load(delta_ptr + row_T, mask=row_T < T, other=0.0)
        else:
            lse = tl.load(lse_ptr + row_T)
            delta = tl.load(delta_ptr + row_T)
        score_ST = tl.dot(key, tl.trans(query), input_precision=PRECISION)
        to_log2 = scale * LOG2_E
        if SOFTCAP > 0:
            score_ST = soft_cap(score_ST, scale, SOFTCAP)
            to_log2 = SOFTCAP * LOG2_E
        weight_ST = tl.exp2(score_ST * to_log2 - lse[None, :])
        if LOWER:
            weight_ST = tl.where(row_T[None, :] >= first_S[:, None], weight_ST, 0.0)
        if UPPER:
            weight_ST = tl.where(row_T[None, :] < end_S[:, None], weight_ST, 0.0)
        grad_value = tl.dot(
            weight_ST.to(grad_out.dtype), grad_out, grad_value, input_precision=PRECISION
        )
        grad_weight_ST = tl.dot(value, tl.trans(grad_out), input_precision=PRECISION)
        grad_score_ST = weight_ST * (grad_weight_ST - delta[None, :])
        if SOFTCAP > 0:
            grad_score_ST *= 1 - score_ST * score_ST
        grad_key = tl.dot(grad_score_ST.to(query.dtype), query, grad_key, input_precision=PRECISION)
    return grad_key, grad_value


@triton.jit
def grad_key_value_kernel(
    query_ptr, key_ptr, value_ptr, bounds_ptr, grad_out_ptr, lse_ptr, delta_ptr,
    grad_key_ptr, grad_value_ptr,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_ks, stride_kg,
    stride_vb, stride_vs, stride_vg, stride_gb, stride_gt, stride_gh,
    stride_dkb, stride_dks, stride_dkg,
    bounds_stride, T, S, H, group_size, window, scale,
    CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, PACKED: tl.constexpr, SOFTCAP: tl.constexpr,
    RAGGED: tl.constexpr, PRECISION: tl.constexpr, TMA: tl.constexpr,
    K: tl.constexpr, KP: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_S: tl.constexpr,
):
    """One tile of keys of one key head: dK and dV, summed over the query heads that share it."""
    number, row = place()
    first_key = number * BLOCK_S  # the first keys have the most queries, and start first
    num_groups = H // group_size
    batch = (row // num_groups).to(tl.int64)
    group = row % num_groups
    key_ptr += batch * stride_kb + group * stride_kg
    value_ptr += batch * stride_vb + group * stride_vg
    bounds_ptr += batch * T

    row_S = first_key + tl.arange(0, BLOCK_S)
    first_S, end_S = visible_queries(
        row_S, bounds_ptr, bounds_stride, T, S, window, CAUSAL, WINDOWED, PACKED
    )
    low_first, low_end = visible_queries(
        first_key, bounds_ptr, bounds_stride, T, S, window, CAUSAL, WINDOWED, PACKED
    )
    high_first, high_end = visible_queries(
        tl.minimum(first_key + BLOCK_S, S) - 1, bounds_ptr, bounds_stride, T, S, window,
        CAUSAL, WINDOWED, PACKED,
    )
    begin, whole, edge, end = parts(low_first, low_end, high_first, high_end, BLOCK_T)
    LOWER: tl.constexpr = CAUSAL or WINDOWED or PACKED
    UPPER: tl.constexpr = WINDOWED or PACKED or RAGGED

    key = load_rows(key_ptr, first_key, S, stride_ks, K, BLOCK_S, KP, RAGGED, False)
    value = load_rows(value_ptr, first_key, S, stride_vs, K, BLOCK_S, KP, RAGGED, False)
    grad_key = tl.zeros((BLOCK_S, KP), tl.float32)
    grad_value = tl.zeros((BLOCK_S, KP), tl.float32)
    for member in tl.range(0, group_size):
        head = group * group_size + member
        query_mat = matrix(
            query_ptr + batch * stride_qb + head * stride_qh, T, stride_qt, K, BLOCK_T, KP, TMA
        )
        grad_out_mat = matrix(
            grad_out_ptr + batch * stride_gb + head * stride_gh, T, stride_gt, K, BLOCK_T, KP, TMA
        )
        row_offset = (batch * H + head) * T
        if LOWER:
            grad_key, grad_value = sum_over_queries(
                grad_key, grad_value, key, value, query_mat, grad_out_mat,
                lse_ptr + row_offset, delta_ptr + row_offset, first_S, end_S,
                begin, tl.minimum(whole, end), stride_qt, stride_gt, T, scale,
                SOFTCAP, True, UPPER, RAGGED, PRECISION, K, KP, BLOCK_T, TMA,
            )
        grad_key, grad_value = sum_over_queries(
            grad_key, grad_value, key, value, query_mat, grad_out_mat,
            lse_ptr + row_offset, delta_ptr + row_offset, first_S, end_S,
            whole, edge, stride_qt, stride_gt, T, scale,
            SOFTCAP, False, False, RAGGED, PRECISION, K, KP, BLOCK_T, TMA,
        )
        if UPPER:
            grad_key, grad_value = sum_over_queries(
                grad_key, grad_value, key, value, query_mat, grad_out_mat,
                lse_ptr + row_offset, delta_ptr + row_offset, first_S, end_S,
                edge, end, stride_qt, stride_gt, T, scale,
                SOFTCAP, False, True, RAGGED, PRECISION, K, KP, BLOCK_T, TMA,
            )

    grad_key_ptr += batch * stride_dkb + group * stride_dkg
    grad_value_ptr += batch * stride_dkb + group * stride_dkg
    store_rows(grad_key_ptr, grad_key * scale, first_key, S, stride_dks, K, BLOCK_S, KP)
    store_rows(grad_value_ptr, grad_value, first_key, S, stride_dks, K, BLOCK_S, KP)


@triton.jit
def sum_over_keys(
    grad_query, query, grad_out, lse, delta, key_mat, value_mat, first_T, end_T,
    start_at, stop_at, stride_ks, stride_vs, S, scale,
    SOFTCAP: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr, RAGGED: tl.constexpr,
    PRECISION: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, BLOCK_S: tl.constexpr,
    TMA: tl.constexpr,
):
    """Add to a tile's dQ what the keys of [start_at, stop_at) give."""
    EDGE: tl.constexpr = LOWER or UPPER
    for first_key in tl.range(start_at, stop_at, BLOCK_S):
        key = load_rows(key_mat, first_key, S, stride_ks, K, BLOCK_S, KP, EDGE and RAGGED, TMA)
        value = load_rows(value_mat, first_key, S, stride_vs, K, BLOCK_S, KP, EDGE and RAGGED, TMA)
        score = tl.dot(query, tl.trans(key), input_precision=PRECISION)
        to_log2 = scale * LOG2_E
        if SOFTCAP > 0:
            score = soft_cap(score, scale, SOFTCAP)
            to_log2 = SOFTCAP * LOG2_E
        weight = tl.exp2(score * to_log2 - lse[:, None])
        row_S = first_key + tl.arange(0, BLOCK_S)
        if LOWER:
            weight = tl.where(row_S[None, :] >= first_T[:, None], weight, 0.0)
        if UPPER:
            weight = tl.where(row_S[None, :] < end_T[:, None], weight, 0.0)
        grad_weight = tl.dot(grad_out, tl.trans(value), input_precision=PRECISION)
        grad_score = weight * (grad_weight - delta[:, None])
        if SOFTCAP > 0:
            grad_score *= 1 - score * score
        grad_query = tl.dot(grad_score.to(key.dtype), key, grad_query, input_precision=PRECISION)
    return grad_query


@triton.jit
def grad_query_kernel(
    query_ptr, key_ptr, value_ptr, bounds_ptr, grad_out_ptr, lse_ptr, delta_ptr, grad_query_ptr,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_ks, stride_kg,
    stride_vb, stride_vs, stride_vg, stride_gb, stride_gt, stride_gh,
    stride_dqb, stride_dqt, stride_dqh,
    bounds_stride, T, S, H, group_size, window, scale,
    CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, PACKED: tl.constexpr, SOFTCAP: tl.constexpr,
    RAGGED: tl.constexpr, PRECISION: tl.constexpr, TMA: tl.constexpr,
    K: tl.constexpr, KP: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_S: tl.constexpr,
):
    """One tile of queries of one head: dQ."""
    number, row = place()
    first_query = (tl.num_programs(1) - 1 - number) * BLOCK_T
    batch = (row // H).to(tl.int64)
    head = row % H
    query_ptr += batch * stride_qb + head * stride_qh
    grad_out_ptr += batch * stride_gb + head * stride_gh
    key_ptr += batch * stride_kb + head // group_size * stride_kg
    value_ptr += batch * stride_vb + head // group_size * stride_vg
    grad_query_ptr += batch * stride_dqb + head * stride_dqh
    row_offset = row.to(tl.int64) * T
    bounds_ptr += batch * T
    key_mat = matrix(key_ptr, S, stride_ks, K, BLOCK_S, KP, TMA)
    value_mat = matrix(value_ptr, S, stride_vs, K, BLOCK_S, KP, TMA)

    row_T = first_query + tl.arange(0, BLOCK_T)
    first_T, end_T = visible_keys(
        row_T, bounds_ptr, bounds_stride, T, S, window, CAUSAL, WINDOWED, PACKED
    )
    low_first, low_end = visible_keys(
        first_query, bounds_ptr, bounds_stride, T, S, window, CAUSAL, WINDOWED, PACKED
    )
    high_first, high_end = visible_keys(
        tl.minimum(first_query + BLOCK_T, T) - 1, bounds_ptr, bounds_stride, T, S, window,
        CAUSAL, WINDOWED, PACKED,
    )
    begin, whole, edge, end = parts(low_first, low_end, high_first, high_end, BLOCK_S)
    LOWER: tl.constexpr = WINDOWED or PACKED
    UPPER: tl.constexpr = CAUSAL or WINDOWED or PACKED or RAGGED

    query = load_rows(query_ptr, first_query, T, stride_qt, K, BLOCK_T, KP, RAGGED, False)
    grad_out = load_rows(grad_out_ptr, first_query, T, stride_gt, K, BLOCK_T, KP, RAGGED, False)
    lse = tl.load(lse_ptr + row_offset + row_T, mask=row_T < T, other=0.0)
    delta = tl.load(delta_ptr + row_offset + row_T, mask=row_T < T, other=0.0)
    grad_query = tl.zeros((BLOCK_T, KP), tl.float32)
    if LOWER:
        grad_query = sum_over_keys(
            grad_query, query, grad_out, lse, delta, key_mat, value_mat, first_T, end_T,
            begin, tl.minimum(whole, end), stride_ks, stride_vs, S, scale,
            SOFTCAP, True, True, RAGGED, PRECISION, K, KP, BLOCK_S, TMA,
        )
    grad_query = sum_over_keys(
        grad_query, query, grad_out, lse, delta, key_mat, value_mat, first_T, end_T,
        whole, edge, stride_ks, stride_vs, S, scale,
        SOFTCAP, False, False, RAGGED, PRECISION, K, KP, BLOCK_S, TMA,
    )
    if UPPER:
        grad_query = sum_over_keys(
            grad_query, query, grad_out, lse, delta, key_mat, value_mat, first_T, end_T,
            edge, end, stride_ks, stride_vs, S, scale,
            SOFTCAP, False, True, RAGGED, PRECISION, K, KP, BLOCK_S, TMA,
        )
    store_rows(grad_query_ptr, grad_query * scale, first_query, T, stride_dqt, K, BLOCK_T, KP)
