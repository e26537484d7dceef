"""The tokenizer as `tokenizers` and `transformers` read it: tokenizer.json."""

import re
from functools import cache

from lmpipe.errors import InputError


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

    Its decoder reads every token as characters that stand for bytes, special ones too if all of
    their letters do: of `<|učitel|>` the č would be a carriage return. Such a special is spelled in
    these characters first.

    Raises:
        InputError: a special token is spelled like a token of the vocabulary.

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
    spelled = [
        decoders.Replace(Regex(rf"\A{re.escape(special)}\z"), spell(special.encode()))
        for special in specials
        if not special.isascii() and set(special) <= set(characters)
    ]
    byte_level = decoders.ByteLevel()
    tokenizer.decoder = decoders.Sequence([*spelled, byte_level]) if spelled else byte_level
    tokenizer.add_special_tokens(
        [AddedToken(special, special=True, normalized=False) for special in specials]
    )
    for name, number in specials.items():
        taken = tokenizer.token_to_id(name)
        if taken != number:
            raise InputError(
                f"the special token {name!r} is spelled like token {taken} of the vocabulary in "
                f"tokenizer.json; give it marks that text does not have, such as '<|{name}|>'"
            )
    return str(tokenizer.to_str(pretty=False))
