from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmpipe.token_data.best_fit import best_fit
from lmpipe.token_data.dataset import NO_DOCUMENT, TokenReader
from lmpipe.token_data.packing import BestFit, Concatenation, PackingName
from lmpipe.training.data import IGNORED, GlobalBatches
from tests.token_data.test_dataset import write_shards

PEPS = Path(__file__).parents[1] / "data" / "peps" / "token_lengths.txt"
CPU = torch.device("cpu")

shards = st.lists(st.lists(st.integers(1, 30), max_size=6), min_size=1, max_size=4)


class Lengths:
    """As much of a SplitIndex as a layout needs."""

    def __init__(self, lengths: list[int]) -> None:
        edges = np.cumsum([0, *lengths])
        self.document_starts, self.num_tokens = edges[:-1], int(edges[-1])


def peps() -> list[int]:
    return [int(line) for line in PEPS.read_text().split()]


def plain_best_fit(sizes: list[int], capacity: int) -> list[int]:
    """Return the room left in each row, by looking at all rows for each size."""
    rooms: list[int] = []
    for size in sorted(sizes, reverse=True):
        fitting = [(room, row) for row, room in enumerate(rooms) if room >= size]
        if fitting:
            rooms[min(fitting)[1]] -= size
        else:
            rooms.append(capacity - size)
    return sorted(rooms)


@given(st.lists(st.integers(1, 40), max_size=80), st.integers(40, 70))
@settings(deadline=None)
def test_rows_are_as_full_as_those_of_a_plain_best_fit(sizes: list[int], capacity: int) -> None:
    row = best_fit(np.array(sizes, np.int64), capacity)
    used = np.bincount(row, weights=np.array(sizes, np.float64)).astype(int)
    assert sorted((capacity - used).tolist()) == plain_best_fit(sizes, capacity)


