"""A causal model of a few thousand parameters with absolute positions, and a tokenizer for it."""

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import nn

from lmpipe.alignment.chat import ASSISTANT, BEGIN, END, USER


class ToyModel(nn.Module):
    """One attention layer over token and absolute position embeddings.

    Absolute positions are the point: a mistake in positions is invisible to relative ones.
    """

    def __init__(self, vocabulary: int = 40, width: int = 16, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(128, width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.output = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens_BT, *, document_BT=None, positions_BT=None):
        length = tokens_BT.shape[1]
        if positions_BT is None:
            positions_BT = torch.arange(length).expand_as(tokens_BT)
        x_BTD = self.tokens(tokens_BT) + self.positions(positions_BT)
        query, key, value = self.qkv(x_BTD).chunk(3, dim=-1)
        visible = torch.ones(length, length, dtype=torch.bool).tril()
        if document_BT is not None:
            visible = visible & (document_BT[:, :, None] == document_BT[:, None, :])
        score_BTS = (query @ key.transpose(1, 2)).masked_fill(~visible, -torch.inf)
        return self.output(x_BTD + score_BTS.softmax(-1) @ value)


def toy_tokenizer(markers: tuple[str, ...] = (BEGIN, USER, ASSISTANT, END)) -> Tokenizer:
    """Return a byte-level tokenizer of 256 bytes, one merge and the chat markers."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: index for index, symbol in enumerate([*alphabet, "So"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[("S", "o")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(markers))
    return tokenizer
