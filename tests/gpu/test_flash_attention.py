"""The attention kernels on a real device: accuracy in every corner, and speed beside torch's own.

`lmpipe bench flash_attention` has the full table of speeds.
"""

from collections.abc import Iterator

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from lmpipe.kernels import flash_attention_launch
from lmpipe.kernels.flash_attention import (
    Pattern,
    attention_reference,
    document_bounds,
    flash_attention,
    flash_attention_with_lse,
)
from tests.kernels.attention_cases import Case, errors, failures, pairwise

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def nothing_cached() -> Iterator[None]:
    """Give memory back: twelve workers share the card, and some training tests want 50 GiB."""
    yield
    torch.cuda.empty_cache()


# 16-bit cases in pairs; fp32 apart, whose kernels are unrolled whole and slow to compile.
CASES = [
    *pairwise(
        {
            "head_size": [32, 64, 80, 96, 128, 192, 256],
            "lengths": [*((n, n) for n in (1, 2, 3, 127, 129, 1023)), (5, 300), (300, 5)],
            "heads": [(2, 2), (4, 2), (4, 1)],
            "dtype": ["bfloat16", "float16"],
            "causal": [True, False],
            "window": [None, 1, 100],
            "softcap": [None, 20.0],
            "documents": [0, 4],
            "layout": ["contiguous", "transposed", "strided", "expanded"],
            "values": ["normal", "scaled", "offset"],
            "gluon": [True, False],
        }
    ),
    *pairwise(
        {
            "head_size": [40, 128],
            "lengths": [(2, 2), (129, 129), (5, 70), (70, 5)],
            "heads": [(4, 2)],
            "dtype": ["float32"],
            "causal": [True, False],
            "window": [None, 20],
            "softcap": [None, 20.0],
            "documents": [0, 4],
            "values": ["normal", "scaled", "offset"],
        },
    ),
    # Whole tiles and many of them, as in training: both of Hopper's kernels, every direction.
    *(
        Case((length, length), (4, heads), size, "bfloat16", causal, window, None, documents)
        for length, size, heads, causal, window, documents in [
            (1024, 64, 4, True, None, 0),
            (1024, 128, 4, True, None, 0),
            (1024, 64, 1, False, None, 0),
            (1024, 128, 1, False, None, 0),
            (2048, 64, 2, True, 300, 0),
            (2048, 128, 2, True, 300, 0),
            (2048, 64, 2, True, None, 9),
            (2048, 128, 2, True, None, 9),
            (1500, 96, 2, False, 200, 9),
            (1500, 40, 2, False, 200, 9),
        ]
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_errs_at_most_2_and_3_times_as_much_as_plain_torch(case: Case) -> None:
    error = errors(case, "cuda", runs=2)
    assert not failures(error, case), error


def random_inputs(
    length: int = 300, heads: tuple[int, ...] = (4, 2, 2), size: int = 64, batch: int = 2
) -> list[torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(0)
    return [
        torch.randn(batch, length, h, size, generator=generator, device="cuda")
        .bfloat16()
        .requires_grad_()
        for h in heads
    ]


def test_large_scores_neither_overflow_nor_lose_the_winner() -> None:
    query, key, value = random_inputs()
    leaves = [(x.detach() * scale).requires_grad_() for x, scale in ((query, 30), (key, 30))]
    out = flash_attention(*leaves, value, Pattern(), backend="triton")
    exact, _ = attention_reference(*(x.double() for x in (*leaves, value)), Pattern())
    assert (out.double() - exact).abs().max() < 0.03
    assert all(g.isfinite().all() for g in torch.autograd.grad(out.float().square().sum(), leaves))


@pytest.mark.parametrize(("queries", "keys"), [(0, 0), (0, 5), (5, 0)])
def test_empty_sequences_give_empty_or_zero_results(queries: int, keys: int) -> None:
    shapes = [(2, n, 2, 64) for n in (queries, keys, keys)]
    leaves = [torch.randn(s, device="cuda").bfloat16().requires_grad_() for s in shapes]
    out = flash_attention(*leaves, Pattern(), backend="triton")
    assert out.shape == shapes[0] and not out.any()
    assert not any(g.any() for g in torch.autograd.grad(out.sum(), leaves))


def test_the_gradient_of_the_log_sum_exp_is_exact_too() -> None:
    leaves = random_inputs()
    doubles = [x.detach().double().requires_grad_() for x in leaves]
    for attend, inputs in (
        (lambda *x: flash_attention_with_lse(*x, Pattern(), backend="triton"), leaves),
        (lambda *x: attention_reference(*x, Pattern()), doubles),
    ):
        out, lse = attend(*inputs)
        (out.float().square().sum() + (3 * lse).sin().sum()).backward()
    for x, y in zip(leaves, doubles, strict=True):
        assert (x.grad.double() - y.grad).norm() < 0.01 * y.grad.norm()


def test_torch_accepts_the_operator_and_compiles_through_it() -> None:
    torch.library.opcheck(
        torch.ops.lmpipe.flash_attention,
        (*random_inputs(100), None, True, 0, 0.0),
        test_utils=("test_schema", "test_faketensor", "test_autograd_registration"),
    )
    document_BT = (torch.arange(300, device="cuda") // 77).expand(2, -1)

    def loss(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        bounds = document_bounds(document_BT)
        out = flash_attention(q * 2, k, v, Pattern(window=50), bounds, backend="triton")
        return out.float().square().sum()

    eager, compiled = random_inputs(), random_inputs()
    expected = loss(*eager)
    got = torch.compile(loss, fullgraph=True)(*compiled)
    torch.testing.assert_close(got, expected)
    for a, b in zip(
        torch.autograd.grad(expected, eager), torch.autograd.grad(got, compiled), strict=True
    ):
        torch.testing.assert_close(a, b)


def test_activation_checkpointing_changes_no_bit() -> None:
    def attend(*leaves: torch.Tensor) -> torch.Tensor:
        return flash_attention(*leaves, Pattern(), backend="triton").sin()

    plain, recomputed = random_inputs(), random_inputs()
    attend(*plain).sum().backward()
    checkpoint(attend, *recomputed, use_reentrant=False).sum().backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain, recomputed, strict=True))


def test_takes_more_elements_than_an_int32_counts() -> None:
    batch, length = 9, 2**17  # 9 * 2^17 * 16 * 128 = 2.4e9 elements, 4.8 GB a tensor
    query = torch.randn(batch, 64, 16, 128, device="cuda", dtype=torch.bfloat16)
    key = torch.randn(batch, length, 16, 128, device="cuda", dtype=torch.bfloat16)
    last, _ = attention_reference(*(x[-1:].float() for x in (query, key, key)), Pattern())
    for kernels in ((), flash_attention_launch.HOPPER_KERNELS):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(flash_attention_launch, "HOPPER_KERNELS", kernels)
            out = flash_attention(query, key, key, Pattern(), backend="triton")
        assert (out[-1:].float() - last).abs().max() < 0.02


@pytest.mark.parametrize("head_size", [64, 128])
def test_is_no_slower_than_torchs_flash_attention(head_size: int) -> None:
    from lmpipe.bench._flash_attention_timing import Shape, measure

    shape = Shape(length=4096, head_size=head_size)
    ours, theirs = measure("lmpipe", shape), measure("flash", shape)
    assert ours[0] > theirs[0] and ours[1] > theirs[1], (ours, theirs)


def test_more_rows_of_heads_than_a_grid_has_in_its_second_dimension() -> None:
    """CUDA ends at 65,535 there."""
    inputs = random_inputs(length=3, heads=(2, 1, 1), size=32, batch=70_000)
    out = flash_attention(*inputs, Pattern(), backend="triton")
    exact, _ = attention_reference(*(x[-5:].double() for x in inputs), Pattern())
    assert (out[-5:].double() - exact).abs().max() < 0.02
    grad_query, *_ = torch.autograd.grad(out.float().square().sum(), inputs)
    assert grad_query[-1].any()
