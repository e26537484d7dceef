"""Intensities of lectures 2, 5 and 10, and operations that add up to the model's FLOPs."""

import pytest

from lmpipe.errors import ConfigError
from lmpipe.model import cost, roofline
from lmpipe.model.accelerators import (
    A100,
    CPU,
    H100,
    H200,
    Accelerator,
    accelerator_named,
    accelerator_of,
    link_rate,
)
from lmpipe.model.sizes import SIZES

LLAMA = SIZES["13B"]


def test_a_matrix_vector_product_has_intensity_one_a_square_one_a_third_of_its_width() -> None:
    one = roofline.matmul("", "projections", 1, 4096, 4096)
    assert one.intensity == pytest.approx(1, abs=1e-3) and one.is_memory_bound(H100)
    square = roofline.matmul("", "projections", 4096, 4096, 4096)
    assert square.intensity == pytest.approx(4096 / 3) and not square.is_memory_bound(H100)
    assert square.flops_per_second(H100) == H100.flops_per_second


def test_an_h100_turns_from_memory_to_arithmetic_at_a_batch_of_about_300() -> None:
    # 2 B D F FLOPs over 2 D F bytes of weights: B FLOPs a byte, against 295
    def bound(batch: int) -> bool:
        return roofline.matmul("", "feed-forward", batch, 65_536, 65_536).is_memory_bound(H100)

    assert bound(295) and not bound(300)


def test_relu_and_gelu_take_the_same_time() -> None:
    relu, gelu = (
        roofline.Operation(name, "element-wise", flops * 1e9, 2 * 2 * 1e9)
        for name, flops in (("relu", 1), ("gelu", 20))
    )
    assert relu.seconds(H100) == gelu.seconds(H100)
    assert gelu.intensity == 20 * relu.intensity


def test_attention_has_an_intensity_of_half_the_prompt_at_prefill_and_below_one_at_decoding() -> (
    None
):
    assert roofline.attention_intensity(1024, 1024) == 512
    assert roofline.attention_intensity(1, 1024) == 1024 / 1025 < 1
    for batch in (1, 64):
        decode = roofline.attention(LLAMA, batch, 1, 1024)
        assert decode.intensity == pytest.approx(roofline.attention_intensity(1, 1024), rel=1e-12)
        prefill = roofline.attention(LLAMA, batch, 1024, 1024)
        # the mask leaves half of the scores to compute
        assert prefill.intensity == pytest.approx(512 * 1025 / 2048, rel=1e-12)
    grouped = LLAMA.model_copy(update={"num_kv_heads": 8})
    assert roofline.attention(grouped, 1, 1, 1024).intensity == pytest.approx(5, rel=0.01)
    with pytest.raises(ConfigError, match="queries must be 1 or keys"):
        roofline.attention(LLAMA, 1, 7, 1024)


def test_operations_add_up_to_the_models_flops() -> None:
    batch, length = 2, 4096
    extra = ("element-wise", "AdamW")
    tokens = batch * length
    forward = roofline.forward_operations(LLAMA, batch, length, length)
    work = sum(o.flops for o in forward if o.kind not in extra)
    assert work == pytest.approx(tokens * cost.forward_flops_per_token(LLAMA, length))
    training = roofline.training_operations(LLAMA, batch, length)
    work = sum(o.flops for o in training if o.kind not in extra)
    scores = next(o.flops for o in forward if o.kind == "attention")
    again = scores / 2  # the backward pass makes Q K^T again
    assert work == pytest.approx(tokens * cost.training_flops_per_token(LLAMA, length) + again)
    full = roofline.training_operations(LLAMA, batch, length, checkpointing="full")
    logits = next(o.flops for o in forward if o.kind == "output layer")
    more = sum(o.flops for o in full if o.kind not in extra) - work
    assert more == pytest.approx(sum(o.flops for o in forward if o.kind not in extra) - logits)


def test_what_counts_as_free_is_a_percent_of_the_flops() -> None:
    operations = roofline.forward_operations(LLAMA, 1, 4096, 4096)
    small = sum(o.flops for o in operations if o.kind == "element-wise")
    assert small / sum(o.flops for o in operations) < 0.01


@pytest.mark.parametrize(("batch", "milliseconds"), [(1, 8.0), (64, 23.8)])
def test_decoding_on_the_roofline_takes_the_lectures_time(batch: int, milliseconds: float) -> None:
    operations = roofline.decode_operations(LLAMA, batch, 1024)
    assert all(o.is_memory_bound(H100) for o in operations)
    # the lecture counts weights and cache; activations add 0.2% at one sequence, 3% at 64
    seconds = roofline.total_seconds(operations, H100)
    assert milliseconds - 0.15 < seconds * 1e3 < 1.03 * milliseconds
    weights = sum(o.bytes for o in operations if o.kind in ("projections", "feed-forward"))
    assert weights > 2 * (cost.count_parameters(LLAMA).matmul - 32_000 * 5120)


def test_prefill_is_bound_by_arithmetic_and_needs_one_position_of_logits() -> None:
    operations = roofline.prefill_operations(LLAMA, 4, 2048)
    products = [o for o in operations if o.kind in ("projections", "feed-forward", "attention")]
    assert not any(o.is_memory_bound(H100) for o in products)
    logits = next(o for o in operations if o.kind == "output layer")
    assert logits.flops == 2 * 4 * 5120 * 32_000


def test_devices_have_their_datasheets_intensities_and_links() -> None:
    turns = [device.intensity for device in (A100, H100, H200, CPU)]
    assert turns == pytest.approx([153, 295, 206, 23.3], abs=0.5)
    assert link_rate(H100, 8) == 450e9 and link_rate(H100, 9) == 400e9
    assert accelerator_named("h200") is H200
    with pytest.raises(ConfigError, match="did you mean 'H100'"):
        accelerator_named("H10")


def test_options_change_what_is_computed_element_by_element() -> None:
    def cost_of(**options: object) -> roofline.Operation:
        config = LLAMA.model_copy(update=options)
        operations = roofline.forward_operations(config, 1, 256, 256)
        return next(o for o in operations if o.kind == "element-wise")

    usual, tokens, layers = cost_of(), 256, 40
    assert usual.bytes - cost_of(feed_forward="gelu").bytes == 2 * tokens * layers * 13_824
    heads = 2 * 5120  # queries and keys
    turned = 2 * 2 * tokens * layers * heads  # in and out
    assert usual.bytes - cost_of(positions="none").bytes == turned
    assert usual.bytes - cost_of(nope_every=4).bytes == turned / 4
    assert cost_of(qk_norm=True).bytes - usual.bytes == turned
    assert cost_of(norm_position="both").bytes - usual.bytes == 2 * 2 * tokens * layers * 2 * 5120


def test_windows_bound_what_attention_reads_when_decoding() -> None:
    windowed = LLAMA.model_copy(update={"window": 256, "window_pattern": "SSSL"})
    full, short = (roofline.attention(config, 1, 1, 4096) for config in (LLAMA, windowed))
    assert short.flops == full.flops * (0.25 + 0.75 * 256 / 4096)


@pytest.mark.parametrize(
    ("device", "kind"),
    [
        ("NVIDIA H200", H200),
        ("NVIDIA H100 80GB HBM3", H100),
        ("NVIDIA A100-SXM4-80GB", A100),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA L4", None),
    ],
)
def test_a_gpu_is_known_by_a_word_of_its_name(device: str, kind: Accelerator | None) -> None:
    assert accelerator_of(device) is kind
