"""The cost estimate of a training run and of serving its model: time, memory, wires, dollars.

A plan is checked whole, then every figure is a property of it: nothing is measured, so a cost
estimate of a 70B run on 1,024 devices is written on a laptop in a second. The utilisation is an
assumption that the reader states; the roofline gives its bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from lmpipe.errors import ConfigError
from lmpipe.model import communication, cost, memory, roofline
from lmpipe.model.accelerators import Accelerator, link_rate
from lmpipe.model.config import ModelConfig

TOKENS_PER_PARAMETER = 20  # Hoffmann et al. (2022)
RESERVED_FRACTION = 0.1  # of the memory: collectives' buffers, the allocator's gaps, the context


@dataclass(frozen=True)
class Plan:
    """What is trained, on what, and how.

    Attributes:
        tokens: of the whole run; 0 takes 20 a parameter.
        batch_tokens: of an optimizer step; 0 takes one micro-batch on every rank.
        mfu: assumed fraction of the devices' rate that goes into the model.
        price: of an hour of one device, in any currency; None where none is given.
    """

    config: ModelConfig
    device: Accelerator
    ranks: int = 1
    tokens: float = 0
    seq_len: int = 0  # 0: the config's max_seq_len
    micro_batch: int = 1
    batch_tokens: int = 0
    zero_stage: int = 1
    precision: str = "deepspeed"
    checkpointing: memory.Checkpointing = "selective"
    mfu: float = 0.4
    price: float | None = None

    def __post_init__(self) -> None:
        for name in ("ranks", "micro_batch"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be 1 or more, got {getattr(self, name)}")
        for name in ("tokens", "batch_tokens", "seq_len"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must be 0 or more, got {getattr(self, name)}")
        if not 0 < self.mfu <= 1:
            raise ConfigError(f"mfu must be a fraction in (0, 1], got {self.mfu}; 0.4 is usual")
        if self.zero_stage not in (0, 1, 2, 3):
            raise ConfigError(f"zero_stage must be 0, 1, 2 or 3, got {self.zero_stage}")
        if self.precision not in memory.PRECISIONS:
            known = ", ".join(memory.PRECISIONS)
            raise ConfigError(f"precision must be one of {known}, got {self.precision!r}")
        if self.checkpointing not in memory.CHECKPOINTING:
            known = ", ".join(memory.CHECKPOINTING)
            raise ConfigError(f"checkpointing must be one of {known}, got {self.checkpointing!r}")
        if self.price is not None and self.price < 0:
            raise ConfigError(f"price must be 0 or more, got {self.price}")
        if self.length > self.config.max_seq_len:
            raise ConfigError(
                f"sequence length {self.length} is more than the model's max_seq_len="
                f"{self.config.max_seq_len}; give a shorter one"
            )
        if self.batch_tokens % self.pass_tokens:
            near = max(1, round(self.batch_tokens / self.pass_tokens)) * self.pass_tokens
            raise ConfigError(
                f"batch_tokens={self.batch_tokens} must be a multiple of ranks x micro-batch x "
                f"sequence length = {self.pass_tokens}; try {near}"
            )

    @property
    def length(self) -> int:
        """Tokens of a sequence."""
        return self.seq_len or self.config.max_seq_len

    @property
    def pass_tokens(self) -> int:
        """Tokens of one micro-batch on every rank."""
        return self.ranks * self.micro_batch * self.length

    @property
    def step_tokens(self) -> int:
        """Tokens of an optimizer step."""
        return self.batch_tokens or self.pass_tokens

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a rank in an optimizer step."""
        return self.step_tokens // self.pass_tokens

    @property
    def element_bytes(self) -> int:
        """Bytes of an activation."""
        return 4 if self.precision == "fp32" else 2


