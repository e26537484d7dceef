"""The memory that a cost estimate names against what a training step holds on one CUDA device."""

import gc

import pytest

torch = pytest.importorskip("torch")

from lmpipe.model import memory  # noqa: E402
from lmpipe.model.cost import count_parameters  # noqa: E402
from lmpipe.model.sizes import SIZES  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore"),  # other versions of torch, other warnings
    pytest.mark.timeout(400),
]


@pytest.mark.parametrize(("name", "batch"), [("100M", 8), ("300M", 8), ("1B", 4)])
@pytest.mark.parametrize("checkpointing", ["selective", "full"])
def test_peak_memory_of_a_training_step_is_within_a_tenth_of_the_estimate(
    name: str, batch: int, checkpointing: memory.Checkpointing
) -> None:
    from torch.nn import functional
    from torch.utils.checkpoint import checkpoint

    from lmpipe.model.decoder import Decoder

    config, length = SIZES[name], 2048
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with torch.device("cuda"):
        model = Decoder(config).to(torch.bfloat16)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    if checkpointing == "full":
        for block in model.model.layers:
            forward = block.forward
            block.forward = lambda *given, forward=forward: checkpoint(
                forward, *given, use_reentrant=False
            )
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)  # bf16 moments
    tokens_BT = torch.randint(0, config.vocab_size, (batch, length), device="cuda")
    for _ in range(2):  # moments exist from the second step on
        logits_BTV = model(tokens_BT)
        functional.cross_entropy(logits_BTV.float().flatten(0, 1), tokens_BT.flatten()).backward()
        del logits_BTV
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    measured = torch.cuda.max_memory_allocated() - before
    state = memory.TrainingState(parameters=2, gradients=2, optimizer=4)
    count = count_parameters(config).total
    expected = memory.state_bytes(config, count, state) + memory.activation_bytes(
        config, batch, length, checkpointing=checkpointing
    )
    print(f"{name} {checkpointing}: {measured / 1e6:.0f} MB, cost estimate {expected / 1e6:.0f} MB")
    assert measured == pytest.approx(expected, rel=0.10)
    del model, optimizer
