"""Which model class of transformers computes what a config describes, and the way back.

    llama      the default                        arcee     no gate: GELU, ReLU squared
    qwen3      QK-norm, windows                   smollm3   windows, layers without RoPE
    gemma2     norms on both sides, soft-caps, windows

Multipliers, muP and NTK need no class: `fold` multiplies them into the weights and the base, and
the function stays the same. What no class has (LayerNorm without bias, post-norm, positions that
are added) is refused by the option's name, never ignored: such a file would load and be wrong.
Alternative not taken: a class of our own with trust_remote_code, which vLLM and llama.cpp do not
open.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from torch import Tensor

from lmpipe.errors import ConfigError, InputError
from lmpipe.model.config import ModelConfig
from lmpipe.model.positions import ntk_base

Weights = dict[str, Tensor]
BOTH = "norm_position='both'"
FULL, WINDOWED = "full_attention", "sliding_attention"
ACTIVATIONS = {  # ours: theirs
    "swiglu": "silu",
    "geglu": "gelu_pytorch_tanh",
    "gelu": "gelu_pytorch_tanh",
    "relu2": "relu2",
}
GEMMA_NORMS = {  # ours: theirs
    "attention_output_layernorm": "post_attention_layernorm",
    "post_attention_layernorm": "pre_feedforward_layernorm",
    "mlp_output_layernorm": "post_feedforward_layernorm",
}


@dataclass(frozen=True)
class Family:
    """A model class of transformers, by the options that it has beside the default's.

    Attributes:
        can: options, as `_special` words them.
        always: options that it cannot be without.
    """

    model_type: str
    architecture: str
    can: frozenset[str] = frozenset()
    always: frozenset[str] = frozenset()


LLAMA = Family("llama", "LlamaForCausalLM")
QWEN3 = Family(
    "qwen3", "Qwen3ForCausalLM", frozenset({"qk_norm", "window"}), frozenset({"qk_norm"})
)
ARCEE = Family(
    "arcee",
    "ArceeForCausalLM",
    frozenset({"feed_forward='gelu'", "feed_forward='relu2'"}),
)
SMOLLM3 = Family(
    "smollm3", "SmolLM3ForCausalLM", frozenset({"window", "nope_every", "positions='none'"})
)
GEMMA2 = Family(
    "gemma2",
    "Gemma2ForCausalLM",
    frozenset({BOTH, "attention_softcap", "logit_softcap", "window"}),
    frozenset({BOTH}),
)
FAMILIES = (LLAMA, QWEN3, ARCEE, SMOLLM3, GEMMA2)


# What each class of transformers (4 and 5 alike) takes for a field that config.json leaves out.
# Files do leave fields out: transformers 4 writes no value that is the common default, such as the
# tie_word_embeddings of every tied SmolLM3. A test compares this table with the installed classes.
_DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": None,  # as many as num_attention_heads
    "head_dim": None,  # hidden_size / num_attention_heads
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "rope_theta": 10_000.0,
    "eos_token_id": None,
}
_WINDOWS: dict[str, Any] = {
    "use_sliding_window": False,
    "sliding_window": None,
    "layer_types": None,
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": _DEFAULTS | {"eos_token_id": 2},
    "qwen3": _DEFAULTS
    | _WINDOWS
    | {"num_key_value_heads": 32, "head_dim": 128, "sliding_window": 4096, "max_window_layers": 28},
    "arcee": _DEFAULTS | {"hidden_act": "relu2", "eos_token_id": 128_001},
    "smollm3": _DEFAULTS
    | _WINDOWS
    | {
        "num_key_value_heads": 4,
        "tie_word_embeddings": True,
        "rope_theta": 2_000_000.0,
        "no_rope_layers": None,
        "no_rope_layer_interval": 4,
        "eos_token_id": 128_001,
    },
    "gemma2": _DEFAULTS
    | _WINDOWS
    | {
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
        "use_sliding_window": True,  # it has no such field
        "sliding_window": 4096,
        "query_pre_attn_scalar": 256,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "use_bidirectional_attention": None,
        "eos_token_id": 1,
    },
}
# sizes have defaults there too, but a file without them is cut short rather than of that size
NEEDED = (
    "vocab_size",
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "rms_norm_eps",
)


def family_of(config: ModelConfig) -> Family:
    """Return the class that computes this config once multipliers are folded.

    Raises:
        ConfigError: none does; the message names the options.
    """
    needed = _special(config)
    for family in FAMILIES:
        if family.always <= needed <= family.can:
            return family
    alone = sorted(option for option in needed if not any(option in f.can for f in FAMILIES))
    if alone:
        named = ", ".join(alone)
        raise ConfigError(f"{named}: no model class of transformers has this; train without it")
    caps = needed & {"attention_softcap", "logit_softcap"}
    if caps and BOTH not in needed:
        raise ConfigError(
            f"{', '.join(sorted(caps))}: of transformers' model classes Gemma2 alone has this, "
            f"and it norms both sides of each sub-layer; train with {BOTH}, or without the cap"
        )
    raise ConfigError(
        f"no model class of transformers has {', '.join(sorted(needed))} together; "
        + "; ".join(f"{f.architecture} has {', '.join(sorted(f.can))}" for f in FAMILIES[1:])
    )


def _special(config: ModelConfig) -> frozenset[str]:
    """Name the options that Llama does not have."""
    found = {
        "norm='layer'": config.norm == "layer",
        f"norm_position={config.norm_position!r}": config.norm_position != "pre",
        f"feed_forward={config.feed_forward!r}": not config.has_gate,
        f"positions={config.positions!r}": config.positions != "rope",
        "nope_every": bool(config.nope_every),
        "qk_norm": config.qk_norm,
        "attention_softcap": bool(config.attention_softcap),
        "logit_softcap": bool(config.logit_softcap),
        "window": bool(config.window),
    }
    return frozenset(name for name, is_used in found.items() if is_used)


# --- ours to theirs -----------------------------------------------------------------------------


def fold(
    weights: Mapping[str, Tensor], config: ModelConfig, embedding_multiplier: float = 1.0
) -> tuple[Weights, ModelConfig]:
    """Multiply factors into the weights, so that plain classes compute the same function.

    Args:
        embedding_multiplier: what the target class multiplies embeddings by itself.
    """
    inner = config.embedding_multiplier / embedding_multiplier
    factors = {"embed_tokens": inner}
    if config.tied_embeddings:  # the table serves both ends: the last norm makes good for it
        factors["model.norm"] = config.logit_factor / inner
    else:
        factors["lm_head"] = config.logit_factor
    writers = ("o_proj", "down_proj")
    if config.norm_position == "both":
        writers = ("attention_output_layernorm", "mlp_output_layernorm")
    factors |= dict.fromkeys(writers, config.residual_multiplier)
    factors["q_norm" if config.qk_norm else "q_proj"] = config.score_factor
    folded = dict(weights)
    for name, weight in weights.items():
        for end, factor in factors.items():
            if factor != 1 and name.endswith(f"{end}.weight"):
                folded[name] = (weight.float() * factor).to(weight.dtype)
    plain = {
        "embedding_multiplier": embedding_multiplier,
        "output_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "attention_multiplier": 1.0,
        "attention_scale": "inverse_root",
        "mup_base_width": 0,
        "initialisation": "depth_scaled",
    }
    if config.rope_scaling == "ntk":
        plain |= {"rope_base": ntk_base(config), "rope_scaling": "none", "rope_scaling_factor": 1.0}
    return folded, config.model_copy(update=plain)


def to_huggingface(
    weights: Mapping[str, Tensor], config: ModelConfig
) -> tuple[Weights, dict[str, Any]]:
    """Return weights and config.json of the class that computes the same logits.

    Raises:
        ConfigError: an option has no equivalent.
    """
    family = family_of(config)
    multiplier = math.sqrt(config.d_model) if family is GEMMA2 else 1.0
    folded, plain = fold(weights, config, multiplier)
    if family is GEMMA2:
        folded = {_gemma_name(n): w - 1 if "norm" in n else w for n, w in folded.items()}
    return folded, to_fields(plain, family)


def _gemma_name(name: str) -> str:
    for ours, theirs in GEMMA_NORMS.items():
        if name.endswith(f".{ours}.weight"):
            return name.replace(ours, theirs)
    return name


def to_fields(config: ModelConfig, family: Family) -> dict[str, Any]:
    """Return config.json of a config without factors."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": config.rope_base}
    if config.rope_scaling != "none":
        rope |= {"rope_type": config.rope_scaling, "factor": config.rope_scaling_factor}
    if config.rope_scaling == "yarn":
        trained = int(config.max_seq_len / config.rope_scaling_factor)
        rope["original_max_position_embeddings"] = trained
    fields = {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "vocab_size": config.vocab_size,
        "num_hidden_layers": config.num_layers,
        "hidden_size": config.d_model,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_size,
        "intermediate_size": config.feed_forward_size,
        "max_position_embeddings": config.max_seq_len,
        "rope_theta": config.rope_base,  # transformers 4 reads this one, 5 the next
        "rope_parameters": rope,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tied_embeddings,
        "hidden_act": ACTIVATIONS[config.feed_forward],
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": None,
        "pad_token_id": None,
    }
    layers = range(config.num_layers)
    if "window" in family.can:
        kinds = [WINDOWED if config.layer_window(layer) else FULL for layer in layers]
        unused = config.max_seq_len if family is GEMMA2 else None  # Gemma2 wants a number
        fields |= {"layer_types": kinds, "sliding_window": config.window or unused}
        fields["use_sliding_window"] = bool(config.window)
    if family is SMOLLM3:
        fields["no_rope_layers"] = [int(config.has_rope(layer)) for layer in layers]
    if family is GEMMA2:
        fields["hidden_activation"] = fields["hidden_act"]
        fields["query_pre_attn_scalar"] = config.head_size
        fields["attn_logit_softcapping"] = config.attention_softcap or None
        fields["final_logit_softcapping"] = config.logit_softcap or None
    return fields


