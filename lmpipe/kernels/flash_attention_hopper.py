"""The forward kernels for Hopper, in Gluon: products and exponentials at the same time.

Triton waits for a product before it goes on, so the matrix units idle while a block takes its
exponentials. Here the program says itself what runs when. For each tile j of keys a warpgroup, the
128 threads that issue one product, with 64 queries will

    start score = query @ key[j].T        (asynchronous)
    start out += weight[j - 1] @ value[j - 1]
    wait for score, take its softmax      (while the second product runs)
    wait for out, give the buffers back

There are two kernels. In `forward_kernel` two warpgroups share the tiles that a warp of its own
copies by TMA into a ring of buffers, and each program (one an SM) takes block after block: the next
block's tiles arrive while this one's output is written. In `small_forward_kernel` a program is one
warpgroup that copies for itself, and three of them share an SM.

H200, bf16, causal, TFLOP/s at S = 8k / 2k: K=128 ring 688 / 570, cuDNN 617 / 524; K=64 alone
489 / 420, cuDNN 458 / 399. Before the last change: K=128 ring 668 / 530, alone 551 / 474, Triton
499 / 401; K=64 alone 473 / 395, ring 447 / 335, Triton 447 / 345. Blocks are drawn from a counter:
dealt out in turn, causal ones differ too much in length (415 / 360 at K=128).

The walk, its masked edges and the results are those of flash_attention_kernels.forward_kernel. No
soft cap here, and head sizes of 33 to 128 only: the rest runs there.

Source: Shah et al., FlashAttention-3 (2024), section 3.
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

# Threads of one role wait for each other; Triton 3.7 renamed it.
barrier = getattr(gl, "barrier", None) or gl.thread_barrier

CONSUMERS = gl.constexpr(2)  # three, of 160 registers, spill or starve: 424 against 447 at K=64

# fmt: off


@gluon.jit
def visible_keys(
    row_T, bounds_ptr, bounds_stride, T, S, window,
    CAUSAL: gl.constexpr, WINDOWED: gl.constexpr, PACKED: gl.constexpr,
):
    diagonal = row_T + (S - T)
    first = row_T * 0
    end = first + S
    if CAUSAL:
        end = gl.minimum(end, diagonal + 1)
    if WINDOWED:
        first = gl.maximum(first, diagonal - window + 1)
        if not CAUSAL:
            end = gl.minimum(end, diagonal + window)
    if PACKED:
        first = gl.maximum(first, gl.load(bounds_ptr + row_T, mask=row_T < T, other=0))
        last = gl.load(bounds_ptr + bounds_stride + row_T, mask=row_T < T, other=0)
        end = gl.minimum(end, last)
    end = gl.where(row_T < T, end, 0)
    return first, end


@gluon.jit
def query_block(
    turn, plan, mask,
    CAUSAL: gl.constexpr, WINDOWED: gl.constexpr, PACKED: gl.constexpr,
    BLOCK_T: gl.constexpr, BLOCK_S: gl.constexpr,
):
    """The block of queries of a turn, and the keys it walks.

    A few heads at a time, so that their keys and values stay in L2; of these the longest first.
    """
    _num_blocks, num_tiles, section, H, group_size = plan
    bounds_ptr, bounds_stride, T, S, window = mask
    per_section = num_tiles * section
    rest = turn % per_section
    first_query = (num_tiles - 1 - rest // section) * BLOCK_T
    row = turn // per_section * section + rest % section
    batch = row // H
    head = row % H
    bounds_ptr += batch.to(gl.int64) * T
    low_first, low_end = visible_keys(
        first_query, bounds_ptr, bounds_stride, T, S, window, CAUSAL, WINDOWED, PACKED
    )
    high_first, high_end = visible_keys(
        gl.minimum(first_query + BLOCK_T, T) - 1, bounds_ptr, bounds_stride, T, S, window,
        CAUSAL, WINDOWED, PACKED,
    )
    begin = low_first // BLOCK_S * BLOCK_S
    whole = (high_first + BLOCK_S - 1) // BLOCK_S * BLOCK_S
    edge = gl.maximum(whole, low_end // BLOCK_S * BLOCK_S)
    return first_query, batch, head, head // group_size, begin, whole, edge, high_end


@gluon.jit
def draw_turn(turns):
    """Draw the next block: whoever is done first takes it."""
    return gl.num_programs(0) + gl.atomic_add(turns[3], 1)


@gluon.jit
def publish(turns, turn, done):
    """Tell the consumers which block comes next."""
    turn_tile, turn_ready, turn_free, _counter_ptr = turns
    mbarrier.wait(turn_free.index(done % 2), ((done // 2) & 1) ^ 1)
    one = gl.full([1], turn, gl.int32, gl.BlockedLayout([1], [32], [1], [0]))
    turn_tile.index(done % 2).store(one)
    barrier()
    mbarrier.arrive(turn_ready.index(done % 2))


@gluon.jit
def next_turn(turns, done):
    """Read the block that the producer drew."""
    turn_tile, turn_ready, turn_free, _counter_ptr = turns
    mbarrier.wait(turn_ready.index(done % 2), (done // 2) & 1)
    turn = gl.max(turn_tile.index(done % 2).load(gl.BlockedLayout([1], [32], [4], [0])), 0)
    barrier()
    mbarrier.arrive(turn_free.index(done % 2))
    return turn


@gluon.jit
def _copy_tiles(
    tiles, barriers, turns, sources, plan, mask,
    CAUSAL: gl.constexpr, WINDOWED: gl.constexpr, PACKED: gl.constexpr,
    STAGES: gl.constexpr, BLOCK_S: gl.constexpr,
):
    """The producer: copy queries, keys and values of block after block as buffers become free."""
    query_tile, key_tile, value_tile = tiles
    query_ready, query_free, key_ready, key_free, value_ready, value_free = barriers
    query_mat, key_mat, value_mat = sources
    i = 0
    done = 0
    turn = gl.program_id(0)
    while turn < plan[0]:
        publish(turns, turn, done)
        first_query, batch, head, key_head, begin, _whole, _edge, end = query_block(
            turn, plan, mask, CAUSAL, WINDOWED, PACKED, CONSUMERS * 64, BLOCK_S
        )
        for c in gl.static_range(CONSUMERS):
            mbarrier.wait(query_free.index(c), (done & 1) ^ 1)
            mbarrier.expect(query_ready.index(c), query_mat.block_type.nbytes)
            tma.async_copy_global_to_shared(
                query_mat, [batch, head, first_query + 64 * c, 0],
                query_ready.index(c), query_tile.index(c),
            )
        for first_key in range(begin, end, BLOCK_S):
            slot = i % STAGES
            phase = (i // STAGES) & 1
            mbarrier.wait(key_free.index(slot), phase ^ 1)
            mbarrier.expect(key_ready.index(slot), key_mat.block_type.nbytes)
            tma.async_copy_global_to_shared(
                key_mat, [batch, key_head, first_key, 0], key_ready.index(slot),
                key_tile.index(slot),
            )
            mbarrier.wait(value_free.index(slot), phase ^ 1)
            mbarrier.expect(value_ready.index(slot), value_mat.block_type.nbytes)
            tma.async_copy_global_to_shared(
                value_mat, [batch, key_head, first_key, 0], value_ready.index(slot),
                value_tile.index(slot),
            )
            i += 1
        done += 1
        turn = draw_turn(turns)
    publish(turns, turn, done)


@gluon.jit
def _softmax(
    score, row_sum, row_max, visible, first_key, to_log2,
    LOWER: gl.constexpr, UPPER: gl.constexpr, BLOCK_S: gl.constexpr, SCORE: gl.constexpr,
):
    """One step of the online softmax: weights, the decay of older sums, new sum and maximum.

    A mask costs as much as the softmax itself: only tiles that an edge crosses pay, each its own.
    """
    first_T, end_T, edge = visible
    row_S = first_key + gl.arange(0, BLOCK_S, gl.SliceLayout(0, SCORE))
    if LOWER:
        inside = (row_S[None, :] >= first_T[:, None]) & (row_S[None, :] < end_T[:, None])
        score = gl.where(inside, score, float("-inf"))
    elif UPPER:
        # Decided while it runs: a loop of its own for these few tiles cost 6% at S=2k.
        if first_key >= edge:
            score = gl.where(row_S[None, :] < end_T[:, None], score, float("-inf"))
    new_max = gl.maximum(row_max, gl.max(score, 1) * to_log2)
    shift = new_max
    if LOWER or UPPER:
        shift = gl.where(new_max == float("-inf"), 0.0, new_max)
    weight = gl.exp2(score * to_log2 - shift[:, None])
    decay = gl.exp2(row_max - shift)
    row_sum = row_sum * decay + gl.sum(weight, 1)
    return weight, decay, row_sum, new_max


@gluon.jit
def write_rows(base, tile, first, num_rows, row_stride, K: gl.constexpr, KP: gl.constexpr):
    """Store 64 rows of a (num_rows, K) matrix, 16 bytes a thread."""
    ROWS: gl.constexpr = gl.BlockedLayout([1, 8], [32 * 8 // KP, KP // 8], [4, 1], [1, 0])
    row = first + gl.arange(0, 64, gl.SliceLayout(1, ROWS))
    col = gl.arange(0, KP, gl.SliceLayout(0, ROWS))
    inside = (row < num_rows)[:, None] & (col < K)[None, :]
    tile = gl.convert_layout(tile.to(base.dtype.element_ty), ROWS)
    gl.store(base + row.to(gl.int64)[:, None] * row_stride + col[None, :], tile, mask=inside)


@gluon.jit
def matrix(tiles, slot, ROWS: gl.constexpr, LAYOUT: gl.constexpr):
    """One buffer of a ring, (1, 1, ROWS, KP) for the copy engine, as a matrix."""
    tile = tiles.index(slot)
    return tile._reinterpret(tile.dtype, [ROWS, tile.shape[3]], LAYOUT)


@gluon.jit
def _copy(mat, batch, head, row, ready, tile, pred):
    """Start to copy a tile into a buffer, if it is one of the walk's."""
    mbarrier.expect(ready, mat.block_type.nbytes, pred=pred)
    tma.async_copy_global_to_shared(mat, [batch, head, row, 0], ready, tile, pred=pred)