@given(shards, st.integers(1, 12))
@settings(deadline=None, max_examples=50)
def test_every_token_of_a_document_but_its_first_is_a_target_once(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[list[int]], sequence_length: int
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    owner = write_shards(folder, lengths)
    reader = TokenReader(folder, "train", sequence_length, packing="best_fit")
    learnt, begun, read = [], [], set()
    for number in range(reader.num_sequences):
        tokens, documents = reader.sequence(number), reader.document_numbers(number)
        targets = reader.is_target(number)
        filled = int((documents != NO_DOCUMENT).sum())
        assert tokens.size == documents.size == targets.size == sequence_length + 1
        assert documents[:filled].tolist() == [owner[token] for token in tokens[:filled]]
        assert (documents[filled:] == NO_DOCUMENT).all() and not targets[filled:].any()
        # a document is one run of neighbours, which is what masking takes it for
        inside = documents[1:filled] == documents[: filled - 1]
        assert (np.diff(tokens[:filled])[inside] == 1).all()
        assert len(set(documents[:filled].tolist())) == filled - inside.sum()
        assert targets[1:filled][inside].all()  # behind a token of its own document
        learnt += tokens[1:filled][inside].tolist()
        begun += tokens[1:filled][~inside & targets[1:filled]].tolist()
        read |= set(tokens[:filled].tolist())
    firsts = {token for token in range(len(owner)) if not token or owner[token] != owner[token - 1]}
    assert sorted(learnt) == sorted(set(range(len(owner))) - firsts)
    assert len(set(begun)) == len(begun) and set(begun) <= firsts
    assert read == set(range(len(owner)))
    whole = [length for part in lengths for length in part if length <= sequence_length + 1]
    assert reader.layout.report().cut_documents == sum(map(len, lengths)) - len(whole)


@given(shards, st.integers(1, 12), st.integers(0, 9), st.integers(0, 3))
@settings(deadline=None, max_examples=50)
@pytest.mark.parametrize("packing", ["concatenate", "best_fit"])
def test_an_epoch_of_any_seed_learns_each_token_at_most_once_and_misses_none_inside(
    packing: PackingName,
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[list[int]],
    sequence_length: int,
    seed: int,
    epoch: int,
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    owner = write_shards(folder, lengths)
    reader = TokenReader(folder, "train", sequence_length, packing=packing)
    if not reader.num_sequences:
        return
    batches = GlobalBatches(reader, seed, 1, document_masking=True)
    first = epoch * reader.num_sequences
    parts = [
        part
        for step in range(first, first + reader.num_sequences)
        for part in batches.micro_batches(step, 0, 1, 1, CPU)
    ]
    learnt = [t for part in parts for t in part.target_BT.flatten().tolist() if t != IGNORED]
    assert len(set(learnt)) == len(learnt) == sum(part.num_targets for part in parts)
    assert len(learnt) == reader.layout.report().targets
    firsts = {token for token in range(len(owner)) if not token or owner[token] != owner[token - 1]}
    if packing == "best_fit":
        assert set(range(len(owner))) - set(learnt) <= firsts
    else:
        assert sorted(learnt) == list(range(1, len(learnt) + 1))


@pytest.mark.parametrize("packing", ["concatenate", "best_fit"])
@given(shards, st.integers(1, 12))
@settings(deadline=None, max_examples=50)
def test_the_report_counts_the_targets_whose_beginning_is_elsewhere(
    packing: PackingName,
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[list[int]],
    sequence_length: int,
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    owner = write_shards(folder, lengths)
    reader = TokenReader(folder, "train", sequence_length, packing=packing)
    cut: list[int] = []
    targets = 0
    for number in range(reader.num_sequences):
        is_target = reader.is_target(number)
        filled = reader.document_numbers(number) != NO_DOCUMENT
        tokens = reader.sequence(number)
        targets += int(is_target.sum())
        begun = {
            owner[token]
            for token in tokens[filled].tolist()
            if not token or owner[token] != owner[token - 1]
        }
        cut += [owner[token] for token in tokens[is_target] if owner[token] not in begun]
    report = reader.layout.report()
    assert (report.targets, report.cut_targets) == (targets, len(cut))
    assert report.cut_documents == len(set(cut))
    assert report.sequences == reader.num_sequences
    assert report.targets + report.padding == reader.num_sequences * sequence_length
    unread = 0 if packing == "best_fit" else len(owner) - targets - bool(reader.num_sequences)
    assert report.unread == unread


def test_the_first_token_of_a_later_part_behind_another_document_is_not_learnt_twice(
    tmp_path: Path,
) -> None:
    write_shards(tmp_path, [[1, 4]])  # parts of at most three tokens: 0 | 1 2 3 | 3 4
    reader = TokenReader(tmp_path, "train", 2, packing="best_fit")
    rows = [reader.sequence(number).tolist() for number in range(reader.num_sequences)]
    targets = [reader.is_target(number).tolist() for number in range(reader.num_sequences)]
    assert rows == [[1, 2, 3], [0, 3, 4]]
    assert targets == [[False, True, True], [False, False, True]]


@pytest.mark.parametrize("sequence_length", [512, 2048, 8192, 32_768])
def test_best_fit_pads_less_than_concatenation_cuts(sequence_length: int) -> None:
    index = Lengths(peps())
    packed = BestFit(index, sequence_length).report()  # type: ignore[arg-type]
    chunked = Concatenation(index, sequence_length).report()  # type: ignore[arg-type]
    assert packed.padding_fraction < 0.02
    assert packed.padding_fraction < chunked.cut_fraction
    assert packed.cut_targets < chunked.cut_targets
    assert packed.cut_documents < chunked.cut_documents
    assert chunked.padding == 0


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_any_world_size_reads_the_same_packed_sequences_also_after_two_resumes(
    tmp_path: Path, world_size: int
) -> None:
    write_shards(tmp_path, [[5, 30, 2, 9, 17, 1, 8], [4, 4, 26, 12, 3], [7, 19, 6]])
    batch, length = 6, 16
    numbered = TokenReader(tmp_path, "train", length, packing="best_fit")
    order = GlobalBatches(numbered, 4, batch, document_masking=True).order
    expected = order.numbers(0, 10 * batch)
    assert numbered.num_sequences * 5 < expected.size  # across epochs
    read: list[tuple[int, ...]] = []
    for steps in (range(3), range(3, 4), range(4, 10)):
        reader = TokenReader(tmp_path, "train", length, packing="best_fit")
        batches = GlobalBatches(reader, 4, batch, document_masking=True)
        for step in steps:
            parts = [batches.micro_batches(step, r, world_size, 2, CPU) for r in range(world_size)]
            rows = [[row for part in rank for row in part.target_BT.tolist()] for rank in parts]
            dealt = [rows[i % world_size][i // world_size] for i in range(batch)]
            read += [tuple(row) for row in dealt]
            counted = sum(part.num_targets for rank in parts for part in rank)
            assert counted == sum(value != IGNORED for row in dealt for value in row)
    assert read == [
        tuple(np.where(numbered.is_target(number), numbered.sequence(number), IGNORED)[1:].tolist())
        for number in expected
    ]
