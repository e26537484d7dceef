import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmpipe.alignment.chat import Rendered
from lmpipe.alignment.logprobs import token_logprobs
from lmpipe.alignment.packing import Overflow, pack
from lmpipe.errors import InputError
from tests.alignment.toy import ToyModel


def conversation(length: int, targets: int, first: int = 1) -> Rendered:
    tokens = [(first + n) % 37 + 1 for n in range(length)]
    return Rendered(tokens, [n >= length - targets for n in range(length)])


def test_packed_loss_is_the_sum_of_the_separate_losses() -> None:
    model = ToyModel()
    parts = [conversation(11, 4), conversation(9, 3, 20), conversation(7, 2, 8)]
    rows, report = pack(parts, 30, overflow="error", padding=0)
    assert report.rows == 1
    tensors = {
        "document_BT": torch.from_numpy(rows.document),
        "positions_BT": torch.from_numpy(rows.position),
    }
    tokens, targets = torch.from_numpy(rows.tokens), torch.from_numpy(rows.targets)
    packed = token_logprobs(model, tokens, targets, **tensors).logprobs_BT.sum()
    separate = sum(
        token_logprobs(model, torch.tensor([p.tokens]), torch.tensor([p.mask])).logprobs_BT.sum()
        for p in parts
    )
    torch.testing.assert_close(packed, separate)
    leaking = token_logprobs(model, tokens, targets).logprobs_BT.sum()
    assert abs(leaking - separate) > 0.01


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.integers(2, 40), st.integers(0, 5)), min_size=1, max_size=30),
    st.integers(5, 33),
    st.sampled_from(["truncate", "drop"]),
)
def test_every_token_is_accounted_for(
    sizes: list[tuple[int, int]], length: int, overflow: Overflow
) -> None:
    parts = [conversation(n, min(k, n - 1), i) for i, (n, k) in enumerate(sizes)]
    try:
        rows, report = pack(parts, length, overflow=overflow, padding=0)
    except InputError:
        return
    assert report.total_tokens == sum(n for n, _ in sizes)
    assert report.packed_tokens + report.padding_tokens == report.rows * length
    assert report.supervised_tokens == rows.targets.sum()
    assert report.conversations == len(sizes)
    for row in range(len(rows)):  # documents are contiguous, positions start again with each
        change = np.diff(rows.document[row]) != 0
        assert (rows.position[row][1:][change] == 0).all()
        assert not rows.targets[row][rows.position[row] == 0].any()


def test_targets_survive_packing_token_for_token() -> None:
    parts = [conversation(n, 3, n) for n in (12, 5, 8, 20, 6)]
    rows, report = pack(parts, 25, overflow="error", padding=0)
    taught = sorted(rows.tokens[rows.targets].tolist())
    assert taught == sorted(t for p in parts for t, m in zip(p.tokens, p.mask, strict=True) if m)
    assert report.dropped_tokens == report.truncated_tokens == 0


@pytest.mark.parametrize("length", [64, 100, 8193 // 64, 127])
def test_packing_is_dense_at_odd_row_lengths(length: int) -> None:
    parts = [conversation(n, 2, n) for n in (5, 9, 13, 17, 21) * 40]
    _, report = pack(parts, length, overflow="error", padding=0)
    assert report.packed_tokens / (report.rows * length) > 0.95


def test_a_long_conversation_is_an_error_unless_told_otherwise() -> None:
    parts = [conversation(10, 3), conversation(50, 45)]
    with pytest.raises(InputError, match="conversation 1 has 50 tokens and a row takes 20"):
        pack(parts, 20, overflow="error", padding=0)
    _, cut = pack(parts, 20, overflow="truncate", padding=0)
    assert (cut.truncated_tokens, cut.truncated_conversations, cut.dropped_tokens) == (30, 1, 0)
    _, dropped = pack(parts, 20, overflow="drop", padding=0)
    assert (dropped.dropped_tokens, dropped.dropped_conversations, dropped.rows) == (50, 1, 1)


def test_a_cut_that_leaves_nothing_to_learn_drops_the_conversation() -> None:
    _, report = pack([conversation(10, 3), conversation(50, 5)], 20, overflow="truncate", padding=0)
    assert (report.dropped_conversations, report.truncated_conversations) == (1, 0)


def test_nothing_to_learn_at_all_is_an_error() -> None:
    with pytest.raises(InputError, match="none of 2 conversations has a token to learn from"):
        pack([conversation(10, 0), conversation(50, 5)], 20, overflow="drop", padding=0)


def test_packing_depends_on_order_and_lengths_only() -> None:
    parts = [conversation(n % 13 + 3, 2, n) for n in range(50)]
    first, _ = pack(parts, 40, overflow="error", padding=0)
    second, _ = pack(parts, 40, overflow="error", padding=0)
    assert (first.tokens == second.tokens).all()
