"""Memory of a step: lectures 2, 7 and 8, DeepSpeed's estimators, and what autograd keeps."""

import math
from typing import Any

import pytest

from lmpipe.errors import ConfigError
from lmpipe.model import cost, memory
from lmpipe.model.config import ModelConfig
from lmpipe.model.shapes import norms_of_block

SMALL = ModelConfig(
    vocab_size=64, num_layers=1, d_model=96, num_heads=6, num_kv_heads=3, d_ff=256, max_seq_len=64
)


def test_memory_of_the_lecture_on_resources() -> None:
    assert memory.matrix_bytes(49_152, 12_288) / 1e9 == pytest.approx(2.416, abs=5e-4)
    assert memory.matrix_bytes(49_152, 12_288) / 2**30 == 2.25
    assert memory.FP32_ADAMW.bytes_per_parameter == 16
    assert memory.FP32_ADAMW.largest_model(8 * 80e9) == 40e9
    assert memory.BF16_ADAMW.bytes_per_parameter == 12
    assert memory.BF16_ADAMW.largest_model(80e9) == pytest.approx(6.67e9, rel=1e-3)


def test_number_formats_of_the_lecture_on_resources() -> None:
    import torch

    tiny = torch.tensor(1e-8)
    assert tiny.to(torch.float16) == 0
    assert tiny.to(torch.bfloat16).item() == pytest.approx(1e-8, rel=2**-8)
    assert torch.finfo(torch.bfloat16).max > 3e38
    assert torch.finfo(torch.float8_e4m3fn).max == 448
    assert torch.finfo(torch.float8_e5m2).max == 57_344


def test_zero_stages_fit_the_models_of_the_lecture_on_parallelism() -> None:
    def fits(stage: int) -> float:
        return memory.BF16_ADAMW.largest_model(80e9, stage, world_size=8) / 1e9

    assert [math.floor(100 * fits(stage)) / 100 for stage in (0, 1, 3)] == [6.66, 16.0, 53.33]
    assert fits(1) < fits(2) < fits(3)
    with pytest.raises(ConfigError, match="zero_stage must be"):
        fits(4)
    with pytest.raises(ConfigError, match="world_size must be"):
        memory.BF16_ADAMW.largest_model(80e9, 1, world_size=0)


@pytest.mark.parametrize(("gpus", "nodes"), [(1, 1), (8, 1), (8, 16)])
def test_zero_agrees_with_deepspeeds_estimators(gpus: int, nodes: int) -> None:
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    config = ModelConfig(
        vocab_size=32_000, num_layers=32, d_model=4096, num_heads=32, num_kv_heads=32, d_ff=11_008
    )
    count, ranks = cost.count_parameters(config).total, gpus * nodes

    def ours(state: memory.TrainingState, stage: int) -> float:
        return memory.state_bytes(config, count, state, zero_stage=stage, world_size=ranks)

    _, stage_2 = estimate_zero2_model_states_mem_needs(count, gpus, nodes, cpu_offload=False)
    assert ours(memory.DEEPSPEED_ADAMW, 2) == pytest.approx(stage_2, abs=1)
    # At stage 3 the estimator counts one gradient, in fp32; bf16 ones live a moment each.
    one_gradient = memory.TrainingState(parameters=2, gradients=4, optimizer=12)
    _, stage_3, gathered = estimate_zero3_model_states_mem_needs(
        count, memory.largest_tensor(config), gpus, nodes, cpu_offload=False,
        cpu_offload_params=False,
    )  # fmt: skip
    assert ours(one_gradient, 3) == pytest.approx(stage_3, abs=1)
    assert ours(memory.DEEPSPEED_ADAMW, 3) == pytest.approx(stage_3 + 2 * count / ranks, abs=1)
    assert gathered == 4 * 32_000 * 4096  # the embedding


def test_largest_tensor_is_that_of_the_real_decoder() -> None:
    import torch

    from lmpipe.model.decoder import Decoder

    for config in (
        SMALL,
        SMALL.model_copy(update={"vocab_size": 512}),
        SMALL.model_copy(update={"positions": "learned", "max_seq_len": 1024}),
    ):
        with torch.device("meta"):
            model = Decoder(config)
        assert memory.largest_tensor(config) == max(p.numel() for p in model.parameters())


