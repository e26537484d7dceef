"""The pretrain stage on real ranks: three starts, one of them killed."""

import json
import math
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from pydantic import Field, ValidationError

from lmpipe.artifacts.build import build
from lmpipe.artifacts.output import Output
from lmpipe.artifacts.stage import StageConfig, stage
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import Checkpoint, Tokenizer, TokenShards
from lmpipe.errors import ConfigError, InputError
from lmpipe.model.config import ModelConfig
from lmpipe.model.huggingface import load_model
from lmpipe.runtime import Runtime
from lmpipe.token_data.dataset import TokenReader
from lmpipe.tokenization.config import TokenizerConfig
from lmpipe.tokenization.encoding import format_ranks
from lmpipe.tokenization.tokenizer import tokenizer
from lmpipe.training.config import PretrainConfig
from lmpipe.training.data import cut
from lmpipe.training.loop import MeasuredLoss, language_model_loss
from lmpipe.training.mixing import MixtureConfig
from lmpipe.training.optimizer import OptimizerConfig
from lmpipe.training.pretrain import pretrain, write_tokenizer_files
from tests.tokenization.conftest import GivenConfig, given_documents
from tests.training.test_launch import environment_with_project
from tests.training.token_shards import EOS, VOCAB, write_shards

SHAPE = ModelConfig(num_layers=2, d_model=32, num_heads=2, num_kv_heads=1, max_seq_len=64)
CONFIG = PretrainConfig(
    model=SHAPE,
    total_tokens=40 * 6 * 32 + 5,
    batch_tokens=6 * 32,
    sequence_length=32,
    optimizer=OptimizerConfig(learning_rate=1e-2),
    validation_every=20,
    validation_tokens=10 * 32,
    z_loss=1e-4,
    seed=3,
    accept_contamination=("unreported",),
)
# those of special tokens are no text
TOKEN_BYTES = [0 if token == EOS else 1 + token // 8 for token in range(VOCAB)]
RUNTIME = Runtime(ranks=2, device="cpu", micro_batch_size=2, zero_stage=2)


class Nothing(StageConfig):
    """Settings that only tell sets apart."""

    seed: int = Field(0, description="Of the documents.")
    tokenizer: str = Field("mine", description="What stands for its digest.")


@stage(version=1, kind="exact")
def counting_shards(out: Output[TokenShards], config: Nothing, *, runtime: Runtime) -> TokenShards:
    with out.scratch() as folder:
        meta = write_shards(folder / "shards", config.seed)
        meta["tokenizer_digest"] = config.tokenizer
        (folder / "shards" / "meta.json").write_text(json.dumps(meta))
        for path in sorted(p for p in (folder / "shards").rglob("*") if p.is_file()):
            out.put_file(path.relative_to(folder / "shards").as_posix(), path)
    return out.commit()


@stage(version=1, kind="exact")
def no_tokenizer(out: Output[Tokenizer], config: Nothing, *, runtime: Runtime) -> Tokenizer:
    ends = dict.fromkeys(("eos", "bos", "pad"), EOS)
    out.write_json("meta.json", {"vocab_size": VOCAB, "specials": {"<|endoftext|>": EOS}, **ends})
    out.write_json("tokenizer.json", {})
    ranks = {bytes([65 + token]) * TOKEN_BYTES[token]: token for token in range(EOS)}
    out.write_bytes("ranks.tiktoken", format_ranks(ranks))
    return out.commit()


def run_pretrain(root: str, checkpoint_every_seconds: float = 1e6) -> Checkpoint:
    store = Store(root)
    quiet = Runtime()
    inputs: dict[str, Any] = {
        "shards": build(counting_shards, Nothing(), {}, store=store, runtime=quiet),
        "tokenizer": build(no_tokenizer, Nothing(), {}, store=store, runtime=quiet),
    }
    runtime = RUNTIME.model_copy(update={"checkpoint_every_seconds": checkpoint_every_seconds})
    return build(pretrain, CONFIG, inputs, store=store, runtime=runtime)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return run_pretrain(f"file://{tmp_path_factory.mktemp('store')}")


def test_the_model_beats_token_frequencies_and_says_so(checkpoint: Checkpoint):
    metrics = checkpoint.metrics
    assert metrics["validation_loss"] < 0.8 * metrics["unigram_entropy"]
    assert metrics["step"] == 40 and metrics["tokens"] == 40 * 6 * 32
    meta = checkpoint.read_json("meta.json")
    assert meta["kind"] == "base"
    assert meta["validation_loss"] == metrics["validation_loss"]
    assert meta["parameters"] == metrics["parameters"]


def test_the_written_tokenizer_ends_with_the_token_that_ended_documents(tmp_path: Path):
    from transformers import AutoTokenizer

    store, quiet = Store(f"file://{tmp_path}/store"), Runtime()
    texts = GivenConfig(files=[[("0" * 32, "en", "the cat sat on the mat")]])
    documents = build(given_documents, texts, {}, store=store, runtime=quiet)
    config = TokenizerConfig(vocab_size=260, specials=("</s>", "<|user|>"), min_frequency=1)
    trained = build(tokenizer, config, {"documents": documents}, store=store, runtime=quiet)
    write_tokenizer_files(trained, tmp_path / "model", 64)
    loaded = AutoTokenizer.from_pretrained(tmp_path / "model")
    end = trained.read_json("meta.json")["specials"]["</s>"]
    assert (loaded.eos_token, loaded.bos_token, loaded.pad_token) == ("</s>",) * 3
    assert (loaded.eos_token_id, len(loaded)) == (end, 260)
    assert loaded.decode([*loaded.encode("a cat"), end], skip_special_tokens=True) == "a cat"


def test_the_reported_validation_loss_is_that_of_the_written_model(checkpoint: Checkpoint):
    model = load_model(checkpoint.local_dir("model"), "cpu", torch.float32, "reference")
    assert sum(p.numel() for p in model.parameters()) == checkpoint.metrics["parameters"]
    store = Store(checkpoint.url("meta.json").split("/pretrain/")[0])
    shards = build(counting_shards, Nothing(), {}, store=store, runtime=Runtime())
    reader = TokenReader(shards.local_dir(), "validation", 32)
    parts = cut(reader, list(range(10)), (0, 1, 10), torch.device("cpu"), document_masking=True)
    with torch.no_grad():
        loss = sum(float(language_model_loss(model, part)) for part in parts) / (10 * 32)
    assert loss == pytest.approx(checkpoint.metrics["validation_loss"], rel=1e-5)
    targets = reader.tokens(1, 10 * 32 + 1).tolist()
    num_bytes = sum(TOKEN_BYTES[token] for token in targets)
    bits = loss * len(targets) / math.log(2) / num_bytes
    assert checkpoint.metrics["bits_per_byte"] == pytest.approx(bits, rel=1e-5)
    everything = reader.tokens(0, reader.num_tokens).tolist()
    share = sum(TOKEN_BYTES[token] for token in everything) / len(everything)
    assert num_bytes / len(targets) != pytest.approx(share, rel=1e-3)  # another sample's ratio


def test_the_curve_has_a_row_per_step_and_validations_where_asked(checkpoint: Checkpoint):
    rows = pq.read_table(checkpoint.local("curves.parquet")).to_pylist()
    assert [row["step"] for row in rows] == list(range(40))
    assert [row["step"] for row in rows if row["validation_loss"] is not None] == [19, 39]
    last = CONFIG.optimizer.learning_rate * CONFIG.schedule.final_fraction
    assert rows[-1]["lr"] == pytest.approx(last)
    assert rows[-1]["loss"] < 0.8 * rows[0]["loss"]
    assert rows[-1]["tokens"] == 40 * 6 * 32
    assert all(row["grad_norm"] > 0 and row["tokens_per_second"] > 0 for row in rows)


def test_the_checkpoint_holds_model_and_state_but_no_world_size(checkpoint: Checkpoint):
    assert set(checkpoint.names("state")) == {
        "state/master.safetensors",
        "state/exp_avg.safetensors",
        "state/exp_avg_sq.safetensors",
        "state/training.json",
    }
    state = json.loads(checkpoint.read_bytes("state/training.json"))
    assert state["position"]["data"]["next_sequence"] == 40 * 6
    assert "world" not in json.dumps(state)
    assert {"model/model.safetensors", "model/config.json", "model/tokenizer.json"} <= set(
        checkpoint.names("model")
    )


def test_a_run_killed_between_checkpoints_ends_with_the_same_weights(
    checkpoint: Checkpoint, tmp_path: Path
):
    root = f"file://{tmp_path}"
    program = f"from tests.training.test_pretrain import *; run_pretrain({root!r}, 0.05)"
    with (tmp_path / "log").open("w") as log:
        killed = subprocess.Popen(
            [sys.executable, "-c", program], env=environment_with_project(), stdout=log, stderr=log
        )
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob("pretrain/*/attempts/*/checkpoints/*/COMPLETE.json")):
            assert time.monotonic() < deadline and killed.poll() is None, log.name
            time.sleep(0.01)
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    assert not list(tmp_path.glob("pretrain/*/manifest.json"))
    resumed = run_pretrain(root)
    assert resumed.record("model/model.safetensors") is not None
    for name in ("model/model.safetensors", "state/exp_avg_sq.safetensors"):
        assert resumed.read_bytes(name) == checkpoint.read_bytes(name)
    rows = pq.read_table(resumed.local("curves.parquet")).to_pylist()
    assert [row["step"] for row in rows] == list(range(40))


