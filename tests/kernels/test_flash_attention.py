"""The Triton kernels in the interpreter, on the CPU; tests/gpu has the larger half.

fp32 and fp16 only: the interpreter's bf16 products are wrong.
"""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from lmpipe.errors import ConfigError
from lmpipe.kernels.flash_attention import attention_reference, flash_attention
from tests.kernels.interpreted_attention import Case, make_documents, make_inputs, within_tolerance

CASES = {
    "one key": Case(num_queries=1, num_keys=1),
    "two rows": Case(num_queries=2, num_keys=2, causal=False),
    "three rows in fp16": Case(num_queries=3, num_keys=3, dtype="float16"),
    "one row more than a tile": Case(num_queries=65, num_keys=65, dtype="float16", heads=1),
    "one row less than two tiles": Case(num_queries=127, num_keys=127, dtype="float16", heads=1),
    "whole tiles": Case(num_queries=128, num_keys=128, dtype="float16", heads=1, head_size=32),
    "full, ragged": Case(num_queries=70, num_keys=70, causal=False),
    "grouped heads": Case(num_queries=40, num_keys=40, heads=6, groups=2),
    "grouped heads, full": Case(num_queries=40, num_keys=40, heads=4, groups=1, causal=False),
    "head size that is no power of two": Case(head_size=40),
    "head size under the least tile": Case(head_size=8),
    "large head in fp16": Case(head_size=256, dtype="float16", heads=1),
    "more keys than queries": Case(num_queries=5, num_keys=67),
    "more keys than queries, full": Case(num_queries=5, num_keys=67, causal=False),
    "queries that see nothing": Case(num_queries=67, num_keys=5),
    "documents in order": Case(num_queries=90, num_keys=90, documents="sorted", groups=2),
    "documents in any order": Case(num_queries=50, num_keys=50, documents="scattered"),
    "documents, full, fp16": Case(documents="scattered", causal=False, dtype="float16"),
    "heads before tokens in memory": Case(layout="transposed", groups=2),
    "features apart in memory": Case(layout="strided"),
}


@pytest.fixture(scope="module")
def errors() -> dict[str, dict[str, list[float]]]:
    """Errors of all cases, computed in one process under TRITON_INTERPRET=1."""
    root = Path(__file__).parents[2]
    worker = Path(__file__).with_name("interpreted_attention.py")
    done = subprocess.run(
        [sys.executable, str(worker)],
        input=json.dumps([asdict(case) for case in CASES.values()]),
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(CASES, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_kernels_agree_with_float64_as_well_as_plain_torch_does(
    name: str, errors: dict[str, dict[str, list[float]]]
) -> None:
    assert within_tolerance(errors[name], CASES[name].dtype), errors[name]


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.dtype == "float32"])
def test_the_torch_backend_agrees_with_the_formula(name: str) -> None:
    case = CASES[name]
    inputs, document_BT = make_inputs(case), make_documents(case)
    arguments = {"causal": case.causal, "document_BT": document_BT}
    expected = attention_reference(*(x.double() for x in inputs[:3]), **arguments)
    got = flash_attention(*inputs[:3], **arguments, backend="reference")
    torch.testing.assert_close(got.double(), expected, rtol=0, atol=2e-6)


def test_a_query_that_sees_nothing_gives_zero_and_no_nan() -> None:
    query_BTHK = torch.randn(1, 4, 1, 16, requires_grad=True)
    key_BSGK = torch.randn(1, 2, 1, 16)
    for attend in (
        attention_reference,
        lambda *a, **k: flash_attention(*a, **k, backend="reference"),
    ):
        out_BTHK = attend(query_BTHK, key_BSGK, key_BSGK, causal=True)
        assert (out_BTHK[:, :2] == 0).all() and (out_BTHK[:, 2:] != 0).all()
        (grad_BTHK,) = torch.autograd.grad(out_BTHK.sum(), query_BTHK)
        assert grad_BTHK.isfinite().all() and (grad_BTHK[:, :2] == 0).all()


def test_compiles_without_a_graph_break_and_with_known_shapes() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        query_BTHK = torch.empty(2, 40, 6, 32, dtype=torch.bfloat16)
        key_BSGK = torch.empty(2, 40, 2, 32, dtype=torch.bfloat16)
        out_BTHK, lse_BHT = torch.ops.lmpipe.flash_attention(
            query_BTHK, key_BSGK, key_BSGK, None, True
        )
        grads = torch.ops.lmpipe.flash_attention_backward(
            out_BTHK, query_BTHK, key_BSGK, key_BSGK, out_BTHK, lse_BHT, None, True
        )
    assert (out_BTHK.shape, out_BTHK.dtype) == (query_BTHK.shape, torch.bfloat16)
    assert (lse_BHT.shape, lse_BHT.dtype) == ((2, 6, 40), torch.float32)
    assert [g.shape for g in grads] == [query_BTHK.shape, key_BSGK.shape, key_BSGK.shape]


def test_asking_for_triton_without_a_gpu_raises() -> None:
    x_BTHK = torch.zeros(1, 4, 2, 16)
    with pytest.raises(ConfigError, match="needs CUDA tensors, got cpu"):
        flash_attention(x_BTHK, x_BTHK, x_BTHK, causal=True, backend="triton")


def test_refuses_inputs_that_do_not_fit() -> None:
    x_BTHK = torch.zeros(1, 4, 2, 16)

    def refused(query: torch.Tensor, key: torch.Tensor, **arguments: object) -> str:
        with pytest.raises(ConfigError) as caught:
            flash_attention(query, key, key, **{"causal": True, "backend": "reference"} | arguments)  # type: ignore[arg-type]
        return str(caught.value)

    assert "multiple of the key heads" in refused(x_BTHK, torch.zeros(1, 4, 3, 16))
    assert "agree in batch and head size" in refused(x_BTHK, torch.zeros(1, 4, 2, 8))
    assert "share a dtype" in refused(x_BTHK, x_BTHK.half())
    assert "(B, T, H, K)" in refused(x_BTHK[0], x_BTHK[0])
    assert "T == S" in refused(x_BTHK, x_BTHK, document_BT=torch.zeros(1, 5, dtype=torch.long))
    assert "backend must be" in refused(x_BTHK, x_BTHK, backend="cudnn")
