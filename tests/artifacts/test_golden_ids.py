"""Ids of fixed configs stand still, so that an upgrade finds what was trained before it."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, create_model

from lmpipe.alignment.config import DpoConfig, GrpoConfig, SftConfig
from lmpipe.alignment.dpo import dpo
from lmpipe.alignment.grpo import grpo
from lmpipe.alignment.sft import sft
from lmpipe.alignment.task import TaskConfig
from lmpipe.artifacts import identity
from lmpipe.artifacts.build import build
from lmpipe.artifacts.identity import artifact_id, neutral
from lmpipe.artifacts.lookup import identify, nearest
from lmpipe.artifacts.manifest import Manifest
from lmpipe.artifacts.stage import StageConfig
from lmpipe.artifacts.store import Store
from lmpipe.evaluation.config import EvaluateConfig
from lmpipe.evaluation.evaluate import evaluate
from lmpipe.runtime import Runtime
from lmpipe.training.config import PretrainConfig
from tests.artifacts.golden_ids import ids
from tests.artifacts.stages import CountConfig, count

# printed by `python -m tests.artifacts.golden_ids`; versions aside
IDS = {
    "decontaminate": "7e5f0767959907a42013ae61",
    "dedup": "637eb4aa5ddb2aaa3254f785",
    "dedup_passages": "3e94d6b97637a46274a33f48",
    "dpo": "19182e303ea766e1664a8309",
    "evaluate": "c33086a2f1547556eb0b22bd",
    "extract": "d4a21fb06049da8007f62208",
    "grpo": "66a1131bc700e94731c255a5",
    "import_documents": "9617abeb6d59ec0a83ab7b83",
    "mask": "2febae3307bc700d2e5464aa",
    "pretrain": "ebd97240f260dcbf171f5dd2",
    "quality_classifier": "3ac1447fce97e49b44412b15",
    "report": "b33480819251edc080e7c39b",
    "resample": "e3e590979b477dcd0e8e32c0",
    "scale": "d67cb3c0546d5197aa7cc61f",
    "select": "2f5563e63ad3810ef182ea8e",
    "sft": "259ac7f603305daa22aaf701",
    "shards": "6455931912c865c19b507a38",
    "signals": "ade9ccac5b850b0496c1feda",
    "source": "b1907b75d1a87aef8572f3c1",
    "tokenizer": "e7f651cab551db08e0fa83ff",
    "vocabulary": "32db4cb685ad55cc575e4da0",
}


def test_the_id_of_every_stage_is_what_it_was() -> None:
    assert ids() == IDS, (
        "ids moved, and artifacts are orphaned: declare at which value of a new field a stage does "
        "what it did, by json_schema_extra=neutral(…). Where the move is meant, print the table"
    )


def test_a_new_field_at_its_neutral_value_keeps_the_id_and_any_other_value_moves_it() -> None:
    later = create_model(
        "PretrainConfig",
        __base__=PretrainConfig,
        dropout=(float, Field(0.0, json_schema_extra=neutral(0.0), description="x")),
    )
    old = PretrainConfig().identity()
    assert later().identity() == old
    assert later(dropout=0.1).identity() == {**old, "dropout": 0.1}


def test_a_default_that_changes_later_does_not_take_over_the_neutral_value_s_ids() -> None:
    class Later(StageConfig):
        """A field whose default is no longer the value at which nothing changed."""

        dropout: float = Field(0.1, json_schema_extra=neutral(0.0), description="x")

    assert Later().identity() == {"dropout": 0.1} and Later(dropout=0.0).identity() == {}


class Part(BaseModel):
    """A section, as mixtures have them."""

    model_config = ConfigDict(frozen=True)

    weight: float = 1.0
    warm: bool = Field(False, json_schema_extra=neutral(False))


class Whole(StageConfig):
    """Sections in every place where a config can have them."""

    one: Part = Field(Part(), description="x")
    none: Part | None = Field(None, description="x")
    listed: tuple[Part, ...] = Field((Part(), Part(warm=True)), description="x")
    named: dict[str, Part] = Field({"a": Part(), "b": Part(warm=True)}, description="x")


def test_a_section_s_neutral_fields_stay_out_wherever_it_stands() -> None:
    plain, warm = {"weight": 1.0}, {"weight": 1.0, "warm": True}
    assert Whole().identity() == {
        "one": plain, "none": None, "listed": [plain, warm], "named": {"a": plain, "b": warm}
    }  # fmt: skip


def test_a_role_that_nothing_plays_is_no_part_of_the_id() -> None:
    assert artifact_id("s", 1, {}, {"a": ["d"], "new": []}) == artifact_id("s", 1, {}, {"a": ["d"]})


@pytest.mark.parametrize(
    ("stage", "config", "files"),
    [
        (evaluate, EvaluateConfig(tasks=("blimp", "docs_text")), {"blimp.yaml", "docs_text.yaml"}),
        (sft, SftConfig(), {"problem.py", "sorting.py"}),
        (dpo, DpoConfig(), {"problem.py", "sorting.py"}),
        (grpo, GrpoConfig(task=TaskConfig(name="arithmetic")), {"problem.py", "arithmetic.py"}),
    ],
)
def test_an_edited_task_or_reward_is_another_artifact(
    stage: Any, config: Any, files: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(config.identity_file_digests()) == files
    before = identify(stage, config, {})
    read = Path.read_bytes
    for name in files:
        with monkeypatch.context() as edited:
            edited.setattr(
                Path, "read_bytes", lambda p, n=name: read(p) + (b"\n#" if p.name == n else b"")
            )
            assert identify(stage, config, {}) != before
    assert identify(stage, config, {}) == before


class Filed(CountConfig):
    """A config of which a file is part."""

    file: str = Field("", description="Its path, for the test.")
    later: int = Field(0, json_schema_extra=neutral(0), description="Added later.")

    def identity_files(self) -> tuple[Path, ...]:
        return (Path(self.file),)


def test_the_manifest_has_the_whole_config_and_the_files_and_a_plan_names_the_edited_one(
    tmp_path: Path,
) -> None:
    (tmp_path / "task.yaml").write_text("a: 1")
    store, config = Store(str(tmp_path / "store")), Filed(file=str(tmp_path / "task.yaml"))
    made = build(count, config, {}, store=store, runtime=Runtime())
    assert made.manifest.config["later"] == 0
    assert made.manifest.files == {"task.yaml": identity.file_digest(tmp_path / "task.yaml")}
    (tmp_path / "task.yaml").write_text("a: 2")
    found = nearest(store, count, config, {})
    assert found is not None and [d.field for d in found[1]] == ["file task.yaml"]


def test_a_neutral_field_that_an_older_artifact_lacks_is_no_difference(tmp_path: Path) -> None:
    store, file = Store(str(tmp_path / "store")), tmp_path / "task.yaml"
    file.write_text("a: 1")
    made = build(count, Filed(file=str(file)), {}, store=store, runtime=Runtime())
    older = made.manifest.model_dump()
    del older["config"]["later"]
    path = f"count/{made.id}/manifest.json"
    with store.open(path, "wb") as stored:
        stored.write(Manifest.model_validate(older).dump())
    for later, fields in ((0, ["config.lines"]), (2, ["config.later", "config.lines"])):
        found = nearest(store, count, Filed(file=str(file), lines=4, later=later), {})
        assert found is not None and [d.field for d in found[1]] == fields
