"""The decoder on a GPU: Triton attention, compilation and the cache, against plain torch."""

from typing import Any

import pytest
import torch
from torch.nn import functional

from lmpipe.inference.generate import generate
from lmpipe.model.config import ModelConfig
from lmpipe.model.decoder import Attention, Decoder

pytestmark = pytest.mark.gpu

CONFIG = ModelConfig(
    vocab_size=1000, num_layers=4, d_model=256, num_heads=4, num_kv_heads=2, max_seq_len=512
)
TOKENS_BT = torch.randint(0, 1000, (2, 300), generator=torch.Generator().manual_seed(0))
DOCUMENT_BT = (torch.arange(300) // 77).expand(2, -1)


def build(attention: Attention, dtype: torch.dtype = torch.float32) -> Decoder:
    return Decoder(CONFIG, attention).initialise(0).to("cuda", dtype)


def loss_and_gradients(model, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    tokens_BT, document_BT = TOKENS_BT.cuda(), DOCUMENT_BT.cuda()
    logits_BTV = model(tokens_BT, document_BT=document_BT).float()
    loss = functional.cross_entropy(logits_BTV[:, :-1].flatten(0, 1), tokens_BT[:, 1:].flatten())
    return [loss, *torch.autograd.grad(loss, list(model.parameters()))]


def test_triton_and_torch_attention_train_alike_in_fp32() -> None:
    ours, torchs = loss_and_gradients(build("triton")), loss_and_gradients(build("reference"))
    for a, b in zip(ours, torchs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"window": 40, "window_pattern": "SSSL"},
        {"attention_softcap": 5.0, "logit_softcap": 5.0, "norm_position": "both"},
        {"qk_norm": True, "nope_every": 4, "feed_forward": "relu2", "norm": "layer"},
        {"mup_base_width": 64, "attention_scale": "inverse", "positions": "learned"},
    ],
)
def test_options_train_alike_through_triton_and_torch_attention(options: dict[str, Any]) -> None:
    config = ModelConfig(**{**CONFIG.model_dump(), **options})

    def found(attention: Attention) -> list[torch.Tensor]:
        return loss_and_gradients(Decoder(config, attention).initialise(0).to("cuda"))

    for a, b in zip(found("triton"), found("reference"), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_triton_attention_in_bf16_is_as_near_to_fp32_as_torchs() -> None:
    exact = loss_and_gradients(build("reference"))

    def distance(attention: Attention) -> float:
        low = loss_and_gradients(build(attention, torch.bfloat16))
        return max(
            float((a.detach().float() - b.detach()).norm() / b.detach().norm())
            for a, b in zip(low, exact, strict=True)
        )

    assert distance("triton") < 1.5 * distance("reference")


def test_initial_weights_are_those_of_the_cpu() -> None:
    with torch.device("meta"):
        model = Decoder(CONFIG)
    on_gpu = model.to_empty(device="cuda").initialise(0).state_dict()
    on_cpu = Decoder(CONFIG).initialise(0).state_dict()
    assert all(torch.equal(on_gpu[name].cpu(), on_cpu[name]) for name in on_cpu)


def test_compiles_whole_with_triton_attention() -> None:
    model = build("triton")
    compiled = torch.compile(model, fullgraph=True)
    for a, b in zip(loss_and_gradients(compiled), loss_and_gradients(model), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_generates_with_a_cache_what_it_computes_without() -> None:
    model = build("auto")
    prompts = [TOKENS_BT[0, :length].tolist() for length in (1, 17, 200)]
    for row in generate(model, prompts, max_new_tokens=20, temperature=0):
        prompt = prompts[row.prompt]
        with torch.no_grad():
            logits_TV = model(torch.tensor([prompt + row.tokens]).cuda())[0, len(prompt) - 1 : -1]
        logprob_T = logits_TV.log_softmax(-1).max(-1).values
        assert row.logprobs == pytest.approx(logprob_T.tolist(), abs=1e-3)
