"""The stage: local tasks over a small model, numbers and errors checked by hand."""

import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field, ValidationError

from lmpipe.artifacts.build import build
from lmpipe.artifacts.output import Output
from lmpipe.artifacts.source import SourceSpec, pin, source
from lmpipe.artifacts.stage import StageConfig, stage
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import Checkpoint, Scores, Source
from lmpipe.errors import InputError
from lmpipe.evaluation.config import TASK_FOLDER, EvaluateConfig
from lmpipe.evaluation.evaluate import evaluate
from lmpipe.runtime import Runtime
from tests.evaluation.tiny import make_tokenizer, save_tiny_llama

PAIRS = [
    {"sentence_good": f"The {a} sits on the mat.", "sentence_bad": f"The {a} sit on the mat.",
     "UID": "agreement" if a in "abc" else "other"}
    for a in "abcdefgh"
]  # fmt: skip
CLOZE = [
    {"query": f"The cat number {i} sits on", "choices": ["the mat.", "a foo.", "who.", "Öl 1 2."],
     "gold": i % 4, "package": "cats"}
    for i in range(6)
]  # fmt: skip


PAIRS_SHA256 = hashlib.sha256("".join(json.dumps(row) + "\n" for row in PAIRS).encode()).hexdigest()
RECORD = {
    "reported": True,
    "benchmarks": {
        "blimp": {
            "items": 8,
            "documents": 1,
            "dirty": [1],
            "unsure": [2],
            "unchecked": [3],
            "sha256": PAIRS_SHA256,
        }
    },
}


class LlamaConfig(StageConfig):
    """Stands for a training stage's config."""

    folder: str = Field(description="Folder of the model.")


@stage(version=1, kind="statistical")
def llama(out: Output[Checkpoint], config: LlamaConfig, *, runtime: Runtime) -> Checkpoint:
    """Publish a folder as a checkpoint."""
    out.put_dir("model", Path(config.folder))
    out.write_json("contamination.json", RECORD)
    return out.commit()


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def pinned(store: Store, folder: Path) -> Source:
    found = pin("benchmarks", SourceSpec(paths=("*.jsonl",)), folder)
    runtime = Runtime(locations=found.locations)
    made = build(source, found.config, {}, store=store, runtime=runtime)
    assert isinstance(made, Source)
    return made


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(str(tmp_path_factory.mktemp("store")))


