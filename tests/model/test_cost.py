"""Parameters, FLOPs and caches: figures of the course's lectures 2 and 10."""

from typing import Any

import pytest

from lmpipe.errors import ConfigError
from lmpipe.model import cost
from lmpipe.model.accelerators import H100
from lmpipe.model.config import ModelConfig

LLAMA_2_13B = ModelConfig(
    vocab_size=32_000,
    num_layers=40,
    d_model=5120,
    num_heads=40,
    num_kv_heads=40,
    d_ff=13_824,
    max_seq_len=4096,
    tied_embeddings=False,
)


def test_counts_what_llama_2_publishes() -> None:
    assert cost.count_parameters(LLAMA_2_13B).total == 13_015_864_320


@pytest.mark.parametrize("tied", [True, False])
def test_counts_the_parameters_of_the_real_decoder_by_group(tied: bool) -> None:
    from lmpipe.model.decoder import Decoder

    config = ModelConfig(
        vocab_size=512,
        num_layers=3,
        d_model=96,
        num_heads=6,
        num_kv_heads=3,
        d_ff=128,
        tied_embeddings=tied,
    )
    count = cost.count_parameters(config)
    sizes = {name: p.numel() for name, p in Decoder(config).named_parameters()}
    assert sum(sizes.values()) == count.total
    assert sum(n for name, n in sizes.items() if "self_attn" in name) == count.attention
    assert sum(n for name, n in sizes.items() if "mlp" in name) == count.feed_forward
    assert sum(n for name, n in sizes.items() if "norm" in name) == count.norm


@pytest.mark.parametrize(
    "options",
    [
        {"feed_forward": "relu2", "qk_norm": True, "positions": "learned"},
        {"norm_position": "post", "norm": "layer", "positions": "sinusoidal"},
        {"norm_position": "both", "feed_forward": "geglu", "tied_embeddings": False},
        {"positions": "learned", "tied_embeddings": False, "feed_forward": "gelu"},
    ],
)
def test_counts_the_parameters_and_products_of_every_option(options: dict[str, Any]) -> None:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from lmpipe.model.decoder import Decoder

    shape = {"vocab_size": 512, "num_layers": 3, "d_model": 96, "num_kv_heads": 3}
    config = ModelConfig(**shape, **options)
    with torch.device("meta"):
        model = Decoder(config, attention="reference")
        tokens_BT = torch.zeros(3, 40, dtype=torch.long)
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    count = cost.count_parameters(config)
    assert sum(sizes.values()) == count.total
    assert sum(n for name, n in sizes.items() if "norm" in name) == count.norm
    assert sum(n for name, n in sizes.items() if "mlp" in name and "_proj" in name) == (
        count.feed_forward
    )
    assert sum(n for name, n in sizes.items() if "embed_positions" in name) == count.positions
    with FlopCounterMode(display=False) as counter:
        model(tokens_BT)
    expected = 3 * 40 * cost.forward_flops_per_token(config, 40, causal=False)
    assert counter.get_total_flops() == expected


def test_a_window_is_counted_layer_by_layer() -> None:
    shape = {"vocab_size": 512, "num_layers": 4, "d_model": 96, "num_kv_heads": 3}
    config = ModelConfig(**shape, window=16, window_pattern="SSSL")
    full = ModelConfig(**shape)
    keys = 3 * (16 * 17 / 2 + 48 * 16) / 64 + 65 / 2  # of 64 queries, 16 see 1 to 16, the rest 16
    saved = 4 * 96 * (4 * 65 / 2 - keys)
    found = cost.forward_flops_per_token(full, 64) - cost.forward_flops_per_token(config, 64)
    assert found == pytest.approx(saved)


