"""AdamW's settings, and which parameters it decays.

Matrices are decayed; norm gains and other vectors are not, since their scale is what they mean.
Embeddings are matrices here. Torch-free but for `parameter_groups`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

LearningRateScale = Callable[[str], float]


@dataclass(frozen=True)
class OptimizerSettings:
    """What AdamW needs.

    Attributes:
        learning_rate: the peak; the schedule gives fractions of it.
        gradient_clipping: largest global gradient norm; 0 leaves gradients as they are.
        max_skipped_in_a_row: so many steps in a row with non-finite gradients end the run.
    """

    learning_rate: float
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    gradient_clipping: float = 1.0
    max_skipped_in_a_row: int = 10


def parameter_groups(
    named_parameters: "Iterable[tuple[str, torch.nn.Parameter]]",
    settings: OptimizerSettings,
    scale: LearningRateScale | None = None,
) -> list[dict[str, Any]]:
    """Group parameters by weight decay and learning-rate scale.

    A parameter's shape is asked before ZeRO-3 replaces it by an empty placeholder, after which
    every parameter looks like a vector and nothing would be decayed.

    Args:
        scale: multiplies the learning rate of a parameter by its name (muP); 1 for all if left out.
    """
    groups: dict[tuple[bool, float], list[torch.nn.Parameter]] = {}
    for name, parameter in named_parameters:
        if parameter.requires_grad:
            key = (parameter.ndim >= 2, scale(name) if scale else 1.0)
            groups.setdefault(key, []).append(parameter)
    return [
        {
            "params": parameters,
            "weight_decay": settings.weight_decay if is_matrix else 0.0,
            "lr": settings.learning_rate * factor,
            "lr_scale": factor,
        }
        for (is_matrix, factor), parameters in sorted(groups.items(), key=lambda item: item[0])
    ]
