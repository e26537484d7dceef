from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lmpipe.errors import ConfigError
from lmpipe.training.optimizer import OptimizerConfig
from lmpipe.training.schedule import Schedule
from lmpipe.training.update_rules import (
    NEWTON_SCHULZ,
    adagrad,
    adamw,
    momentum_sgd,
    muon,
    orthogonalise,
    rmsprop,
    zeros_for,
)

SETTINGS = OptimizerConfig(learning_rate=3e-2, beta1=0.8, beta2=0.9, weight_decay=0.3)
SCHEDULE = Schedule("cosine", 25, warmup_steps=5, final_fraction=0.1)
Rule = Callable[[Tensor, Tensor, Any, int, float], tuple[Tensor, Any]]


def gradient_of(weight: Tensor, step: int) -> Tensor:
    """Of a bowl that moves, so that no step is the same."""
    generator = torch.Generator().manual_seed(step)
    return weight * 0.7 + torch.randn(weight.shape, generator=generator, dtype=weight.dtype)


def follow(rule: Rule, memory: Any, start: Tensor) -> Tensor:
    weight = start.clone()
    for step in range(25):
        rate = SETTINGS.learning_rate * SCHEDULE(step)
        weight, memory = rule(weight, gradient_of(weight, step), memory, step, rate)
    return weight


def follow_torch(make: Callable[[list[Tensor]], torch.optim.Optimizer], start: Tensor) -> Tensor:
    weight = torch.nn.Parameter(start.clone())
    optimizer = make([weight])
    for step in range(25):
        optimizer.param_groups[0]["lr"] = SETTINGS.learning_rate * SCHEDULE(step)
        weight.grad = gradient_of(weight.detach(), step)
        optimizer.step()
    return weight.detach()


CASES: dict[str, tuple[Rule, Any, Callable[..., torch.optim.Optimizer]]] = {
    "momentum": (
        lambda w, g, m, _, rate: momentum_sgd(w, g, m, rate, 0.85),
        1,
        lambda p: torch.optim.SGD(p, momentum=0.85),
    ),
    "adagrad": (lambda w, g, m, _, rate: adagrad(w, g, m, rate), 1, torch.optim.Adagrad),
    "rmsprop": (
        lambda w, g, m, _, rate: rmsprop(w, g, m, rate, 0.9),
        1,
        lambda p: torch.optim.RMSprop(p, alpha=0.9),
    ),
    "adamw": (
        lambda w, g, m, step, rate: adamw(w, g, m, step, rate, SETTINGS),
        2,
        lambda p: torch.optim.AdamW(p, betas=(0.8, 0.9), weight_decay=0.3),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_every_rule_follows_torchs_own_through_a_schedule(name: str) -> None:
    rule, slots, make = CASES[name]
    start = torch.randn(7, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    memory = zeros_for(start) if slots == 1 else (zeros_for(start), zeros_for(start))
    ours, theirs = follow(rule, memory, start), follow_torch(make, start)
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-12)
    assert (ours - start).abs().min() > 1e-4


@pytest.mark.parametrize("shape", [(12, 30), (30, 12), (16, 16)])
def test_muon_follows_torchs_own_to_the_rounding_of_its_bf16_products(shape: tuple[int, int]):
    start = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    ours = follow(lambda w, g, m, _, rate: muon(w, g, m, rate, 0.95, 0.1), zeros_for(start), start)
    theirs = follow_torch(lambda p: torch.optim.Muon(p, weight_decay=0.1), start)
    moved = (theirs - start).norm()
    assert (ours - theirs).norm() < 0.03 * moved  # bf16 keeps 8 bits, 25 steps


def test_a_step_of_muon_is_its_definition_by_singular_values() -> None:
    generator = torch.Generator().manual_seed(0)
    weight, gradient, mean = torch.randn(3, 20, 8, generator=generator, dtype=torch.float64)
    stepped, kept = muon(weight, gradient, mean, 0.1, 0.9, 0.5)
    expected_mean = 0.9 * mean + 0.1 * gradient
    torch.testing.assert_close(kept, expected_mean)
    u, s, vt = torch.linalg.svd(0.9 * expected_mean + 0.1 * gradient, full_matrices=False)
    s = s / s.square().sum().sqrt()
    a, b, c = NEWTON_SCHULZ
    for _ in range(5):
        s = a * s + b * s**3 + c * s**5
    update = (20 / 8) ** 0.5 * u @ torch.diag(s) @ vt
    torch.testing.assert_close(stepped, weight * (1 - 0.1 * 0.5) - 0.1 * update)


@pytest.mark.parametrize("shape", [(40, 40), (24, 60), (60, 24)])
def test_orthogonalising_keeps_directions_and_evens_out_their_sizes(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    u, before, vt = torch.linalg.svd(matrix, full_matrices=False)
    turned = u.T @ orthogonalise(matrix) @ vt.T
    sizes = turned.diagonal()
    assert (turned - torch.diag(sizes)).abs().max() < 1e-10
    large = before > 0.03 * before.max()
    assert sizes[large].min() > 0.6 and sizes[large].max() < 1.3
    torch.testing.assert_close(orthogonalise(matrix * 1e3), orthogonalise(matrix))


def test_adagrad_slows_down_where_rmsprop_does_not() -> None:
    weight, one = torch.zeros(1), torch.ones(1)
    slow, fast = zeros_for(weight), zeros_for(weight)
    for _ in range(400):
        after_slow, slow = adagrad(weight, one, slow, 1.0)
        after_fast, fast = rmsprop(weight, one, fast, 1.0)
    assert float(-after_slow) == pytest.approx(1 / 20, rel=1e-4)  # 1 / sqrt(400)
    assert float(-after_fast) == pytest.approx(1, rel=0.02)


def test_nothing_is_changed_in_place_and_muon_refuses_vectors() -> None:
    weight, gradient, memory = torch.ones(3, 4, 4)
    muon(weight, gradient, memory, 0.1)
    adamw(weight, gradient, (memory, memory), 0, 0.1, SETTINGS)
    assert all(torch.equal(each, torch.ones(4, 4)) for each in (weight, gradient, memory))
    with pytest.raises(ConfigError, match="give vectors to adamw"):
        muon(weight[0], gradient[0], memory[0], 0.1)
