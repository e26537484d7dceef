"""Launching the attention kernels, and the differentiable operator that torch sees.

torch.library's operators take the place of an autograd.Function: torch.compile then sees one opaque
node with known shapes and a known backward, and does not break the graph. The price is about 50 us
of dispatch a call in eager mode.
"""

# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from lmpipe.errors import ConfigError
from lmpipe.kernels import flash_attention_kernels as kernels
from lmpipe.kernels.flash_attention_settings import Direction, Kernel, Mask, Tile, tile

try:
    from triton.experimental.gluon import language as gluon
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    from lmpipe.kernels import flash_attention_hopper as hopper
    from lmpipe.kernels import flash_attention_hopper_backward as hopper_backward

    HOPPER_KERNELS: tuple[Kernel, ...] = ("hopper", "hopper_small")
except ImportError:  # a Triton without Gluon
    HOPPER_KERNELS = ()

MAX_HEAD_SIZE = 256
MAX_IN_GRID = 65_535  # of CUDA, in the second and third dimension
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_INTERPRETED = not isinstance(kernels.forward_kernel, triton.JITFunction)


def attend(
    query_BTHK: Tensor,
    key_BSGK: Tensor,
    value_BSGK: Tensor,
    bounds_2BT: Tensor | None,
    causal: bool,
    window: int,
    softcap: float,
) -> tuple[Tensor, Tensor]:
    """Return out (B, T, H, K) and log-sum-exp in base 2 (B, H, T), by the kernels."""
    if not query_BTHK.is_cuda and not _INTERPRETED:
        raise ConfigError(
            f'backend="triton" needs CUDA tensors, got {query_BTHK.device}; '
            'use backend="reference", or start Python with TRITON_INTERPRET=1 for the interpreter'
        )
    if query_BTHK.shape[-1] > MAX_HEAD_SIZE:
        raise ConfigError(
            f'backend="triton" takes head sizes up to {MAX_HEAD_SIZE}, got {query_BTHK.shape[-1]}; '
            'use more heads or backend="reference"'
        )
    if query_BTHK.dtype not in _DTYPES:
        raise ConfigError(
            f'backend="triton" takes {", ".join(map(str, _DTYPES))}, got {query_BTHK.dtype}'
        )
    query_BTHK, key_BSGK, value_BSGK = (_readable(x) for x in (query_BTHK, key_BSGK, value_BSGK))
    out_BTHK: Tensor
    lse_BHT: Tensor
    out_BTHK, lse_BHT = _forward(
        query_BTHK, key_BSGK, value_BSGK, bounds_2BT, causal, window, softcap
    )
    return out_BTHK, lse_BHT


def _readable(x: Tensor) -> Tensor:
    """Return x with heads as rows of K numbers that begin at multiples of 16 bytes, else a copy.

    The copy engine reads nothing else; an expanded tensor (stride 0) is no matrix to it either.
    """
    unit = 16 // x.element_size()
    fits = x.stride(-1) == 1 and all(
        size == 1 or (stride > 0 and stride % unit == 0)
        for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True)
    )
    return x if fits else x.contiguous()


def _at_16_bytes(x: Tensor) -> Tensor:
    return x if x.data_ptr() % 16 == 0 else x.clone()


@functools.cache
def _box_layout(rows: int, padded_head_size: int) -> Any:
    """How a box lies in shared memory; the same for both 16-bit types."""
    box = [1, 1, rows, padded_head_size]
    return gluon.NVMMASharedLayout.get_default_for(box, gluon.float16)


@functools.cache
def _num_multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


@functools.cache
def _half_of_l2(device: torch.device) -> int:
    """Bytes that stay in L2 while they are read again and again: 30 MB of an H200."""
    if device.type != "cuda":  # the interpreter
        return 30_000_000
    return torch.cuda.get_device_properties(device).L2_cache_size // 2


@functools.cache
def _section(num_heads: int, most: int) -> int:
    """How many heads, of which there are num_heads, to work on at a time: a divisor of them."""
    return max(n for n in range(1, max(1, min(num_heads, most)) + 1) if num_heads % n == 0)


@functools.cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)