MIXED = CONFIG.model_copy(
    update={
        "packing": "best_fit",
        "total_tokens": 20 * 6 * 32,
        "mixture": MixtureConfig.model_validate(
            {
                "stages": [
                    {"fraction": 0.75, "weights": {"main": 2, "code": 1}},
                    {"fraction": 0.25, "weights": {"main": 1, "code": 2}},
                ],
                "max_epochs": {"code": 1},
            }
        ),
    }
)


def mixed_inputs(store: Store) -> dict[str, Any]:
    quiet = Runtime()
    return {
        "shards": build(counting_shards, Nothing(), {}, store=store, runtime=quiet),
        "tokenizer": build(no_tokenizer, Nothing(), {}, store=store, runtime=quiet),
        "others": [build(counting_shards, Nothing(seed=1), {}, store=store, runtime=quiet)],
    }


def test_a_packed_mixture_trains_and_the_manifest_says_what_each_set_gave(tmp_path: Path):
    store = Store(str(tmp_path))
    made = build(pretrain, MIXED, mixed_inputs(store), store=store, runtime=RUNTIME)
    given = made.metrics["mixture"]
    assert {name: part["tokens"] for name, part in given.items()} == {
        "main": (60 + 10) * 32,
        "code": (30 + 20) * 32,
    }
    assert given["main"]["stage_shares"] == [60 / 90, 10 / 30]
    reader = TokenReader(mixed_inputs(store)["others"][0].local_dir(), "train", 32,
                         packing="best_fit")  # fmt: skip
    assert given["code"]["epochs"] == 50 / reader.num_sequences
    packing = made.metrics["document_packing"]["code"]
    assert packing == reader.layout.report().as_dict() and packing["padding"] > 0
    rows = pq.read_table(made.local("curves.parquet")).to_pylist()
    assert len(rows) == 20 and rows[-1]["loss"] < 0.9 * rows[0]["loss"]
    state = json.loads(made.read_bytes("state/training.json"))
    assert state["position"]["data"]["next_numbers"] == []


