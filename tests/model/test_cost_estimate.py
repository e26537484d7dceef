import dataclasses
from typing import Any

import pytest

from lmpipe.errors import ConfigError
from lmpipe.model import cost, memory
from lmpipe.model.accelerators import CPU, H100, H200
from lmpipe.model.config import ModelConfig
from lmpipe.model.cost_estimate import CostEstimate, Plan
from lmpipe.model.sizes import SIZES


def test_70b_on_15t_tokens_takes_144_days_and_its_attention() -> None:
    estimate = CostEstimate(
        Plan(SIZES["70B"], H100, ranks=1024, tokens=15e12, zero_stage=3, mfu=0.5)
    )
    six_nd = cost.training_flops(70e9, 15e12)
    days = estimate.seconds / cost.SECONDS_PER_DAY
    assert days == pytest.approx(144 * estimate.flops / six_nd, rel=3e-3)
    assert 1 < estimate.flops / six_nd < 1.2
    assert estimate.device_hours == pytest.approx(days * 24 * 1024)


def test_its_time_is_that_of_a_run_whose_mfu_was_measured() -> None:
    plan = Plan(SIZES["7B"], H200, ranks=64, tokens=1e12, mfu=0.37)
    rate = plan.tokens / CostEstimate(plan).seconds
    measured = cost.model_flops_utilization(plan.config, rate, H200, num_devices=64)
    assert measured == pytest.approx(0.37)


def test_a_run_takes_20_tokens_a_parameter_unless_told() -> None:
    estimate = CostEstimate(Plan(SIZES["1B"], H100))
    assert estimate.tokens == 20 * estimate.parameters.total


def test_nothing_has_a_price_unless_an_hour_has() -> None:
    assert CostEstimate(Plan(SIZES["1B"], H100)).price is None
    estimate = CostEstimate(Plan(SIZES["1B"], H100, ranks=8, price=2.5))
    assert estimate.price == pytest.approx(2.5 * estimate.device_hours)
    assert CostEstimate(Plan(SIZES["1B"], H100, price=0.0)).price == 0


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_memory_is_the_state_of_its_stage_and_the_activations(stage: int) -> None:
    plan = Plan(SIZES["7B"], H100, ranks=8, zero_stage=stage, micro_batch=2)
    estimate = CostEstimate(plan)
    state = memory.state_bytes(
        plan.config,
        estimate.parameters.total,
        memory.DEEPSPEED_ADAMW,
        zero_stage=stage,
        world_size=8,
    )
    kept = memory.activation_bytes(plan.config, 2, 4096)
    assert sum(estimate.memory_bytes.values()) == pytest.approx(state + kept)
    assert ("gathered layer" in estimate.memory_bytes) == (stage == 3)


def test_7b_fits_on_eight_devices_by_sharding_and_not_without() -> None:
    plan = Plan(SIZES["7B"], H100, ranks=8, zero_stage=0)
    assert not CostEstimate(plan).fits
    assert CostEstimate(dataclasses.replace(plan, zero_stage=3)).fits


def test_more_micro_batches_send_less_for_each_token() -> None:
    once = CostEstimate(Plan(SIZES["1B"], H100, ranks=16))
    plan = dataclasses.replace(once.plan, batch_tokens=4 * once.plan.pass_tokens)
    four = CostEstimate(plan)
    assert plan.micro_batches == 4
    assert (
        four.sent_bytes_per_step
        == once.sent_bytes_per_step
        == pytest.approx(2 * 2 * once.parameters.total * 15 / 16)
    )
    assert four.step_seconds == pytest.approx(4 * once.step_seconds)
    assert once.wire_seconds_per_step == once.sent_bytes_per_step / 400e9
    adamw = [
        next(o.bytes for o in estimate.training if o.kind == "AdamW") for estimate in (once, four)
    ]
    assert adamw[0] == pytest.approx(4 * adamw[1])


def test_the_roofline_bounds_the_utilisation_and_a_larger_micro_batch_raises_it() -> None:
    bounds = [CostEstimate(Plan(SIZES["1B"], H100, micro_batch=n)).mfu_bound for n in (1, 4, 16)]
    assert 0.2 < bounds[0] < bounds[1] < bounds[2] < 1


def test_fp32_on_a_cpu_holds_four_bytes_an_activation() -> None:
    half = CostEstimate(Plan(SIZES["1M"], CPU, precision="mixed"))
    whole = CostEstimate(Plan(SIZES["1M"], CPU, precision="fp32"))
    assert whole.cache_bytes == 2 * half.cache_bytes
    assert whole.memory_bytes["activations"] > 1.3 * half.memory_bytes["activations"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"ranks": 0}, "ranks must be 1 or more"),
        ({"tokens": -1}, "tokens must be 0 or more"),
        ({"mfu": 40}, "fraction in"),
        ({"zero_stage": 4}, "zero_stage must be"),
        ({"precision": "fp8"}, "precision must be one of fp32"),
        ({"checkpointing": "some"}, "checkpointing must be one of none"),
        ({"price": -1.0}, "price must be 0"),
        ({"seq_len": 4096}, "more than the model's max_seq_len=2048"),
        ({"batch_tokens": 5000}, "multiple of ranks x micro-batch x sequence length = 2048; try 4"),
    ],
)
def test_a_plan_that_cannot_be_says_what_can(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Plan(SIZES["1B"], H100, **wrong)


def test_a_model_without_a_vocabulary_has_no_estimate() -> None:
    with pytest.raises(ConfigError, match="with_vocab"):
        CostEstimate(Plan(ModelConfig(), H100)).parameters  # noqa: B018
