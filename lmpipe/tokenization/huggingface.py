"""The tokenizer as `tokenizers` and `transformers` read it: tokenizer.json."""

from functools import cache


@cache
def byte_characters() -> list[str]:
    """Return the character that stands for each byte in byte-level vocabularies.

    Printable Latin-1 stands for itself, the other 68 bytes for U+0100 on, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def tokenizer_json(
    ranks: dict[bytes, int],
    merges: list[tuple[bytes, bytes]],
    pattern: str,
    specials: dict[str, int],
) -> str:
    """Return tokenizer.json with the same ids as tiktoken's ranks.

    Source: Radford et al., Language Models are Unsupervised Multitask Learners, 2019, section 2.2.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    characters = byte_characters()

    def spell(token: bytes) -> str:
        return "".join(characters[byte] for byte in token)

    tokenizer = Tokenizer(
        models.BPE(
            vocab={spell(token): rank for token, rank in ranks.items()},
            merges=[(spell(left), spell(right)) for left, right in merges],
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(special, special=True, normalized=False) for special in specials]
    )
    assert all(tokenizer.token_to_id(name) == number for name, number in specials.items())
    return str(tokenizer.to_str(pretty=False))
