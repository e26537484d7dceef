import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lmpipe.errors import ConfigError, InputError
from lmpipe.model.config import ModelConfig
from lmpipe.model.decoder import Decoder
from lmpipe.model.huggingface import export_model, load_config, load_model, save_model
from lmpipe.model.huggingface_families import DEFAULTS, NEEDED, from_fields

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
        ("hidden_act", "relu"),
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


SMALL = {"num_layers": 4, "vocab_size": 101, "d_model": 64, "num_heads": 4, "max_seq_len": 128}
WINDOWS = {"window": 7, "window_pattern": "SSL"}
GEMMA = {"norm_position": "both", "feed_forward": "geglu"}
MUP = {"mup_base_width": 16, "attention_scale": "inverse", "attention_multiplier": 3.0}
FACTORS = {"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "output_multiplier": 0.6}
EQUIVALENT: list[tuple[str, dict[str, Any]]] = [
    ("Llama", {}),
    ("Llama", {"feed_forward": "geglu", "tied_embeddings": False}),
    ("Llama", {"rope_scaling": "linear", "rope_scaling_factor": 2.0}),
    ("Llama", {"rope_scaling": "ntk", "rope_scaling_factor": 2.0}),
    ("Llama", {"rope_scaling": "yarn", "rope_scaling_factor": 4.0}),
    ("Llama", MUP),
    ("Llama", {**MUP, **FACTORS, "tied_embeddings": False}),
    ("Llama", FACTORS),
    ("Qwen3", {"qk_norm": True}),
    ("Qwen3", {"qk_norm": True, **WINDOWS, **MUP}),
    ("Arcee", {"feed_forward": "relu2"}),
    ("Arcee", {"feed_forward": "gelu", **FACTORS}),
    ("SmolLM3", {"nope_every": 2}),
    ("SmolLM3", WINDOWS),
    ("SmolLM3", {"nope_every": 3, **WINDOWS}),
    ("SmolLM3", {"positions": "none"}),
    ("Gemma2", GEMMA),
    ("Gemma2", {**GEMMA, "logit_softcap": 0.7, "attention_softcap": 0.5, **WINDOWS}),
    ("Gemma2", {**GEMMA, **FACTORS, **MUP, "feed_forward": "swiglu", "logit_softcap": 2.0}),
    ("Gemma2", {**GEMMA, **FACTORS, "tied_embeddings": False}),
]


def random_model(fields: dict[str, Any]) -> Decoder:
    """A model with gains that are not 1 and attention that is not flat."""
    model = Decoder(ModelConfig(**{**SMALL, **fields})).initialise(3)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.uniform_(0.5, 2.0, generator=generator)
    return model


@pytest.mark.parametrize(("name", "fields"), EQUIVALENT)
def test_an_exported_model_gives_the_same_logits_there_and_back(
    tmp_path: Path, name: str, fields: dict[str, Any]
) -> None:
    from transformers import AutoModelForCausalLM

    model = random_model(fields)
    save_model(model, model.config, tmp_path / "ours", eos_token_id=7)
    architecture = export_model(tmp_path / "ours", tmp_path / "theirs")
    assert architecture == f"{name}ForCausalLM"
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "theirs", attn_implementation="eager")
    assert type(theirs).__name__ == architecture
    assert theirs.config.eos_token_id == 7
    theirs.save_pretrained(tmp_path / "again")
    with torch.no_grad():
        expected_BTV = model(TOKENS_BT)
        found_BTV = theirs(TOKENS_BT).logits
        torch.testing.assert_close(found_BTV, expected_BTV, rtol=0, atol=1e-4)
        for folder in ("theirs", "again"):
            back_BTV = load_model(tmp_path / folder)(TOKENS_BT)
            torch.testing.assert_close(back_BTV, expected_BTV, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "fields",
    [fields for _, fields in EQUIVALENT]
    + [
        {"norm": "layer"},
        {"norm_position": "post"},
        {"positions": "learned"},
        {"positions": "sinusoidal"},
        {"logit_softcap": 3.0},
        {"initialisation": "fan_in"},
    ],
)
def test_a_checkpoint_keeps_every_option_and_bit(tmp_path: Path, fields: dict[str, Any]) -> None:
    model = random_model({"d_ff": 96, **fields})
    save_model(model, model.config, tmp_path)
    again = load_model(tmp_path)
    assert again.config == model.config
    assert all(
        torch.equal(weight, again.state_dict()[name]) for name, weight in model.state_dict().items()
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"norm": "layer"}, "norm='layer': no model class"),
        ({"norm_position": "post"}, "norm_position='post': no model class"),
        ({"positions": "learned"}, "positions='learned': no model class"),
        ({"positions": "sinusoidal"}, "positions='sinusoidal': no model class"),
        ({"logit_softcap": 30.0}, "logit_softcap: .* train with norm_position='both'"),
        ({"attention_softcap": 50.0}, "attention_softcap: .* Gemma2 alone"),
        ({"qk_norm": True, "nope_every": 2}, "has nope_every, qk_norm together"),
        ({"feed_forward": "relu2", "qk_norm": True}, "feed_forward='relu2', qk_norm together"),
    ],
)
def test_an_option_without_an_equivalent_is_refused_by_name(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    model = random_model(fields)
    save_model(model, model.config, tmp_path / "ours")
    with pytest.raises(ConfigError, match=message):
        export_model(tmp_path / "ours", tmp_path / "theirs")
    assert not (tmp_path / "theirs").exists()


def test_an_export_overwrites_nothing(tmp_path: Path) -> None:
    save_model(Decoder(CONFIG), CONFIG, tmp_path / "ours")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "notes").write_text("mine")
    with pytest.raises(ConfigError, match="not empty"):
        export_model(tmp_path / "ours", tmp_path / "theirs")


