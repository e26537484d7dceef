import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from lmpipe.alignment.config import (
    AlignmentOptimizer,
    DpoConfig,
    GrpoConfig,
    GrpoOptimizer,
    SftConfig,
    SftOptimizer,
)
from lmpipe.alignment.dpo import dpo
from lmpipe.alignment.grpo import grpo
from lmpipe.alignment.sft import sft
from lmpipe.artifacts.build import build
from lmpipe.artifacts.source import SourceSpec, pin, source
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import Checkpoint, Source
from lmpipe.errors import ConfigError, InputError
from lmpipe.runtime import Runtime
from tests.alignment.stages import RandomBaseConfig, random_base

TASK = {"min_numbers": 2, "max_numbers": 2, "max_value": 9}
RUNTIME = Runtime(device="cpu", ranks=1, threads_per_rank=1)
HELDOUT = {"heldout_problems": 8, "heldout_samples": 16}  # the task has no more of them
COMMON = {"task": TASK, "max_new_tokens": 8, "seed": 1, **HELDOUT}
NUM_STEPS = 24
SFT_OPTIMIZER = SftOptimizer(learning_rate=5e-3)
SFT = SftConfig(**COMMON, num_examples=512, num_steps=50, rows_per_step=16, optimizer=SFT_OPTIMIZER)
DPO_OPTIMIZER = AlignmentOptimizer(learning_rate=1e-3)
DPO = DpoConfig(**COMMON, num_prompts=64, num_steps=24, pairs_per_step=16, optimizer=DPO_OPTIMIZER)
GRPO = GrpoConfig(
    **COMMON,
    prompts_per_step=16,
    num_steps=NUM_STEPS,
    optimizer=GrpoOptimizer(learning_rate=3e-3),
    evaluate_every=10,
)


def checkpoint(stage: Any, config: Any, policy: Checkpoint, store: Store, **options: Any) -> Any:
    runtime = options.pop("runtime", RUNTIME)
    return build(stage, config, stage.bind((policy,)), store=store, runtime=runtime, **options)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(str(tmp_path_factory.mktemp("store")))


@pytest.fixture(scope="module")
def base(store: Store) -> Checkpoint:
    return build(random_base, RandomBaseConfig(), {}, store=store, runtime=RUNTIME)


@pytest.fixture(scope="module")
def tuned(base: Checkpoint, store: Store) -> Checkpoint:
    return checkpoint(sft, SFT, base, store)


@pytest.fixture(scope="module")
def reinforced(tuned: Checkpoint, store: Store) -> Checkpoint:
    return checkpoint(grpo, GRPO, tuned, store)


def curves(artifact: Checkpoint) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(artifact.local("curves.parquet")).to_pylist()
    return rows


def test_sft_lifts_the_held_out_reward_from_nothing(tuned: Checkpoint) -> None:
    assert tuned.metrics["heldout_reward_before"] < 0.1
    assert tuned.metrics["heldout_reward"] > 0.4
    packing = tuned.metrics["packing"]
    assert packing["dropped_tokens"] == packing["truncated_tokens"] == 0
    assert 0 < packing["supervised_tokens"] < packing["packed_tokens"] / 2
    rows = curves(tuned)
    assert rows[-1]["loss"] < rows[1]["loss"] / 2
    assert rows[-1]["step"] == SFT.num_steps


def test_dpo_prefers_its_own_right_answers(tuned: Checkpoint, store: Store) -> None:
    preferred = checkpoint(dpo, DPO, tuned, store)
    rollouts = pq.read_table(preferred.local("rollouts.parquet")).to_pylist()
    assert len(rollouts) == DPO.num_prompts * DPO.rollouts_per_prompt
    assert [row["group"] for row in rollouts[:: DPO.rollouts_per_prompt]] == list(range(64))
    assert preferred.metrics["pairs"]["pairs"] > 0
    first = curves(preferred)[1]
    assert first["margin"] == pytest.approx(0, abs=1e-5)  # the policy is still its own reference
    assert first["preference_loss"] == pytest.approx(0.6931, abs=1e-3)
    expected = first["preference_loss"] + DPO.likelihood_weight * first["chosen_loss_per_token"]
    assert first["loss"] == pytest.approx(expected, rel=1e-5)
    assert preferred.metrics["implied_reward_margin"] > 0.1
    assert preferred.metrics["implied_reward_accuracy"] > 0.8
    assert preferred.metrics["preference_loss"] < 0.65


