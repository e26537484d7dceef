"""The gate on invented artifacts: what was found upstream decides whether training may start."""

from typing import Any

import pytest
from pydantic import Field

from lmpipe.artifacts.build import build
from lmpipe.artifacts.output import Output
from lmpipe.artifacts.stage import StageConfig, stage
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import Checkpoint, Documents, TokenShards
from lmpipe.errors import InputError
from lmpipe.eval_items.contamination_record import (
    FILE,
    ContaminationRecord,
    check,
    merge,
    parse_report,
    record_in,
    record_of,
)
from lmpipe.runtime import Runtime
from lmpipe.training.config import PretrainConfig
from lmpipe.training.pretrain import pretrain

LINES = "5" * 64  # digest of a benchmark's lines


def report_on(dirty: int, documents: int = 100) -> dict[str, Any]:
    found = {str(n): {"documents": 2, "remaining": 1, "shares": {}} for n in range(dirty)}
    row = {"items": 10, "found": found, "dirty": list(range(dirty)), "unsure": {"7": {}},
           "unchecked": [9], "sha256": LINES}  # fmt: skip
    clean = {"items": 3, "found": {}, "dirty": [], "unsure": {}, "unchecked": [], "sha256": LINES}
    return {
        "documents": documents,
        "contaminated_documents": dirty,
        "benchmarks": {"gsm": row, "blimp": clean},
    }


class ReportedConfig(StageConfig):
    dirty: int = Field(-1, description="Items that the documents hold; -1: no report.")


@stage(version=1, kind="exact")
def reported(out: Output[Documents], config: ReportedConfig, *, runtime: Runtime) -> Documents:
    if config.dirty >= 0:
        out.write_json(FILE, report_on(config.dirty))
    out.write_json("number.json", config.dirty)
    return out.commit()


class Nothing(StageConfig):
    """No settings."""


@stage(version=1, kind="exact")
def filtered(
    out: Output[Documents], config: Nothing, documents: list[Documents], *, runtime: Runtime
) -> Documents:
    out.write_json("kept.json", [item.digest for item in documents])
    return out.commit()


@stage(version=1, kind="exact")
def cut(
    out: Output[TokenShards], config: Nothing, documents: Documents, *, runtime: Runtime
) -> TokenShards:
    out.write_json("tokens.json", "the same, whatever was found in the documents")
    return out.commit()


@stage(version=1, kind="exact")
def model(out: Output[Checkpoint], config: Nothing, *, runtime: Runtime) -> Checkpoint:
    out.write_json("meta.json", {})
    return out.commit()


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(str(tmp_path / "store"))


def make(store: Store, stage: Any, config: StageConfig, *inputs: Any) -> Any:
    return build(stage, config, stage.bind(inputs), store=store, runtime=Runtime())


def shards_of(store: Store, *dirty: int) -> TokenShards:
    bodies = [make(store, reported, ReportedConfig(dirty=number)) for number in dirty]
    return make(store, cut, Nothing(), make(store, filtered, Nothing(), bodies))


def test_clean_data_pass_through_later_stages(store: Store):
    record = check(record_of(shards_of(store, 0)), 0.0, (), "pretrain")
    assert record.reported and record.contaminated_fraction == 0
    assert record.reports[0].startswith("reported/")
    assert record.summary()["dirty_items"] == {"blimp": 0, "gsm": 0}


def test_unsure_documents_count_at_the_gate_and_are_accepted_by_name():
    row = {"items": 10, "found": {}, "dirty": [], "unsure": {"7": {"documents": 12}},
           "unchecked": [], "sha256": LINES}  # fmt: skip
    old = {"documents": 100, "contaminated_documents": 0, "benchmarks": {"gsm": row}}
    for report, number in ((old, 12), (old | {"unsure_documents": 14}, 14)):
        record = parse_report(report, "here")
        assert (record.unsure_documents, record.suspect_fraction) == (number, number / 100)
        with pytest.raises(
            InputError, match=rf"{number} of 100 doc.*gsm \(0 items in 0 .*1 unsure"
        ):
            check(record, 0.0, (), "pretrain")
        assert check(record, number / 100, (), "pretrain").accepted == ()
        assert check(record, 0.0, ("gsm",), "pretrain").accepted == ("gsm",)
        assert merge([record, record]).unsure_documents == 2 * number