def test_a_mixture_that_does_not_fit_its_sets_is_refused_before_a_rank_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("lmpipe.training.pretrain.run_ranks", lambda *_: pytest.fail("started"))
    store = Store(str(tmp_path))
    inputs = mixed_inputs(store)
    few = MIXED.mixture.model_copy(update={"max_epochs": {"code": 0.2}})
    with pytest.raises(ConfigError, match="'code' would be read"):
        config = MIXED.model_copy(update={"mixture": few})
        build(pretrain, config, inputs, store=store, runtime=RUNTIME)
    with pytest.raises(ConfigError, match="names the token sets main, code, 1 were given"):
        build(pretrain, MIXED, {**inputs, "others": []}, store=store, runtime=RUNTIME)
    with pytest.raises(ConfigError, match="names the token sets main, 2 were given"):
        build(pretrain, CONFIG, inputs, store=store, runtime=RUNTIME)
    foreign = build(counting_shards, Nothing(seed=2, tokenizer="other"), {}, store=store,
                    runtime=Runtime())  # fmt: skip
    with pytest.raises(ConfigError, match=r"one tokenizer.*code: other"):
        build(pretrain, MIXED, {**inputs, "others": [foreign]}, store=store, runtime=RUNTIME)


@pytest.mark.parametrize(("length", "is_refused"), [(100, True), (99, False)])
def test_a_validation_split_without_a_full_sequence_is_refused_before_a_rank_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int, is_refused: bool
):
    class StartedError(Exception):
        pass

    def start(*_: Any) -> None:
        raise StartedError("the ranks")

    monkeypatch.setattr("lmpipe.training.pretrain.run_ranks", start)
    store = Store(str(tmp_path))
    inputs = {**mixed_inputs(store), "others": []}
    read = TokenShards.read_json

    def short(self: TokenShards, name: str) -> Any:
        meta = read(self, name)
        return meta | {"tokens": {"train": 9999, "validation": 100}} if "tokens" in meta else meta

    monkeypatch.setattr(TokenShards, "read_json", short)
    sizes = {"sequence_length": length, "batch_tokens": length}
    model = CONFIG.model.model_copy(update={"max_seq_len": 128})
    config = CONFIG.model_copy(update={**sizes, "model": model})
    says = r"validation split of .* has 100 tokens.*sequence_length=100 needs 101.* to 99 or less"
    expected, message = (ConfigError, says) if is_refused else (StartedError, "the ranks")
    with pytest.raises(expected, match=message):
        build(pretrain, config, inputs, store=store, runtime=RUNTIME)