def _scratch(size: int, alignment: int, stream: int | None) -> Tensor:
    """Device memory for the descriptors that the kernels make; the stream orders its reuse."""
    return torch.empty(size, dtype=torch.int8, device="cuda")


class Order(NamedTuple):
    """In which order the tiles of all heads are worked on: a few heads at a time."""

    num_tiles: int  # of a head
    num_heads: int  # of all sequences
    section: int  # heads at a time

    @property
    def grid(self) -> tuple[int, int, int]:
        """A program a tile; the first number counts fastest."""
        return self.section, self.num_tiles, self.num_heads // self.section

    @property
    def plan(self) -> tuple[int, int, int]:
        """For programs that take block after block: blocks in all, blocks of a head, section."""
        return self.num_tiles * self.num_heads, self.num_tiles, self.section


class _Launch:
    """What the kernels of one call share: sizes, strides of the inputs, compile-time constants."""

    def __init__(
        self,
        query_BTHK: Tensor,
        key_BSGK: Tensor,
        value_BSGK: Tensor,
        bounds_2BT: Tensor | None,
        pattern: tuple[bool, int, float],
    ) -> None:
        causal, window, softcap = pattern
        self.batch, self.num_queries, self.num_heads, self.head_size = query_BTHK.shape
        self.num_keys, self.num_groups = key_BSGK.shape[1:3]
        self.dtype = query_BTHK.dtype
        packed = bounds_2BT is not None
        self.mask: Mask = "packed" if packed else "window" if window > 0 else "dense"
        self.capability = _capability(query_BTHK.device)
        # Without documents the pointer is never read, but has to point somewhere.
        self.bounds = query_BTHK if bounds_2BT is None else bounds_2BT.contiguous()
        self.inputs = (*map(_at_16_bytes, (query_BTHK, key_BSGK, value_BSGK)), self.bounds)
        self.input_strides = tuple(stride for x in self.inputs[:3] for stride in x.stride()[:3])
        self.numbers = (
            self.batch * self.num_queries,
            self.num_queries,
            self.num_keys,
            self.num_heads,
            self.num_heads // self.num_groups,
            window,
            1 / math.sqrt(self.head_size),
        )
        row_bytes = 2 * self.head_size * query_BTHK.element_size()  # of K and V, or of Q and dO
        self.key_value_bytes = self.num_keys * row_bytes
        self.query_bytes = self.num_queries * row_bytes  # its group's heads come one after another
        self.padded = max(16, triton.next_power_of_2(self.head_size))
        self.constants = {
            "CAUSAL": causal,
            "WINDOWED": window > 0,
            "PACKED": packed,
            "SOFTCAP": softcap,
            "PRECISION": "ieee" if self.dtype == torch.float32 else "tf32",
            # The copy engine: Hopper on, whole 16-byte units, 16-bit products.
            "TMA": (self.capability >= (9, 0) or _INTERPRETED)
            and self.dtype != torch.float32
            and self.head_size % 8 == 0,
            "K": self.head_size,
            "KP": self.padded,
        }
        # Gluon's kernels: 64 or 128 features, plain scores, at least one row.
        fits = self.constants["TMA"] and self.capability == (9, 0) and self.padded in (64, 128)
        fits = fits and not softcap and query_BTHK.numel() > 0 and key_BSGK.numel() > 0
        self.kernels: tuple[Kernel, ...] = ("triton", *HOPPER_KERNELS) if fits else ("triton",)
        if self.constants["TMA"] and not _INTERPRETED:
            triton.set_allocator(_scratch)  # per thread, and backward has one of its own

    def tile(self, direction: Direction) -> Tile:
        return tile(
            direction,
            padded_head_size=self.padded,
            length=self.num_queries if direction == "grad_key_value" else self.num_keys,
            mask=self.mask,
            dtype=self.dtype,
            capability=self.capability,
            kernels=self.kernels,
        )

    def options(self, tile: Tile) -> dict[str, Any]:
        return {
            **self.constants,
            "RAGGED": bool(self.num_queries % tile.queries or self.num_keys % tile.keys),
            "BLOCK_T": tile.queries,
            "BLOCK_S": tile.keys,
            "num_warps": tile.warps,
            # One key is one tile: no overlap; and at K=256 ptxas 12.8 crashes on two stages.
            "num_stages": 1 if self.num_keys == 1 else tile.stages,
            "maxnreg": tile.registers,
        }

    def descriptor(self, x_BTHK: Tensor, rows: int) -> Any:
        """What the copy engine reads: (B, H, T, K) in boxes of rows of one head."""
        x_BHTK = x_BTHK.transpose(1, 2)
        box = [1, 1, rows, self.padded]
        # The stride of a single element is never taken, but has to be a multiple of 16 bytes.
        strides = [
            stride if size > 1 else self.head_size
            for size, stride in zip(x_BHTK.shape[:3], x_BHTK.stride()[:3], strict=True)
        ]
        layout = _box_layout(rows, self.padded)
        return TensorDescriptor(x_BHTK, list(x_BHTK.shape), [*strides, 1], box, layout)

    def hopper_options(self, tile: Tile) -> dict[str, Any]:
        options = self.options(tile)
        shared = ("CAUSAL", "WINDOWED", "PACKED", "RAGGED", "K", "KP", "num_warps")
        options = {name: options[name] for name in shared}
        registers = "REGISTERS" if tile.kernel == "hopper" else "maxnreg"
        return options | {"STAGES": tile.stages, registers: tile.registers}

    def order_of_queries(self, block: int) -> Order:
        """Blocks of queries walk the keys and values of their head."""
        num_tiles = triton.cdiv(self.num_queries, block)
        return self._order(num_tiles, self.batch * self.num_heads, self.key_value_bytes)

    def order_of_keys(self, block: int) -> Order:
        """Blocks of keys walk queries and gradients of the output, of one query head at a time."""
        num_tiles = triton.cdiv(self.num_keys, block)
        return self._order(num_tiles, self.batch * self.num_groups, self.query_bytes)

    def _order(self, num_tiles: int, num_heads: int, bytes_per_head: int) -> Order:
        if num_tiles > MAX_IN_GRID:
            raise ConfigError(
                f'backend="triton" takes at most {MAX_IN_GRID} tiles of a sequence (CUDA\'s grid), '
                f"got {num_tiles}; shorten the sequences"
            )
        # Tiles of equal length need no order: they go head after head.
        most = 1
        if (self.constants["CAUSAL"] and self.mask == "dense") or self.mask == "packed":
            most = _half_of_l2(self.inputs[0].device) // max(1, bytes_per_head)
        if num_heads > MAX_IN_GRID:
            most = num_heads
        return Order(num_tiles, num_heads, _section(num_heads, most))

    def programs(self, order: Order) -> tuple[int]:
        return (min(order.plan[0], _num_multiprocessors(self.inputs[0].device)),)

    def on_device(self) -> Any:
        return torch.cuda.device_of(self.inputs[0])  # type: ignore[no-untyped-call]


