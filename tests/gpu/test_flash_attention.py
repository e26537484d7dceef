"""The Triton kernels on a real device: accuracy in every corner, and speed beside torch's own.

Run with `pytest tests/gpu/test_flash_attention.py -s`; the throughput lines go to LOG.md.
"""

import itertools

import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from lmpipe.kernels.flash_attention import attention_reference, flash_attention
from tests.kernels.interpreted_attention import Case, errors, within_tolerance

pytestmark = pytest.mark.gpu


def assert_accurate(case: Case, batch: int = 2) -> None:
    """Hold a case to 2 (out) and 3 (gradients) times plain torch's error against float64."""
    error = errors(case, "cuda", batch)
    assert within_tolerance(error, case.dtype), error


@pytest.mark.parametrize("length", [1, 2, 3, 63, 64, 65, 127, 128, 129, 500, 1023])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_accurate_at_ragged_lengths(length: int, causal: bool, dtype: str) -> None:
    assert_accurate(Case(length, length, 4, 2, 64, dtype, causal))


@pytest.mark.parametrize(
    ("dtype", "head_size"),
    [("bfloat16", size) for size in (8, 16, 24, 32, 40, 64, 80, 96, 128, 160, 192, 256)]
    + [("float16", size) for size in (64, 128, 256)]
    + [("float32", size) for size in (16, 40, 64, 128, 256)],
)
def test_accurate_at_every_head_size(head_size: int, dtype: str) -> None:
    assert_accurate(Case(200, 200, 4, 4, head_size, dtype))
    assert_accurate(Case(200, 200, 4, 1, head_size, dtype, causal=False))


@pytest.mark.parametrize(("queries", "keys"), [(1, 77), (5, 300), (300, 5), (129, 128), (64, 257)])
@pytest.mark.parametrize("causal", [True, False])
def test_accurate_with_unequal_lengths_and_rows_that_see_nothing(
    queries: int, keys: int, causal: bool
) -> None:
    assert_accurate(Case(queries, keys, 4, 2, 128, "bfloat16", causal))


@pytest.mark.parametrize("groups", [1, 2, 4, 8])
def test_accurate_with_shared_key_heads(groups: int) -> None:
    assert_accurate(Case(300, 300, 8, groups, 64, "bfloat16"))