# --- theirs to ours -----------------------------------------------------------------------------


def from_fields(fields: Mapping[str, Any], path: Path) -> ModelConfig:
    """Return the config that config.json describes.

    Raises:
        InputError: it describes what the decoder does not compute, or lacks a field.
    """
    kind = fields.get("model_type")
    families = {family.model_type: family for family in FAMILIES}
    if kind not in families:
        known = ", ".join(families)
        raise InputError(f"{path}: model_type={kind!r}, but the decoder has built in {known} only")
    family = families[kind]
    missing = [name for name in NEEDED if fields.get(name) is None]
    if missing:
        raise InputError(f"{path} lacks {', '.join(missing)}; add what the model was made with")
    fields = with_defaults(fields)
    num_heads = fields["num_attention_heads"]
    head_size = fields["hidden_size"] // max(num_heads, 1)
    fixed = {  # what the decoder has built in: what the file says, what it must say
        "attention_bias": (fields["attention_bias"], False),
        "mlp_bias": (fields["mlp_bias"], False),
        "head_dim": (fields["head_dim"] or head_size, head_size),
        "use_bidirectional_attention": (
            fields.get("use_bidirectional_attention") or False,
            False,
        ),
    }
    for name, (found, needed) in fixed.items():
        if found != needed:
            raise InputError(f"{path}: {name}={found!r}, but the decoder has {needed!r} built in")
    try:
        return ModelConfig(
            vocab_size=fields["vocab_size"],
            num_layers=fields["num_hidden_layers"],
            d_model=fields["hidden_size"],
            num_heads=num_heads,
            num_kv_heads=fields["num_key_value_heads"] or num_heads,
            d_ff=fields["intermediate_size"],
            max_seq_len=fields["max_position_embeddings"],
            norm_eps=fields["rms_norm_eps"],
            tied_embeddings=fields["tie_word_embeddings"],
            feed_forward=_activation(fields, family, path),
            qk_norm=family is QWEN3,
            **_rope(fields, family, path),
            **(_windows(fields) if "window" in family.can else {}),
            **(_gemma(fields, head_size) if family is GEMMA2 else {}),
        )
    except KeyError as error:
        raise InputError(f"{path} lacks {error}") from error
    except ValidationError as error:
        raise InputError(f"{path}: {error.errors()[0]['msg']}") from error