def test_data_without_a_report_are_refused_unless_named(store: Store):
    shards = shards_of(store, -1)
    with pytest.raises(InputError, match=r"without a contamination report: reported/.*unreported"):
        check(record_of(shards), 1.0, ("gsm",), "pretrain")
    record = check(record_of(shards), 0.0, ("unreported",), "pretrain")
    assert record.accepted == ("unreported",) and record.flag("gsm", 0, LINES) == "unknown"


def test_one_body_of_data_without_a_report_is_enough_to_refuse(store: Store):
    with pytest.raises(InputError, match="without a contamination report"):
        check(record_of(shards_of(store, 0, -1)), 0.0, (), "sft")


def test_data_over_the_limit_are_refused_unless_the_benchmark_is_named(store: Store):
    record = record_of(shards_of(store, 3))
    with pytest.raises(InputError, match=r"3 of 100 documents \(3.00%.*gsm \(3 items in 3 doc"):
        check(record, 0.02, (), "pretrain")
    with pytest.raises(InputError, match=r"pretrain.accept_contamination=\[gsm\]"):
        check(record, 0.02, ("blimp", "unreported"), "pretrain")
    assert check(record, 0.03, (), "pretrain").accepted == ()
    assert check(record, 0.0, ("gsm", "blimp"), "pretrain").accepted == ("gsm",)


def test_every_item_has_a_flag(store: Store):
    record = record_of(shards_of(store, 2))
    flags = [record.flag("gsm", item, LINES) for item in range(10)]
    assert flags == ["dirty"] * 2 + ["clean"] * 5 + ["unsure", "clean", "unchecked"]
    assert record.flag("blimp", 0, LINES) == "clean" and record.flag("arc", 0, LINES) == "unknown"


def test_what_one_body_was_not_searched_for_is_unknown_but_dirt_stays_dirt():
    one = parse_report(report_on(1), "one")
    two = parse_report({**report_on(0), "benchmarks": {"arc": report_on(0)["benchmarks"]["blimp"]}},
                       "two")  # fmt: skip
    both = merge([one, two])
    assert both.flag("gsm", 0, LINES) == "dirty" and both.flag("blimp", 1, LINES) == "unknown"
    assert both.documents == 200 and both.reports == ("one", "two")
    unreported = merge([one, ContaminationRecord(reported=False, missing=("x",))])
    assert (
        unreported.flag("gsm", 0, LINES) == "dirty"
        and unreported.flag("gsm", 1, LINES) == "unknown"
    )


def test_a_checkpoint_from_before_there_were_records_is_unknown(store: Store):
    record = record_in(make(store, model, Nothing()))
    assert not record.reported and record.flag("gsm", 0, LINES) == "unknown"


def test_a_report_of_another_shape_is_named():
    with pytest.raises(InputError, match="old/1 is no contamination report of this version"):
        parse_report({"benchmarks": {"gsm": {"dirty": {"0": {}}}}}, "old/1")


def test_of_another_file_of_the_same_name_nothing_is_known(store: Store):
    record = record_of(shards_of(store, 2))
    assert {record.flag("gsm", item, "6" * 64) for item in range(10)} == {"unknown"}
    row = {
        key: value for key, value in report_on(2)["benchmarks"]["gsm"].items() if key != "sha256"
    }
    old = parse_report({**report_on(2), "benchmarks": {"gsm": row}}, "before digests")
    assert old.flag("gsm", 0, LINES) == "unknown"


def test_bodies_searched_for_different_files_are_counted_and_say_nothing_of_single_items():
    other = report_on(2)
    other["benchmarks"]["gsm"]["sha256"] = "6" * 64
    both = merge([parse_report(report_on(1), "one"), parse_report(other, "two")])
    assert {both.flag("gsm", 0, digest) for digest in (LINES, "6" * 64, "7" * 64)} == {"unknown"}
    with pytest.raises(InputError, match="hold items of gsm"):
        check(both, 0.0, (), "pretrain")
    assert both.flag("blimp", 0, LINES) == "clean"


def test_the_gate_of_pretraining_reads_the_newest_report_on_equal_shards(store: Store):
    before, after = shards_of(store, 0), shards_of(store, 3)
    assert before.digest == after.digest  # so that a model trained on the one serves for the other
    pretrain.admit(PretrainConfig(), {"shards": before, "tokenizer": None, "others": []})
    with pytest.raises(InputError, match="pretrain refuses contaminated data"):
        pretrain.admit(PretrainConfig(), {"shards": after, "tokenizer": None, "others": []})
    with pytest.raises(InputError, match="pretrain refuses contaminated data"):
        pretrain.admit(PretrainConfig(), {"shards": before, "tokenizer": None, "others": [after]})
