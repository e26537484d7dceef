"""A tokenizer and a Llama small enough to be built in a test."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIALS = ["<|endoftext|>", "<|user|>", "<|assistant|>", "<|end|>"]
TEXT = (
    "The cat sits on the mat. The dogs sit on the mats. Who sits where? Sorted: 1 2 3 4 5."
    " A foobar is not a foo bar. Ärger über Öl.\n\n"
)


def make_tokenizer(vocab_size: int = 320) -> Tokenizer:
    """Train a byte-level BPE on a few sentences."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT] * 4, trainer)
    return tokenizer


def save_tiny_llama(folder: Path, tokenizer: Tokenizer, *, max_length: int = 48) -> None:
    """Write a random Llama in the Hugging Face layout with transformers, as another tool would."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=max_length,
        tie_word_embeddings=True,
        initializer_range=0.4,  # far from uniform, so that a wrong split shows
        bos_token_id=0,
        eos_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIALS[0],
        "eos_token": SPECIALS[0],
        "pad_token": SPECIALS[0],
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
