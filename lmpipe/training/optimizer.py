"""AdamW's settings, one section for every stage that trains, and which parameters it decays.

Matrices are decayed; norm gains and other vectors are not, since their scale is what they mean.
Embeddings are matrices here. Torch-free but for `parameter_groups`.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from lmpipe.artifacts.stage import StageConfig

if TYPE_CHECKING:
    import torch

LearningRateScale = Callable[[str], float]

# stages differ in these defaults, and in nothing else of the section
LearningRate = Annotated[
    float,
    Field(gt=0, le=10, description="Peak learning rate; the schedule gives fractions of it."),
]
WeightDecay = Annotated[
    float, Field(ge=0, le=10, description="Decoupled decay of matrices; vectors are not decayed.")
]


class OptimizerConfig(StageConfig):
    """What AdamW needs."""

    learning_rate: LearningRate = 3e-3
    beta1: float = Field(0.9, ge=0, lt=1, description="Decay of the first moment.")
    beta2: float = Field(0.95, ge=0, lt=1, description="Decay of the second moment.")
    epsilon: float = Field(1e-8, gt=0, le=1e-2, description="Guard of the division.")
    weight_decay: WeightDecay = 0.1
    gradient_clip: float = Field(
        1.0, ge=0, le=1e6, description="Largest global gradient norm; 0 leaves gradients alone."
    )


def parameter_groups(
    named_parameters: "Iterable[tuple[str, torch.nn.Parameter]]",
    settings: OptimizerConfig,
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
