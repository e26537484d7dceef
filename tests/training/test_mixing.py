"""Several token sets as one body of sequences, and the recipe's words for it."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from lmpipe.errors import ConfigError
from lmpipe.model.config import ModelConfig
from lmpipe.token_data.dataset import TokenReader
from lmpipe.training.config import PretrainConfig
from lmpipe.training.data import IGNORED, GlobalBatches
from lmpipe.training.mixing import MixedSequences, MixtureConfig
from tests.training.token_shards import write_shards

CPU = torch.device("cpu")
LENGTH = 16
MIXTURE = MixtureConfig.model_validate(
    {
        "stages": [
            {"fraction": 0.75, "weights": {"main": 0.8, "code": 0.2}},
            {"fraction": 0.25, "weights": {"main": 1, "maths": 2, "code": 1}},
        ]
    }
)


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> list[TokenReader]:
    folder = tmp_path_factory.mktemp("sets")
    for seed in range(3):
        write_shards(folder / str(seed), seed)
    return [
        TokenReader(folder / str(seed), "train", LENGTH, packing=packing)
        for seed, packing in enumerate(("concatenate", "best_fit", "concatenate"))
    ]


def batches(readers: list[TokenReader], steps: int = 40, batch: int = 6) -> GlobalBatches:
    order = MIXTURE.order([r.num_sequences for r in readers], (steps, batch), seed=3)
    mixed = MixedSequences(readers)
    return GlobalBatches(mixed, 3, batch, document_masking=True, order=order)


def test_the_sets_are_main_and_then_the_others_by_name() -> None:
    assert MIXTURE.names == ("main", "code", "maths")
    only_code = MixtureConfig.model_validate({"stages": [{"fraction": 1, "weights": {"code": 1}}]})
    assert only_code.names == ("main", "code")


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_any_world_size_reads_the_same_mixture_after_two_resumes_across_stages_and_epochs(
    readers: list[TokenReader], world_size: int
) -> None:
    expected: list[tuple[int, ...]] = []
    whole = batches(readers)
    assert whole.numbers(39)[-1] < whole.sequences.num_sequences
    for step in range(40):
        for number in whole.numbers(step):
            row, targets = whole.sequences.sequence(number), whole.sequences.is_target(number)
            expected.append(tuple(np.where(targets, row, IGNORED)[1:].tolist()))
    read: list[tuple[int, ...]] = []
    for steps in (range(9), range(9, 10), range(10, 40)):
        fresh = batches(readers)
        for step in steps:
            parts = [fresh.micro_batches(step, r, world_size, 2, CPU) for r in range(world_size)]
            rows = [[row for part in rank for row in part.target_BT.tolist()] for rank in parts]
            read += [tuple(rows[i % world_size][i // world_size]) for i in range(6)]
    assert read == expected


@given(
    st.lists(st.tuples(st.integers(1, 8), st.integers(1, 3)), min_size=1, max_size=6),
    st.lists(st.integers(0, 40), min_size=5, max_size=5),
)
@settings(deadline=None, max_examples=25)
def test_a_run_goes_on_with_the_same_data_on_other_ranks_and_micro_batches_after_any_step(
    readers: list[TokenReader], worlds: list[tuple[int, int]], stops: list[int]
) -> None:
    whole = batches(readers)
    edges = sorted({0, 40, *stops})
    for part, (start, stop) in enumerate(itertools.pairwise(edges)):
        world_size, rows = worlds[part % len(worlds)]
        fresh = batches(readers)
        for step in {start, stop - 1}:
            ranks = [fresh.micro_batches(step, r, world_size, rows, CPU) for r in range(world_size)]
            read = [[row for micro in rank for row in micro.token_BT.tolist()] for rank in ranks]
            dealt = [read[i % world_size][i // world_size] for i in range(6)]
            expected = [whole.sequences.sequence(n)[:-1].tolist() for n in whole.numbers(step)]
            assert dealt == expected


def test_what_is_read_is_what_the_manifest_says(readers: list[TokenReader]) -> None:
    run = batches(readers)
    offsets = np.cumsum([0, *(reader.num_sequences for reader in readers)])
    numbers = np.array([run.numbers(step) for step in range(40)])
    source = np.searchsorted(offsets, numbers, side="right") - 1
    order: Any = run.order
    said = MIXTURE.contributions(order, LENGTH)
    for i, name in enumerate(MIXTURE.names):
        assert said[name]["tokens"] == int((source == i).sum()) * LENGTH
        assert said[name]["epochs"] == (source == i).sum() / readers[i].num_sequences
        assert said[name]["stage_shares"] == [
            pytest.approx((source[:30] == i).mean()),
            pytest.approx((source[30:] == i).mean()),
        ]
    assert sum(part["share"] for part in said.values()) == pytest.approx(1)
    assert said["maths"]["stage_shares"] == [0.0, 0.5]


@pytest.mark.parametrize(
    ("mixture", "says"),
    [
        ({"stages": [{"fraction": 0.5, "weights": {"main": 1}}]}, "set the last one to 1"),
        ({"stages": [{"fraction": 1, "weights": {"main": -1, "code": 2}}]}, "at least 0"),
        ({"stages": [{"fraction": 1, "weights": {"main": 0}}]}, "one of them above"),
        ({"stages": []}, "at least 1 item"),
        (
            {"stages": [{"fraction": 1, "weights": {"main": 1}}], "max_epochs": {"code": 1}},
            "max_epochs names 'code', which has no weight",
        ),
        (
            {"stages": [{"fraction": 1, "weights": {"main": 1}}], "max_epochs": {"main": 0}},
            "max_epochs.main=0 must be above 0",
        ),
    ],
)
def test_mixtures_that_make_no_sense_are_refused(mixture: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        MixtureConfig.model_validate(mixture)


def test_a_stage_shorter_than_a_step_is_refused_with_the_config() -> None:
    stages = [{"fraction": f, "weights": {"main": 1}} for f in (0.95, 0.05)]
    with pytest.raises(ValidationError, match=r"stages of \[4, 0\] steps; each needs one"):
        PretrainConfig(
            model=ModelConfig(max_seq_len=64),
            total_tokens=4 * 64,
            batch_tokens=64,
            sequence_length=64,
            mixture=MixtureConfig.model_validate({"stages": stages}),
        )


def test_an_epoch_limit_that_does_not_hold_names_the_set_and_what_would_help() -> None:
    mixture = MIXTURE.model_copy(update={"max_epochs": {"maths": 2.0}})
    mixture.order([500, 50, 10], (40, 4), seed=0)
    with pytest.raises(ConfigError, match=r"'maths' would be read 2.22 times.*raise max_epochs"):
        mixture.order([500, 50, 9], (40, 4), seed=0)


def test_the_names_and_weights_are_part_of_the_identity() -> None:
    plain = PretrainConfig()
    mixed = plain.model_copy(update={"mixture": MIXTURE})
    other = plain.model_copy(
        update={"mixture": MIXTURE.model_copy(update={"max_epochs": {"main": 1.0}})}
    )
    assert len({str(config.identity()) for config in (plain, mixed, other)}) == 3
