"""Read and write models in Hugging Face's layout: a LlamaForCausalLM's safetensors and config.

The layout everyone opens is also our own: one format fewer, and every checkpoint of a run loads in
transformers, vLLM or llama.cpp without an export. transformers itself is not needed here. What our
decoder cannot express (biases, RoPE scaling, other activations) is refused by name, never ignored:
such a model would load and be wrong.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from lmpipe.errors import InputError
from lmpipe.model.config import ModelConfig
from lmpipe.model.decoder import Attention, Decoder

WEIGHTS, CONFIG, WEIGHTS_INDEX = "model.safetensors", "config.json", "model.safetensors.index.json"


def save_model(
    model: Decoder, config: ModelConfig, folder: Path, *, eos_token_id: int | None = None
) -> None:
    """Write `model` so that AutoModelForCausalLM.from_pretrained(folder) opens it."""
    save_weights(model.state_dict(), config, folder, eos_token_id=eos_token_id)


def save_weights(
    weights: Mapping[str, Tensor],
    config: ModelConfig,
    folder: Path,
    *,
    eos_token_id: int | None = None,
) -> None:
    """Write weights gathered elsewhere (a sharded engine's, say) under the decoder's names."""
    folder.mkdir(parents=True, exist_ok=True)
    on_cpu = {name: weight.detach().cpu().contiguous() for name, weight in weights.items()}
    save_file(on_cpu, folder / WEIGHTS, metadata={"format": "pt"})
    dtype = str(next(iter(on_cpu.values())).dtype).removeprefix("torch.")
    fields = _to_huggingface(config) | {"dtype": dtype, "eos_token_id": eos_token_id}
    (folder / CONFIG).write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")


def load_model(
    folder: Path,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    attention: Attention = "auto",
) -> Decoder:
    """Read a Llama checkpoint, ours or another's, in one or several safetensors files.

    Raises:
        InputError: a file is missing, a weight is missing or left over, or the architecture is not
            the decoder's.
    """
    config = load_config(folder)
    weights = {name: w.to(device, dtype) for name, w in _read_weights(folder).items()}
    if config.tied_embeddings:
        weights.pop("lm_head.weight", None)  # some writers repeat the tied matrix
    with torch.device("meta"):
        model = Decoder(config, attention)
    try:
        model.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        raise InputError(f"{folder}: weights do not fit its config.json: {error}") from error
    return model.requires_grad_()


def load_config(folder: Path) -> ModelConfig:
    """Read config.json into a ModelConfig.

    Raises:
        InputError: the file is missing, or describes something else than our decoder.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise InputError(f"{folder} has no {CONFIG}; expected a folder written by save_model")
    return _from_huggingface(json.loads(path.read_text(encoding="utf-8")), path)


def _read_weights(folder: Path) -> dict[str, Tensor]:
    files = [WEIGHTS]
    if (folder / WEIGHTS_INDEX).is_file():
        index = json.loads((folder / WEIGHTS_INDEX).read_text(encoding="utf-8"))
        files = sorted(set(index["weight_map"].values()))
    missing = [name for name in files if not (folder / name).is_file()]
    if missing:
        raise InputError(f"{folder} lacks {', '.join(missing)}")
    weights: dict[str, Tensor] = {}
    for name in files:
        weights |= load_file(folder / name)
    return weights


def _to_huggingface(config: ModelConfig) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "num_hidden_layers": config.num_layers,
        "hidden_size": config.d_model,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_size,
        "intermediate_size": config.feed_forward_size,
        "max_position_embeddings": config.max_seq_len,
        "rope_theta": config.rope_base,  # transformers 4 reads this one, 5 the next
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_base},
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tied_embeddings,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": None,
        "pad_token_id": None,
    }


def _from_huggingface(fields: dict[str, Any], path: Path) -> ModelConfig:
    rope = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    num_heads = fields.get("num_attention_heads", 0)
    head_size = fields.get("hidden_size", 0) // max(num_heads, 1)
    fixed = {  # what the decoder has built in: what the file says, what it must say
        "model_type": (fields.get("model_type"), "llama"),
        "hidden_act": (fields.get("hidden_act", "silu"), "silu"),
        "attention_bias": (fields.get("attention_bias", False), False),
        "mlp_bias": (fields.get("mlp_bias", False), False),
        "rope_type": (rope.get("rope_type", rope.get("type", "default")), "default"),
        "head_dim": (fields.get("head_dim") or head_size, head_size),
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
            num_kv_heads=fields.get("num_key_value_heads") or num_heads,
            d_ff=fields["intermediate_size"],
            max_seq_len=fields["max_position_embeddings"],
            rope_base=rope.get("rope_theta") or fields.get("rope_theta", 10_000.0),
            norm_eps=fields["rms_norm_eps"],
            tied_embeddings=fields.get("tie_word_embeddings", False),
        )
    except KeyError as error:
        raise InputError(f"{path} lacks {error}") from error
