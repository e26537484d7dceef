"""The training state on disk: fp32 masters and moments by parameter name, and a position.

    master.safetensors, exp_avg.safetensors, exp_avg_sq.safetensors
    training.json    position, schedule, optimizer, random state, hash of the masters

No world size, ZeRO stage or partition is in it, so any number of ranks can go on from it.
DeepSpeed's universal format, the alternative, needs a conversion run and refuses to grow the world
at stage 3. The price: rank 0 holds a full copy of one kind at a time in CPU memory while it writes.
"""

import base64
import hashlib
import json
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist

from lmpipe.errors import TrainingError
from lmpipe.training.position import Position

Tensors = dict[str, torch.Tensor]
MOMENTS = ("exp_avg", "exp_avg_sq")
FORMAT_VERSION = 1


class Trained(Protocol):
    """What is saved and restored of an engine, under any ZeRO stage."""

    module: torch.nn.Module
    optimizer: Any
    position: Position
    device: torch.device
    rank: int
    zero_stage: int

    def describe(self) -> dict[str, Any]: ...


def gather(engine: Trained, kind: str) -> Tensors:
    """Return one tensor per parameter on rank 0's CPU, {} elsewhere; collective, one at a time.

    Args:
        kind: "master", "exp_avg" or "exp_avg_sq".
    """
    found: Tensors = {}
    for name, parameter in engine.module.named_parameters():
        if not parameter.requires_grad:
            continue
        value = _full(engine, parameter, kind)
        if engine.rank == 0:
            found[name] = value.detach().to("cpu", torch.float32, copy=True)
    return found


def _full(engine: Trained, parameter: torch.nn.Parameter, kind: str) -> torch.Tensor:
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    if engine.zero_stage == 0:
        if kind == "master":
            return parameter
        state: torch.Tensor = engine.optimizer.state[parameter][kind]
        return state
    if kind == "master":
        value = safe_get_full_fp32_param(parameter)
    else:
        value = safe_get_full_optimizer_state(parameter, kind)
    assert isinstance(value, torch.Tensor), f"DeepSpeed knows no {kind} of this parameter"
    return value


def _set_full(
    engine: Trained, parameter: torch.nn.Parameter, value: torch.Tensor, kind: str
) -> None:
    """Set this rank's part of a master or moment, given the whole."""
    from deepspeed import utils

    if engine.zero_stage < 3:
        if kind == "master":
            utils.safe_set_full_fp32_param(parameter, value)
        else:
            utils.safe_set_full_optimizer_state(parameter, value, kind)
        return
    # not safe_set_full_…: at stage 3 (0.19) those fail when the ranks do not divide the parameter
    part = utils.safe_get_local_fp32_param(parameter)
    start = min(part.numel() * engine.rank, value.numel())
    here = value.flatten()[start : start + part.numel()]
    padded = torch.zeros_like(part)
    padded[: here.numel()] = here
    if kind == "master":
        utils.safe_set_local_fp32_param(parameter, padded)
    else:
        utils.safe_set_local_optimizer_state(parameter, padded, kind)


def set_masters(engine: Trained, values: Tensors) -> None:
    """Set the fp32 masters, and the model's own weights from them. Every rank passes all values."""
    from deepspeed import zero

    for name, parameter in engine.module.named_parameters():
        if not parameter.requires_grad:
            continue
        value = values[name].to(engine.device)
        if engine.zero_stage == 0:
            parameter.data.copy_(value)
            continue
        _set_full(engine, parameter, value, "master")
        if engine.zero_stage == 3:
            with zero.GatheredParameters([parameter], modifier_rank=0):
                if engine.rank == 0:
                    parameter.data.copy_(value)
    if engine.zero_stage in (1, 2):
        engine.optimizer.update_lp_params()


def set_moments(engine: Trained, moments: dict[str, Tensors], updates: int) -> None:
    """Set both moments and Adam's own step count."""
    for flat in _flat_parameters(engine):
        _adam(engine).state[flat]["step"].fill_(updates)
    for name, parameter in engine.module.named_parameters():
        if not parameter.requires_grad:
            continue
        for kind in MOMENTS:
            value = moments[kind][name].to(engine.device)
            if engine.zero_stage == 0:
                engine.optimizer.state[parameter][kind].copy_(value)
            else:
                _set_full(engine, parameter, value, kind)


