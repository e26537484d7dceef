import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from lmpipe.errors import ConfigError
from lmpipe.model.config import ModelConfig


def test_feed_forward_is_eight_thirds_of_the_width_rounded_up_to_64() -> None:
    assert ModelConfig(d_model=4096, num_heads=32, num_kv_heads=32).feed_forward_size == 10_944
    assert ModelConfig(d_model=192).feed_forward_size == 512  # 8/3 of 192 exactly
    assert ModelConfig(d_ff=700).feed_forward_size == 700


@given(st.integers(1, 16), st.integers(1, 16), st.integers(16, 256))
def test_builds_exactly_the_shapes_that_attention_can_use(
    heads: int, groups: int, width: int
) -> None:
    possible = heads % groups == 0 and width % (2 * heads) == 0
    try:
        config = ModelConfig(d_model=width, num_heads=heads, num_kv_heads=groups)
    except (ConfigError, ValidationError):
        assert not possible
    else:
        assert possible
        assert config.head_size * config.num_heads == config.d_model


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"d_model": 100, "num_heads": 6}, "try d_model=108"),
        ({"d_model": 90, "num_heads": 6}, "must be even"),
        ({"num_heads": 6, "num_kv_heads": 4}, r"use one of \[1, 2, 3, 6\]"),
        ({"num_layers": 0}, "num_layers"),
        ({"layers": 3}, "layers"),
    ],
)
def test_refuses_an_impossible_model_with_the_remedy(fields: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelConfig(**fields)


def test_takes_the_vocabulary_of_the_tokenizer_only_where_it_fits() -> None:
    assert ModelConfig().with_vocab(4096).vocab_size == 4096
    assert ModelConfig(vocab_size=5000).with_vocab(4096).vocab_size == 5000  # padded rows
    with pytest.raises(ConfigError, match="smaller than the tokenizer's 4096"):
        ModelConfig(vocab_size=100).with_vocab(4096)


def test_config_and_cost_load_without_torch() -> None:
    code = "import sys, lmpipe.model.config, lmpipe.model.cost; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
