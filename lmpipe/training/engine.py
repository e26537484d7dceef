"""The training engine: DeepSpeed's ZeRO behind five verbs, for any loss.

    total = engine.begin_step(weight)                  # target tokens here; the sum over all ranks
    for micro_batch in micro_batches:                  # the same number on every rank
        engine.accumulate(loss_sum, last=…)            # a sum over tokens, not a mean
    result = engine.step()
    engine.save(folder, data) / engine.load(folder)

Losses come as *sums* over tokens and are divided once, by the step's number of tokens over all
ranks and micro-batches. A mean of means, the usual way, weighs a token by the length of the
micro-batch it sits in, and the same data then give other gradients on another number of ranks.

DeepSpeed is chosen over FSDP for its four stages behind one switch. The price: two seconds of
import, and a gradient path that has to be told about accumulation and non-finite steps, here.
"""

import math
import os
import socket
import sys
import types
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from lmpipe.errors import ConfigError, TrainingError
from lmpipe.runtime import Runtime
from lmpipe.training import checkpoint_state
from lmpipe.training.optimizer import LearningRateScale, OptimizerConfig, parameter_groups
from lmpipe.training.position import Position
from lmpipe.training.schedule import Schedule


@dataclass(frozen=True)
class StepResult:
    """What one optimizer step did; the same on every rank.

    Attributes:
        loss: mean loss per unit of weight over all ranks and micro-batches.
        grad_norm: before clipping; infinite when the step was skipped.
        learning_rate: the peak times the schedule, as used.
        skipped: gradients were not finite somewhere: weights, moments and schedule are unchanged.
    """

    loss: float
    grad_norm: float
    learning_rate: float
    skipped: bool


def join_ranks(device: str) -> torch.device:
    """Enter the process group that run_ranks prepared, or one of a single rank; return the device.

    Safe to call again. DeepSpeed's shared-memory all-reduce is left out on CPU: it is compiled at
    the first use, which takes minutes.
    """
    os.environ.setdefault("DS_ACCELERATOR", device)
    os.environ.setdefault("DS_BUILD_OPS", "0")
    if "RANK" not in os.environ:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        single = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": str(port)}
        os.environ.update({**single, "MASTER_ADDR": "127.0.0.1"})
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    _leave_muon_out()
    local = torch.device("cpu")
    if device == "cuda":
        local = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(local)
    deepspeed.init_distributed(
        dist_backend="nccl" if device == "cuda" else "gloo", auto_mpi_discovery=False, verbose=False
    )
    return local


def _leave_muon_out() -> None:
    """Put an empty class in place of DeepSpeed's Muon, which it compares our optimizer with.

    Importing the real one compiles its kernels through torch._inductor: 1.5 s of CPU per rank, 5 s
    where bytecode is not cached.
    """
    name = "deepspeed.runtime.zero.muon.muon_optimizer"
    if name not in sys.modules:
        module = types.ModuleType(name)
        module.MuonWithAuxAdam = type("MuonWithAuxAdam", (), {})  # type: ignore[attr-defined]
        sys.modules[name] = module