@torch.library.custom_op("lmpipe::flash_attention", mutates_args=())
def _forward(
    query_BTHK: Tensor,
    key_BSGK: Tensor,
    value_BSGK: Tensor,
    bounds_2BT: Tensor | None,
    causal: bool,
    window: int,
    softcap: float,
) -> tuple[Tensor, Tensor]:
    launch = _Launch(query_BTHK, key_BSGK, value_BSGK, bounds_2BT, (causal, window, softcap))
    out_BTHK = torch.empty(query_BTHK.shape, dtype=query_BTHK.dtype, device=query_BTHK.device)
    lse_BHT = torch.empty(
        (launch.batch, launch.num_heads, launch.num_queries),
        dtype=torch.float32,
        device=query_BTHK.device,
    )
    tile = launch.tile("forward")
    outputs = (out_BTHK, lse_BHT)
    with launch.on_device():
        if tile.kernel == "triton":
            order = launch.order_of_queries(tile.queries)
            kernels.forward_kernel[order.grid](
                *launch.inputs, *outputs, *launch.input_strides, *out_BTHK.stride()[:3],
                *launch.numbers, **launch.options(tile),
            )  # fmt: skip
        else:
            _hopper_forward(launch, tile, outputs)
    return out_BTHK, lse_BHT


def _hopper_forward(launch: _Launch, tile: Tile, outputs: tuple[Tensor, Tensor]) -> None:
    query_BTHK, key_BSGK, value_BSGK, bounds = launch.inputs
    arguments = (
        launch.descriptor(query_BTHK, 64),
        launch.descriptor(key_BSGK, tile.keys),
        launch.descriptor(value_BSGK, tile.keys),
        bounds,
        *outputs,
    )
    strides = outputs[0].stride()[:3]
    options = launch.hopper_options(tile) | {"BLOCK_S": tile.keys}
    order = launch.order_of_queries(tile.queries)
    if tile.kernel == "hopper_small":
        hopper.small_forward_kernel[order.grid](*arguments, *strides, *launch.numbers, **options)
        return
    counter = torch.zeros(1, dtype=torch.int32, device=query_BTHK.device)
    hopper.forward_kernel[launch.programs(order)](
        *arguments, counter, *strides, *order.plan, *launch.numbers, **options
    )