def kept_bytes(config: ModelConfig, batch: int, length: int, **how: Any) -> int:
    """Return the bytes that a forward pass of the trunk on CPU keeps, its parameters apart."""
    import torch
    from torch.utils.checkpoint import checkpoint

    from lmpipe.model.decoder import Decoder

    model = Decoder(config, attention="reference").initialise(0)
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept, alive = {}, []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)  # so that no other tensor gets its address
        return tensor

    if how.get("full"):
        for block in model.model.layers:
            forward = block.forward
            block.forward = lambda *given, forward=forward: checkpoint(
                forward, *given, use_reentrant=False
            )
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model.model(torch.arange(batch * length).reshape(batch, length) % config.vocab_size)
    return sum(kept.values())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"norm": "layer"},
        {"norm_position": "post"},
        {"norm_position": "both"},
        {"norm": "layer", "norm_position": "both"},
        {"qk_norm": True},
        {"feed_forward": "geglu"},
        {"feed_forward": "gelu"},
        {"feed_forward": "relu2"},
        {"positions": "none"},
        {"positions": "learned"},
    ],
)
def test_a_block_keeps_the_activations_that_autograd_keeps(options: dict[str, Any]) -> None:
    config = ModelConfig(**{**SMALL.model_dump(), **options})
    deep = config.model_copy(update={"num_layers": 3})
    measured = (kept_bytes(deep, 2, 64) - kept_bytes(config, 2, 64)) / 2
    expected = 2 * 64 * memory.block_activation_bytes(config, 64, bytes_per_element=4)
    # torch's RMSNorm on CPU is made of parts, which keep x / rms(x) and the rms as well;
    # LayerNorm is one kernel, which keeps the mean and the deviation
    heads, norms = config.num_heads + config.num_kv_heads, norms_of_block(config)
    parts = norms * (config.d_model + 1) if config.norm == "rms" else norms * 2
    parts += config.qk_norm * heads * (config.head_size + 1)
    assert measured == expected + 2 * 64 * 4 * parts


def test_full_checkpointing_keeps_a_blocks_input() -> None:
    deep = SMALL.model_copy(update={"num_layers": 3})
    measured = (kept_bytes(deep, 2, 64, full=True) - kept_bytes(SMALL, 2, 64, full=True)) / 2
    expected = memory.block_activation_bytes(SMALL, 64, checkpointing="full", bytes_per_element=4)
    assert measured == 2 * 64 * expected


def test_each_mode_of_checkpointing_keeps_less_than_the_one_before() -> None:
    config = ModelConfig(
        vocab_size=32_000, num_layers=32, d_model=4096, num_heads=32, num_kv_heads=32,
        max_seq_len=4096,
    )  # fmt: skip
    kept = [
        memory.activation_bytes(config, 1, 4096, checkpointing=mode)
        for mode in memory.CHECKPOINTING
    ]
    assert kept[0] > 2 * kept[1] > 4 * kept[2]
    scores = memory.block_activation_bytes(config, 4096, window=1024, checkpointing="none")
    plain = memory.block_activation_bytes(config, 4096) - 4 * 32
    assert scores - plain == 2 * 32 * 1024  # a window keeps its own columns only
    with pytest.raises(ConfigError, match="none, selective or full"):
        memory.block_activation_bytes(config, 4096, checkpointing="some")  # type: ignore[arg-type]


def test_activations_of_the_lecture_on_parallelism() -> None:
    # GPT-3: h = 12,288, a = 96, s = 2,048: 5 a s / h = 80, so selective keeps 34 of 114
    shape = (2048, 1, 12_288, 96)
    unit = 2048 * 12_288
    assert memory.gpt_activation_bytes(*shape) == unit * (34 + 80)
    assert memory.gpt_activation_bytes(*shape, checkpointing="selective") == 34 * unit
    assert memory.gpt_activation_bytes(*shape, checkpointing="full") == 2 * unit
    assert memory.gpt_activation_bytes(*shape, tensor_ranks=8) == unit * (10 + 24 / 8 + 80 / 8)
    sharded = memory.gpt_activation_bytes(*shape, tensor_ranks=8, sequence_parallel=True)
    assert sharded == unit * (34 + 80) / 8
