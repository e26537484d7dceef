"""The stage `tokenizer`: train a byte-level BPE vocabulary on documents.

Ids: bytes 0-255 are themselves, then merges in the order in which they were learnt, then specials.
"""

import json
from typing import Any

from lmpipe.artifacts.output import Output
from lmpipe.artifacts.stage import stage
from lmpipe.artifacts.types import Documents, Tokenizer
from lmpipe.errors import InputError
from lmpipe.runtime import Runtime
from lmpipe.tokenization.config import TokenizerConfig
from lmpipe.tokenization.encoding import Encoding, format_ranks
from lmpipe.tokenization.huggingface import tokenizer_json
from lmpipe.tokenization.patterns import pattern_regex

REPORT_BYTES = 1 << 18  # of text per language in the report


@stage(version=3, kind="exact")
def tokenizer(
    out: Output[Tokenizer], config: TokenizerConfig, documents: Documents, *, runtime: Runtime
) -> Tokenizer:
    """Count pre-tokens on runtime.workers threads, learn merges, write both file formats."""
    from lmpipe.tokenization.training import count_pre_tokens, train_bpe

    counts, sampled = count_pre_tokens(
        documents, config, workers=runtime.workers, progress=out.progress
    )
    if not len(counts):
        raise InputError(
            "the corpus of the tokenizer is empty: no document has text; see why with "
            "`lmpipe why DOC_ID`, or give more documents"
        )
    merges = train_bpe(counts, config.num_merges, config.min_frequency)
    if len(merges) < config.num_merges:
        reached = 256 + len(merges) + len(config.specials)
        raise InputError(
            f"the corpus has pairs for a vocabulary of {reached} only, vocab_size="
            f"{config.vocab_size}: lower vocab_size to {reached} or less, give more documents, or "
            f"lower min_frequency={config.min_frequency}"
        )
    ranks = {bytes([byte]): byte for byte in range(256)}
    ranks |= {left + right: 256 + i for i, (left, right) in enumerate(merges)}
    assert len(ranks) == 256 + len(merges), "two merges made the same bytes"
    specials = {name: len(ranks) + i for i, name in enumerate(config.specials)}
    pattern = pattern_regex(config.pattern, config.digits, config.custom_pattern)
    eos = specials[config.specials[0]]

    out.write_bytes("ranks.tiktoken", format_ranks(ranks))
    out.write_bytes("tokenizer.json", tokenizer_json(ranks, merges, pattern, specials).encode())
    meta = {
        "vocab_size": config.vocab_size,
        "eos": eos,
        "bos": eos,
        "pad": eos,
        "specials": specials,
        "pattern": pattern,
        "pattern_name": config.pattern,
    }
    out.write_bytes("meta.json", json.dumps(meta, indent=1, ensure_ascii=False).encode())

    out.metric("vocab_size", config.vocab_size)
    out.metric("distinct_pieces", len(counts))
    out.metric("training_bytes", sampled)
    _report(out, documents, Encoding(ranks, pattern, specials))
    return out.commit()


def _report(out: Output[Tokenizer], documents: Documents, encoding: Any) -> None:
    """Show bytes per token by language, and the longest tokens."""
    from lmpipe.tokenization.training import sample_by_language

    rows: list[dict[str, Any]] = []
    for language, texts in sample_by_language(documents, REPORT_BYTES).items():
        num_bytes = sum(len(text.encode()) for text in texts)
        num_tokens = sum(len(encoding.encode_numpy(text)) for text in texts)
        ratio = round(num_bytes / max(1, num_tokens), 3)
        rows.append({"language": language, "bytes": num_bytes, "bytes_per_token": ratio})
    rows.sort(key=lambda row: (-row["bytes"], row["language"]))
    out.table("bytes_per_token_by_language", rows)
    out.metric("bytes_per_token", {row["language"]: row["bytes_per_token"] for row in rows})
    tokens = [encoding.token_bytes(token) for token in range(256, encoding.vocab_size)]
    longest = sorted(tokens, key=lambda token: (-len(token), token))[:20]
    out.table("longest_tokens", [{"token": repr(t.decode(errors="replace"))} for t in longest])