def create_moments(engine: Trained) -> None:
    """Give AdamW at once the zeros that it otherwise makes at its first update.

    DeepSpeed (0.19) points parameters at their moments after the first parameter group's first
    update, when the later groups have none yet, and never again.
    """
    state = _adam(engine).state
    for flat in _flat_parameters(engine):
        moments = {kind: torch.zeros_like(flat) for kind in MOMENTS}
        state[flat] = {"step": torch.zeros((), device=flat.device), **moments}
    if engine.zero_stage in (1, 2):
        engine.optimizer._lazy_init_hp_params_optimizer_state()


def save(engine: Trained, folder: Path) -> None:
    """Write the state; collective, rank 0 writes."""
    from safetensors.torch import save_file

    if engine.rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
    masters_sha256 = ""
    for kind in ("master", *MOMENTS):
        tensors = gather(engine, kind)
        if engine.rank == 0:
            save_file(tensors, folder / f"{kind}.safetensors")
            if kind == "master":
                masters_sha256 = hash_tensors(tensors)
    if engine.rank == 0:
        state = {
            "format": FORMAT_VERSION,
            "position": vars(engine.position),
            "masters_sha256": masters_sha256,
            "random_state": base64.b64encode(torch.get_rng_state().numpy().tobytes()).decode(),
            **engine.describe(),
        }
        (folder / "training.json").write_text(json.dumps(state, indent=1))
    dist.barrier()


def load(engine: Trained, folder: Path) -> None:
    """Restore what `save` wrote, then prove it by gathering the masters again."""
    from safetensors.torch import load_file

    state = json.loads((folder / "training.json").read_text())
    if state["format"] != FORMAT_VERSION:
        raise TrainingError(f"{folder}: state format {state['format']}, this is {FORMAT_VERSION}")
    engine.position = Position(**state["position"])
    masters = load_file(folder / "master.safetensors")
    _check_shapes(engine, masters, folder)
    set_masters(engine, masters)
    moments = {kind: load_file(folder / f"{kind}.safetensors") for kind in MOMENTS}
    set_moments(engine, moments, engine.position.updates)
    restored = gather(engine, "master")
    if engine.rank == 0 and hash_tensors(restored) != state["masters_sha256"]:
        raise TrainingError(f"{folder}: restored weights are not those that were saved")
    random_state = bytearray(base64.b64decode(state["random_state"]))
    torch.set_rng_state(torch.frombuffer(random_state, dtype=torch.uint8).clone())


def hash_tensors(tensors: Tensors) -> str:
    """Return a hash of names and bytes, whatever the order."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        total.update(name.encode())
        total.update(tensors[name].contiguous().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def _check_shapes(engine: Trained, masters: Tensors, folder: Path) -> None:
    expected = {
        name: tuple(getattr(parameter, "ds_shape", parameter.shape))
        for name, parameter in engine.module.named_parameters()
        if parameter.requires_grad
    }
    found = {name: tuple(tensor.shape) for name, tensor in masters.items()}
    if expected != found:
        names = sorted(set(expected.items()) ^ set(found.items()))[:4]
        raise TrainingError(f"{folder}: the saved state is of another model, it differs in {names}")


def _flat_parameters(engine: Trained) -> list[torch.Tensor]:
    """The tensors that torch's AdamW updates: flat partitions under ZeRO, else the parameters."""
    optimizer = engine.optimizer
    for attribute in (
        "fp32_partitioned_groups_flat",  # stage 3
        "single_partition_of_fp32_groups",  # stages 1 and 2
        "fp32_groups_flat_partition",  # stage 1 in bf16
    ):
        if hasattr(optimizer, attribute):
            return list(getattr(optimizer, attribute))
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _adam(engine: Trained) -> Any:
    return engine.optimizer if engine.zero_stage == 0 else engine.optimizer.optimizer
