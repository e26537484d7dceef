"""Every option of the decoder against its formula, written out head by head and key by key."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from lmpipe.inference.kv_cache import KVCache
from lmpipe.model.config import ModelConfig
from lmpipe.model.decoder import Decoder

LENGTH = 24
BASE = {
    "vocab_size": 61,
    "num_layers": 3,
    "d_model": 48,
    "num_heads": 4,
    "num_kv_heads": 2,
    "d_ff": 64,
    "max_seq_len": 32,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "layer norm": {"norm": "layer"},
    "post-norm": {"norm_position": "post"},
    "norms on both sides": {"norm_position": "both"},
    "geglu": {"feed_forward": "geglu"},
    "gelu": {"feed_forward": "gelu"},
    "relu2": {"feed_forward": "relu2"},
    "mha": {"num_kv_heads": 4},
    "mqa": {"num_kv_heads": 1},
    "rope base": {"rope_base": 500.0},
    "linear": {"rope_scaling": "linear", "rope_scaling_factor": 2.0},
    "ntk": {"rope_scaling": "ntk", "rope_scaling_factor": 4.0},
    "yarn": {"rope_scaling": "yarn", "rope_scaling_factor": 2.0},
    "learned": {"positions": "learned"},
    "sinusoidal": {"positions": "sinusoidal"},
    "no positions": {"positions": "none"},
    "nope": {"nope_every": 2},
    "qk-norm": {"qk_norm": True},
    "attention soft-cap": {"attention_softcap": 0.5},
    "logit soft-cap": {"logit_softcap": 0.7},
    "window": {"window": 5, "window_pattern": "SSL"},
    "window, soft-cap": {"window": 5, "window_pattern": "SL", "attention_softcap": 0.5},
    "untied": {"tied_embeddings": False},
    "multipliers": {
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.4,
        "output_multiplier": 0.6,
        "attention_multiplier": 1.7,
    },
    "muP": {"mup_base_width": 16, "attention_scale": "inverse", "attention_multiplier": 3.0},
    "muP, untied, learned": {
        "mup_base_width": 16,
        "attention_scale": "inverse",
        "tied_embeddings": False,
        "positions": "learned",
    },
    "all at once": {
        "norm": "layer",
        "norm_position": "both",
        "feed_forward": "relu2",
        "rope_scaling": "yarn",
        "rope_scaling_factor": 2.0,
        "nope_every": 3,
        "qk_norm": True,
        "attention_softcap": 3.0,
        "logit_softcap": 5.0,
        "window": 4,
        "window_pattern": "SL",
        "tied_embeddings": False,
        "mup_base_width": 16,
        "attention_scale": "inverse",
        "attention_multiplier": 2.0,
        "residual_multiplier": 0.5,
    },
}
TOKENS_BT = torch.randint(0, 61, (2, LENGTH), generator=torch.Generator().manual_seed(0))
each_option = pytest.mark.parametrize("option", OPTIONS)


def build(option: str) -> Decoder:
    return build_config(ModelConfig(**{**BASE, **OPTIONS[option]}))


def build_config(config: ModelConfig) -> Decoder:
    """A model whose gains differ from 1, so that a norm left out or put elsewhere shows."""
    model = Decoder(config).initialise(0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5, generator=generator)
    return model


def formula_frequencies(config: ModelConfig) -> Tensor:
    """RoPE's turns per position, pair by pair, in Python's own numbers."""
    size, base, factor = config.head_size, config.rope_base, config.rope_scaling_factor
    trained = config.max_seq_len / factor
    found = []
    for pair in range(size // 2):
        if config.rope_scaling == "ntk":
            found.append((base * factor ** (size / (size - 2))) ** (-2 * pair / size))
            continue
        frequency = base ** (-2 * pair / size)
        if config.rope_scaling == "linear":
            frequency /= factor
        if config.rope_scaling == "yarn":
            ends = [
                size * math.log(trained / (2 * math.pi * turns)) / 2 / math.log(base)
                for turns in (32, 1)
            ]
            low, high = max(0, math.floor(ends[0])), min(size - 1, math.ceil(ends[1]))
            squeezed = min(1, max(0, (pair - low) / max(high - low, 1e-3)))
            frequency *= 1 - squeezed + squeezed / factor
        found.append(frequency)
    return torch.tensor(found)


def turned(x_TK: Tensor, config: ModelConfig) -> Tensor:
    """RoPE as a product of complex numbers."""
    angle_TK = torch.arange(len(x_TK))[:, None] * formula_frequencies(config)
    half = config.head_size // 2
    z_TK = torch.complex(x_TK[:, :half], x_TK[:, half:]) * torch.polar(
        torch.ones_like(angle_TK), angle_TK
    )
    if config.rope_scaling == "yarn":
        z_TK = z_TK * (0.1 * math.log(config.rope_scaling_factor) + 1)
    return torch.cat((z_TK.real, z_TK.imag), dim=-1)


def formula(model: Decoder, token_T: Tensor) -> Tensor:
    """The logits of one sequence, as the options' descriptions read."""
    c, weights = model.config, {n: p.detach() for n, p in model.named_parameters()}
    size, length = c.head_size, len(token_T)

    def norm(x: Tensor, name: str, kind: str = c.norm) -> Tensor:
        x = x - x.mean(-1, keepdim=True) if kind == "layer" else x
        return x / (x.square().mean(-1, keepdim=True) + c.norm_eps).sqrt() * weights[name]

    x_TD = weights["model.embed_tokens.weight"][token_T] * c.embedding_multiplier
    if c.positions == "learned":
        x_TD = x_TD + weights["model.embed_positions.weight"][:length]
    if c.positions == "sinusoidal":
        pairs = torch.arange(c.d_model // 2)
        angle = torch.arange(length)[:, None] / 10_000 ** (2 * pairs / c.d_model)
        x_TD = x_TD + torch.cat((angle.sin(), angle.cos()), -1) * math.sqrt(2 / c.d_model)
    for layer in range(c.num_layers):
        at = f"model.layers.{layer}."
        h_TD = x_TD
        if c.norm_position != "post":
            h_TD = norm(x_TD, at + "input_layernorm.weight")
        heads = []
        for head in range(c.num_heads):
            group = head // (c.num_heads // c.num_kv_heads)

            def part(name: str, number: int, at: str = at, h_TD: Tensor = h_TD) -> Tensor:
                rows = slice(number * size, (number + 1) * size)
                return h_TD @ weights[f"{at}self_attn.{name}_proj.weight"][rows].T

            query, key, value = part("q", head), part("k", group), part("v", group)
            if c.qk_norm:
                query = norm(query, at + "self_attn.q_norm.weight", "rms")
                key = norm(key, at + "self_attn.k_norm.weight", "rms")
            if c.positions == "rope" and not (c.nope_every and (layer + 1) % c.nope_every == 0):
                query, key = turned(query, c), turned(key, c)
            scale = size if c.attention_scale == "inverse" else math.sqrt(size)
            out = torch.zeros(length, size)
            for t in range(length):
                first = 0
                if c.window and c.window_pattern[layer % len(c.window_pattern)] == "S":
                    first = max(0, t + 1 - c.window)
                score_S = key[first : t + 1] @ query[t] * c.attention_multiplier / scale
                if c.attention_softcap:
                    score_S = c.attention_softcap * (score_S / c.attention_softcap).tanh()
                out[t] = score_S.softmax(0) @ value[first : t + 1]
            heads.append(out)
        mixed_TD = torch.cat(heads, -1) @ weights[at + "self_attn.o_proj.weight"].T
        if c.norm_position == "both":
            mixed_TD = norm(mixed_TD, at + "attention_output_layernorm.weight")
        x_TD = x_TD + c.residual_multiplier * mixed_TD
        if c.norm_position == "post":
            x_TD = norm(x_TD, at + "attention_output_layernorm.weight")
        h_TD = x_TD
        if c.norm_position != "post":
            h_TD = norm(x_TD, at + "post_attention_layernorm.weight")
        up = h_TD @ weights[at + "mlp.up_proj.weight"].T
        if c.feed_forward in ("swiglu", "geglu"):
            gate = h_TD @ weights[at + "mlp.gate_proj.weight"].T
            opened = gate / (1 + (-gate).exp()) if c.feed_forward == "swiglu" else gelu(gate)
            hidden = opened * up
        else:
            hidden = gelu(up) if c.feed_forward == "gelu" else up.clamp(min=0) ** 2
        fed_TD = hidden @ weights[at + "mlp.down_proj.weight"].T
        if c.norm_position == "both":
            fed_TD = norm(fed_TD, at + "mlp_output_layernorm.weight")
        x_TD = x_TD + c.residual_multiplier * fed_TD
        if c.norm_position == "post":
            x_TD = norm(x_TD, at + "mlp_output_layernorm.weight")
    if c.norm_position != "post":
        x_TD = norm(x_TD, "model.norm.weight")
    table = weights["model.embed_tokens.weight" if c.tied_embeddings else "lm_head.weight"]
    logits_TV = x_TD @ table.T * c.output_multiplier
    if c.mup_base_width:
        logits_TV = logits_TV * c.mup_base_width / c.d_model
    if c.logit_softcap:
        logits_TV = c.logit_softcap * (logits_TV / c.logit_softcap).tanh()
    return logits_TV


def gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + (math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)).tanh())


