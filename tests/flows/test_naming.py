"""What runs are called, and which names are somebody's own."""

from datetime import datetime, timedelta, timezone

import pytest
from prefect.utilities.names import generate_slug

from flows.naming import describe, is_made_up, run_name
from tasks.selection import Selection


@pytest.mark.parametrize(
    ("selection", "words"),
    [
        (Selection(), "pipeline"),
        (Selection(only="dedup", force=("dedup",)), "rerun dedup"),
        (Selection(only="dedup"), "only dedup"),
        (Selection(only="dedup", force=("dedup", "mask")), "only dedup, dedup, mask anew"),
        (Selection(from_stage="select", until_stage="sft"), "pipeline from select until sft"),
        (Selection(until_stage="extract"), "pipeline until extract"),
        (Selection(force=("sft", "dpo")), "pipeline, sft, dpo anew"),
    ],
)
def test_a_name_says_what_a_run_does(selection: Selection, words: str) -> None:
    assert describe("pipeline", selection) == words


def test_a_name_has_recipe_work_and_time_in_utc() -> None:
    due = datetime(2026, 12, 1, 6, 10, tzinfo=timezone(timedelta(hours=1)))
    assert run_name("demo", "rerun dedup", due=due) == "demo · rerun dedup · 2026-12-01 05:10"


def test_every_name_that_the_server_makes_up_is_told_from_typed_ones() -> None:
    assert all(is_made_up(generate_slug(2)) for _ in range(2000))


@pytest.mark.parametrize(
    "name",
    [
        "demo · pipeline · 2026-12-01 05:10",
        "night-run",
        "before-the-merge",
        "Small-ablation",
        "smallest",
        "small-model",
        "",
    ],
)
def test_a_typed_name_is_somebody_s_own(name: str) -> None:
    assert not is_made_up(name)


@pytest.mark.parametrize("name", ["Ergonomic-Guppy", "Handcrafted-Coati", "Generic-Drever"])
def test_the_names_of_the_form_are_made_up(name: str) -> None:
    assert is_made_up(name)
