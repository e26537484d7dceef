"""The Triton kernels in the interpreter, on the CPU; tests/gpu has the larger half.

fp32 and fp16 only: the interpreter's bf16 products are wrong.
"""

import itertools
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from lmpipe.errors import ConfigError
from lmpipe.kernels.flash_attention import (
    Pattern,
    attention_reference,
    document_bounds,
    flash_attention,
    flash_attention_with_lse,
)
from lmpipe.kernels.flash_attention_settings import tile
from tests.kernels.attention_cases import Case, failures, make_bounds, make_inputs, pairwise

CASES = [
    *pairwise(
        {
            "lengths": [(1, 1), (2, 2), (3, 3), (40, 40), (5, 40), (40, 5)],
            "heads": [(1, 1), (2, 1)],
            "head_size": [8, 16, 24],
            "dtype": ["float32", "float16"],
            "causal": [True, False],
            "window": [None, 1, 20],
            "softcap": [None, 2.0],
            "documents": [0, 3],
            "layout": ["contiguous", "transposed", "strided", "expanded"],
            "values": ["normal", "scaled", "offset"],
        }
    ),
    Case((70, 70), dtype="float16", documents=2),  # several tiles of 64
    Case((128, 128), (1, 1), 32, "float16"),
]


@pytest.fixture(scope="module")
def errors() -> dict[Case, dict[str, Any]]:
    """Errors of all cases, computed in one process under TRITON_INTERPRET=1."""
    root = Path(__file__).parents[2]
    worker = Path(__file__).with_name("attention_cases.py")
    done = subprocess.run(
        [sys.executable, str(worker)],
        input=json.dumps([asdict(case) for case in CASES]),
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(CASES, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernels_agree_with_float64_as_well_as_plain_torch_does(
    case: Case, errors: dict[Case, dict[str, Any]]
) -> None:
    assert not failures(errors[case], case)


def test_the_cases_cover_every_pair_of_features() -> None:
    cases = pairwise({"causal": [True, False], "documents": [0, 3], "lengths": [(3, 3), (5, 67)]})
    assert {(c.causal, c.documents) for c in cases} == {
        (a, b) for a in (True, False) for b in (0, 3)
    }
    assert {(c.lengths, c.documents) for c in cases} == {((3, 3), 0), ((3, 3), 3), ((5, 67), 0)}
    assert 20 <= len(CASES) <= 40


@pytest.mark.parametrize("case", [c for c in CASES if c.dtype == "float32"], ids=str)
def test_the_torch_backend_agrees_with_the_formula(case: Case) -> None:
    inputs, bounds = make_inputs(case)[:3], make_bounds(case)
    expected, lse = attention_reference(*(x.double() for x in inputs), case.pattern, bounds)
    got = flash_attention(*inputs, case.pattern, bounds, backend="reference")
    tolerance = 1e-4 if case.values == "scaled" else 1e-5  # scores to 50: fp32 keeps 6 digits
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=tolerance)
    same, got_lse = flash_attention_with_lse(*inputs, case.pattern, bounds, backend="reference")
    torch.testing.assert_close(same.double(), expected, rtol=1e-5, atol=tolerance)
    torch.testing.assert_close(got_lse.double(), lse, rtol=1e-5, atol=tolerance)


def test_documents_are_runs_of_equal_numbers() -> None:
    bounds = document_bounds(torch.tensor([[4, 4, 1, 4, 4, 4], [0, 0, 0, 0, 0, 0]]))
    assert bounds.dtype == torch.int32
    assert bounds[0].tolist() == [[0, 0, 2, 3, 3, 3], [0] * 6]
    assert bounds[1].tolist() == [[2, 2, 3, 6, 6, 6], [6] * 6]


def test_parts_attended_to_apart_merge_by_their_log_sum_exp() -> None:
    query, key, value = (torch.randn(1, 6, 2, 16, dtype=torch.float64) for _ in range(3))
    full = Pattern(causal=False)
    parts = [
        flash_attention_with_lse(query, key[:, s], value[:, s], full, backend="reference")
        for s in (slice(0, 4), slice(4, 6))
    ]
    weight_PBHT = torch.stack([lse for _, lse in parts]).softmax(0).double()
    merged = sum(w.mT[..., None] * out for w, (out, _) in zip(weight_PBHT, parts, strict=True))
    whole = flash_attention(query, key, value, full, backend="reference")
    torch.testing.assert_close(merged, whole, rtol=0, atol=1e-6)


def test_a_query_that_sees_nothing_gives_zero_and_no_nan() -> None:
    query_BTHK = torch.randn(1, 4, 1, 16, requires_grad=True)
    key_BSGK = torch.randn(1, 2, 1, 16)
    for attend in (flash_attention, lambda *a, **k: flash_attention_with_lse(*a, **k)[0]):
        out_BTHK = attend(query_BTHK, key_BSGK, key_BSGK, Pattern(), backend="reference")
        assert (out_BTHK[:, :2] == 0).all() and (out_BTHK[:, 2:] != 0).all()
        (grad_BTHK,) = torch.autograd.grad(out_BTHK.sum(), query_BTHK)
        assert grad_BTHK.isfinite().all() and (grad_BTHK[:, :2] == 0).all()


def test_compiles_without_a_graph_break_and_with_known_shapes() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        query_BTHK = torch.empty(2, 40, 6, 32, dtype=torch.bfloat16)
        key_BSGK = torch.empty(2, 40, 2, 32, dtype=torch.bfloat16)
        inputs, pattern = (query_BTHK, key_BSGK, key_BSGK), (True, 0, 0.0)
        out_BTHK, lse_BHT = torch.ops.lmpipe.flash_attention(*inputs, None, *pattern)
        grads = torch.ops.lmpipe.flash_attention_backward(
            out_BTHK, None, *inputs, out_BTHK, lse_BHT, None, *pattern
        )
    assert (out_BTHK.shape, out_BTHK.dtype) == (query_BTHK.shape, torch.bfloat16)
    assert (lse_BHT.shape, lse_BHT.dtype) == ((2, 6, 40), torch.float32)
    assert [g.shape for g in grads] == [query_BTHK.shape, key_BSGK.shape, key_BSGK.shape]


def test_asking_for_triton_without_a_gpu_raises() -> None:
    x_BTHK = torch.zeros(1, 4, 2, 16)
    with pytest.raises(ConfigError, match="needs CUDA tensors, got cpu"):
        flash_attention(x_BTHK, x_BTHK, x_BTHK, Pattern(), backend="triton")


def test_refuses_inputs_that_do_not_fit() -> None:
    x_BTHK = torch.zeros(1, 4, 2, 16)

    def refused(
        query: torch.Tensor,
        key: torch.Tensor,
        pattern: Pattern = Pattern(),  # noqa: B008 (immutable)
        bounds: torch.Tensor | None = None,
        backend: Any = "reference",
    ) -> str:
        with pytest.raises(ConfigError) as caught:
            flash_attention(query, key, key, pattern, bounds, backend=backend)
        return str(caught.value)

    assert "multiple of the key heads" in refused(x_BTHK, torch.zeros(1, 4, 3, 16))
    assert "agree in batch and head size" in refused(x_BTHK, torch.zeros(1, 4, 2, 8))
    assert "share a dtype" in refused(x_BTHK, x_BTHK.half())
    assert "(B, T, H, K)" in refused(x_BTHK[0], x_BTHK[0])
    other = document_bounds(torch.zeros(1, 5, dtype=torch.long))
    assert "T == S" in refused(x_BTHK, x_BTHK, bounds=other)
    assert "window must be at least 1" in refused(x_BTHK, x_BTHK, Pattern(window=0))
    assert "softcap must be above 0" in refused(x_BTHK, x_BTHK, Pattern(softcap=0.0))
    assert "backend must be" in refused(x_BTHK, x_BTHK, backend="cudnn")


@pytest.mark.parametrize("capability", [(8, 6), (9, 0)])
def test_every_head_size_has_a_tile_on_every_device(capability: tuple[int, int]) -> None:
    for direction, size, dtype in itertools.product(
        ("forward", "grad_key_value", "grad_query"),
        (16, 32, 64, 128, 256),
        (torch.bfloat16, torch.float32),
    ):
        for kernels in (("triton",), ("triton", "hopper", "hopper_small")):
            found = tile(
                direction,
                padded_head_size=size,
                length=1000,
                mask="packed",
                dtype=dtype,
                capability=capability,
                kernels=kernels,
            )
            assert found.queries >= 16 and found.keys >= 16 and found.kernel in kernels