def test_bits_per_byte_are_left_out_where_nobody_knows_the_tokens_bytes() -> None:
    measured = MeasuredLoss(nats=8 * math.log(2), num_targets=4, num_bytes=0)
    assert measured.bits_per_byte is None
    assert MeasuredLoss(8 * math.log(2), 4, 16).bits_per_byte == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"batch_tokens": 100}, "try 96 or 128"),
        ({"batch_tokens": 20}, "try 32"),
        ({"total_tokens": 10}, "less than one step"),
        ({"sequence_length": 128, "batch_tokens": 128}, "max_seq_len=64"),
        ({"schedule": {"warmup_fraction": 0.9}}, "add up to more than 1"),
        ({"optimizer": {"learning_rate": 0}}, "greater than 0"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_with_what_would(change: dict[str, Any], says: str):
    with pytest.raises(ValidationError, match=says):
        PretrainConfig.model_validate({**CONFIG.model_dump(), **change})


def test_refuses_shards_whose_documents_nobody_searched(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    inputs: dict[str, Any] = {
        "shards": build(counting_shards, Nothing(), {}, store=store, runtime=Runtime()),
        "tokenizer": build(no_tokenizer, Nothing(), {}, store=store, runtime=Runtime()),
    }
    config = CONFIG.model_copy(update={"accept_contamination": ()})
    with pytest.raises(InputError, match=r"pretrain refuses .* counting_shards/.*unreported"):
        build(pretrain, config, inputs, store=store, runtime=RUNTIME)


def test_the_manifest_records_what_was_accepted(checkpoint: Checkpoint) -> None:
    assert checkpoint.metrics["contamination"]["accepted"] == ["unreported"]
    assert checkpoint.read_json("contamination.json")["missing"][0].startswith("counting_shards/")


@pytest.mark.parametrize("split", ["train", "validation"])
def test_tokens_that_are_not_those_that_were_written_never_train(tmp_path: Path, split: str):
    store, quiet = Store(f"file://{tmp_path}"), Runtime()
    shards = build(counting_shards, Nothing(), {}, store=store, runtime=quiet)
    name = shards.names(f"{split}/")[-1]
    with shards.local(name).open("r+b") as file:
        file.seek(64)  # the header stays as it is
        file.write(b"\x01" * (shards.record(name).bytes - 64))
    inputs = {
        "shards": shards,
        "tokenizer": build(no_tokenizer, Nothing(), {}, store=store, runtime=quiet),
    }
    message = rf"checksum.*{shards.stage}/{shards.id} {name}: `lmpipe verify {shards.stage}/"
    with pytest.raises(InputError, match=message):
        build(pretrain, CONFIG, inputs, store=store, runtime=RUNTIME)