def test_grpo_leaves_curves_samples_and_a_better_policy(reinforced: Checkpoint) -> None:
    before, after = (reinforced.metrics[f"heldout_reward{name}"] for name in ("_before", ""))
    assert after > before + 0.05
    rows = curves(reinforced)
    assert [row["step"] for row in rows] == list(range(NUM_STEPS + 1))
    measured = [row["step"] for row in rows if row["heldout_reward"] is not None]
    assert measured == [0, 10, 20, NUM_STEPS]
    trained = rows[1:]
    for name in ("reward", "kl", "clip_fraction", "length", "entropy", "zero_variance_fraction"):
        assert all(row[name] is not None for row in trained), name
    assert trained[0]["kl"] == pytest.approx(0, abs=1e-6)
    assert trained[-1]["kl"] > 0
    assert all(row["clip_fraction"] == 0 for row in trained)  # on-policy: the ratio is 1
    assert all(row["sampler_mismatch"] < 1e-4 for row in trained)
    samples = reinforced.read_json("samples.json")
    assert {"prompt", "completion", "reward"} <= samples[0].keys()
    assert reinforced.read_json("meta.json")["kind"] == "grpo"


def test_a_checkpoint_opens_in_transformers_with_its_chat_template(tuned: Checkpoint) -> None:
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    folder = tuned.local_dir("model")
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    assert sum(p.numel() for p in model.parameters()) == tuned.read_json("meta.json")["parameters"]
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Sort: 7 2"}], add_generation_prompt=True, return_tensors="pt"
    )
    answer = model.generate(**prompt, max_new_tokens=8, do_sample=False)[0]
    text = tokenizer.decode(answer[prompt["input_ids"].shape[1] :])
    assert text.endswith("<|end|>")  # it was taught to stop, and generation_config says how


def test_a_killed_grpo_goes_on_and_ends_with_the_same_weights(
    tuned: Checkpoint, reinforced: Checkpoint, tmp_path: Path
) -> None:
    class InterruptedRunError(Exception):
        pass

    def interrupt(event: dict[str, Any]) -> None:
        if event["type"] == "progress" and event["done"] >= 3:
            raise InterruptedRunError

    store, said = Store(str(tmp_path)), []
    eager = RUNTIME.model_copy(update={"checkpoint_every_seconds": 0.001})
    with pytest.raises(InterruptedRunError):
        checkpoint(grpo, GRPO, tuned, store, runtime=eager, sink=interrupt)
    resumed = checkpoint(grpo, GRPO, tuned, store, sink=said.append)
    assert any("earlier attempt" in str(event.get("message")) for event in said)
    assert [row["step"] for row in curves(resumed)] == list(range(NUM_STEPS + 1))
    weights = "model/model.safetensors"
    assert resumed.read_bytes(weights) == reinforced.read_bytes(weights)


def test_sft_without_anything_to_learn_is_refused(base: Checkpoint, store: Store) -> None:
    with pytest.raises(ConfigError, match="nothing to learn"):
        checkpoint(sft, SftConfig(num_examples=0), base, store)


def test_configs_refuse_what_cannot_work() -> None:
    with pytest.raises(ValueError, match="k1 in the loss"):
        GrpoConfig(kl_estimator="k1")
    with pytest.raises(ValueError, match="max_numbers <= max_value"):
        SftConfig(task={"min_numbers": 5, "max_numbers": 9, "max_value": 4})
    for config in (SftConfig(), DpoConfig(), GrpoConfig()):
        assert type(config).model_validate(json.loads(config.model_dump_json())) == config


def conversations(folder: Path, store: Store, report: dict[str, Any] | None) -> Source:
    folder.mkdir()
    messages = [{"role": "user", "content": "Sort: 2 1"}, {"role": "assistant", "content": "1 2"}]
    (folder / "chat.jsonl").write_text(json.dumps({"messages": messages}) + "\n")
    if report is not None:
        (folder / "contamination.json").write_text(json.dumps(report))
    found = pin("conversations", SourceSpec(paths=("*",)), folder)
    runtime = Runtime(locations=found.locations)
    return build(source, found.config, {}, store=store, runtime=runtime)


def test_sft_refuses_conversations_without_a_clean_report(
    base: Checkpoint, store: Store, tmp_path: Path
) -> None:
    config = SftConfig(**COMMON, num_examples=0, num_steps=1)
    found = {"4": {"documents": 1, "remaining": 1, "shares": {"item": 1.0}}}
    row = {"items": 5, "found": found, "dirty": [4], "unsure": {}, "unchecked": []}
    dirty = {"documents": 1, "contaminated_documents": 1, "benchmarks": {"gsm": row}}
    for report, message in ((None, "without a contamination report"), (dirty, "hold items of gsm")):
        talk = conversations(tmp_path / str(report is None), store, report)
        with pytest.raises(InputError, match=message):
            build(sft, config, sft.bind((base, talk)), store=store, runtime=RUNTIME)


def test_a_models_record_goes_on_with_it(tuned: Checkpoint, reinforced: Checkpoint) -> None:
    for model in (tuned, reinforced):
        assert model.read_json("contamination.json")["reported"] is False  # random_base has none
        assert model.metrics["contamination"]["reported"] is False