def test_flops_agree_with_torch_counting_the_real_matmuls() -> None:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from lmpipe.model.decoder import Decoder

    config = ModelConfig(vocab_size=512, num_layers=2, d_model=64, num_heads=4, num_kv_heads=2)
    with torch.device("meta"):
        model = Decoder(config, attention="reference")
        tokens_BT = torch.zeros(3, 40, dtype=torch.long)
    # torch counts attention in full, whether causal or not
    with FlopCounterMode(display=False) as counter:
        logits_BTV = model(tokens_BT)
    forward = 3 * 40 * cost.forward_flops_per_token(config, 40, causal=False)
    assert counter.get_total_flops() == forward
    with FlopCounterMode(display=False) as counter:
        logits_BTV.sum().backward()
    backward = 3 * 40 * cost.backward_flops_per_token(config, 40, causal=False)
    assert counter.get_total_flops() == pytest.approx(backward, rel=0.02)
    assert forward + backward == 3 * 40 * cost.training_flops_per_token(config, 40, causal=False)


@pytest.mark.parametrize(("length", "window"), [(1, 0), (7, 0), (7, 7), (7, 3), (7, 1), (7, 9)])
def test_a_window_limits_the_keys_that_a_query_sees(length: int, window: int) -> None:
    seen = [
        sum(1 for key in range(query + 1) if not window or query - key < window)
        for query in range(length)
    ]
    assert cost.visible_positions(length, window) == pytest.approx(sum(seen) / length)
    assert cost.visible_positions(length, window, causal=False) == max(seen)


def test_a_pattern_of_windows_costs_what_its_layers_cost() -> None:
    length, window = 32_768, 1024
    windows = [window, window, window, 0] * 10  # SSSL
    pattern = cost.forward_flops_per_token(LLAMA_2_13B, length, windows=windows)
    full = cost.forward_flops_per_token(LLAMA_2_13B, length)
    products = 2 * cost.count_parameters(LLAMA_2_13B).matmul
    short = 4 * 5120 * 30 * (window - window * (window - 1) / 2 / length)
    assert pattern - products == pytest.approx((full - products) / 4 + short)
    cached = cost.kv_cache_bytes(LLAMA_2_13B, length, windows=windows)
    assert cached == 2 * 2 * 5120 * (30 * window + 10 * length)


def test_papers_count_parameters_and_flops_by_their_own_conventions() -> None:
    small = ModelConfig(
        vocab_size=32_768, num_layers=4, d_model=256, num_heads=4, num_kv_heads=4, d_ff=1024
    )
    count = cost.count_parameters(small)
    kaplan, hoffmann, here = count.conventions().values()
    assert kaplan == 4 * (4 * 256**2 + 3 * 256 * 1024) + 9 * 256
    assert hoffmann == kaplan + 32_768 * 256
    assert here == hoffmann - 9 * 256
    flops = list(cost.flops_conventions(small, 512).values())
    square = 12 * 4 * 256 * 512
    assert flops[0] == 6 * kaplan
    assert flops[1] == 6 * here + square + 9 * 4 * 4 * 512 + 6 * 32_768 * 256
    assert flops[2] == 6 * hoffmann + square
    assert flops[3] == 6 * (kaplan - 9 * 256) + square  # 72 n d^2 + 12 n d l at d_ff = 8/3 d
    assert flops[4] == cost.training_flops_per_token(small, 512)


def test_flops_of_gpt_3_agree_with_its_published_compute() -> None:
    # Brown et al. (2020), table D.1: 3.14e23 FLOPs for 300B tokens; a GELU network of 4 D is as
    # large as a gated one of 8/3 D.
    gpt_3 = ModelConfig(
        vocab_size=50_257, num_layers=96, d_model=12_288, num_heads=96, num_kv_heads=96,
        d_ff=32_768, max_seq_len=2048,
    )  # fmt: skip
    count = cost.count_parameters(gpt_3)
    assert count.total == pytest.approx(174.6e9, rel=5e-3)
    assert cost.training_flops(count.total, 300e9) == pytest.approx(3.14e23, rel=5e-3)


