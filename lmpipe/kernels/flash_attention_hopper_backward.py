"""The backward kernels for Hopper, in Gluon: the scheme of flash_attention_hopper.py, twice.

dK and dV: a warpgroup owns 64 keys and walks queries, in tiles of BLOCK_T,

    start score.T = key @ query.T, then grad_weight.T = value @ grad_out.T
    wait for score; weight = exp2(score - lse)       (while the second product runs)
    start dV += weight.T @ grad_out
    wait for grad_weight; grad_score = weight * (grad_weight - delta)
    start dK += grad_score.T @ query                 (it runs into the next tile)

dQ: a warpgroup owns 64 queries and walks keys the same way, with one sum instead of two.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from lmpipe.kernels.flash_attention_hopper import (
    CONSUMERS,
    barrier,
    draw_turn,
    matrix,
    next_turn,
    publish,
    query_block,
    visible_keys,
    write_rows,
)

# fmt: off


@gluon.jit
def _visible_queries(
    row_S, bounds_ptr, bounds_stride, T, S, window,
    CAUSAL: gl.constexpr, WINDOWED: gl.constexpr, PACKED: gl.constexpr,
):
    diagonal = row_S - (S - T)
    first = row_S * 0
    end = first + T
    if CAUSAL:
        first = gl.maximum(first, diagonal)
    if WINDOWED:
        end = gl.minimum(end, diagonal + window)
        if not CAUSAL:
            first = gl.maximum(first, diagonal - window + 1)
    if PACKED:
        first = gl.maximum(first, gl.load(bounds_ptr + row_S, mask=row_S < S, other=0))
        last = gl.load(bounds_ptr + bounds_stride + row_S, mask=row_S < S, other=0)
        end = gl.minimum(end, last)
    end = gl.where(row_S < S, end, 0)
    return first, end


@gluon.jit
def _key_block(
    turn, plan, mask,
    CAUSAL: gl.constexpr, WINDOWED: gl.constexpr, PACKED: gl.constexpr,
    BLOCK_S: gl.constexpr, BLOCK_T: gl.constexpr,
):
    """The block of keys of a turn, and the queries it walks; the first keys have the most."""
    _num_blocks, num_tiles, section, H, group_size = plan
    bounds_ptr, bounds_stride, T, S, window = mask
    num_groups = H // group_size
    per_section = num_tiles * section
    rest = turn % per_section
    first_key = rest // section * BLOCK_S
    row = turn // per_section * section + rest % section
    batch = row // num_groups
    bounds_ptr += batch.to(gl.int64) * T
    low_first, low_end = _visible_queries(
        first_key, bounds_ptr, bounds_stride, T, S, window, CAUSAL, WINDOWED, PACKED
    )
    high_first, high_end = _visible_queries(
        gl.minimum(first_key + BLOCK_S, S) - 1, bounds_ptr, bounds_stride, T, S, window,
        CAUSAL, WINDOWED, PACKED,
    )
    begin = low_first // BLOCK_T * BLOCK_T
    whole = (high_first + BLOCK_T - 1) // BLOCK_T * BLOCK_T
    edge = gl.maximum(whole, low_end // BLOCK_T * BLOCK_T)
    return first_key, batch, row % num_groups, begin, whole, edge, high_end


@gluon.jit
def _stream(
    i, first_mat, second_mat, tiles, barriers, batch, head, begin, end,
    STAGES: gl.constexpr, BLOCK: gl.constexpr,
):
    """Copy the tiles [begin, end) of two matrices, as the buffers become free."""
    first_tile, second_tile = tiles
    first_ready, second_ready, free = barriers
    for row in range(begin, end, BLOCK):
        slot = i % STAGES
        mbarrier.wait(free.index(slot), ((i // STAGES) & 1) ^ 1)
        mbarrier.expect(first_ready.index(slot), first_mat.block_type.nbytes)
        tma.async_copy_global_to_shared(
            first_mat, [batch, head, row, 0], first_ready.index(slot), first_tile.index(slot)
        )
        mbarrier.expect(second_ready.index(slot), second_mat.block_type.nbytes)
        tma.async_copy_global_to_shared(
            second_mat, [batch, head, row, 0], second_ready.index(slot), second_tile.index(slot)
        )
        i += 1
    return i


@gluon.jit
def _own(
    done, first_mat, second_mat, tiles, barriers, batch, head, row
):
    """Copy the 64 rows of two matrices that each consumer keeps."""
    first_tile, second_tile = tiles
    ready, free = barriers
    for c in gl.static_range(CONSUMERS):
        mbarrier.wait(free.index(c), (done & 1) ^ 1)
        mbarrier.expect(ready.index(c), 2 * first_mat.block_type.nbytes)
        tma.async_copy_global_to_shared(
            first_mat, [batch, head, row + 64 * c, 0], ready.index(c), first_tile.index(c)
        )
        tma.async_copy_global_to_shared(
            second_mat, [batch, head, row + 64 * c, 0], ready.index(c), second_tile.index(c)
        )


# --- dK and dV ----------------------------------------------------------------------------------


@gluon.jit
def _copy_queries(
    own_tiles, own_barriers, tiles, barriers, turns, own_sources, sources, plan, mask,
    CAUSAL: gl.constexpr, WINDOWED: gl.constexpr, PACKED: gl.constexpr,
    STAGES: gl.constexpr, BLOCK_T: gl.constexpr,
):
    i = 0
    done = 0
    turn = gl.program_id(0)
    while turn < plan[0]:
        publish(turns, turn, done)
        first_key, batch, group, begin, _whole, _edge, end = _key_block(
            turn, plan, mask, CAUSAL, WINDOWED, PACKED, CONSUMERS * 64, BLOCK_T
        )
        _own(done, own_sources[0], own_sources[1], own_tiles, own_barriers, batch, group,
             first_key)
        for member in range(plan[4]):
            i = _stream(i, sources[0], sources[1], tiles, barriers, batch,
                        group * plan[4] + member, begin, end, STAGES, BLOCK_T)
        done += 1
        turn = draw_turn(turns)
    publish(turns, turn, done)


@gluon.jit
def _walk_queries(
    grad_key, grad_value, i, key, value, tiles, barriers, lse_ptr, delta_ptr, first_S, end_S,
    start_at, stop_at, T, to_log2,
    LOWER: gl.constexpr, UPPER: gl.constexpr, RAGGED: gl.constexpr, STAGES: gl.constexpr,
    BLOCK_T: gl.constexpr, SCORE: gl.constexpr, SUM: gl.constexpr, QUERY: gl.constexpr,
):
    """Add to dK and dV what the queries [start_at, stop_at) of one head give."""
    query_tile, grad_out_tile = tiles
    query_ready, grad_out_ready, free = barriers
    zero = gl.zeros([64, BLOCK_T], gl.float32, SCORE)
    OPERAND: gl.constexpr = gl.DotOperandLayout(0, SUM, 2)
    for first_query in range(start_at, stop_at, BLOCK_T):
        slot = i % STAGES
        phase = (i // STAGES) & 1
        row_T = first_query + gl.arange(0, BLOCK_T, gl.SliceLayout(0, SCORE))
        if UPPER and RAGGED:
            lse = gl.load(lse_ptr + row_T, mask=row_T < T, other=0.0)
            delta = gl.load(delta_ptr + row_T, mask=row_T < T, other=0.0)
        else:
            lse = gl.load(lse_ptr + row_T)
            delta = gl.load(delta_ptr + row_T)
        query = matrix(query_tile, slot, BLOCK_T, QUERY)
        grad_out = matrix(grad_out_tile, slot, BLOCK_T, QUERY)
        mbarrier.wait(query_ready.index(slot), phase)
        score_ST = warpgroup_mma(
            key, query.permute((1, 0)), zero, use_acc=False, is_async=True
        )
        mbarrier.wait(grad_out_ready.index(slot), phase)
        grad_weight_ST = warpgroup_mma(
            value, grad_out.permute((1, 0)), zero, use_acc=False, is_async=True
        )
        score_ST = warpgroup_mma_wait(1, [score_ST])
        weight_ST = gl.exp2(score_ST * to_log2 - lse[None, :])
        if LOWER:
            weight_ST = gl.where(row_T[None, :] >= first_S[:, None], weight_ST, 0.0)
        if UPPER:
            weight_ST = gl.where(row_T[None, :] < end_S[:, None], weight_ST, 0.0)
        weight = gl.convert_layout(weight_ST.to(query_tile.dtype), OPERAND)
        grad_value = warpgroup_mma(weight, grad_out, grad_value, is_async=True)
        grad_weight_ST = warpgroup_mma_wait(1, [grad_weight_ST])
        grad_score_ST = weight_ST * (grad_weight_ST - delta[None, :])
        grad_score = gl.convert_layout(grad_score_ST.to(query_tile.dtype), OPERAND)
        grad_key = warpgroup_mma(grad_score, query, grad_key, is_async=True)
        grad_key, grad_value, weight, grad_score = warpgroup_mma_wait(
            0, [grad_key, grad_value, weight, grad_score]
        )
        barrier()
        mbarrier.arrive(free.index(slot))
        i += 1
    return grad_key, grad_value, i


@gluon.jit
def _sum_over_queries(
    consumer, own_tiles, own_barriers, tiles, barriers, turns, rows, outputs, plan, mask,
    CAUSAL: gl.constexpr, WINDOWED: gl.constexpr, PACKED: gl.constexpr, RAGGED: gl.constexpr,
    K: gl.constexpr, KP: gl.constexpr, STAGES: gl.constexpr, BLOCK_T: gl.constexpr,
):
    """A consumer: 64 keys of block after block."""
    key_tile, value_tile = own_tiles
    own_ready, own_free = own_barriers
    lse_base, delta_base = rows
    grad_key_base, grad_value_base, stride_gb, stride_gs, stride_gg, scale = outputs
    bounds_ptr, bounds_stride, T, S, window = mask
    dtype: gl.constexpr = key_tile.dtype
    SCORE: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_T, 16])
    SUM: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KP, 16])
    OWN: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, KP], dtype)
    QUERY: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_T, KP], dtype)
    LOWER: gl.constexpr = CAUSAL or WINDOWED or PACKED
    UPPER: gl.constexpr = WINDOWED or PACKED or RAGGED
    key = matrix(key_tile, consumer, 64, OWN)
    value = matrix(value_tile, consumer, 64, OWN)
    to_log2 = scale * 1.4426950408889634
    i = 0
    done = 0
    turn = next_turn(turns, done)
    while turn < plan[0]:
        first_key, batch, group, begin, whole, edge, end = _key_block(
            turn, plan, mask, CAUSAL, WINDOWED, PACKED, CONSUMERS * 64, BLOCK_T
        )
        first_key += 64 * consumer
        row_S = first_key + gl.arange(0, 64, gl.SliceLayout(1, SCORE))
        first_S, end_S = _visible_queries(
            row_S, bounds_ptr + batch.to(gl.int64) * T, bounds_stride, T, S, window,
            CAUSAL, WINDOWED, PACKED,
        )
        grad_key = gl.zeros([64, KP], gl.float32, SUM)
        grad_value = gl.zeros([64, KP], gl.float32, SUM)
        mbarrier.wait(own_ready.index(consumer), done & 1)
        for member in range(plan[4]):
            row_offset = (batch * plan[3] + group * plan[4] + member).to(gl.int64) * T
            lse_ptr = lse_base + row_offset
            delta_ptr = delta_base + row_offset
            if LOWER:
                grad_key, grad_value, i = _walk_queries(
                    grad_key, grad_value, i, key, value, tiles, barriers, lse_ptr, delta_ptr,
                    first_S, end_S, begin, gl.minimum(whole, end), T, to_log2,
                    True, UPPER, RAGGED, STAGES, BLOCK_T, SCORE, SUM, QUERY,
                )
            grad_key, grad_value, i = _walk_queries(
                grad_key, grad_value, i, key, value, tiles, barriers, lse_ptr, delta_ptr,
                first_S, end_S, whole, edge, T, to_log2,
                False, False, RAGGED, STAGES, BLOCK_T, SCORE, SUM, QUERY,
            )
            if UPPER:
                grad_key, grad_value, i = _walk_queries(
                    grad_key, grad_value, i, key, value, tiles, barriers, lse_ptr, delta_ptr,
                    first_S, end_S, edge, end, T, to_log2,
                    False, True, RAGGED, STAGES, BLOCK_T, SCORE, SUM, QUERY,
                )
        barrier()
        mbarrier.arrive(own_free.index(consumer))
        offset = batch.to(gl.int64) * stride_gb + group * stride_gg
        write_rows(grad_key_base + offset, grad_key * scale, first_key, S, stride_gs, K, KP)
        write_rows(grad_value_base + offset, grad_value, first_key, S, stride_gs, K, KP)
        done += 1
        turn = next_turn(turns, done)


@gluon.jit
def grad_key_value_kernel(
    query_mat, key_mat, value_mat, grad_out_mat, bounds_ptr, lse_ptr, delta_ptr,
    grad_key_ptr, grad_value_ptr, counter_ptr, stride_gb, stride_gs, stride_gg,
    num_blocks, num_tiles, section, bounds_stride, T, S, H, group_size, window, scale,
    CAUSAL: gl.constexpr, WINDOWED: gl.constexpr, PACKED: gl.constexpr, RAGGED: gl.constexpr,
    K: gl.constexpr, KP: gl.constexpr, BLOCK: gl.constexpr, STAGES: gl.constexpr,
    REGISTERS: gl.constexpr,
):
    """All blocks of CONSUMERS x 64 keys: dK and dV, summed over the query heads that share them."""
    dtype: gl.constexpr = query_mat.dtype
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    key_tile = gl.allocate_shared_memory(dtype, [CONSUMERS, 1, 1, 64, KP], key_mat.layout)
    value_tile = gl.allocate_shared_memory(dtype, [CONSUMERS, 1, 1, 64, KP], key_mat.layout)
    query_tile = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK, KP], query_mat.layout)
    grad_out_tile = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK, KP], query_mat.layout)
    own_ready = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], BARRIER)
    own_free = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], BARRIER)
    query_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    grad_out_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    turn_tile = gl.allocate_shared_memory(gl.int32, [2, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    turn_ready = gl.allocate_shared_memory(gl.int64, [2, 1], BARRIER)
    turn_free = gl.allocate_shared_memory(gl.int64, [2, 1], BARRIER)
    for s in gl.static_range(2):
        mbarrier.init(turn_ready.index(s), count=1)
        mbarrier.init(turn_free.index(s), count=CONSUMERS)
    for c in gl.static_range(CONSUMERS):
        mbarrier.init(own_ready.index(c), count=1)
        mbarrier.init(own_free.index(c), count=1)
    for s in gl.static_range(STAGES):
        mbarrier.init(query_ready.index(s), count=1)
        mbarrier.init(grad_out_ready.index(s), count=1)
        mbarrier.init(free.index(s), count=CONSUMERS)
    own_tiles = (key_tile, value_tile)
    own_barriers = (own_ready, own_free)
    tiles = (query_tile, grad_out_tile)
    barriers = (query_ready, grad_out_ready, free)
    turns = (turn_tile, turn_ready, turn_free, counter_ptr)
    own_sources = (key_mat, value_mat)
    sources = (query_mat, grad_out_mat)
    rows = (lse_ptr, delta_ptr)
    outputs = (grad_key_ptr, grad_value_ptr, stride_gb, stride_gs, stride_gg, scale)
    plan = (num_blocks, num_tiles, section, H, group_size)
    mask = (bounds_ptr, bounds_stride, T, S, window)
    gl.warp_specialize(
        [
            (_sum_over_queries, (
                0, own_tiles, own_barriers, tiles, barriers, turns, rows, outputs, plan, mask,
                CAUSAL, WINDOWED, PACKED, RAGGED, K, KP, STAGES, BLOCK)),
            (_sum_over_queries, (
                1, own_tiles, own_barriers, tiles, barriers, turns, rows, outputs, plan, mask,
                CAUSAL, WINDOWED, PACKED, RAGGED, K, KP, STAGES, BLOCK)),
            (_copy_queries, (
                own_tiles, own_barriers, tiles, barriers, turns, own_sources, sources, plan,
                mask, CAUSAL, WINDOWED, PACKED, STAGES, BLOCK)),
        ],
        [4, 1], [REGISTERS, 24],
    )


# --- dQ -----------------------------------------------------------------------------------------


@gluon.jit
def _copy_keys(
    own_tiles, own_barriers, tiles, barriers, turns, own_sources, sources, plan, mask,
    CAUSAL: gl.constexpr, WINDOWED: gl.constexpr, PACKED: gl.constexpr,
    STAGES: gl.constexpr, BLOCK_S: gl.constexpr,
):
    i = 0
    done = 0
    turn = gl.program_id(0)
    while turn < plan[0]:
        publish(turns, turn, done)
        first_query, batch, head, key_head, begin, _whole, _edge, end = query_block(
            turn, plan, mask, CAUSAL, WINDOWED, PACKED, CONSUMERS * 64, BLOCK_S
        )
        _own(done, own_sources[0], own_sources[1], own_tiles, own_barriers, batch, head,
             first_query)
        i = _stream(i, sources[0], sources[1], tiles, barriers, batch, key_head, begin, end,
                    STAGES, BLOCK_S)
        done += 1
        turn = draw_turn(turns)
    publish(turns, turn, done)


@gluon.jit
def _walk_keys(
    grad_query, i, query, grad_out, lse, delta, tiles, barriers, first_T, end_T,
    start_at, stop_at, to_log2,
    LOWER: gl.constexpr, UPPER: gl.constexpr, STAGES: gl.constexpr, BLOCK_S: gl.constexpr,
    SCORE: gl.constexpr, SUM: gl.constexpr, KEY: gl.constexpr,
):
    """Add to dQ what the keys [start_at, stop_at) give."""
    key_tile, value_tile = tiles
    key_ready, value_ready, free = barriers
    zero = gl.zeros([64, BLOCK_S], gl.float32, SCORE)
    for first_key in range(start_at, stop_at, BLOCK_S):
        slot = i % STAGES
        phase = (i // STAGES) & 1
        key = matrix(key_tile, slot, BLOCK_S, KEY)
        value = matrix(value_tile, slot, BLOCK_S, KEY)
        mbarrier.wait(key_ready.index(slot), phase)
        score = warpgroup_mma(query, key.permute((1, 0)), zero, use_acc=False, is_async=True)
        mbarrier.wait(value_ready.index(slot), phase)
        grad_weight = warpgroup_mma(
            grad_out, value.permute((1, 0)), zero, use_acc=False, is_async=True
        )
        score = warpgroup_mma_wait(1, [score])
        weight = gl.exp2(score * to_log2 - lse[:, None])
        row_S = first_key + gl.arange(0, BLOCK_S, gl.SliceLayout(0, SCORE))
        if LOWER:
            weight = gl.where(row_S[None, :] >= first_T[:, None], weight, 0.0)
        if UPPER:
            weight = gl.where(row_S[None, :] < end_T[:, None], weight, 0.0)
        grad_weight = warpgroup_mma_wait(0, [grad_weight])
        grad_score = weight * (grad_weight - delta[:, None])
        grad_score = gl.convert_layout(
            grad_score.to(key_tile.dtype), gl.DotOperandLayout(0, SUM, 2)
        )
        grad_query = warpgroup_mma(grad_score, key, grad_query, is_async=True)
        grad_query, grad_score = warpgroup_mma_wait(0, [grad_query, grad_score])
        barrier()
        mbarrier.arrive(free.index(slot))
        i += 1
    return grad_query, i


@gluon.jit
def _sum_over_keys(
    consumer, own_tiles, own_barriers, tiles, barriers, turns, rows, outputs, plan, mask,
    CAUSAL: gl.constexpr, WINDOWED: gl.constexpr, PACKED: gl.constexpr, RAGGED: gl.constexpr,
    K: gl.constexpr, KP: gl.constexpr, STAGES: gl.constexpr, BLOCK_S: gl.constexpr,
):
    """A consumer: 64 queries of block after block."""
    query_tile, grad_out_tile = own_tiles
    own_ready, own_free = own_barriers
    lse_base, delta_base = rows
    grad_query_base, stride_gb, stride_gt, stride_gh, scale = outputs
    bounds_ptr, bounds_stride, T, S, window = mask
    dtype: gl.constexpr = query_tile.dtype
    SCORE: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_S, 16])
    SUM: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KP, 16])
    OWN: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, KP], dtype)
    KEY: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_S, KP], dtype)
    LOWER: gl.constexpr = WINDOWED or PACKED
    UPPER: gl.constexpr = CAUSAL or WINDOWED or PACKED or RAGGED
    query = matrix(query_tile, consumer, 64, OWN)
    grad_out = matrix(grad_out_tile, consumer, 64, OWN)
    to_log2 = scale * 1.4426950408889634
    i = 0
    done = 0
    turn = next_turn(turns, done)
    while turn < plan[0]:
        first_query, batch, head, _key_head, begin, whole, edge, end = query_block(
            turn, plan, mask, CAUSAL, WINDOWED, PACKED, CONSUMERS * 64, BLOCK_S
        )
        first_query += 64 * consumer
        row_T = first_query + gl.arange(0, 64, gl.SliceLayout(1, SCORE))
        first_T, end_T = visible_keys(
            row_T, bounds_ptr + batch.to(gl.int64) * T, bounds_stride, T, S, window,
            CAUSAL, WINDOWED, PACKED,
        )
        row_offset = (batch * plan[3] + head).to(gl.int64) * T
        lse = gl.load(lse_base + row_offset + row_T, mask=row_T < T, other=0.0)
        delta = gl.load(delta_base + row_offset + row_T, mask=row_T < T, other=0.0)
        grad_query = gl.zeros([64, KP], gl.float32, SUM)
        mbarrier.wait(own_ready.index(consumer), done & 1)
        if LOWER:
            grad_query, i = _walk_keys(
                grad_query, i, query, grad_out, lse, delta, tiles, barriers, first_T, end_T,
                begin, gl.minimum(whole, end), to_log2,
                True, True, STAGES, BLOCK_S, SCORE, SUM, KEY,
            )
        grad_query, i = _walk_keys(
            grad_query, i, query, grad_out, lse, delta, tiles, barriers, first_T, end_T,
            whole, edge, to_log2, False, False, STAGES, BLOCK_S, SCORE, SUM, KEY,
        )
        if UPPER:
            grad_query, i = _walk_keys(
                grad_query, i, query, grad_out, lse, delta, tiles, barriers, first_T, end_T,
                edge, end, to_log2, False, True, STAGES, BLOCK_S, SCORE, SUM, KEY,
            )
        barrier()
        mbarrier.arrive(own_free.index(consumer))
        base = grad_query_base + batch.to(gl.int64) * stride_gb + head * stride_gh
        write_rows(base, grad_query * scale, first_query, T, stride_gt, K, KP)
        done += 1
        turn = next_turn(turns, done)


@gluon.jit
def grad_query_kernel(
    query_mat, key_mat, value_mat, grad_out_mat, bounds_ptr, lse_ptr, delta_ptr,
    grad_query_ptr, counter_ptr, stride_gb, stride_gt, stride_gh,
    num_blocks, num_tiles, section, bounds_stride, T, S, H, group_size, window, scale,
    CAUSAL: gl.constexpr, WINDOWED: gl.constexpr, PACKED: gl.constexpr, RAGGED: gl.constexpr,
    K: gl.constexpr, KP: gl.constexpr, BLOCK: gl.constexpr, STAGES: gl.constexpr,
    REGISTERS: gl.constexpr,
):
    """All blocks of CONSUMERS x 64 queries: dQ."""
    dtype: gl.constexpr = query_mat.dtype
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    query_tile = gl.allocate_shared_memory(dtype, [CONSUMERS, 1, 1, 64, KP], query_mat.layout)
    grad_out_tile = gl.allocate_shared_memory(dtype, [CONSUMERS, 1, 1, 64, KP], query_mat.layout)
    key_tile = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK, KP], key_mat.layout)
    value_tile = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK, KP], key_mat.layout)
    own_ready = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], BARRIER)
    own_free = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], BARRIER)
    key_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    value_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    turn_tile = gl.allocate_shared_memory(gl.int32, [2, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    turn_ready = gl.allocate_shared_memory(gl.int64, [2, 1], BARRIER)
    turn_free = gl.allocate_shared_memory(gl.int64, [2, 1], BARRIER)
    for s in gl.static_range(2):
        mbarrier.init(turn_ready.index(s), count=1)
        mbarrier.init(turn_free.index(s), count=CONSUMERS)
    for c in gl.static_range(CONSUMERS):
        mbarrier.init(own_ready.index(c), count=1)
        mbarrier.init(own_free.index(c), count=1)
    for s in gl.static_range(STAGES):
        mbarrier.init(key_ready.index(s), count=1)
        mbarrier.init(value_ready.index(s), count=1)
        mbarrier.init(free.index(s), count=CONSUMERS)
    own_tiles = (query_tile, grad_out_tile)
    own_barriers = (own_ready, own_free)
    tiles = (key_tile, value_tile)
    barriers = (key_ready, value_ready, free)
    turns = (turn_tile, turn_ready, turn_free, counter_ptr)
    own_sources = (query_mat, grad_out_mat)
    sources = (key_mat, value_mat)
    rows = (lse_ptr, delta_ptr)
    outputs = (grad_query_ptr, stride_gb, stride_gt, stride_gh, scale)
    plan = (num_blocks, num_tiles, section, H, group_size)
    mask = (bounds_ptr, bounds_stride, T, S, window)
    gl.warp_specialize(
        [
            (_sum_over_keys, (
                0, own_tiles, own_barriers, tiles, barriers, turns, rows, outputs, plan, mask,
                CAUSAL, WINDOWED, PACKED, RAGGED, K, KP, STAGES, BLOCK)),
            (_sum_over_keys, (
                1, own_tiles, own_barriers, tiles, barriers, turns, rows, outputs, plan, mask,
                CAUSAL, WINDOWED, PACKED, RAGGED, K, KP, STAGES, BLOCK)),
            (_copy_keys, (
                own_tiles, own_barriers, tiles, barriers, turns, own_sources, sources, plan,
                mask, CAUSAL, WINDOWED, PACKED, STAGES, BLOCK)),
        ],
        [4, 1], [REGISTERS, 24],
    )
