"""Initial weights, and muP's coordinate check: does a step move features as much at any width?"""

import hashlib
import math

import pytest
import torch
from torch.nn import functional

from lmpipe.model.config import ModelConfig
from lmpipe.model.decoder import Decoder
from lmpipe.model.initialisation import deviation, learning_rate_scale
from lmpipe.training.optimizer import OptimizerConfig, parameter_groups

WIDTHS = (64, 128, 256, 512)
STEPS = 4
HEAD = 16


def shape(width: int, *, mup: bool, tied: bool = False, head: int = HEAD) -> ModelConfig:
    fields = {"mup_base_width": 64, "attention_scale": "inverse", "attention_multiplier": 4.0}
    return ModelConfig(
        vocab_size=128,
        num_layers=2,
        d_model=width,
        num_heads=width // head,
        num_kv_heads=width // head,
        d_ff=2 * width,
        max_seq_len=32,
        tied_embeddings=tied,
        **(fields if mup else {}),
    )


def coordinates(config: ModelConfig, lr: float = 1e-2) -> dict[str, float]:
    """Mean absolute change of features by name after a few steps of Adam."""
    model = Decoder(config).initialise(0)
    settings = OptimizerConfig(learning_rate=lr, weight_decay=0.0)
    groups = parameter_groups(model.named_parameters(), settings, learning_rate_scale(config))
    optimizer = torch.optim.Adam(groups, betas=(0.9, 0.95))
    generator = torch.Generator().manual_seed(0)
    tokens_BT = torch.randint(0, 128, (8, 32), generator=generator)
    before = features(model, tokens_BT)
    for _ in range(STEPS):
        logits_BTV = model(tokens_BT)
        target_N = tokens_BT[:, 1:].flatten()
        loss = functional.cross_entropy(logits_BTV[:, :-1].flatten(0, 1), target_N)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    after = features(model, tokens_BT)
    return {name: float((after[name] - before[name]).abs().mean()) for name in before}


@torch.no_grad()
def features(model: Decoder, tokens_BT: torch.Tensor) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    hooks = [
        module.register_forward_hook(lambda _m, _i, out, name=name: found.update({name: out}))
        for name, module in model.named_modules()
        if name.endswith(("q_proj", "k_proj", "self_attn", "mlp", "layers.1"))
    ]
    logits_BTV = model(tokens_BT)[:, :-1]
    # Of the targets: the other logits move by noise alone, which fades with the width.
    found["logits"] = logits_BTV.gather(-1, tokens_BT[:, 1:, None])
    for hook in hooks:
        hook.remove()
    return found


def slopes(*, mup: bool, tied: bool, head: int | None = None) -> dict[str, float]:
    """Least-squares slope of log2(change) over log2(width), by feature."""
    rows = [
        coordinates(shape(width, mup=mup, tied=tied, head=head or width // 4)) for width in WIDTHS
    ]
    x = torch.log2(torch.tensor(WIDTHS, dtype=torch.float64))
    x = x - x.mean()
    found = {}
    for name in rows[0]:
        y = torch.log2(torch.tensor([row[name] for row in rows], dtype=torch.float64))
        found[name] = float((x * y).sum() / x.square().sum())
    return found


def test_the_default_models_initial_weights_are_those_of_ever() -> None:
    model = Decoder(ModelConfig(vocab_size=211, num_layers=3, tied_embeddings=False)).initialise(5)
    digest = hashlib.sha256()
    for name, weight in model.state_dict().items():
        digest.update(name.encode())
        digest.update(weight.numpy().tobytes())
    assert digest.hexdigest() == "6d25338793e6a32b2d5d35e70ee4090c819375067cb755a82f6153b55fdb63cc"


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("head", [HEAD, None], ids=["more heads", "larger heads"])
def test_under_mup_a_step_moves_every_feature_as_much_at_any_width(
    tied: bool, head: int | None
) -> None:
    found = slopes(mup=True, tied=tied, head=head)
    assert len(found) == 10
    assert max(abs(slope) for slope in found.values()) < 0.22, found


def test_in_standard_parametrisation_steps_move_features_more_the_wider_the_model() -> None:
    found = slopes(mup=False, tied=False, head=HEAD)
    assert found["model.layers.1"] > 0.7, found
    assert found["model.layers.0.mlp"] > 0.7, found
    assert found["logits"] > 0.22, found


def test_at_the_base_width_mup_is_the_standard_parametrisation() -> None:
    mup, standard = shape(64, mup=True), shape(64, mup=False)
    assert mup.score_factor == standard.score_factor == 1
    one, other = Decoder(mup).initialise(0), Decoder(standard).initialise(0)
    tokens_BT = torch.arange(32)[None]
    torch.testing.assert_close(one(tokens_BT), other(tokens_BT), rtol=0, atol=0)
    scale = learning_rate_scale(mup)
    assert scale is not None and {scale(name) for name, _ in one.named_parameters()} == {1.0}
    assert learning_rate_scale(standard) is None


def test_mup_slows_the_matrices_of_blocks_and_nothing_else() -> None:
    config = shape(256, mup=True)
    scale = learning_rate_scale(config)
    assert scale is not None
    for name, parameter in Decoder(config).named_parameters():
        in_block = "layers" in name and parameter.dim() == 2
        assert scale(name) == (0.25 if in_block else 1.0), name


def test_mup_draws_tables_alike_at_every_width() -> None:
    for width in WIDTHS:
        model = Decoder(shape(width, mup=True)).initialise(0).requires_grad_(False)
        assert model.model.embed_tokens.weight.std() * 8 == pytest.approx(0.98, abs=0.03)
        assert model.lm_head is not None
        assert model.lm_head.weight.std() * 8 == pytest.approx(0.98, abs=0.03)


def test_only_depth_scaled_weights_shrink_with_depth() -> None:
    name = "model.layers.0.mlp.down_proj.weight"
    for layers in (2, 8):
        scaled = ModelConfig(num_layers=layers)
        plain = ModelConfig(num_layers=layers, initialisation="fan_in")
        assert deviation(name, 512, plain) == 1 / math.sqrt(512)
        assert deviation(name, 512, scaled) == 1 / math.sqrt(512) / math.sqrt(2 * layers)
        other = name.replace("down", "up")
        assert deviation(other, 192, plain) == deviation(other, 192, scaled) == 1 / math.sqrt(192)