@pytest.mark.parametrize("documents", ["sorted", "scattered"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [3, 129, 1023])
def test_accurate_within_documents(documents: str, causal: bool, length: int) -> None:
    assert_accurate(Case(length, length, 4, 2, 128, "bfloat16", causal, documents))


@pytest.mark.parametrize("layout", ["transposed", "strided"])
def test_accurate_for_any_memory_layout(layout: str) -> None:
    assert_accurate(Case(257, 257, 4, 2, 64, "bfloat16", layout=layout))


def test_large_scores_neither_overflow_nor_lose_the_winner() -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    query, key, value = (
        (torch.randn(1, 300, 2, 64, generator=generator, device="cuda") * scale).bfloat16()
        for scale in (30, 30, 1)
    )
    leaves = [x.requires_grad_() for x in (query, key, value)]
    out = flash_attention(*leaves, causal=True, backend="triton")
    exact = attention_reference(*(x.double() for x in leaves), causal=True)
    assert (out.double() - exact).abs().max() < 0.03
    assert all(g.isfinite().all() for g in torch.autograd.grad(out.float().square().sum(), leaves))


def test_the_same_bits_twice() -> None:
    def run() -> list[torch.Tensor]:
        generator = torch.Generator("cuda").manual_seed(0)
        q, k, v = (
            torch.randn(2, 777, heads, 128, generator=generator, device="cuda")
            .bfloat16()
            .requires_grad_()
            for heads in (8, 2, 2)
        )
        out = flash_attention(q, k, v, causal=True, backend="triton")
        return [out, *torch.autograd.grad(out.float().square().sum(), (q, k, v))]

    assert all(torch.equal(a, b) for a, b in zip(run(), run(), strict=True))


def test_torch_accepts_the_operator_and_compiles_through_it() -> None:
    def inputs() -> list[torch.Tensor]:
        generator = torch.Generator("cuda").manual_seed(0)
        return [
            torch.randn(2, 100, heads, 64, generator=generator, device="cuda")
            .half()
            .requires_grad_()
            for heads in (4, 2, 2)
        ]

    torch.library.opcheck(
        torch.ops.lmpipe.flash_attention,
        (*inputs(), None, True),
        test_utils=("test_schema", "test_faketensor", "test_autograd_registration"),
    )

    def loss(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return flash_attention(q * 2, k, v, causal=True, backend="triton").float().square().sum()

    eager, compiled = inputs(), inputs()
    expected = loss(*eager)
    got = torch.compile(loss, fullgraph=True)(*compiled)
    torch.testing.assert_close(got, expected)
    for a, b in zip(
        torch.autograd.grad(expected, eager), torch.autograd.grad(got, compiled), strict=True
    ):
        torch.testing.assert_close(a, b)


def test_takes_more_elements_than_an_int32_counts() -> None:
    batch, length = 9, 2**17  # 9 * 2^17 * 16 * 128 = 2.4e9 elements, 4.8 GB a tensor
    query = torch.randn(batch, 64, 16, 128, device="cuda", dtype=torch.bfloat16)
    key = torch.randn(batch, length, 16, 128, device="cuda", dtype=torch.bfloat16)
    out = flash_attention(query, key, key, causal=True, backend="triton")
    last = attention_reference(query[-1:].float(), key[-1:].float(), key[-1:].float(), causal=True)
    assert (out[-1:].float() - last).abs().max() < 0.02


def seconds(run, repeats: int = 20) -> float:
    """Median device time of `run`, each call between two events, after a warm-up."""
    for _ in range(5):
        run()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for begin, end in events:
        begin.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return sorted(begin.elapsed_time(end) for begin, end in events)[repeats // 2] / 1e3


def throughput(attend, inputs, grad_out, flops: float) -> tuple[float, float]:
    """TFLOP/s of forward and of backward alone (2.5 times the forward's FLOPs)."""
    with torch.no_grad():
        forward = seconds(lambda: attend(*inputs))
    out = attend(*inputs)
    backward = seconds(lambda: torch.autograd.grad(out, inputs, grad_out, retain_graph=True))
    return flops / forward / 1e12, 2.5 * flops / backward / 1e12


def test_prints_throughput_beside_torch_and_is_no_slower_than_its_flash_attention(capsys) -> None:
    tokens, width, slower = 16_384, 2048, []
    for head_size, length in itertools.product((64, 128), (2048, 8192)):
        shape = (tokens // length, length, width // head_size, head_size)
        flops = 4 * tokens * width * length / 2

        def sdpa(query, key, value):
            heads_first = (x.transpose(1, 2) for x in (query, key, value))
            return functional.scaled_dot_product_attention(*heads_first, is_causal=True).transpose(
                1, 2
            )

        def ours(query, key, value):
            return flash_attention(query, key, value, causal=True, backend="triton")

        generator = torch.Generator("cuda").manual_seed(0)
        query, key, value, grad_out = (
            torch.randn(shape, generator=generator, device="cuda").bfloat16() for _ in range(4)
        )
        inputs = [x.requires_grad_() for x in (query, key, value)]
        rates = {"lmpipe": throughput(ours, inputs, grad_out, flops)}
        for name, backend in (
            ("flash", SDPBackend.FLASH_ATTENTION),
            ("cudnn", SDPBackend.CUDNN_ATTENTION),
        ):
            with sdpa_kernel(backend):
                rates[name] = throughput(sdpa, inputs, grad_out, flops)
        line = "  ".join(f"{name} {fwd:.0f}/{bwd:.0f}" for name, (fwd, bwd) in rates.items())
        with capsys.disabled():
            print(f"\nattention bf16 causal K={head_size} S={length} fwd/bwd TFLOP/s: {line}")
        if any(o < 0.95 * f for o, f in zip(rates["lmpipe"], rates["flash"], strict=True)):
            slower.append(line)
    assert not slower