@dataclass(frozen=True)
class CostEstimate:
    """Every figure of a plan."""

    plan: Plan

    @cached_property
    def parameters(self) -> cost.ParameterCount:
        """Parameters by group."""
        return cost.count_parameters(self.plan.config)

    @property
    def tokens(self) -> float:
        """Tokens of the run."""
        return self.plan.tokens or TOKENS_PER_PARAMETER * self.parameters.total

    @property
    def flops(self) -> float:
        """FLOPs of the run, attention in full: the convention in which MFU is published."""
        plan = self.plan
        return self.tokens * cost.training_flops_per_token(plan.config, plan.length, causal=False)

    def seconds_of(self, tokens: float) -> float:
        """Return the seconds that `tokens` take at the assumed utilisation."""
        plan = self.plan
        rate = plan.device.flops_per_second * plan.ranks * plan.mfu
        return self.flops * (tokens / self.tokens) / rate

    @property
    def seconds(self) -> float:
        """Wall time of the run."""
        return self.seconds_of(self.tokens)

    @property
    def device_hours(self) -> float:
        """Hours of all devices."""
        return self.plan.ranks * self.seconds / 3600

    @property
    def price(self) -> float | None:
        """Price of the run, or None where an hour has none."""
        return None if self.plan.price is None else self.plan.price * self.device_hours

    # --- memory of a device ---

    @cached_property
    def memory_bytes(self) -> dict[str, float]:
        """Bytes on each device by what they hold."""
        plan, count = self.plan, self.parameters.total
        state = memory.PRECISIONS[plan.precision]
        split = {
            "parameters": plan.ranks if plan.zero_stage >= 3 else 1,
            "gradients": plan.ranks if plan.zero_stage >= 2 else 1,
            "optimizer": plan.ranks if plan.zero_stage >= 1 else 1,
        }
        held = {name: count * getattr(state, name) / ranks for name, ranks in split.items()}
        whole = memory.state_bytes(
            plan.config, count, state, zero_stage=plan.zero_stage, world_size=plan.ranks
        )
        if plan.zero_stage >= 3:
            held["gathered layer"] = whole - sum(held.values())
        held["activations"] = memory.activation_bytes(
            plan.config, plan.micro_batch, plan.length,
            checkpointing=plan.checkpointing, bytes_per_element=plan.element_bytes,
        )  # fmt: skip
        return held

    @property
    def fits(self) -> bool:
        """Return whether that leaves a tenth of a device's memory free."""
        usable = (1 - RESERVED_FRACTION) * self.plan.device.memory_bytes
        return sum(self.memory_bytes.values()) <= usable

    # --- wires ---

    @property
    def sent_bytes_per_step(self) -> float:
        """Bytes that a rank sends in an optimizer step."""
        plan = self.plan
        elements = communication.data_parallel_elements(
            self.parameters.total, plan.zero_stage, plan.ranks, micro_batches=plan.micro_batches
        )
        return elements * plan.element_bytes

    @property
    def wire_seconds_per_step(self) -> float:
        """Seconds of that on the slowest link; hidden if shorter than the backward pass."""
        return self.sent_bytes_per_step / link_rate(self.plan.device, self.plan.ranks)

    @property
    def step_seconds(self) -> float:
        """Seconds of an optimizer step at the assumed utilisation."""
        return self.seconds_of(self.plan.step_tokens)

    # --- roofline ---

    @cached_property
    def training(self) -> list[roofline.Operation]:
        """Operations of one micro-batch on one device."""
        plan = self.plan
        ranks = plan.ranks if plan.zero_stage else 1
        return roofline.training_operations(
            plan.config, plan.micro_batch, plan.length, checkpointing=plan.checkpointing,
            optimizer_share=1 / (plan.micro_batches * ranks),
            bytes_per_element=plan.element_bytes,
        )  # fmt: skip

    @cached_property
    def prefill(self) -> list[roofline.Operation]:
        """Operations of reading the micro-batch's sequences as prompts."""
        plan = self.plan
        return roofline.prefill_operations(
            plan.config, plan.micro_batch, plan.length, bytes_per_element=plan.element_bytes
        )

    def decode(self, batch: int) -> list[roofline.Operation]:
        """Return the operations of one more token of each of `batch` sequences."""
        plan = self.plan
        return roofline.decode_operations(
            plan.config, batch, plan.length, bytes_per_element=plan.element_bytes
        )

    @property
    def mfu_bound(self) -> float:
        """The utilisation that the roofline allows on one device."""
        plan = self.plan
        useful = self.flops / self.tokens * plan.micro_batch * plan.length
        seconds = roofline.total_seconds(self.training, plan.device)
        return useful / plan.device.flops_per_second / seconds

    @property
    def cache_bytes(self) -> int:
        """KV cache of one sequence."""
        plan = self.plan
        return cost.kv_cache_bytes(plan.config, plan.length, 1, plan.element_bytes)
