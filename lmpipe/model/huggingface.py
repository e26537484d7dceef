"""Read and write models in Hugging Face's layout: safetensors and config.json.

The layout everyone opens is also our own: where a class of transformers computes the config as it
stands, every checkpoint of a run loads in transformers, vLLM or llama.cpp without an export.
Otherwise config.json says model_type "lmpipe" and holds the ModelConfig, and `export_model` finds
the class or says why there is none. transformers itself is not needed here. What our decoder cannot
express (biases, other activations) is refused by name, never ignored: it would load and be wrong.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from lmpipe.errors import ConfigError, InputError
from lmpipe.model.config import ModelConfig
from lmpipe.model.decoder import Attention, Decoder
from lmpipe.model.huggingface_families import (
    GEMMA2,
    Family,
    family_of,
    from_fields,
    from_huggingface,
    to_fields,
    to_huggingface,
    with_defaults,
)

WEIGHTS, CONFIG, WEIGHTS_INDEX = "model.safetensors", "config.json", "model.safetensors.index.json"
SUFFIX, OWN = ".safetensors", "lmpipe"


def save_model(
    model: Decoder, config: ModelConfig, folder: Path, *, eos_token_id: int | None = None
) -> None:
    """Write `model`; where transformers has its class, AutoModelForCausalLM opens it."""
    save_weights(model.state_dict(), config, folder, eos_token_id=eos_token_id)


def save_weights(
    weights: Mapping[str, Tensor],
    config: ModelConfig,
    folder: Path,
    *,
    eos_token_id: int | None = None,
) -> None:
    """Write weights gathered elsewhere (a sharded engine's, say) under the decoder's names."""
    family = _exact_family(config)
    fields = to_fields(config, family) if family else _own_fields(config)
    _write(weights, fields | {"eos_token_id": eos_token_id}, folder)


def export_model(source: Path, target: Path) -> str:
    """Write a checkpoint's folder as a class of transformers, with its tokenizer; name the class.

    Raises:
        ConfigError: an option of the model has no equivalent, or `target` holds files.
        InputError: `source` is no model's folder.
    """
    if target.exists() and any(target.iterdir()):
        raise ConfigError(f"{target} is not empty; give a new folder")
    config, fields = load_config(source), with_defaults(_read_fields(source))
    read = from_huggingface(_read_weights(source), fields)
    read = dict(_decoder(read, config, source, "reference").state_dict())  # as many as it needs
    weights, exported = to_huggingface(read, config)
    _write(weights, exported | {"eos_token_id": fields.get("eos_token_id")}, target)
    for path in sorted(source.iterdir()):
        if path.is_file() and path.name not in (CONFIG, WEIGHTS_INDEX) and path.suffix != SUFFIX:
            shutil.copyfile(path, target / path.name)
    return str(exported["architectures"][0])


def _write(weights: Mapping[str, Tensor], fields: dict[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    on_cpu = {name: weight.detach().cpu().contiguous() for name, weight in weights.items()}
    save_file(on_cpu, folder / WEIGHTS, metadata={"format": "pt"})
    dtype = str(next(iter(on_cpu.values())).dtype).removeprefix("torch.")
    eos = fields.pop("eos_token_id")
    fields |= {"dtype": dtype, "eos_token_id": eos}
    (folder / CONFIG).write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")


def _exact_family(config: ModelConfig) -> Family | None:
    """Return the class that computes the config with the weights as they are, if there is one."""
    try:
        family = family_of(config)
    except ConfigError:
        return None
    sized = config.model_copy(update={"d_ff": config.feed_forward_size})
    if family is GEMMA2 or config.rope_scaling == "ntk":  # only after folding
        return None
    return family if from_fields(to_fields(config, family), Path(CONFIG)) == sized else None


def _own_fields(config: ModelConfig) -> dict[str, Any]:
    return {"architectures": ["Decoder"], "model_type": OWN, OWN: config.model_dump(mode="json")}


def load_model(
    folder: Path,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    attention: Attention = "auto",
) -> Decoder:
    """Read a checkpoint, ours or transformers', in one or several safetensors files.

    Raises:
        InputError: a file is missing, a weight is missing or left over, or the architecture is not
            the decoder's.
    """
    config = load_config(folder)
    read = from_huggingface(_read_weights(folder), _read_fields(folder))
    weights = {name: weight.to(device, dtype) for name, weight in read.items()}
    return _decoder(weights, config, folder, attention).requires_grad_()


def _decoder(
    weights: Mapping[str, Tensor], config: ModelConfig, folder: Path, attention: Attention
) -> Decoder:
    """Return the config's decoder with these very tensors, no one missing and none left over."""
    weights = dict(weights)
    if config.tied_embeddings:
        weights.pop("lm_head.weight", None)  # some writers repeat the tied matrix
    with torch.device("meta"):
        model = Decoder(config, attention)
    try:
        model.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        raise InputError(f"{folder}: weights do not fit its config.json: {error}") from error
    return model


def load_config(folder: Path) -> ModelConfig:
    """Read config.json into a ModelConfig.

    Raises:
        InputError: the file is missing, or describes something else than our decoder.
    """
    fields = _read_fields(folder)
    if fields.get("model_type") == OWN:
        return ModelConfig.model_validate(fields[OWN])
    return from_fields(fields, folder / CONFIG)


def _read_fields(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.is_file():
        raise InputError(f"{folder} has no {CONFIG}; expected a folder written by save_model")
    fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return fields


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
