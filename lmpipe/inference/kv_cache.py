"""The keys and values of the tokens read so far, so that each new token costs one position of work.

One slab per model, allocated once: slot s of a row holds its position s. Rows differ in length by
what they see, not by how they are padded: a slot beyond a row's length is never visible and is
overwritten when the row gets there. So there is no left padding, no padding id and no position to
correct. Alternative not taken: paged blocks as in vLLM, which pay when requests come and go; a
batch that starts together wastes at most its longest prompt.

A layer with a window holds all positions too, and attention hides those before the window. A ring
of `window` slots would be smaller, but the padding of a shorter prompt would overwrite its end.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lmpipe.errors import ConfigError
from lmpipe.model.config import ModelConfig


class KVCache:
    """Keys and values of `batch` rows of at most `max_len` tokens.

    Attributes:
        key_LBGSK: keys by layer, row, key head, slot; heads before slots, as attention reads them.
        value_LBGSK: values likewise.
        length_B: tokens that each row has read.
        used: slots written in the longest row; a Python number, so that attention slices without a
            device sync.

    Cost: 2 L G K bytes-per-element per token of `batch * max_len`
        (lmpipe.model.cost.kv_cache_bytes, which for layers with a window counts the window alone).
    """

    def __init__(
        self,
        config: ModelConfig,
        batch: int,
        max_len: int,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if max_len > config.max_seq_len:
            raise ConfigError(
                f"{max_len} positions are more than the model's max_seq_len={config.max_seq_len}; "
                "shorten the prompts or max_new_tokens"
            )
        self.config = config
        shape = (config.num_layers, batch, config.num_kv_heads, max_len, config.head_size)
        self.key_LBGSK = torch.zeros(shape, device=device, dtype=dtype)
        self.value_LBGSK = torch.zeros(shape, device=device, dtype=dtype)
        self.length_B = torch.zeros(batch, device=device, dtype=torch.long)
        self.used = 0
        self._row_B1 = torch.arange(batch, device=device)[:, None]

    @property
    def batch(self) -> int:
        """Rows in the cache."""
        return self.key_LBGSK.shape[1]

    @property
    def max_len(self) -> int:
        """Slots of each row."""
        return self.key_LBGSK.shape[3]

    def reserve(self, num_tokens: int) -> None:
        """Open the next `num_tokens` slots of every row, before the forward pass that fills them.

        Raises:
            ConfigError: the slab has no such slots.
        """
        if self.used + num_tokens > self.max_len:
            raise ConfigError(
                f"the cache holds {self.max_len} tokens a row; {self.used + num_tokens} are needed"
            )
        self.used += num_tokens

    def append(
        self,
        layer: int,
        key_BTGK: Float[Tensor, "B T G K"],
        value_BTGK: Float[Tensor, "B T G K"],
        positions_BT: Int[Tensor, "B T"],
    ) -> tuple[Float[Tensor, "B G S K"], Float[Tensor, "B G S K"]]:
        """Store a layer's new keys and values at their positions; return its slots so far."""
        self.key_LBGSK[layer][self._row_B1, :, positions_BT] = key_BTGK
        self.value_LBGSK[layer][self._row_B1, :, positions_BT] = value_BTGK
        return self.key_LBGSK[layer, :, :, : self.used], self.value_LBGSK[layer, :, :, : self.used]

    def advance(self, num_tokens_B: Int[Tensor, " B"] | int) -> None:
        """Count tokens as read: those that a row's next query will see."""
        self.length_B += num_tokens_B

    def take(self, row_R: Int[Tensor, " R"], max_len: int | None = None) -> KVCache:
        """Return a cache of the given rows: some of them dropped, repeated or reordered.

        Args:
            max_len: slots of the new cache; this one's if left out.
        """
        taken = KVCache(
            self.config,
            len(row_R),
            max_len or self.max_len,
            device=self.key_LBGSK.device,
            dtype=self.key_LBGSK.dtype,
        )
        taken.key_LBGSK[:, :, :, : self.used] = self.key_LBGSK[:, row_R, :, : self.used]
        taken.value_LBGSK[:, :, :, : self.used] = self.value_LBGSK[:, row_R, :, : self.used]
        taken.length_B = self.length_B[row_R]
        taken.used = self.used
        return taken