@torch.no_grad()
@each_option
def test_every_option_computes_its_formula(option: str) -> None:
    model = build(option)
    expected_BTV = torch.stack([formula(model, row) for row in TOKENS_BT])
    torch.testing.assert_close(model(TOKENS_BT), expected_BTV, rtol=1e-4, atol=2e-5)


ANY_OPTIONS = st.fixed_dictionaries(
    {
        "norm": st.sampled_from(["rms", "layer"]),
        "norm_position": st.sampled_from(["pre", "post", "both"]),
        "feed_forward": st.sampled_from(["swiglu", "geglu", "gelu", "relu2"]),
        "positions": st.sampled_from(["rope", "rope", "learned", "sinusoidal", "none"]),
        "num_kv_heads": st.sampled_from([1, 2, 4]),
        "nope_every": st.integers(0, 3),
        "qk_norm": st.booleans(),
        "attention_softcap": st.sampled_from([0.0, 0.5, 5.0]),
        "logit_softcap": st.sampled_from([0.0, 0.7]),
        "window": st.integers(0, 6),
        "window_pattern": st.sampled_from(["", "S", "SL", "LSS"]),
        "tied_embeddings": st.booleans(),
        "residual_multiplier": st.sampled_from([1.0, 0.5]),
        "attention_scale": st.sampled_from(["inverse_root", "inverse"]),
    }
)


