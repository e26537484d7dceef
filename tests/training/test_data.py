import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmpipe.token_data.dataset import TokenReader
from lmpipe.training.data import IGNORED, GlobalBatches, MicroBatch
from tests.training.token_shards import EOS, write_shards

CPU = torch.device("cpu")
LENGTH = 16


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> TokenReader:
    folder = tmp_path_factory.mktemp("shards")
    write_shards(folder)
    return TokenReader(folder, "train", LENGTH)


def rows_with_targets(parts: list[MicroBatch]) -> list[tuple[int, ...]]:
    return [
        tuple(tokens.tolist())
        for part in parts
        for tokens, targets in zip(part.token_BT, part.target_BT, strict=True)
        if bool((targets != IGNORED).all())
    ]


@settings(max_examples=30, deadline=None)
@given(
    batch=st.integers(1, 9),
    world_size=st.integers(1, 5),
    rows=st.integers(1, 4),
    step=st.integers(0, 400),
)
def test_every_split_of_a_step_reads_the_same_sequences_once(
    reader: TokenReader, batch: int, world_size: int, rows: int, step: int
):
    batches = GlobalBatches(reader, 7, batch, document_masking=True)
    parts = [batches.micro_batches(step, rank, world_size, rows, CPU) for rank in range(world_size)]
    seen = sorted(row for rank in parts for row in rows_with_targets(rank))
    numbers = batches.numbers(step)
    assert seen == sorted(tuple(reader.sequence(number)[:-1].tolist()) for number in numbers)
    assert sum(part.num_targets for rank in parts for part in rank) == batch * LENGTH
    shapes = [[part.token_BT.shape for part in rank] for rank in parts]
    assert all(shape == shapes[0] for shape in shapes)


def test_an_epoch_reads_every_sequence_once_and_the_next_in_another_order(reader: TokenReader):
    batches = GlobalBatches(reader, 7, 1, document_masking=False)
    count = reader.num_sequences
    first = [batches.numbers(step)[0] for step in range(count)]
    second = [batches.numbers(step)[0] for step in range(count, 2 * count)]
    assert sorted(first) == sorted(second) == list(range(count))
    assert first != second


def test_targets_are_the_next_tokens_and_documents_change_behind_an_end(reader: TokenReader):
    batches = GlobalBatches(reader, 7, 4, document_masking=True)
    (part,) = batches.micro_batches(3, 0, 1, 4, CPU)
    assert part.document_BT is not None
    assert torch.equal(part.token_BT[:, 1:], part.target_BT[:, :-1])
    ends = part.token_BT[:, :-1] == EOS
    assert torch.equal(part.document_BT[:, 1:] - part.document_BT[:, :-1], ends.long())
    assert bool(ends.any())
    assert part.token_BT.dtype == torch.int64
    assert np.array_equal(part.token_BT[0], reader.sequence(batches.numbers(3)[0])[:-1])
