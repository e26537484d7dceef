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


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"positions": "none", "nope_every": 2}, "nope_every=2 has no meaning with positions='no"),
        ({"positions": "learned", "rope_base": 5e5}, "use positions='rope' or leave rope_base"),
        (
            {"positions": "sinusoidal", "rope_scaling": "ntk", "rope_scaling_factor": 2},
            "rope_scaling='ntk' has no meaning with positions='sinusoidal'",
        ),
        ({"rope_scaling": "yarn"}, "rope_scaling='yarn' and rope_scaling_factor=1 do not go"),
        ({"rope_scaling_factor": 2.0}, "rope_scaling='none' and rope_scaling_factor=2 do not go"),
        (
            {"rope_scaling": "linear", "rope_scaling_factor": 3},
            "must be a multiple of rope_scaling_factor=3.*try max_seq_len=258",
        ),
        ({"rope_scaling": "yarn", "rope_scaling_factor": 64}, "at least 8, got 4"),
        (
            {"rope_scaling": "ntk", "rope_scaling_factor": 2, "d_model": 16, "num_heads": 8},
            "head size of at least 4, got 2",
        ),
        ({"nope_every": 7}, "reaches no layer of num_layers=6"),
        ({"window": 8}, "window=8 and window_pattern='' do not go together"),
        ({"window_pattern": "SSL"}, "window=0 and window_pattern='SSL' do not go together"),
        ({"window": 8, "window_pattern": "LL"}, "a pattern with an S, or neither"),
        ({"window": 8, "window_pattern": "SSSLSSS"}, "longer than num_layers=6"),
        ({"window": 8, "window_pattern": "SXL"}, "window_pattern"),
        ({"mup_base_width": 64}, "mup_base_width=64 excludes attention_scale='inverse_root'"),
        (
            {"mup_base_width": 64, "attention_scale": "inverse", "norm_position": "post"},
            "mup_base_width=64 excludes norm_position='post'",
        ),
        ({"positions": "sinusoidal", "d_model": 27, "num_heads": 3, "num_kv_heads": 1}, "even"),
        ({"logit_softcap": -1.0}, "logit_softcap"),
        ({"norm": "batch"}, "norm"),
        ({"feed_forward": "relu"}, "feed_forward"),
    ],
)
def test_options_that_exclude_each_other_are_refused_with_the_remedy(
    fields: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ModelConfig(**{"num_kv_heads": 1, **fields})


def test_heads_of_odd_size_are_refused_for_ropes_sake_only() -> None:
    shape = {"d_model": 18, "num_heads": 2, "num_kv_heads": 1}
    with pytest.raises(ValueError, match="RoPE turns pairs"):
        ModelConfig(**shape)
    assert ModelConfig(**shape, positions="learned").head_size == 9


def test_windows_and_nope_follow_their_patterns_through_the_layers() -> None:
    config = ModelConfig(num_layers=8, window=64, window_pattern="SSSL", nope_every=4)
    windows = [config.layer_window(layer) for layer in range(8)]
    assert windows == [64, 64, 64, None] * 2
    assert [config.has_rope(layer) for layer in range(8)] == [True, True, True, False] * 2
    assert [ModelConfig().layer_window(layer) for layer in range(3)] == [None] * 3


def test_without_a_gate_the_feed_forward_is_four_times_the_width() -> None:
    assert ModelConfig(feed_forward="relu2").feed_forward_size == 768
    assert ModelConfig(feed_forward="geglu").feed_forward_size == 512


def test_takes_the_vocabulary_of_the_tokenizer_only_where_it_fits() -> None:
    assert ModelConfig().with_vocab(4096).vocab_size == 4096
    assert ModelConfig(vocab_size=5000).with_vocab(4096).vocab_size == 5000  # padded rows
    with pytest.raises(ConfigError, match="smaller than the tokenizer's 4096"):
        ModelConfig(vocab_size=100).with_vocab(4096)


def test_config_and_cost_load_without_torch() -> None:
    code = "import sys, lmpipe.model.config, lmpipe.model.cost; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
