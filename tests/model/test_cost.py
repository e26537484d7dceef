"""Figures of the course's lectures 2, 7 and 10, from our arithmetic."""

import pytest

from lmpipe.errors import ConfigError
from lmpipe.model import cost
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


def test_flops_agree_with_torch_counting_the_real_matmuls() -> None:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from lmpipe.model.decoder import Decoder

    config = ModelConfig(vocab_size=512, num_layers=2, d_model=64, num_heads=4, num_kv_heads=2)
    with torch.device("meta"):
        model = Decoder(config, attention="reference")
        tokens_BT = torch.zeros(3, 40, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        model(tokens_BT)
    # torch counts attention in full, whether causal or not
    expected = 3 * 40 * cost.forward_flops_per_token(config, 40, causal=False)
    assert counter.get_total_flops() == expected


def test_70b_on_15t_tokens_takes_144_days_on_1024_h100() -> None:
    flops = cost.training_flops(70e9, 15e12)
    assert flops == pytest.approx(6.3e24)
    days = cost.training_days(flops, cost.H100, num_devices=1024, mfu=0.5)
    assert days == pytest.approx(144, abs=0.5)


def test_attention_adds_little_to_6nd_at_short_context_and_much_at_long() -> None:
    six_n = 6 * cost.count_parameters(LLAMA_2_13B).matmul
    assert cost.training_flops_per_token(LLAMA_2_13B, 1) / six_n == pytest.approx(1, abs=1e-4)
    assert cost.training_flops_per_token(LLAMA_2_13B, 131_072) / six_n > 1.9


def test_memory_of_the_lecture_on_resources() -> None:
    assert cost.matrix_bytes(49_152, 12_288) / 1e9 == pytest.approx(2.416, abs=5e-4)
    assert cost.matrix_bytes(49_152, 12_288) / 2**30 == 2.25
    assert cost.FP32_ADAMW.bytes_per_parameter == 16
    assert cost.FP32_ADAMW.largest_model(8 * 80e9) == 40e9
    assert cost.BF16_ADAMW.largest_model(80e9) == pytest.approx(6.67e9, rel=1e-3)


def test_zero_stages_fit_the_models_of_the_lecture_on_parallelism() -> None:
    def fits(stage: int) -> float:
        return cost.BF16_ADAMW.largest_model(80e9, stage, world_size=8) / 1e9

    assert [round(fits(stage), 1) for stage in (0, 1, 3)] == [6.7, 16.0, 53.3]
    assert fits(1) < fits(2) < fits(3)
    with pytest.raises(ConfigError, match="zero_stage must be"):
        fits(4)


def test_an_h100_needs_295_flops_per_byte_and_a_matrix_vector_product_has_one() -> None:
    assert cost.H100.intensity == pytest.approx(295, abs=0.5)
    width = 4096
    bytes_read = cost.matrix_bytes(width, width, 2) + 2 * 2 * width
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
        seconds = cost.decode_seconds(LLAMA_2_13B, cost.H100, seq_len=1024, batch=batch)
        assert seconds * 1e3 == pytest.approx(milliseconds, abs=0.06)


def test_utilisation_is_the_tokens_work_over_the_devices_rate() -> None:
    per_token = cost.training_flops_per_token(LLAMA_2_13B, causal=False)
    rate = 0.4 * 8 * cost.H100.flops_per_second / per_token
    mfu = cost.model_flops_utilization(LLAMA_2_13B, rate, cost.H100, num_devices=8)
    assert mfu == pytest.approx(0.4)
    with pytest.raises(ConfigError, match="fraction"):
        cost.training_days(1e20, cost.H100, num_devices=1, mfu=40)


def test_refuses_to_count_without_a_vocabulary() -> None:
    with pytest.raises(ConfigError, match="with_vocab"):
        cost.count_parameters(ModelConfig())