def test_70b_on_15t_tokens_takes_144_days_on_1024_h100() -> None:
    flops = cost.training_flops(70e9, 15e12)
    assert flops == pytest.approx(6.3e24)
    days = cost.training_days(flops, H100, num_devices=1024, mfu=0.5)
    assert days == pytest.approx(144, abs=0.5)


def test_a_product_costs_2mnp_and_a_parameter_2_flops_forward_and_4_backward() -> None:
    assert cost.matmul_flops(3, 5, 7) == 2 * 3 * 5 * 7
    per_parameter = cost.count_parameters(LLAMA_2_13B).matmul
    attention = 4 * 40 * 5120  # one key: its own
    assert cost.forward_flops_per_token(LLAMA_2_13B, 1) == 2 * per_parameter + attention
    assert cost.backward_flops_per_token(LLAMA_2_13B, 1) == 4 * per_parameter + 2 * attention


def test_attention_adds_little_to_6nd_at_short_context_and_much_at_long() -> None:
    six_n = 6 * cost.count_parameters(LLAMA_2_13B).matmul
    assert cost.training_flops_per_token(LLAMA_2_13B, 1) / six_n == pytest.approx(1, abs=1e-4)
    assert cost.training_flops_per_token(LLAMA_2_13B, 131_072) / six_n > 1.9


def test_an_h100_needs_295_flops_per_byte_and_a_matrix_vector_product_has_one() -> None:
    assert H100.intensity == pytest.approx(295, abs=0.5)
    width = 4096
    bytes_read = 2 * width * width + 2 * 2 * width
    assert cost.matmul_flops(1, width, width) / bytes_read == pytest.approx(1, abs=1e-3)


def test_kv_cache_and_decoding_of_llama_2_13b() -> None:
    grouped = LLAMA_2_13B.model_copy(update={"num_kv_heads": 8})
    assert cost.kv_cache_bytes(LLAMA_2_13B, 1024) / 1e9 == pytest.approx(0.84, abs=2e-3)
    assert cost.kv_cache_bytes(grouped, 1024) / 1e9 == pytest.approx(0.17, abs=3e-3)
    weights = 2 * cost.count_parameters(LLAMA_2_13B).total
    assert weights / 1e9 == pytest.approx(26, abs=0.1)
    assert (weights + cost.kv_cache_bytes(LLAMA_2_13B, 1024, 256)) / 1e9 == pytest.approx(
        241, abs=0.5
    )
    for batch, milliseconds in [(1, 8.0), (64, 23.8)]:
        seconds = cost.decode_seconds(LLAMA_2_13B, H100, seq_len=1024, batch=batch)
        assert seconds * 1e3 == pytest.approx(milliseconds, abs=0.06)
    with_int4 = cost.decode_seconds(LLAMA_2_13B, H100, seq_len=1024, bytes_per_weight=0.5)
    assert with_int4 * 1e3 == pytest.approx((26.03 / 4 + 0.839) / 3.35, abs=0.01)


def test_latent_attention_caches_512_and_64_features_a_token_and_layer() -> None:
    # DeepSeek-V2: 60 layers, 128 heads of 128 would be 32,768 features
    whole = 2 * 60 * 1024 * 2 * 128 * 128
    assert cost.latent_cache_bytes(60, 1024) == 2 * 60 * 1024 * 576
    assert whole / cost.latent_cache_bytes(60, 1024) == pytest.approx(56.9, abs=0.05)


def test_utilisation_is_the_tokens_work_over_the_devices_rate() -> None:
    per_token = cost.training_flops_per_token(LLAMA_2_13B, causal=False)
    rate = 0.4 * 8 * H100.flops_per_second / per_token
    mfu = cost.model_flops_utilization(LLAMA_2_13B, rate, H100, num_devices=8)
    assert mfu == pytest.approx(0.4)
    with pytest.raises(ConfigError, match="fraction"):
        cost.training_days(1e20, H100, num_devices=1, mfu=40)


def test_refuses_to_count_without_a_vocabulary() -> None:
    with pytest.raises(ConfigError, match="with_vocab"):
        cost.count_parameters(ModelConfig())
