"""The engine on real ranks. Two starts serve all checks (tests/training/engine_entries.py)."""

from pathlib import Path
from typing import Any

import pytest
import torch

from lmpipe.runtime import Runtime
from lmpipe.training.launch import run_ranks
from lmpipe.training.optimizer import parameter_groups
from tests.training.engine_entries import MOST_SKIPPED, SCHEDULE, SETTINGS, check_stages, go_on
from tests.training.test_launch import Recorder
from tests.training.tiny import SEQUENCES_PER_STEP, TinyModel, sequences

STAGES = [0, 1, 2, 3]
FP32_ROUNDING = 2e-6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("states")


@pytest.fixture(scope="module")
def two_ranks(folder: Path) -> dict[str, Any]:
    job = {"stages": STAGES, "folder": str(folder)}
    return run_ranks(check_stages, job, Recorder(), Runtime(ranks=2, device="cpu"))


@pytest.fixture(scope="module")
def one_rank(folder: Path, two_ranks: dict[str, Any]) -> dict[str, Any]:
    loads = [["stage3/2", 1], ["stage1/4", 3], ["stage2/2", 0], ["stage0/4", 2]]
    job = {"loads": loads, "folder": str(folder)}
    return run_ranks(go_on, job, Recorder(), Runtime(ranks=1, device="cpu"))


@pytest.fixture(scope="module")
def reference() -> list[list[float]]:
    """Plain torch in float64: the whole batch at once, the mean over all target tokens."""
    model = TinyModel().double()
    optimizer = torch.optim.AdamW(
        parameter_groups(model.named_parameters(), SETTINGS),
        betas=(SETTINGS.beta1, SETTINGS.beta2),
        eps=SETTINGS.epsilon,
    )
    results = []
    for step in range(6):
        batch = sequences(step, list(range(SEQUENCES_PER_STEP)))
        logits = model(batch.token_BT)
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), batch.target_BT.flatten(), ignore_index=-100
        )
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), SETTINGS.gradient_clip)
        rate = SETTINGS.learning_rate * SCHEDULE(step)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        results.append([loss.item(), norm.item(), rate])
    return results


def same(results: list[list[float]], expected: list[list[float]]) -> bool:
    return len(results) == len(expected) and all(
        got == pytest.approx(wanted, rel=20 * FP32_ROUNDING)
        for got, wanted in zip(results, expected, strict=True)
    )


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("how", ["straight", "ragged"])
def test_any_split_over_ranks_and_micro_batches_trains_as_one_full_batch_does(
    two_ranks: dict[str, Any], reference: list[list[float]], stage: int, how: str
):
    assert same(two_ranks[str(stage)][how], reference)


@pytest.mark.parametrize("stage", STAGES)
def test_a_run_resumed_twice_equals_the_uninterrupted_one_to_the_bit(
    two_ranks: dict[str, Any], stage: int
):
    answer = two_ranks[str(stage)]
    assert answer["resumed"] == answer["straight"]
    assert answer["same_weights"]
    assert answer["data"] == {"next": 12}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("poison", ["inf", "nan"])
def test_a_step_that_is_not_finite_on_one_rank_is_skipped_by_all(
    two_ranks: dict[str, Any], stage: int, poison: str
):
    skip = two_ranks[str(stage)]["skip"]
    skipped, same_weights, rate = skip[poison]
    assert skipped and same_weights
    assert rate == skip["rate_before"]


@pytest.mark.parametrize("stage", STAGES)
def test_training_goes_on_after_a_skip_as_if_it_had_not_been(two_ranks: dict[str, Any], stage: int):
    skip = two_ranks[str(stage)]["skip"]
    assert skip["position"]["skipped"] == 2
    assert skip["position"]["updates"] == 1
    assert skip["after"][:2] == skip["expected_after"]
    assert skip["after"][2] == skip["rate_before"]
    assert skip["same_weights"]


@pytest.mark.parametrize("stage", STAGES)
def test_too_many_skips_in_a_row_end_the_run(two_ranks: dict[str, Any], stage: int):
    message, in_a_row = two_ranks[str(stage)]["skip"]["error"]
    assert "3 steps in a row" in message
    assert in_a_row == MOST_SKIPPED + 1


def test_a_state_of_two_ranks_goes_on_at_one_rank_and_any_other_stage(
    one_rank: dict[str, Any], two_ranks: dict[str, Any]
):
    for key in ("stage3/2 at 1", "stage1/4 at 3", "stage2/2 at 0", "stage0/4 at 2"):
        rest = one_rank[key]
        assert len(rest) == 6 - int(key.split("/")[1][0])
        assert same(rest, two_ranks["1"]["straight"][-len(rest) :]), key


def test_a_state_saved_before_the_first_update_trains_like_a_new_run(
    one_rank: dict[str, Any], reference: list[list[float]]
):
    assert one_rank["before any update"] == sorted(dict(TinyModel().named_parameters()))
    assert same(one_rank["ragged"], reference)


def test_matrices_are_decayed_and_vectors_are_not():
    groups = parameter_groups(TinyModel().named_parameters(), SETTINGS, scale=lambda name: 0.5)
    decay = {group["weight_decay"]: group["params"] for group in groups}
    assert {p.ndim for p in decay[0.2]} == {2}
    assert {p.ndim for p in decay[0.0]} == {1}
    assert sum(len(group["params"]) for group in groups) == len(list(TinyModel().parameters()))
    assert {group["lr"] for group in groups} == {0.01}
