"""How many sequences go through a model at once, where runtime.micro_batch_size leaves it open.

Pretraining alone asks the GPU's memory (training/loop.py), since its model may fill it. The others
take a number of padded positions that their models leave room for anywhere.
"""

from typing import Literal

from lmpipe.runtime import Runtime

Work = Literal["scale", "post-training", "evaluation"]

# padded positions of one pass, by device: a sweep's models are small, post-training has a frozen
# policy beside the one it trains, and evaluation keeps nothing for a backward pass
AUTOMATIC_TOKENS: dict[Work, dict[str, int]] = {
    "scale": {"cpu": 8192, "cuda": 65_536},
    "post-training": {"cpu": 4096, "cuda": 32_768},
    "evaluation": {"cpu": 4096, "cuda": 65_536},
}


def micro_batch_size(runtime: Runtime, work: Work, device: str, length: int) -> int:
    """Return the sequences of a forward pass: as Runtime says, else by positions; at least 1.

    Args:
        device: `cpu` or `cuda`.
        length: tokens of the longest sequence.
    """
    return runtime.micro_batch_size or max(1, AUTOMATIC_TOKENS[work][device] // length)