@pytest.fixture(scope="module")
def checkpoint(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("llama")
    save_tiny_llama(folder, make_tokenizer())
    return build(llama, LlamaConfig(folder=str(folder)), {}, store=store, runtime=Runtime())


@pytest.fixture(scope="module")
def scores(
    store: Store, checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scores]:
    data = tmp_path_factory.mktemp("eval")
    write_lines(data / "blimp.jsonl", PAIRS)
    write_lines(data / "docs_cloze.jsonl", CLOZE)
    inputs = {"checkpoint": checkpoint, "benchmarks": pinned(store, data)}
    events: list[dict[str, Any]] = []
    made = build(
        evaluate, EvaluateConfig(), inputs, store=store, runtime=Runtime(device="cpu"),
        sink=events.append,
    )  # fmt: skip
    assert any(event["type"] == "table" and event["name"] == "scores" for event in events)
    yield made


def test_items_of_a_file_that_was_exchanged_are_unknown_to_the_model_s_record(
    store: Store, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    write_lines(tmp_path / "blimp.jsonl", [*PAIRS[4:], *PAIRS[:4]])
    inputs = {"checkpoint": checkpoint, "benchmarks": pinned(store, tmp_path)}
    config = EvaluateConfig(tasks=("blimp",))
    made = build(evaluate, config, inputs, store=store, runtime=Runtime(device="cpu"))
    assert {sample["contamination"] for sample in samples(made, "blimp")} == {"unknown"}
    assert made.read_json("contamination_flags.json")["blimp"]["clean"] == {}


def samples(scores: Scores, task: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in scores.read_bytes(f"samples/{task}.jsonl").splitlines()]


def test_accuracy_and_its_error_follow_from_the_stored_log_likelihoods(scores: Scores) -> None:
    right = [s["responses"][0][0] > s["responses"][1][0] for s in samples(scores, "blimp")]
    mean = sum(right) / len(right)
    error = math.sqrt(mean * (1 - mean) / (len(right) - 1))
    assert scores.read_json("scores.json")["blimp"]["acc"] == {
        "value": pytest.approx(mean), "stderr": pytest.approx(error), "n": len(PAIRS)
    }  # fmt: skip


def test_every_item_says_whether_the_training_data_held_it(scores: Scores) -> None:
    found = [sample["contamination"] for sample in samples(scores, "blimp")]
    assert found == ["clean", "dirty", "unsure", "unchecked", *["clean"] * 4]
    assert {sample["contamination"] for sample in samples(scores, "docs_cloze")} == {"unknown"}
    flags = scores.read_json("contamination_flags.json")
    assert flags["blimp"]["items"] == {"clean": 5, "dirty": 1, "unchecked": 1, "unsure": 1}
    values = [sample["acc"] for sample in samples(scores, "blimp")]
    clean = [value for value, flag in zip(values, found, strict=True) if flag == "clean"]
    assert flags["blimp"]["clean"]["acc"]["n"] == 5
    assert flags["blimp"]["clean"]["acc"]["value"] == pytest.approx(sum(clean) / 5)
    assert flags["docs_cloze"]["clean"] == {}
    assert scores.metrics["contamination"]["blimp"]["dirty"] == 1


def test_the_byte_normalised_choice_divides_by_utf8_bytes(scores: Scores) -> None:
    right = []
    for item, sample in zip(CLOZE, samples(scores, "docs_cloze"), strict=True):
        rates = [
            response[0] / len(choice.encode())
            for response, choice in zip(sample["responses"], item["choices"], strict=True)
        ]
        right.append(rates.index(max(rates)) == item["gold"])
    value = scores.read_json("scores.json")["docs_cloze"]["acc_bytes"]["value"]
    assert value == pytest.approx(sum(right) / len(right))


def test_bits_per_byte_is_a_ratio_of_sums_with_an_error(scores: Scores) -> None:
    pairs = []
    for item, sample in zip(CLOZE, samples(scores, "docs_text"), strict=True):
        text = f"{item['query']} {item['choices'][item['gold']]}"
        pairs.append((-sample["responses"][0] / math.log(2), len(text.encode())))
    ratio = sum(bits for bits, _ in pairs) / sum(size for _, size in pairs)
    score = scores.read_json("scores.json")["docs_text"]["bits_per_byte"]
    assert score["value"] == pytest.approx(ratio, rel=1e-5)
    assert 0 < score["stderr"] < ratio


def test_groups_are_scored_apart(scores: Scores) -> None:
    groups = scores.read_json("tasks.json")["blimp"]["groups"]
    assert {name: part["n"] for name, part in groups.items()} == {"agreement": 3, "other": 5}
    whole = scores.read_json("scores.json")["blimp"]["acc"]["value"]
    assert sum(part["value"] * part["n"] for part in groups.values()) / 8 == pytest.approx(whole)


def test_every_item_is_stored(scores: Scores) -> None:
    assert scores.record("samples/blimp.jsonl").rows == len(PAIRS)
    assert len(samples(scores, "docs_text")) == len(CLOZE)


def test_a_file_that_the_source_lacks_is_named(
    store: Store, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    write_lines(tmp_path / "docs_cloze.jsonl", CLOZE)
    inputs = {"checkpoint": checkpoint, "benchmarks": pinned(store, tmp_path)}
    with pytest.raises(InputError, match=r"blimp.*'blimp.jsonl'.*docs_cloze.jsonl"):
        build(evaluate, EvaluateConfig(), inputs, store=store, runtime=Runtime(device="cpu"))


def test_an_unknown_task_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ValidationError, match="did you mean 'blimp'"):
        EvaluateConfig(tasks=("blip",))


def test_a_ratios_error_is_the_spread_of_means_when_all_texts_are_equally_long() -> None:
    from lmpipe.evaluation.harness import mean_stderr, ratio_stderr

    values = [1.0, 2.0, 4.0, 7.0]
    assert ratio_stderr([(v * 10, 10.0) for v in values]) == pytest.approx(
        mean_stderr(values)["stderr"]
    )


def test_every_task_file_says_what_the_report_needs() -> None:
    import yaml

    for path in TASK_FOLDER.glob("*.yaml"):
        config = yaml.safe_load(path.read_text())
        assert config["task"] == path.stem
        assert config["metadata"]["title"]
        assert config["dataset_path"] == "json"
        assert all("higher_is_better" in metric for metric in config["metric_list"])
