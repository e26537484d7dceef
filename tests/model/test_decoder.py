import math

import pytest
import torch
from torch.nn import functional

from lmpipe.errors import ConfigError
from lmpipe.model.config import ModelConfig
from lmpipe.model.decoder import Decoder, RMSNorm
from lmpipe.model.positions import rope, rotate

SMALL = ModelConfig(
    vocab_size=97, num_layers=2, d_model=48, num_heads=6, num_kv_heads=2, d_ff=64, max_seq_len=64
)
HEAD_OF_32 = ModelConfig(d_model=64, num_heads=2, num_kv_heads=2)
TOKENS_BT = torch.randint(0, 97, (2, 24), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model() -> Decoder:
    return Decoder(SMALL).initialise(0)


def test_no_logit_depends_on_a_later_token(model: Decoder) -> None:
    changed_BT = TOKENS_BT.clone()
    changed_BT[:, 10:] = (changed_BT[:, 10:] + 1) % 97
    before, after = model(TOKENS_BT), model(changed_BT)
    torch.testing.assert_close(before[:, :10], after[:, :10], rtol=0, atol=1e-6)
    assert (before[:, 10:] - after[:, 10:]).abs().max() > 1e-2


def test_packed_documents_read_as_if_alone(model: Decoder) -> None:
    document_BT = torch.tensor([[0] * 9 + [1] * 15, [5] * 20 + [2] * 4])
    packed_BTV = model(TOKENS_BT, document_BT=document_BT)
    for row, cut in ((0, 9), (1, 20)):
        first, second = TOKENS_BT[row : row + 1, :cut], TOKENS_BT[row : row + 1, cut:]
        alone_TV = torch.cat([model(first), model(second)], dim=1)[0]
        torch.testing.assert_close(packed_BTV[row], alone_TV, rtol=0, atol=1e-5)
    assert (packed_BTV - model(TOKENS_BT)).abs().max() > 1e-2  # the mask is what did it


def test_loss_of_packed_documents_is_the_sum_of_their_losses(model: Decoder) -> None:
    def loss(tokens: torch.Tensor, document: torch.Tensor | None = None) -> torch.Tensor:
        logits_TV = model(tokens, document_BT=document)[0, :-1]
        target_T = tokens[0, 1:].clone()
        if document is not None:
            target_T[document[0, 1:] != document[0, :-1]] = -100
        return functional.cross_entropy(logits_TV, target_T, reduction="sum")

    row_BT, document_BT = TOKENS_BT[:1], torch.tensor([[0] * 11 + [1] * 13])
    apart = loss(row_BT[:, :11]) + loss(row_BT[:, 11:])
    torch.testing.assert_close(loss(row_BT, document_BT), apart, rtol=1e-5, atol=0)
    assert abs(loss(row_BT) - apart) > 1


def test_attention_scores_depend_on_distance_alone() -> None:
    query_11K, key_11K = torch.randn(2, 1, 1, 1, 32, generator=torch.Generator().manual_seed(0))

    def score(query_position: int, key_position: int) -> float:
        at = [
            rope(torch.tensor([[p]]), HEAD_OF_32, torch.float32)
            for p in (query_position, key_position)
        ]
        return float((rotate(query_11K, at[0]) * rotate(key_11K, at[1])).sum())

    assert score(5, 2) == pytest.approx(score(1005, 1002), abs=1e-4)
    assert score(5, 2) != pytest.approx(score(5, 3), abs=1e-2)


def test_positions_far_out_stay_apart_in_bf16() -> None:
    cos, sin = rope(torch.tensor([[4096, 4097]]), HEAD_OF_32, torch.bfloat16)
    assert (cos[0, 0] - cos[0, 1]).abs().max() > 0.1
    assert cos.dtype == sin.dtype == torch.bfloat16


def test_rms_norm_takes_the_mean_square_in_fp32() -> None:
    norm = RMSNorm(256, 1e-5)
    x = torch.randn(4, 256, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 300
    expected = x / x.pow(2).mean(-1, keepdim=True).sqrt()
    low = norm.bfloat16()(x.bfloat16()).double()
    assert (low - expected).abs().max() < 2**-7 * expected.abs().max()
    half = norm.half()(x.half()).double()  # 300 squared overflows fp16
    assert (half - expected).abs().max() < 2**-9 * expected.abs().max()


def test_initial_weights_depend_on_seed_and_name_alone() -> None:
    one = Decoder(SMALL).initialise(3).state_dict()
    torch.manual_seed(99)
    with torch.device("meta"):
        model = Decoder(SMALL)
    other = model.to_empty(device="cpu").initialise(3).state_dict()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    deeper = Decoder(SMALL.model_copy(update={"num_layers": 3})).initialise(3).state_dict()
    name = "model.layers.1.self_attn.q_proj.weight"
    assert torch.equal(one[name], deeper[name])
    assert not torch.equal(one[name], Decoder(SMALL).initialise(4).state_dict()[name])


def test_bf16_weights_start_as_the_rounded_fp32_ones() -> None:
    full = Decoder(SMALL).initialise(0).state_dict()
    low = Decoder(SMALL).bfloat16().initialise(0).state_dict()
    assert all(torch.equal(full[name].bfloat16(), low[name]) for name in full)


def test_initial_matrices_are_cut_normals_of_deviation_one_over_root_fan_in(model: Decoder) -> None:
    weights = model.state_dict()
    gate = weights["model.layers.0.mlp.gate_proj.weight"]
    assert gate.std() * math.sqrt(48) == pytest.approx(0.98, abs=0.03)  # 3 deviations cut: 0.987
    assert gate.abs().max() * math.sqrt(48) <= 3
    down = weights["model.layers.0.mlp.down_proj.weight"]
    assert down.std() * math.sqrt(64 * 2 * 2) == pytest.approx(0.98, abs=0.03)


def test_starts_near_the_loss_of_a_uniform_guess(model: Decoder) -> None:
    loss = functional.cross_entropy(
        model(TOKENS_BT)[:, :-1].flatten(0, 1), TOKENS_BT[:, 1:].flatten()
    )
    assert loss.item() == pytest.approx(math.log(97), abs=0.7)


def test_learns_to_copy_within_a_hundred_steps() -> None:
    config = SMALL.model_copy(update={"vocab_size": 16})
    model = Decoder(config).initialise(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(150):
        half_BT = torch.randint(0, 16, (32, 8), generator=generator)
        tokens_BT = torch.cat([half_BT, half_BT], dim=1)
        logits_BTV = model(tokens_BT)[:, 8:-1]  # the second half is known from the first
        loss = functional.cross_entropy(logits_BTV.flatten(0, 1), tokens_BT[:, 9:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.5 < math.log(16)


def test_compiles_whole_and_once_for_any_content(model: Decoder) -> None:
    document_BT = (torch.arange(24) >= 7).long().expand(2, -1)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for shift in range(2):
        tokens = (TOKENS_BT + shift) % 97
        expected, got = (
            model(tokens, document_BT=document_BT),
            compiled(tokens, document_BT=document_BT),
        )
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)
    got.square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_refuses_what_it_cannot_build() -> None:
    with pytest.raises(ConfigError, match="with_vocab"):
        Decoder(ModelConfig())
    with pytest.raises(ConfigError, match="auto, triton or reference"):
        Decoder(SMALL, attention="flash")  # type: ignore[arg-type]


def test_asking_for_triton_on_the_cpu_raises_instead_of_falling_back() -> None:
    with pytest.raises(ConfigError, match="needs CUDA tensors"):
        Decoder(SMALL, attention="triton").initialise(0)(TOKENS_BT)
