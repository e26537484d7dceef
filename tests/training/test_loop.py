from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lmpipe.model.config import ModelConfig
from lmpipe.runtime import Runtime
from lmpipe.training import loop
from lmpipe.training.config import PretrainConfig

MUP = {"mup_base_width": 32, "attention_scale": "inverse"}


class EngineSeen(Exception):
    pass


@pytest.mark.parametrize(("options", "expected"), [(MUP, 0.25), ({}, None)])
def test_a_mup_model_trains_at_rates_that_follow_its_width(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], expected: float | None
) -> None:
    model = ModelConfig(vocab_size=50, num_layers=1, d_model=128, num_heads=4, **options)
    config = PretrainConfig(model=model)
    seen: dict[str, Any] = {}

    def engine(*_: Any, scale: Any, **__: Any) -> None:
        seen["scale"] = scale
        raise EngineSeen

    monkeypatch.setattr(loop, "TrainingEngine", engine)
    context: Any = SimpleNamespace(runtime=Runtime())
    data: Any = None
    with pytest.raises(EngineSeen):
        loop.train(config, data, context, torch.device("cpu"))
    if expected is None:
        assert seen["scale"] is None
    else:
        assert seen["scale"]("model.layers.0.mlp.up_proj.weight") == expected
        assert seen["scale"]("model.embed_tokens.weight") == 1
