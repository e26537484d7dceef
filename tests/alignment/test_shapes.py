"""Every public function on tensors refuses what would broadcast instead of adding up."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import lmpipe.alignment
import lmpipe.inference
from lmpipe.alignment.policy_gradient import weighted_sum
from lmpipe.errors import ConfigError
from lmpipe.inference.sampling import SamplingConfig
from lmpipe.model.named_shapes import shape_letters

SIZES = {"B": 3, "T": 4, "R": 2, "V": 7}
OTHERS: dict[str, Any] = {
    "aggregation": "token_mean",
    "beta": 0.1,
    "config": SamplingConfig(),
    "max_length": 10,
    "model": lambda tokens_BT, **_: torch.zeros(*tokens_BT.shape, SIZES["V"]),
    "temperature": 1.0,
}


def public_functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    for package in (lmpipe.alignment, lmpipe.inference):
        for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(found.name)
            for name, function in vars(module).items():
                own = getattr(function, "__module__", "") == found.name
                if own and inspect.isfunction(function) and not name.startswith("_"):
                    yield f"{found.name.removeprefix('lmpipe.')}.{name}", function


# in inference, those that bring several tensors together
FUNCTIONS = {
    name: function
    for name, function in public_functions()
    if len(shape_letters(function)) > name.startswith("inference.")
}
TENSORS = [(name, tensor) for name, f in FUNCTIONS.items() for tensor in shape_letters(f)]


def arguments(function: Callable[..., Any]) -> dict[str, Any]:
    given = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name in shape_letters(function):
            values = torch.ones([SIZES[letter] for letter in shape_letters(function)[name]])
            is_mask = "mask" in name or "counted" in name or "targets" in name
            is_integer = any(word in name for word in ("tokens", "lengths", "document", "position"))
            given[name] = values.bool() if is_mask else values.long() if is_integer else values
        elif parameter.default is inspect.Parameter.empty:
            given[name] = OTHERS[name]
    return given


def test_the_functions_of_each_module_are_among_those_that_are_tried() -> None:
    assert {
        "alignment.logprobs.token_logprobs",
        "alignment.policy_gradient.clipped_policy_loss",
        "alignment.policy_gradient.group_advantages",
        "alignment.policy_gradient.kl_estimate",
        "alignment.policy_gradient.sequence_weights",
        "alignment.policy_gradient.weighted_sum",
        "alignment.preference.dpo_loss",
        "inference.sampling.choose",
    } <= FUNCTIONS.keys()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_tensors_of_the_named_shapes_are_taken(name: str) -> None:
    FUNCTIONS[name](**arguments(FUNCTIONS[name]))


@pytest.mark.parametrize(("name", "tensor"), TENSORS)
def test_a_column_in_place_of_a_row_and_any_other_rank_is_refused(name: str, tensor: str) -> None:
    function = FUNCTIONS[name]
    given = arguments(function)
    for wrong in (given[tensor][..., None], given[tensor][None], given[tensor][0]):
        with pytest.raises(ConfigError, match=rf"{function.__name__}: {tensor} has the shape"):
            function(**{**given, tensor: wrong})


@pytest.mark.parametrize(
    ("name", "tensor"), [(n, t) for n, t in TENSORS if len(shape_letters(FUNCTIONS[n])) > 1]
)
def test_a_batch_of_one_or_of_another_size_is_refused(name: str, tensor: str) -> None:
    function = FUNCTIONS[name]
    given = arguments(function)
    for wrong in (given[tensor][:1], torch.cat([given[tensor]] * 2)):
        with pytest.raises(ConfigError, match=r"where B is \d"):
            function(**{**given, tensor: wrong})


def test_a_column_of_weights_does_not_add_up_every_pair_of_rows() -> None:
    loss_BT, mask_BT = torch.tensor([[1.0], [2.0]]), torch.ones(2, 1, dtype=torch.bool)
    weights_B = torch.tensor([1.0, 10.0])
    assert weighted_sum(loss_BT, weights_B, mask_BT).item() == 21
    with pytest.raises(ConfigError, match=r"weights_B has the shape \(2, 1\)"):  # else: 33
        weighted_sum(loss_BT, weights_B[:, None], mask_BT)
