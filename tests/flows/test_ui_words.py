"""What the reader of Prefect's UI is told."""

import pytest

from lmpipe.artifacts.shards import ShardTask
from lmpipe.report.wording import cell
from tasks.ui_words import in_ui_words, readable, without_addresses


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (
            "build the token shards again (lmpipe run … --force shards)",
            "build the token shards again (open the deployment rerun, choose Force shards)",
        ),
        (
            "`lmpipe run demo --only dedup --force dedup` builds it",
            "open the deployment rerun, choose Only dedup and Force dedup builds it",
        ),
        ("--only goes alone: leave out --from", "Only goes alone: leave out From"),
        (
            "select needs dedup; run with --until dedup first, or without --from/--only",
            "select needs dedup; run with Until dedup first, or without From/Only",
        ),
        ("`lmpipe whatif signals --set a=1` shows", "`lmpipe whatif signals --set a=1` shows"),
    ],
)
def test_a_hint_names_what_the_form_has(said: str, shown: str) -> None:
    assert in_ui_words(said) == shown


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("bytes", 1_273_400_000, "1.27 GB"),
        ("shard_bytes", 5, "5 B"),
        ("took", 13.41, "13.4 s"),
        ("wall seconds", 7200, "2.0 h"),
        ("score", 0.85312, "0.853"),
        ("bits_per_byte", 1.23456, "1.23"),
        ("documents", 1_234_567, "1,234,567"),
        ("loss", 12345.678, "12,346"),
        ("tokens", 4096.0, "4,096"),
        ("rate", float("nan"), "–"),
        ("took", None, None),
        ("host", "a.example", "a.example"),
        ("kept", True, True),
    ],
)
def test_a_number_in_a_table_is_rounded_and_has_its_unit(
    name: str, value: object, shown: object
) -> None:
    assert cell(name, value) == shown
    assert readable([{name: value}]) == [{name: shown}]


def test_a_log_shows_no_address_of_an_object() -> None:
    assert without_addresses("<a.b.Step object at 0x7ff190b3d450> runs") == "<a.b.Step> runs"
    assert " at 0x" not in repr(ShardTask(None, "shards/x", ["a", "b"], print))
