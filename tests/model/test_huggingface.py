import json
from pathlib import Path

import pytest
import torch

from lmpipe.errors import InputError
from lmpipe.model.config import ModelConfig
from lmpipe.model.decoder import Decoder
from lmpipe.model.huggingface import load_config, load_model, save_model

CONFIG = ModelConfig(
    vocab_size=101,
    num_layers=3,
    d_model=64,
    num_heads=8,
    num_kv_heads=2,
    d_ff=96,
    max_seq_len=128,
    rope_base=50_000.0,
    norm_eps=1e-6,
)
TOKENS_BT = torch.randint(0, 101, (2, 60), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("tied", [True, False])
def test_transformers_computes_the_same_logits_from_our_file(tmp_path: Path, tied: bool) -> None:
    from transformers import AutoModelForCausalLM

    config = CONFIG.model_copy(update={"tied_embeddings": tied})
    model = Decoder(config).initialise(1)
    save_model(model, config, tmp_path, eos_token_id=7)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert theirs.config.eos_token_id == 7
    with torch.no_grad():
        torch.testing.assert_close(theirs(TOKENS_BT).logits, model(TOKENS_BT), rtol=0, atol=1e-4)


@pytest.mark.parametrize("tied", [True, False])
def test_we_compute_the_same_logits_from_their_file(tmp_path: Path, tied: bool) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    theirs = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=101,
            num_hidden_layers=2,
            hidden_size=64,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=80,
            max_position_embeddings=128,
            rope_parameters={"rope_type": "default", "rope_theta": 30_000.0},
            tie_word_embeddings=tied,
        )
    )
    theirs.save_pretrained(tmp_path)
    ours = load_model(tmp_path)
    assert ours.config.rope_base == 30_000
    with torch.no_grad():
        torch.testing.assert_close(ours(TOKENS_BT), theirs(TOKENS_BT).logits, rtol=0, atol=1e-4)


def test_reads_a_checkpoint_in_several_files(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = Decoder(CONFIG).initialise(1)
    save_model(model, CONFIG, tmp_path / "one")
    AutoModelForCausalLM.from_pretrained(tmp_path / "one").save_pretrained(
        tmp_path / "many", max_shard_size="100KB"
    )
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 1
    with torch.no_grad():
        torch.testing.assert_close(load_model(tmp_path / "many")(TOKENS_BT), model(TOKENS_BT))


def test_a_round_trip_keeps_every_bit_and_trains_on(tmp_path: Path) -> None:
    model = Decoder(CONFIG).initialise(2)
    save_model(model, CONFIG, tmp_path)
    again = load_model(tmp_path)
    assert again.config == CONFIG
    assert all(
        torch.equal(weight, again.state_dict()[name]) for name, weight in model.state_dict().items()
    )
    assert all(p.requires_grad for p in again.parameters())
    low = load_model(tmp_path, dtype=torch.bfloat16)
    assert {p.dtype for p in low.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model_type", "gpt2"),
        ("attention_bias", True),
        ("hidden_act", "gelu"),
        ("head_dim", 32),
        ("rope_parameters", {"rope_type": "llama3", "rope_theta": 1e4}),
    ],
)
def test_refuses_an_architecture_that_it_would_compute_wrongly(
    tmp_path: Path, field: str, value: object
) -> None:
    save_model(Decoder(CONFIG), CONFIG, tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(fields | {field: value}))
    with pytest.raises(InputError, match="built in"):
        load_config(tmp_path)


def test_says_which_file_or_weight_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no config\.json"):
        load_model(tmp_path)
    save_model(Decoder(CONFIG), CONFIG.model_copy(update={"num_layers": 4}), tmp_path)
    with pytest.raises(InputError, match=r"model\.layers\.3"):
        load_model(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"lacks model\.safetensors"):
        load_model(tmp_path)