@gluon.jit
def _give_back(
    which: gl.constexpr, slot, first_key, tiles, ready, supply,
    OWN_COPIES: gl.constexpr, STAGES: gl.constexpr, BLOCK_S: gl.constexpr,
):
    """A buffer has been read: tell the copying warp, or fill it again at once."""
    if OWN_COPIES:
        mats, batch, key_head, end = supply
        ahead = first_key + (STAGES - which) * BLOCK_S
        _copy(mats[which], batch, key_head, ahead, ready[which].index(slot),
              tiles[which].index(slot), ahead < end)
    else:
        mbarrier.arrive(supply[which].index(slot))


@gluon.jit
def _walk(
    acc, weight, row_sum, row_max, i, query, tiles, ready, supply, visible, start_at, stop_at,
    to_log2,
    LOWER: gl.constexpr, UPPER: gl.constexpr, OWN_COPIES: gl.constexpr, STAGES: gl.constexpr,
    BLOCK_S: gl.constexpr, SCORE: gl.constexpr, OUT: gl.constexpr, KEY: gl.constexpr,
):
    """Tiles of keys [start_at, stop_at): scores of each, and the output of the one before."""
    key_tile, value_tile = tiles
    key_ready, value_ready = ready
    zero = gl.zeros([64, BLOCK_S], gl.float32, SCORE)
    for first_key in range(start_at, stop_at, BLOCK_S):
        slot = i % STAGES
        last = (i - 1) % STAGES
        mbarrier.wait(key_ready.index(slot), (i // STAGES) & 1)
        score = warpgroup_mma(
            query, matrix(key_tile, slot, BLOCK_S, KEY).permute((1, 0)), zero,
            use_acc=False, is_async=True,
        )
        mbarrier.wait(value_ready.index(last), ((i - 1) // STAGES) & 1)
        acc = warpgroup_mma(weight, matrix(value_tile, last, BLOCK_S, KEY), acc, is_async=True)
        score = warpgroup_mma_wait(1, [score])
        new_weight, decay, row_sum, row_max = _softmax(
            score, row_sum, row_max, visible, first_key, to_log2, LOWER, UPPER, BLOCK_S, SCORE
        )
        acc, weight = warpgroup_mma_wait(0, [acc, weight])
        barrier()  # all four warps are done with the buffers
        _give_back(0, slot, first_key, tiles, ready, supply, OWN_COPIES, STAGES, BLOCK_S)
        _give_back(1, last, first_key, tiles, ready, supply, OWN_COPIES, STAGES, BLOCK_S)
        acc = acc * gl.convert_layout(decay, gl.SliceLayout(1, OUT))[:, None]
        weight = gl.convert_layout(new_weight.to(value_tile.dtype), gl.DotOperandLayout(0, OUT, 2))
        i += 1
    return acc, weight, row_sum, row_max, i


@gluon.jit
def _attend_block(
    i, query, query_free, tiles, ready, supply, visible, begin, whole, end, to_log2,
    LOWER: gl.constexpr, UPPER: gl.constexpr, OWN_COPIES: gl.constexpr, KP: gl.constexpr,
    STAGES: gl.constexpr, BLOCK_S: gl.constexpr, SCORE: gl.constexpr, OUT: gl.constexpr,
):
    """64 queries over all keys they see: output not yet divided, sum, maximum, next tile."""
    key_tile, value_tile = tiles
    key_ready, value_ready = ready
    KEY: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_S, KP], key_tile.dtype)
    acc = gl.zeros([64, KP], gl.float32, OUT)
    row_sum = gl.zeros([64], gl.float32, gl.SliceLayout(1, SCORE))
    row_max = gl.full([64], float("-inf"), gl.float32, gl.SliceLayout(1, SCORE))
    if begin < end:
        slot = i % STAGES
        mbarrier.wait(key_ready.index(slot), (i // STAGES) & 1)
        zero = gl.zeros([64, BLOCK_S], gl.float32, SCORE)
        score = warpgroup_mma(
            query, matrix(key_tile, slot, BLOCK_S, KEY).permute((1, 0)), zero,
            use_acc=False, is_async=True,
        )
        score = warpgroup_mma_wait(0, [score])
        barrier()
        _give_back(0, slot, begin, tiles, ready, supply, OWN_COPIES, STAGES, BLOCK_S)
        new_weight, _decay, row_sum, row_max = _softmax(
            score, row_sum, row_max, visible, begin, to_log2, LOWER, UPPER, BLOCK_S, SCORE
        )
        weight = gl.convert_layout(new_weight.to(key_tile.dtype), gl.DotOperandLayout(0, OUT, 2))
        i += 1
        if LOWER:
            acc, weight, row_sum, row_max, i = _walk(
                acc, weight, row_sum, row_max, i, query, tiles, ready, supply, visible,
                begin + BLOCK_S, gl.minimum(whole, end), to_log2,
                True, True, OWN_COPIES, STAGES, BLOCK_S, SCORE, OUT, KEY,
            )
        acc, weight, row_sum, row_max, i = _walk(
            acc, weight, row_sum, row_max, i, query, tiles, ready, supply, visible,
            gl.maximum(begin + BLOCK_S, whole), end, to_log2,
            False, UPPER, OWN_COPIES, STAGES, BLOCK_S, SCORE, OUT, KEY,
        )
        if not OWN_COPIES:
            mbarrier.arrive(query_free)
        last = (i - 1) % STAGES
        mbarrier.wait(value_ready.index(last), ((i - 1) // STAGES) & 1)
        acc = warpgroup_mma(weight, matrix(value_tile, last, BLOCK_S, KEY), acc, is_async=True)
        acc = warpgroup_mma_wait(0, [acc])
        if not OWN_COPIES:
            barrier()
            mbarrier.arrive(supply[1].index(last))
    elif not OWN_COPIES:
        barrier()
        mbarrier.arrive(query_free)
    return acc, row_sum, row_max, i


@gluon.jit
def _write(
    acc, row_sum, row_max, outputs, row, batch, head, first_query, T,
    K: gl.constexpr, KP: gl.constexpr, SCORE: gl.constexpr, OUT: gl.constexpr,
):
    """Divide by the sum; store 64 rows of out, and their log-sum-exp."""
    out_ptr, lse_ptr, stride_ob, stride_ot, stride_oh, _to_log2 = outputs
    row_T = first_query + gl.arange(0, 64, gl.SliceLayout(1, SCORE))
    divisor = gl.where(row_sum > 0, row_sum, 1.0)
    acc = acc / gl.convert_layout(divisor, gl.SliceLayout(1, OUT))[:, None]
    lse_ptr += row.to(gl.int64) * T
    gl.store(lse_ptr + row_T, row_max + gl.log2(divisor), mask=row_T < T)
    out_ptr += batch.to(gl.int64) * stride_ob + head * stride_oh
    write_rows(out_ptr, acc, first_query, T, stride_ot, K, KP)


# --- two warpgroups and a warp that copies ------------------------------------------------------


@gluon.jit
def _attend(
    consumer, tiles, barriers, turns, outputs, plan, mask,
    CAUSAL: gl.constexpr, WINDOWED: gl.constexpr, PACKED: gl.constexpr, RAGGED: gl.constexpr,
    K: gl.constexpr, KP: gl.constexpr, STAGES: gl.constexpr, BLOCK_S: gl.constexpr,
):
    """A consumer: 64 queries of block after block."""
    query_tile, key_tile, value_tile = tiles
    query_ready, query_free, key_ready, key_free, value_ready, value_free = barriers
    bounds_ptr, bounds_stride, T, S, window = mask
    SCORE: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_S, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KP, 16])
    QUERY: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, KP], query_tile.dtype)
    LOWER: gl.constexpr = WINDOWED or PACKED
    UPPER: gl.constexpr = CAUSAL or WINDOWED or PACKED or RAGGED
    i = 0
    done = 0
    query = matrix(query_tile, consumer, 64, QUERY)
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
        mbarrier.wait(query_ready.index(consumer), done & 1)
        acc, row_sum, row_max, i = _attend_block(
            i, query, query_free.index(consumer), (key_tile, value_tile),
            (key_ready, value_ready), (key_free, value_free), (first_T, end_T, edge),
            begin, whole, end, outputs[5], LOWER, UPPER, False, KP, STAGES, BLOCK_S, SCORE, OUT,
        )
        _write(acc, row_sum, row_max, outputs, batch * plan[3] + head, batch, head, first_query, T,
               K, KP, SCORE, OUT)
        done += 1
        turn = next_turn(turns, done)


@gluon.jit
def forward_kernel(
    query_mat, key_mat, value_mat, bounds_ptr, out_ptr, lse_ptr, counter_ptr,
    stride_ob, stride_ot, stride_oh,
    num_blocks, num_tiles, section, bounds_stride, T, S, H, group_size, window, scale,
    CAUSAL: gl.constexpr, WINDOWED: gl.constexpr, PACKED: gl.constexpr, RAGGED: gl.constexpr,
    K: gl.constexpr, KP: gl.constexpr, BLOCK_S: gl.constexpr, STAGES: gl.constexpr,
    REGISTERS: gl.constexpr,
):
    """All blocks of CONSUMERS x 64 queries: out, and log-sum-exp in base 2 (-inf: saw nothing).

    The matrices are descriptors of (B, H, T, K) and (B, G, S, K). One program an SM takes block
    after block, so that the next block's tiles arrive while this one's output is written.
    """
    dtype: gl.constexpr = query_mat.dtype
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    query_tile = gl.allocate_shared_memory(dtype, [CONSUMERS, 1, 1, 64, KP], query_mat.layout)
    key_tile = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK_S, KP], key_mat.layout)
    value_tile = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK_S, KP], key_mat.layout)
    query_ready = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], BARRIER)
    query_free = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], BARRIER)
    key_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    key_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    value_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    value_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    turn_tile = gl.allocate_shared_memory(gl.int32, [2, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    turn_ready = gl.allocate_shared_memory(gl.int64, [2, 1], BARRIER)
    turn_free = gl.allocate_shared_memory(gl.int64, [2, 1], BARRIER)
    for s in gl.static_range(2):
        mbarrier.init(turn_ready.index(s), count=1)
        mbarrier.init(turn_free.index(s), count=CONSUMERS)
    for c in gl.static_range(CONSUMERS):
        mbarrier.init(query_ready.index(c), count=1)
        mbarrier.init(query_free.index(c), count=1)
    for s in gl.static_range(STAGES):
        mbarrier.init(key_ready.index(s), count=1)
        mbarrier.init(key_free.index(s), count=CONSUMERS)
        mbarrier.init(value_ready.index(s), count=1)
        mbarrier.init(value_free.index(s), count=CONSUMERS)

    # Tuples with constants are written where they are used: a variable would make tensors of them.
    tiles = (query_tile, key_tile, value_tile)
    barriers = (query_ready, query_free, key_ready, key_free, value_ready, value_free)
    turns = (turn_tile, turn_ready, turn_free, counter_ptr)
    sources = (query_mat, key_mat, value_mat)
    outputs = (out_ptr, lse_ptr, stride_ob, stride_ot, stride_oh, scale * 1.4426950408889634)
    plan = (num_blocks, num_tiles, section, H, group_size)
    mask = (bounds_ptr, bounds_stride, T, S, window)
    gl.warp_specialize(
        [
            (_attend, (0, tiles, barriers, turns, outputs, plan, mask, CAUSAL, WINDOWED, PACKED,
                       RAGGED, K, KP, STAGES, BLOCK_S)),
            (_attend, (1, tiles, barriers, turns, outputs, plan, mask, CAUSAL, WINDOWED, PACKED,
                       RAGGED, K, KP, STAGES, BLOCK_S)),
            (_copy_tiles, (tiles, barriers, turns, sources, plan, mask, CAUSAL, WINDOWED, PACKED,
                           STAGES, BLOCK_S)),
        ],
        [4, 1], [REGISTERS, 24],
    )


# --- one warpgroup a program --------------------------------------------------------------------


@gluon.jit
def small_forward_kernel(
    query_mat, key_mat, value_mat, bounds_ptr, out_ptr, lse_ptr, stride_ob, stride_ot, stride_oh,
    bounds_stride, T, S, H, group_size, window, scale,
    CAUSAL: gl.constexpr, WINDOWED: gl.constexpr, PACKED: gl.constexpr, RAGGED: gl.constexpr,
    K: gl.constexpr, KP: gl.constexpr, BLOCK_S: gl.constexpr, STAGES: gl.constexpr,
):
    """One block of 64 queries of one head: out, and log-sum-exp in base 2."""
    dtype: gl.constexpr = query_mat.dtype
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    SCORE: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_S, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KP, 16])
    QUERY: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, KP], dtype)
    LOWER: gl.constexpr = WINDOWED or PACKED
    UPPER: gl.constexpr = CAUSAL or WINDOWED or PACKED or RAGGED
    query_tile = gl.allocate_shared_memory(dtype, [1, 1, 1, 64, KP], query_mat.layout)
    key_tile = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK_S, KP], key_mat.layout)
    value_tile = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK_S, KP], key_mat.layout)
    query_ready = gl.allocate_shared_memory(gl.int64, [1, 1], BARRIER)
    key_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    value_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    mbarrier.init(query_ready.index(0), count=1)
    for s in gl.static_range(STAGES):
        mbarrier.init(key_ready.index(s), count=1)
        mbarrier.init(value_ready.index(s), count=1)

    # The grid is (heads at a time, tiles, the rest of the heads).
    section = gl.num_programs(0)
    num_tiles = gl.num_programs(1)
    turn = (gl.program_id(2) * num_tiles + gl.program_id(1)) * section + gl.program_id(0)
    plan = (num_tiles * section * gl.num_programs(2), num_tiles, section, H, group_size)
    mask = (bounds_ptr, bounds_stride, T, S, window)
    first_query, batch, head, key_head, begin, whole, edge, end = query_block(
        turn, plan, mask, CAUSAL, WINDOWED, PACKED, 64, BLOCK_S
    )
    _copy(query_mat, batch, head, first_query, query_ready.index(0), query_tile.index(0), True)
    for s in gl.static_range(STAGES):
        row = begin + s * BLOCK_S
        _copy(key_mat, batch, key_head, row, key_ready.index(s), key_tile.index(s), row < end)
        _copy(value_mat, batch, key_head, row, value_ready.index(s), value_tile.index(s), row < end)
    row_T = first_query + gl.arange(0, 64, gl.SliceLayout(1, SCORE))
    first_T, end_T = visible_keys(
        row_T, bounds_ptr + batch.to(gl.int64) * T, bounds_stride, T, S, window,
        CAUSAL, WINDOWED, PACKED,
    )
    to_log2 = scale * 1.4426950408889634
    mbarrier.wait(query_ready.index(0), 0)
    i = 0
    acc, row_sum, row_max, i = _attend_block(
        i, matrix(query_tile, 0, 64, QUERY), query_ready, (key_tile, value_tile),
        (key_ready, value_ready), ((key_mat, value_mat), batch, key_head, end),
        (first_T, end_T, edge), begin, whole, end, to_log2,
        LOWER, UPPER, True, KP, STAGES, BLOCK_S, SCORE, OUT,
    )
    outputs = (out_ptr, lse_ptr, stride_ob, stride_ot, stride_oh, to_log2)
    _write(acc, row_sum, row_max, outputs, batch * H + head, batch, head, first_query, T,
           K, KP, SCORE, OUT)
