import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from deployments.cli import app
from lmpipe.artifacts.build import build
from lmpipe.artifacts.output import Output
from lmpipe.artifacts.stage import StageConfig, stage
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import Artifact, Checkpoint
from lmpipe.errors import ConfigError
from lmpipe.inference.generate import generate
from lmpipe.model.config import ModelConfig
from lmpipe.model.decoder import Decoder
from lmpipe.model.huggingface import load_model, save_model
from lmpipe.runtime import Runtime
from tests.artifacts.stages import CountConfig, count

PROMPT = "the cat sat on"
QWEN = {"qk_norm": True, "window": 5, "window_pattern": "SL"}
MUP = {"mup_base_width": 16, "attention_scale": "inverse", "output_multiplier": 3.0}


def write_model(folder: Path, **options: Any) -> None:
    """A random model and a tokenizer of bytes and a few words, as the pretrain stage lays them."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(
        ["the cat sat on the mat and the dog sat on the cat"] * 3, trainer
    )
    config = ModelConfig(
        vocab_size=tokenizer.get_vocab_size(),
        num_layers=3,
        d_model=64,
        num_heads=4,
        max_seq_len=64,
        **{"num_kv_heads": 2, "tied_embeddings": False, **options},  # tied ones repeat themselves
    )
    save_model(Decoder(config).initialise(1), config, folder, eos_token_id=0)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


class OptionsConfig(StageConfig):
    """No settings."""


@stage(version=1, kind="exact")
def a_checkpoint(out: Output[Checkpoint], config: OptionsConfig, *, runtime: Runtime) -> Checkpoint:
    with out.scratch() as folder:
        write_model(folder / "model", **QWEN)
        out.put_dir("model", folder / "model")
    return out.commit()


def export(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["export", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output.replace("\n", "")


def assert_same_greedy_text(ours: Path, theirs: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(theirs)
    ids = tokenizer(PROMPT)["input_ids"]
    assert tokenizer.decode(ids) == PROMPT
    model = AutoModelForCausalLM.from_pretrained(theirs)
    said = model.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.long),
        max_new_tokens=40,
        do_sample=False,
        pad_token_id=0,
    )[0, len(ids) :]
    expected = generate(load_model(ours), [ids], max_new_tokens=40, temperature=0, stop_ids=[0])
    assert tokenizer.decode(said) == tokenizer.decode(expected[0].tokens)
    assert len(set(expected[0].tokens)) > 3  # not one token over and over


@pytest.mark.parametrize(
    ("options", "architecture"),
    [({}, "LlamaForCausalLM"), (QWEN, "Qwen3ForCausalLM"), (MUP, "LlamaForCausalLM")],
)
def test_transformers_says_the_same_text_with_the_exported_tokenizer(
    tmp_path: Path, options: dict[str, Any], architecture: str
) -> None:
    write_model(tmp_path / "model", **options)
    said = export(str(tmp_path), "--to", "hf", str(tmp_path / "theirs"))
    assert said.startswith(f"{architecture}: ")
    assert_same_greedy_text(tmp_path / "model", tmp_path / "theirs")


def test_a_checkpoint_is_exported_by_its_id(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    made = build(a_checkpoint, OptionsConfig(), {}, store=store, runtime=Runtime())
    export(made.id[:10], "--to", "hf", str(tmp_path / "theirs"), "--store", store.root)
    assert_same_greedy_text(made.local_dir("model"), tmp_path / "theirs")


def test_what_is_no_checkpoint_or_no_format_is_refused(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    documents: Artifact = build(count, CountConfig(), {}, store=store, runtime=Runtime())
    with pytest.raises(ConfigError, match="is no checkpoint"):
        export(documents.id, str(tmp_path / "theirs"), "--store", store.root)
    with pytest.raises(ConfigError, match="known is hf"):
        export(str(tmp_path), str(tmp_path / "theirs"), "--to", "gguf")
    write_model(tmp_path / "post", norm_position="post")
    with pytest.raises(ConfigError, match="norm_position='post'"):
        export(str(tmp_path / "post"), str(tmp_path / "theirs"))