@torch.no_grad()
@settings(max_examples=40, deadline=None, derandomize=True)
@given(ANY_OPTIONS)
def test_options_that_may_be_combined_compute_their_formula_cached_or_not(
    options: dict[str, Any],
) -> None:
    if options["positions"] != "rope":
        options["nope_every"] = 0
    if not options["window"] or not options["window_pattern"]:
        options |= {"window": 0, "window_pattern": ""}
    model = build_config(ModelConfig(**{**BASE, **options}))
    row_BT = TOKENS_BT[:1, :12]
    expected_BTV = formula(model, row_BT[0])[None]
    torch.testing.assert_close(model(row_BT), expected_BTV, rtol=1e-4, atol=5e-5)
    cache = KVCache(model.config, 1, 12)
    for start, end in ((0, 5), (5, 6), (6, 12)):
        cache.reserve(end - start)
        found_BTV = model(row_BT[:, start:end], cache=cache)
        cache.advance(end - start)
        part_BTV = expected_BTV[:, start:end]
        torch.testing.assert_close(found_BTV, part_BTV, rtol=1e-4, atol=5e-5)


@torch.no_grad()
def test_every_option_changes_the_logits() -> None:
    found: dict[str, Tensor] = {option: build(option)(TOKENS_BT) for option in OPTIONS}
    names = list(found)
    for i, one in enumerate(names):
        for other in names[:i]:
            assert (found[one] - found[other]).abs().max() > 1e-4, (one, other)


@torch.no_grad()
@each_option
def test_cached_decoding_equals_the_full_forward_pass(option: str) -> None:
    model = build(option)
    expected_BTV = model(TOKENS_BT)
    for chunks in ([LENGTH], [1] * LENGTH, [7, 1, 16]):
        cache = KVCache(model.config, 2, LENGTH)
        parts = []
        for tokens_BT in TOKENS_BT.split(chunks, dim=1):
            cache.reserve(tokens_BT.shape[1])
            parts.append(model(tokens_BT, cache=cache))
            cache.advance(tokens_BT.shape[1])
        torch.testing.assert_close(torch.cat(parts, dim=1), expected_BTV, rtol=0, atol=2e-5)


@torch.no_grad()
@each_option
def test_packed_documents_read_as_if_alone_under_every_option(option: str) -> None:
    model = build(option)
    document_BT = torch.tensor([[0] * 9 + [1] * 15, [5] * 20 + [2] * 4])
    packed_BTV = model(TOKENS_BT, document_BT=document_BT)
    for row, cut in ((0, 9), (1, 20)):
        first, second = TOKENS_BT[row : row + 1, :cut], TOKENS_BT[row : row + 1, cut:]
        alone_TV = torch.cat([model(first), model(second)], dim=1)[0]
        torch.testing.assert_close(packed_BTV[row], alone_TV, rtol=0, atol=2e-5)