class TrainingEngine:
    """A model under ZeRO with AdamW, a schedule and a position. See the module's docstring.

    Args:
        module: in fp32, the same on every rank; its fp32 weights become the master weights, also
            where the model itself then runs in bf16 (CUDA).
        scale: per-parameter learning-rate factors, for muP.

    Attributes:
        module: the model for generation and validation. Under ZeRO-3 its weights are sharded: call
            `engine(…)` instead, or take `full_weights()`.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        settings: OptimizerConfig,
        schedule: Schedule,
        runtime: Runtime,
        *,
        device: torch.device,
        scale: LearningRateScale | None = None,
    ) -> None:
        import deepspeed

        self.settings = settings
        self.schedule = schedule
        self.device = device
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.is_bf16 = device.type == "cuda"
        self.position = Position()
        if self.is_bf16 and runtime.zero_stage == 0:
            raise ConfigError("zero_stage=0 in bf16 keeps no fp32 master weights; use zero_stage=1")
        self.zero_stage = runtime.zero_stage
        self.max_skipped_in_a_row = runtime.stop_skipped_in_a_row
        masters = {name: p.detach().to("cpu", copy=True) for name, p in module.named_parameters()}
        buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
        groups = parameter_groups(module.named_parameters(), settings, scale)
        optimizer = torch.optim.AdamW(
            groups,
            lr=settings.learning_rate,
            betas=(settings.beta1, settings.beta2),
            eps=settings.epsilon,
            fused=True,
        )
        self.deepspeed, self.optimizer, _, _ = deepspeed.initialize(
            model=module.to(device),
            optimizer=optimizer,
            config=_deepspeed_config(settings, runtime.zero_stage, self.is_bf16),
            dist_init_required=False,
        )
        self.module: torch.nn.Module = self.deepspeed.module
        _restore_buffers(self.module, buffers, device)
        if self.zero_stage in (1, 2):
            self.optimizer.check_grad_overflow = (
                True  # left off in fp32: inf would enter the moments
            )
        if self.zero_stage == 3:
            _register_shared_parameters(self.module)
        checkpoint_state.create_moments(self)
        if self.is_bf16:
            checkpoint_state.set_masters(self, masters)
        if runtime.compile and device.type == "cuda":
            self.deepspeed.compile()
        self._total_weight = 0.0
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=device)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model forward; under every ZeRO stage."""
        return self.deepspeed(*args, **kwargs)

    def begin_step(self, weight: float) -> float:
        """Start a step. All ranks call it.

        Args:
            weight: number of target tokens in this rank's micro-batches of the step; 0 is allowed.

        Returns:
            The sum over all ranks, by which losses are divided.
        """
        self._total_weight = self.sum_over_ranks(weight)
        if self._total_weight <= 0:
            raise TrainingError(
                f"step {self.position.steps} has no target token on any rank; look for records "
                "whose loss mask is empty"
            )
        self._loss_sum.zero_()
        return self._total_weight

    def accumulate(self, loss_sum: torch.Tensor, *, last: bool) -> None:
        """Add one micro-batch's gradients. All ranks call it equally often in a step.

        A rank that has run out of data passes a loss of 0 that hangs on the model (its logits times
        0), since ZeRO's collectives wait for every rank.

        Args:
            loss_sum: weighted sum of the micro-batch's token losses.
            last: this is the step's last micro-batch; gradients are then averaged over ranks.
        """
        assert self._total_weight > 0, "begin_step() comes first"
        self.deepspeed.set_gradient_accumulation_boundary(last)
        # DeepSpeed averages over ranks; the sum of sums is wanted
        self.deepspeed.backward(loss_sum * (self.world_size / self._total_weight))
        self._loss_sum += loss_sum.detach()

    def step(self) -> StepResult:
        """Clip, update the weights, advance the schedule; or skip all of it on every rank."""
        fraction = self.schedule(self.position.updates)
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.learning_rate * group["lr_scale"] * fraction
        if self.zero_stage == 0:
            grad_norm, skipped = self._step_unsharded()
        else:
            self.deepspeed.step()
            skipped = bool(self.optimizer.overflow)
            norm = self.optimizer._global_grad_norm
            grad_norm = math.inf if skipped else float(norm)
        loss = self.sum_over_ranks(float(self._loss_sum)) / self._total_weight
        self._total_weight = 0.0
        self._advance(skipped)
        return StepResult(loss, grad_norm, self.settings.learning_rate * fraction, skipped)

    def _step_unsharded(self) -> tuple[float, bool]:
        """Stage 0: DeepSpeed has summed the gradients but neither checks nor reports their norm."""
        gradients = [p.grad for p in self.module.parameters() if p.grad is not None]
        norm = float(torch.nn.utils.get_total_norm(gradients))
        if not math.isfinite(norm):
            self.deepspeed.zero_grad()
            return math.inf, True
        self.deepspeed.step()
        return norm, False

    def _advance(self, skipped: bool) -> None:
        position = self.position
        position.steps += 1
        if not skipped:
            position.updates += 1
            position.skipped_in_a_row = 0
            return
        position.skipped += 1
        position.skipped_in_a_row += 1
        if position.skipped_in_a_row > self.max_skipped_in_a_row:
            raise TrainingError(
                f"{position.skipped_in_a_row} steps in a row had gradients that are not finite "
                f"(the last one is step {position.steps - 1}); lower optimizer.learning_rate, look "
                f"at the data, or raise runtime.stop_skipped_in_a_row={self.max_skipped_in_a_row}"
            )

    def sum_over_ranks(self, value: float) -> float:
        """Return the sum of a number over all ranks. All ranks call it."""
        tensor = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor)
        return float(tensor)

    def max_over_ranks(self, value: int) -> int:
        """Return the largest of a number over all ranks, such as of micro-batch counts."""
        tensor = torch.tensor(value, device=self.device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return int(tensor)

    def full_weights(self) -> dict[str, torch.Tensor]:
        """Return the fp32 masters by name on rank 0's CPU; {} elsewhere. All ranks call it."""
        return checkpoint_state.gather(self, "master")

    def save(self, folder: Path, data: dict[str, Any] | None = None) -> None:
        """Write the training state, in a format that knows no world size. All ranks call it.

        Args:
            data: the caller's position in its data (JSON); `position.data` after a load.
        """
        self.position.data = data
        checkpoint_state.save(self, folder)

    def load(self, folder: Path) -> Position:
        """Restore a saved state on any number of ranks and any ZeRO stage; return its position.

        Raises:
            TrainingError: the state does not fit this model, or is not what was saved.
        """
        checkpoint_state.load(self, folder)
        return self.position

    def describe(self) -> dict[str, Any]:
        """Return settings and schedule as JSON, for the checkpoint."""
        return {"optimizer": self.settings.model_dump(), "schedule": asdict(self.schedule)}


def _deepspeed_config(settings: OptimizerConfig, zero_stage: int, is_bf16: bool) -> dict[str, Any]:
    config: dict[str, Any] = {
        # the boundary is set by hand in accumulate(), so that a step may have any number of
        # micro-batches of any size
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": settings.gradient_clip,
        "steps_per_print": 2**31,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": zero_stage},
    }
    if is_bf16:
        config["bf16"] = {"enabled": True}
        # sums of many bf16 gradients lose what is below 1/256 of the sum
        config["data_types"] = {"grad_accum_dtype": "fp32"}
    return config


def _restore_buffers(
    module: torch.nn.Module, buffers: dict[str, torch.Tensor], device: torch.device
) -> None:
    """Undo the cast of buffers to bf16: RoPE's angles need fp32."""
    for name, value in buffers.items():
        owner, _, leaf = name.rpartition(".")
        setattr(module.get_submodule(owner), leaf, value.to(device))


def _register_shared_parameters(module: torch.nn.Module) -> None:
    """Tell ZeRO-3 that a tied output layer reads the embedding's weight outside of its module."""
    from deepspeed import zero

    from lmpipe.model.decoder import Decoder

    if isinstance(module, Decoder) and module.lm_head is None:
        zero.register_external_parameter(module, module.model.embed_tokens.weight)