def with_defaults(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config.json with what its class takes for fields that it leaves out."""
    return {**DEFAULTS.get(fields.get("model_type", ""), {}), **fields}


def from_huggingface(weights: Weights, fields: Mapping[str, Any]) -> Weights:
    """Return a class's weights under the decoder's names."""
    if fields.get("model_type") != "gemma2":
        return weights
    ours = {theirs: name for name, theirs in GEMMA_NORMS.items()}
    found = {}
    for name, weight in weights.items():
        parts = name.split(".")
        renamed = ".".join(ours.get(part, part) for part in parts)
        found[renamed] = weight + 1 if "norm" in name else weight
    return found


def _activation(fields: Mapping[str, Any], family: Family, path: Path) -> str:
    key = "hidden_activation" if family is GEMMA2 else "hidden_act"
    found = fields[key]
    options = ("gelu", "relu2") if family is ARCEE else ("swiglu", "geglu")
    for option in options:
        if ACTIVATIONS[option] == found:
            return option
    known = " or ".join(repr(ACTIVATIONS[option]) for option in options)
    raise InputError(f"{path}: {key}={found!r}, but the decoder has {known} built in")


def _rope(fields: Mapping[str, Any], family: Family, path: Path) -> dict[str, Any]:
    rope = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    found: dict[str, Any] = {"rope_base": rope.get("rope_theta") or fields["rope_theta"]}
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise InputError(
            f"{path}: partial_rotary_factor={rope['partial_rotary_factor']}, but the decoder turns "
            "whole heads"
        )
    if kind in ("linear", "yarn"):
        found |= {"rope_scaling": kind, "rope_scaling_factor": rope["factor"]}
    elif kind != "default":
        raise InputError(
            f"{path}: rope_type={kind!r}, but the decoder has default, linear and yarn built in"
        )
    if kind == "yarn":
        length, trained = (
            fields["max_position_embeddings"],
            rope["original_max_position_embeddings"],
        )
        own = {"attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"}
        own = {name for name in own if rope.get(name) is not None}
        if own or length != trained * rope["factor"]:
            raise InputError(
                f"{path}: yarn with {', '.join(sorted(own)) or 'another length'}, but the decoder "
                "has the paper's built in, and max_position_embeddings = factor x original"
            )
    if family is SMOLLM3:
        layers = fields["num_hidden_layers"]
        uses = _rope_layers(fields)
        if not any(uses):
            return {"positions": "none"}
        fitting = [
            n
            for n in range(layers + 1)
            if uses == [int(not n or (i + 1) % n != 0) for i in range(layers)]
        ]
        if not fitting:
            raise InputError(f"{path}: no_rope_layers={uses} is not every n-th layer")
        found["nope_every"] = fitting[0]
    return found


def _rope_layers(fields: Mapping[str, Any]) -> list[int]:
    """Return which of SmolLM3's layers have RoPE, as 1 or 0."""
    every = fields["no_rope_layer_interval"]
    found: list[int] | None = fields["no_rope_layers"]
    layers = range(fields["num_hidden_layers"])
    return [int((i + 1) % every != 0) for i in layers] if found is None else found


def _layer_types(fields: Mapping[str, Any]) -> list[str]:
    """Return each layer's kind: as the file says, or by its class's rule."""
    if fields["layer_types"] is not None:
        return list(fields["layer_types"])
    layers = range(fields["num_hidden_layers"])
    match fields["model_type"]:
        case "qwen3":
            is_windowed = [layer >= fields["max_window_layers"] for layer in layers]
        case "smollm3":
            is_windowed = [not has_rope for has_rope in _rope_layers(fields)]
        case _:
            is_windowed = [layer % 2 == 0 for layer in layers]
    return [WINDOWED if windowed else FULL for windowed in is_windowed]


def _windows(fields: Mapping[str, Any]) -> dict[str, Any]:
    window, layers = fields["sliding_window"], fields["num_hidden_layers"]
    kinds = _layer_types(fields)
    if not window or not fields["use_sliding_window"] or WINDOWED not in kinds:
        return {}
    letters = "".join("S" if kind == WINDOWED else "L" for kind in kinds)
    period = next(p for p in range(1, layers + 1) if (letters[:p] * layers)[:layers] == letters)
    return {"window": window, "window_pattern": letters[:period]}


def _gemma(fields: Mapping[str, Any], head_size: int) -> dict[str, Any]:
    return {
        "norm_position": "both",
        "embedding_multiplier": math.sqrt(fields["hidden_size"]),
        "attention_multiplier": math.sqrt(head_size / fields["query_pre_attn_scalar"]),
        "attention_softcap": fields["attn_logit_softcapping"] or 0.0,
        "logit_softcap": fields["final_logit_softcapping"] or 0.0,
    }