@each_option
def test_gradients_reach_every_parameter(option: str) -> None:
    model = build(option)
    logits_BTV = model(TOKENS_BT)
    functional.cross_entropy(
        logits_BTV[:, :-1].flatten(0, 1), TOKENS_BT[:, 1:].flatten()
    ).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("option", ["all at once", "window, soft-cap", "ntk", "sinusoidal"])
def test_options_compile_whole(option: str) -> None:
    model = build(option)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(TOKENS_BT), model(TOKENS_BT), rtol=0, atol=2e-5)


def test_a_window_as_long_as_the_sequence_hides_nothing() -> None:
    full = build("default")
    fields = {"window": LENGTH, "window_pattern": "S"}
    windowed = Decoder(full.config.model_copy(update=fields))
    windowed.load_state_dict(full.state_dict())
    torch.testing.assert_close(windowed(TOKENS_BT), full(TOKENS_BT), rtol=0, atol=1e-5)


def test_what_lies_before_all_windows_is_never_seen() -> None:
    config = ModelConfig(**{**BASE, "window": 3, "window_pattern": "S"})
    model = Decoder(config).initialise(0)
    changed_BT = TOKENS_BT.clone()
    changed_BT[:, 0] = (changed_BT[:, 0] + 1) % 61
    reach = 3 * (3 - 1)  # three layers, each two keys back
    before, after = model(TOKENS_BT), model(changed_BT)
    torch.testing.assert_close(before[:, reach + 1 :], after[:, reach + 1 :], rtol=0, atol=1e-6)
    assert (before[:, reach] - after[:, reach]).abs().max() > 1e-5


def test_softcaps_bound_what_they_bend() -> None:
    model = build("logit soft-cap")
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(50)
    largest = model(TOKENS_BT).abs().max()
    assert 0.6 < largest <= 0.7


def test_scaled_rope_is_what_transformers_computes() -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    from lmpipe.model.positions import rope, rope_frequencies

    for kind in ("linear", "yarn"):
        ours = ModelConfig(
            d_model=256,
            num_heads=2,
            num_kv_heads=2,
            max_seq_len=8192,
            rope_scaling=kind,
            rope_scaling_factor=4.0,
        )
        extra = {"original_max_position_embeddings": 2048} if kind == "yarn" else {}
        theirs = LlamaConfig(
            hidden_size=256,
            num_attention_heads=2,
            max_position_embeddings=8192,
            rope_parameters={"rope_type": kind, "rope_theta": 1e4, "factor": 4.0, **extra},
        )
        frequency, amplitude = ROPE_INIT_FUNCTIONS[kind](theirs, "cpu")
        torch.testing.assert_close(rope_frequencies(ours), frequency, rtol=1e-6, atol=0)
        cos_BT1K, sin_BT1K = rope(torch.tensor([[77]]), ours, torch.float32)
        found = (cos_BT1K.square() + sin_BT1K.square()).sqrt()
        torch.testing.assert_close(found, torch.full_like(found, amplitude))


def test_ntk_leaves_the_fastest_pair_and_squeezes_the_slowest_by_the_factor() -> None:
    from lmpipe.model.positions import rope_frequencies

    shape = {"d_model": 128, "num_heads": 2, "num_kv_heads": 2, "max_seq_len": 4096}
    plain = rope_frequencies(ModelConfig(**shape))
    ntk = rope_frequencies(ModelConfig(**shape, rope_scaling="ntk", rope_scaling_factor=8.0))
    assert ntk[0] == plain[0] == 1
    assert float(plain[-1] / ntk[-1]) == pytest.approx(8, rel=1e-4)


def test_models_of_any_size_are_built_on_the_meta_device_without_memory() -> None:
    import resource

    from lmpipe.model.cost import count_parameters
    from lmpipe.model.sizes import SIZES

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for config in SIZES.values():
        with torch.device("meta"):
            model = Decoder(config)
        assert {p.device.type for p in model.parameters()} == {"meta"}
        assert sum(p.numel() for p in model.parameters()) == count_parameters(config).total
    assert count_parameters(SIZES["70B"]).total == 70_553_706_496  # Llama 3
    grown_bytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown_bytes < 200e6
