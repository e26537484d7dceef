"""What a stage would refuse late is refused when the run is planned."""

from pathlib import Path

import pytest

from flows.recipe import load_recipe
from flows.run import COMPOSITIONS, plan_run
from lmpipe.errors import ConfigError
from lmpipe.runtime import devices
from tasks.selection import Selection


def refused(tmp_path: Path, *changes: str, flow: str = "pipeline", here: bool = True) -> str:
    recipe = load_recipe("demo", [f"store.root={tmp_path / 'store'}", *changes])
    with pytest.raises(ConfigError) as caught:
        plan_run(flow, recipe, Selection(), here)
    assert not (tmp_path / "store").exists()
    return str(caught.value)


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("runtime.device=cuda", "pretrain would fail: runtime.device=cuda, but this machine has"),
        ("stage_runtime.evaluate.device=cuda", "evaluate[base] would fail: runtime.device=cuda"),
        ("runtime.attention=triton", "runtime.attention=triton needs a GPU"),
        ("runtime.hostfile=/no/hosts", "runtime.hostfile=/no/hosts cannot be read"),
        ("stage_runtime.sft.ranks=3", "sft.rows_per_step=8 must divide by the 3 ranks; try 9"),
        ("stage_runtime.dpo.ranks=5", "dpo.pairs_per_step=24 must divide by the 5 ranks; try 25"),
        ("stage_runtime.grpo.ranks=5", "rollouts_per_prompt=128 must divide by the 5 ranks"),
        ("runtime.executor=slurm", "runtime.executor=slurm needs runtime.slurm_partition"),
        ("runtime.scratch=/dev/null/x", "/dev/null is no folder that may be written"),
        ("sft.num_examples=0", "sft.num_examples=0 and no conversations"),
        ("sft.sequence_length=512", "sft.sequence_length=512 is more than pretrain.model.max_seq"),
        ("dpo.max_new_tokens=252", "use at most 251"),
        ("pretrain.model.vocab_size=4000", "smaller than tokenizer.vocab_size=4096"),
        ("tokenizer.specials=[<eos>]", "tokenizer.specials lacks <|endoftext|>, <|user|>"),
        ("sources.perplexity_model=null", "max_perplexity_percentile needs sources.perplexity"),
        ("select.max_toxicity=0.5", "select.max_toxicity needs sources.toxicity_examples"),
        ("sources.language_model.paths=[demo_data/eval/*]", "must be one model file, its paths"),
        ("sources.benchmarks.paths=[demo_data/eval/blimp.jsonl]", "reads 'docs_cloze.jsonl'"),
    ],
)
def test_what_a_stage_would_refuse_after_hours_is_refused_by_the_plan(
    change: str, said: str, tmp_path: Path
) -> None:
    assert said in refused(tmp_path, change)


def test_the_plan_names_the_hosts_that_it_cannot_train_on(tmp_path: Path) -> None:
    hostfile = tmp_path / "hosts"
    hostfile.write_text("localhost slots=2\nfar slots=8\n")
    said = refused(tmp_path, f"runtime.hostfile={hostfile}")
    assert f"runtime.hostfile={hostfile} names far" in said and "leave hostfile empty" in said
    hostfile.write_text("localhost slots=8\n")
    assert "8 slots; set one" in refused(
        tmp_path, f"runtime.hostfile={hostfile}", "runtime.ranks=2"
    )


def test_more_slots_than_gpus_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert devices.num_gpus() == 2
    hostfile = tmp_path / "hosts"
    hostfile.write_text("localhost slots=8\n")
    assert "has 8 slots, this host has 2 GPUs" in refused(tmp_path, f"runtime.hostfile={hostfile}")
    assert "runtime.ranks=8 is more than the 2 GPUs" in refused(tmp_path, "runtime.ranks=8")
    assert "zero_stage=0 in bf16" in refused(tmp_path, "runtime.zero_stage=0")


def test_a_plan_for_another_machine_asks_nothing_of_this_one(tmp_path: Path) -> None:
    changes = [f"store.root={tmp_path}", "runtime.device=cuda", "runtime.hostfile=/no/hosts"]
    steps = plan_run("pipeline", load_recipe("demo", changes), Selection(), here=False)
    assert {step.status for step in steps} == {"RUN", "PENDING"}
    said = refused(tmp_path, "runtime.device=cuda", "sft.num_examples=0", here=False)
    assert "sft.num_examples=0" in said


def test_only_stages_that_are_to_be_built_are_checked(tmp_path: Path) -> None:
    recipe = load_recipe("demo", [f"store.root={tmp_path}", "runtime.device=cuda"])
    for flow, selection in (
        ("pipeline", Selection(until_stage="shards")),
        ("tokenize", Selection()),
    ):
        assert flow in COMPOSITIONS
        assert plan_run(flow, recipe, selection)
