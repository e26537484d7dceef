"""Shapes, implementations and clocks of the attention benchmark and of its tuning."""

import functools
import multiprocessing
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from lmpipe.errors import ConfigError
from lmpipe.kernels.flash_attention import Pattern, document_bounds, flash_attention

BENCH = "flash_attention"


NUM_TOKENS = 16_384


WIDTH = 2048


WINDOW = 1024


NUM_DOCUMENTS = 8


IMPLEMENTATIONS = ("lmpipe", "flash", "cudnn", "flex")


@dataclass(frozen=True)
class Shape:
    """One problem of 16,384 tokens, 2,048 wide."""

    length: int
    head_size: int
    kind: str = "causal"  # causal | full | gqa | window | packed

    def __str__(self) -> str:
        return f"{self.kind} K={self.head_size} S={self.length}"

    @property
    def batch(self) -> int:
        return NUM_TOKENS // self.length

    @property
    def pattern(self) -> Pattern:
        return Pattern(self.kind != "full", WINDOW if self.kind == "window" else None)

    @functools.cached_property
    def documents(self) -> torch.Tensor:
        """Documents that grow in length, the last 15 times as long as the first."""
        shares = torch.arange(1, 2 * NUM_DOCUMENTS, 2).cumsum(0) / NUM_DOCUMENTS**2
        ends = (shares * self.length).long()
        return torch.searchsorted(ends, torch.arange(self.length), right=True)

    @functools.cached_property
    def num_pairs(self) -> int:
        """Pairs of query and key that see each other, in one row and head."""
        if self.kind == "full":
            return self.length**2
        if self.kind == "packed":
            return sum(n * (n + 1) // 2 for n in self.documents.bincount().tolist())
        seen = WINDOW if self.kind == "window" else self.length
        return sum(min(position + 1, seen) for position in range(self.length))

    @property
    def forward_flops(self) -> float:
        return 4.0 * self.batch * WIDTH * self.num_pairs

    def inputs(self) -> list[torch.Tensor]:
        """Query, key, value and the output's gradient."""
        heads = WIDTH // self.head_size
        generator = torch.Generator("cuda").manual_seed(0)
        return [
            torch.randn(
                self.batch, self.length, h, self.head_size, generator=generator, device="cuda"
            ).bfloat16()
            for h in (heads, *2 * (heads // (4 if self.kind == "gqa" else 1),), heads)
        ]


def compile_beforehand(
    function: Callable[..., object], jobs: Iterable[tuple[object, ...]], num_processes: int
) -> None:
    """Call a function of a module on every job, in processes: the caches on disk are then full.

    What fails here fails again, with its reason, where it is measured.
    """
    context = multiprocessing.get_context("spawn")
    with context.Pool(num_processes) as pool:
        calls = [pool.apply_async(_quietly, (function, job)) for job in jobs]
        for call in calls:
            call.get()


def _quietly(function: Callable[..., object], job: tuple[object, ...]) -> None:
    try:
        function(*job)
    except Exception as error:  # of any compiler
        print(f"{job}: {type(error).__name__}")
    finally:
        torch.cuda.empty_cache()  # many processes share the device


def is_able(impl: str, shape: Shape) -> bool:
    """Whether an implementation computes this without a T x S mask in memory."""
    return impl in ("lmpipe", "flex") or shape.kind not in ("window", "packed")


def measure(impl: str, shape: Shape) -> tuple[float, float]:
    """Return TFLOP/s of forward, and of backward alone."""
    return time_rates(shape, *prepare(impl, shape))


Call = Callable[[], object]


def prepare(impl: str, shape: Shape) -> tuple[Call, Call]:
    """Return forward and backward as calls, compiled and run once."""
    *inputs, grad_out = shape.inputs()
    leaves = [x.requires_grad_() for x in inputs]
    attend = _attention(impl, shape)
    out = attend(*leaves)

    def forward() -> object:
        with torch.no_grad():
            return attend(*leaves)

    def backward() -> object:
        return torch.autograd.grad(out, leaves, grad_out, retain_graph=True)

    forward()
    backward()
    return forward, backward


def time_rates(shape: Shape, forward: Call, backward: Call) -> tuple[float, float]:
    """Return TFLOP/s of what `prepare` made."""
    flops = shape.forward_flops / 1e12
    return flops / seconds(forward), 2.5 * flops / seconds(backward)


def seconds(call: Call, repeats: int = 20) -> float:
    """Median device time of a call, each between two events, after a warm-up.

    The device first sleeps long enough for the host to queue all calls, so that what counts is the
    device's time and not Python's: eager calls of 100 us and less are otherwise bound by the host.
    """
    for _ in range(3):
        call()
    begins, ends = (
        [torch.cuda.Event(enable_timing=True) for _ in range(repeats)]  # type: ignore[no-untyped-call]
        for _ in range(2)
    )
    torch.cuda.synchronize()
    torch.cuda._sleep(40_000_000)  # type: ignore[no-untyped-call]  # cycles: 20 ms
    for begin, end in zip(begins, ends, strict=True):
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    milliseconds = [begin.elapsed_time(end) for begin, end in zip(begins, ends, strict=True)]
    return float(statistics.median(milliseconds)) / 1e3


def _attention(impl: str, shape: Shape) -> Callable[..., torch.Tensor]:
    if impl == "lmpipe":
        bounds = None
        if shape.kind == "packed":
            bounds = document_bounds(shape.documents.cuda().expand(shape.batch, -1))
        return lambda q, k, v: flash_attention(q, k, v, shape.pattern, bounds, backend="triton")
    if impl == "flex":
        return _flex(shape)
    if impl not in ("flash", "cudnn"):
        raise ConfigError(f"impls are {', '.join(IMPLEMENTATIONS)}; got {impl!r}")
    backend = SDPBackend.FLASH_ATTENTION if impl == "flash" else SDPBackend.CUDNN_ATTENTION

    def sdpa(*inputs: torch.Tensor) -> torch.Tensor:
        query, key, value = (x.transpose(1, 2) for x in inputs)
        with sdpa_kernel(backend):
            out = functional.scaled_dot_product_attention(
                query, key, value, is_causal=shape.pattern.causal, enable_gqa=shape.kind == "gqa"
            )
        return out.transpose(1, 2)

    return sdpa


def _flex(shape: Shape) -> Callable[..., torch.Tensor]:
    torch._dynamo.reset()  # it stops compiling a function after eight shapes
    documents = shape.documents.cuda()

    def visible(b: Any, h: Any, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        seen = q >= k
        if shape.kind == "window":
            seen = seen & (q - k < WINDOW)
        if shape.kind == "packed":
            seen = seen & (documents[q] == documents[k])
        return seen

    mask = None
    if shape.kind != "full":
        mask = create_block_mask(visible, None, None, shape.length, shape.length, device="cuda")
    compiled = torch.compile(flex_attention, dynamic=False)

    def flex(*inputs: torch.Tensor) -> torch.Tensor:
        query, key, value = (x.transpose(1, 2) for x in inputs)
        gqa = shape.kind == "gqa"
        out: torch.Tensor = compiled(query, key, value, block_mask=mask, enable_gqa=gqa)
        return out.transpose(1, 2)

    return flex