@pytest.mark.parametrize("kind", ["Qwen3", "Gemma2", "SmolLM3", "Arcee"])
def test_models_made_by_transformers_give_the_same_logits_here(tmp_path: Path, kind: str) -> None:
    import transformers

    extra: dict[str, Any] = {
        "Qwen3": {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
        "Gemma2": {"query_pre_attn_scalar": 24, "sliding_window": 9, "attn_logit_softcapping": 0.3},
        "SmolLM3": {},
        "Arcee": {},
    }[kind]
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=101,
        num_hidden_layers=4,
        hidden_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=80,
        max_position_embeddings=128,
        head_dim=16,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
        initializer_range=0.2,
        attn_implementation="eager",
        **extra,
    )
    theirs = getattr(transformers, f"{kind}ForCausalLM")(config)
    theirs.save_pretrained(tmp_path)
    with torch.no_grad():
        expected_BTV = theirs(TOKENS_BT).logits
        torch.testing.assert_close(load_model(tmp_path)(TOKENS_BT), expected_BTV, rtol=0, atol=1e-4)


KINDS = ("Llama", "Qwen3", "Arcee", "SmolLM3", "Gemma2")
WINDOWED = {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}


def their_fields(kind: str, heads: int, **given: Any) -> dict[str, Any]:
    """Every field of a small model's config.json, the defaults of its class filled in."""
    import transformers

    sizes: dict[str, Any] = {"vocab_size": 101, "num_hidden_layers": 4, "intermediate_size": 80}
    sizes |= {"max_position_embeddings": 128, "num_key_value_heads": 2}
    sizes |= dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    head_dim = {"Qwen3": 128, "Gemma2": 256}.get(kind, 32)  # so that the file may leave it out
    sizes |= {"num_attention_heads": heads, "hidden_size": heads * head_dim}
    return dict(getattr(transformers, f"{kind}Config")(**sizes, **given).to_dict())


def as_theirs(kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    import transformers

    return dict(getattr(transformers, f"{kind}Config").from_dict(dict(fields)).to_dict())


@pytest.mark.parametrize("windows", [{}, WINDOWED], ids=["plain", "windows"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_field_left_out_is_what_its_class_takes_or_is_refused(
    kind: str, windows: dict[str, Any]
) -> None:
    heads = DEFAULTS[kind.lower()]["num_key_value_heads"] or 4
    takes = kind in ("Qwen3", "SmolLM3", "Gemma2")
    full = their_fields(kind, heads, **(windows if takes else {}))
    refused = set()
    for name in full.keys() - {"model_type"}:
        written = {field: value for field, value in full.items() if field != name}
        try:
            found = from_fields(written, Path("config.json"))
        except InputError as error:
            refused.add(name)
            assert name in str(error)
        else:
            assert found == from_fields(as_theirs(kind, written), Path("config.json")), name
    assert refused == set(NEEDED)


@pytest.mark.parametrize("kind", KINDS)
def test_the_table_of_defaults_is_that_of_the_installed_classes(kind: str) -> None:
    import transformers

    made = getattr(transformers, f"{kind}Config")
    for name, value in DEFAULTS[kind.lower()].items():
        if name == "rope_theta":
            assert as_theirs(kind, {})["rope_parameters"]["rope_theta"] == value
        elif hasattr(made, name):
            assert getattr(made, name) == value, name
        else:  # a rule for all: no class that lacks the field computes anything else
            assert value in (None, False) or (name, kind) in {
                ("use_sliding_window", "Gemma2"),
                ("hidden_act", "Gemma2"),
            }


@pytest.mark.parametrize("kind", KINDS)
def test_a_config_that_leaves_out_all_it_may_gives_the_same_logits_here_and_exported(
    tmp_path: Path, kind: str
) -> None:
    import transformers

    torch.manual_seed(0)
    full = their_fields(kind, 2, initializer_range=0.2)
    model = getattr(transformers, f"{kind}ForCausalLM")
    config = getattr(transformers, f"{kind}Config").from_dict(full)
    model(config).save_pretrained(tmp_path / "written")
    path = tmp_path / "written" / "config.json"
    ids = ("bos_token_id", "eos_token_id", "pad_token_id")
    kept = (*NEEDED, *ids, "model_type", "architectures", "num_key_value_heads", "dtype")
    fields = json.loads(path.read_text())
    path.write_text(json.dumps({name: fields.get(name) for name in kept}))

    def theirs(folder: Path) -> Any:
        opened = transformers.AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation="eager"
        )
        with torch.no_grad():
            return opened(TOKENS_BT).logits

    expected_BTV = theirs(tmp_path / "written")
    with torch.no_grad():
        ours_BTV = load_model(tmp_path / "written")(TOKENS_BT)
    torch.testing.assert_close(ours_BTV, expected_BTV, rtol=0, atol=2e-4)
    export_model(tmp_path / "written", tmp_path / "exported")
    torch.testing.assert_close(theirs(tmp_path / "exported"), expected_BTV, rtol=0, atol=2e-4)


def test_an_export_without_all_weights_is_refused_and_writes_nothing(tmp_path: Path) -> None:
    save_model(Decoder(CONFIG).initialise(0), CONFIG, tmp_path / "ours")
    path = tmp_path / "ours" / "config.json"
    fields = json.loads(path.read_text()) | {"tie_word_embeddings": False}
    path.write_text(json.dumps(fields))
    with pytest.raises(InputError, match=r"lm_head\.weight"):
        export_model(tmp_path / "ours", tmp_path / "theirs")
    assert not (tmp_path / "theirs").exists()