@torch.library.custom_op("lmpipe::flash_attention_backward", mutates_args=())
def _backward(
    grad_out_BTHK: Tensor,
    grad_lse_BHT: Tensor | None,
    query_BTHK: Tensor,
    key_BSGK: Tensor,
    value_BSGK: Tensor,
    out_BTHK: Tensor,
    lse_BHT: Tensor,
    bounds_2BT: Tensor | None,
    causal: bool,
    window: int,
    softcap: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dQ (B, T, H, K), dK and dV (B, S, G, K), each contiguous."""
    launch = _Launch(query_BTHK, key_BSGK, value_BSGK, bounds_2BT, (causal, window, softcap))
    grad_out_BTHK = _at_16_bytes(_readable(grad_out_BTHK))
    grad_query_BTHK = torch.empty_like(query_BTHK, memory_format=torch.contiguous_format)
    grad_key_BSGK = torch.empty_like(key_BSGK, memory_format=torch.contiguous_format)
    grad_value_BSGK = torch.empty_like(value_BSGK, memory_format=torch.contiguous_format)
    delta_BHT = torch.empty_like(lse_BHT)
    grad_strides = grad_out_BTHK.stride()[:3]
    saved = (*launch.inputs, grad_out_BTHK, lse_BHT, delta_BHT)
    with launch.on_device():
        order = launch.order_of_queries(64)
        kernels.delta_kernel[order.grid](
            out_BTHK, grad_out_BTHK, lse_BHT,
            lse_BHT if grad_lse_BHT is None else grad_lse_BHT.contiguous(), delta_BHT,
            *out_BTHK.stride()[:3], *grad_strides, launch.num_queries, launch.num_heads,
            WITH_LSE=grad_lse_BHT is not None, K=launch.head_size, KP=launch.padded, BLOCK_T=64,
        )  # fmt: skip
        tile = launch.tile("grad_key_value")
        if tile.kernel == "triton":
            order = launch.order_of_keys(tile.keys)
            kernels.grad_key_value_kernel[order.grid](
                *saved, grad_key_BSGK, grad_value_BSGK, *launch.input_strides, *grad_strides,
                *grad_key_BSGK.stride()[:3], *launch.numbers, **launch.options(tile),
            )  # fmt: skip
        else:
            _hopper_grad_key_value(launch, tile, saved[4:], (grad_key_BSGK, grad_value_BSGK))
        tile = launch.tile("grad_query")
        if tile.kernel == "triton":
            order = launch.order_of_queries(tile.queries)
            kernels.grad_query_kernel[order.grid](
                *saved, grad_query_BTHK, *launch.input_strides, *grad_strides,
                *grad_query_BTHK.stride()[:3], *launch.numbers, **launch.options(tile),
            )  # fmt: skip
        else:
            _hopper_grad_query(launch, tile, saved[4:], grad_query_BTHK)
    return grad_query_BTHK, grad_key_BSGK, grad_value_BSGK


def _hopper_grad_key_value(
    launch: _Launch, tile: Tile, saved: tuple[Tensor, ...], outputs: tuple[Tensor, Tensor]
) -> None:
    query_BTHK, key_BSGK, value_BSGK, bounds = launch.inputs
    grad_out_BTHK, lse_BHT, delta_BHT = saved
    order = launch.order_of_keys(tile.keys)
    hopper_backward.grad_key_value_kernel[launch.programs(order)](
        launch.descriptor(query_BTHK, tile.queries), launch.descriptor(key_BSGK, 64),
        launch.descriptor(value_BSGK, 64), launch.descriptor(grad_out_BTHK, tile.queries),
        bounds, lse_BHT, delta_BHT, *outputs,
        torch.zeros(1, dtype=torch.int32, device=lse_BHT.device),
        *outputs[0].stride()[:3], *order.plan, *launch.numbers,
        **launch.hopper_options(tile), BLOCK=tile.queries,
    )  # fmt: skip


def _hopper_grad_query(
    launch: _Launch, tile: Tile, saved: tuple[Tensor, ...], grad_query_BTHK: Tensor
) -> None:
    query_BTHK, key_BSGK, value_BSGK, bounds = launch.inputs
    grad_out_BTHK, lse_BHT, delta_BHT = saved
    order = launch.order_of_queries(tile.queries)
    hopper_backward.grad_query_kernel[launch.programs(order)](
        launch.descriptor(query_BTHK, 64), launch.descriptor(key_BSGK, tile.keys),
        launch.descriptor(value_BSGK, tile.keys), launch.descriptor(grad_out_BTHK, 64),
        bounds, lse_BHT, delta_BHT, grad_query_BTHK,
        torch.zeros(1, dtype=torch.int32, device=lse_BHT.device),
        *grad_query_BTHK.stride()[:3], *order.plan, *launch.numbers,
        **launch.hopper_options(tile), BLOCK=tile.keys,
    )  # fmt: skip


@_forward.register_fake
def _(
    query_BTHK: Tensor,
    key_BSGK: Tensor,
    value_BSGK: Tensor,
    bounds_2BT: Tensor | None,
    causal: bool,
    window: int,
    softcap: float,
) -> tuple[Tensor, Tensor]:
    batch, num_queries, num_heads, _ = query_BTHK.shape
    lse_BHT = query_BTHK.new_empty((batch, num_heads, num_queries), dtype=torch.float32)
    return query_BTHK.new_empty(query_BTHK.shape), lse_BHT


@_backward.register_fake
def _(
    grad_out_BTHK: Tensor,
    grad_lse_BHT: Tensor | None,
    query_BTHK: Tensor,
    key_BSGK: Tensor,
    value_BSGK: Tensor,
    out_BTHK: Tensor,
    lse_BHT: Tensor,
    bounds_2BT: Tensor | None,
    causal: bool,
    window: int,
    softcap: float,
) -> tuple[Tensor, Tensor, Tensor]:
    inputs = (query_BTHK, key_BSGK, value_BSGK)
    grad_query, grad_key, grad_value = (x.new_empty(x.shape) for x in inputs)
    return grad_query, grad_key, grad_value


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, causal, window, softcap = inputs
    ctx.pattern = causal, window, softcap
    ctx.save_for_backward(*tensors, *output)
    ctx.set_materialize_grads(False)


def _differentiate(
    ctx: Any, grad_out_BTHK: Tensor | None, grad_lse_BHT: Tensor | None
) -> tuple[Tensor | None, ...]:
    query_BTHK, key_BSGK, value_BSGK, bounds_2BT, out_BTHK, lse_BHT = ctx.saved_tensors
    if grad_out_BTHK is None:  # a loss of the log-sum-exp alone
        grad_out_BTHK = torch.zeros_like(out_BTHK)
    grads = _backward(
        grad_out_BTHK, grad_lse_BHT, query_BTHK, key_BSGK, value_BSGK, out_BTHK, lse_BHT,
        bounds_2BT, *ctx.pattern,
    )  # fmt: skip
    return *grads, None, None, None, None


_forward.register_autograd(_differentiate, setup_context=_save_for_backward)
