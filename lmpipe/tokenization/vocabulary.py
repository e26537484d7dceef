"""The stage `vocabulary`: what a tokenizer is worth, measured on documents it has not seen.

The tokenizer of a run learns from all documents. So a twin with its settings is trained here on
those that the shards do not hold out, once, to the largest size: a vocabulary's first merges are a
smaller vocabulary, so all other sizes are prefixes of it. Training each size anew would give the
same merges.
"""

import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lmpipe.artifacts.output import Output
from lmpipe.artifacts.stage import stage
from lmpipe.artifacts.types import Documents, Measures, Source, Tokenizer, TokenShards
from lmpipe.documents.text_files import as_utf8
from lmpipe.errors import InputError
from lmpipe.runtime import Runtime
from lmpipe.token_data.shard_file import HEADER_BYTES, token_dtype
from lmpipe.token_data.shards import document_hash
from lmpipe.tokenization.config import TokenizerConfig, VocabularyConfig
from lmpipe.tokenization.encoding import Encoding
from lmpipe.tokenization.huggingface import byte_characters
from lmpipe.tokenization.patterns import pattern_regex

FILE = "vocabulary.json"
WORD = re.compile(r"\w+|.", re.DOTALL)  # the course's word tokenizer
NUM_LISTED = 16
Texts = dict[str, list[str]]


@stage(version=1, kind="exact")
def vocabulary(
    out: Output[Measures],
    config: VocabularyConfig,
    documents: Documents,
    tokenizer: Tokenizer,
    shards: TokenShards,
    gpt2: Source | None,
    *,
    runtime: Runtime,
) -> Measures:
    """Measure bytes per token on held-out documents, by language and size, and each token's use."""
    encoding = Encoding.load(tokenizer)
    texts, limit = _held_out(documents, shards, config.held_out_bytes)
    merges = _twin(documents, tokenizer, config, limit, runtime.workers)
    specials = list(encoding.specials)

    def prefix(size: int) -> Encoding:
        return _encoding(merges[: size - 256 - len(specials)], encoding.pattern, specials)

    reached = 256 + len(merges) + len(specials)
    twin_size = min(encoding.vocab_size, reached)
    lengths: dict[str, Callable[[str], int]] = {
        "BPE": _token_counter(prefix(twin_size)),
        "character": len,
        "byte": lambda text: len(text.encode()),
        "word": lambda text: sum(1 for _ in WORD.finditer(text)),
    }
    if gpt2 is not None:
        lengths["GPT-2"] = _token_counter(_gpt2(gpt2))
    every = [text for part in texts.values() for text in part]
    num_bytes = _total(every, lengths["byte"], runtime.workers)
    sweep = []
    for size in sorted({size for size in config.sizes if 256 + len(specials) <= size <= reached}):
        used = _total(every, _token_counter(prefix(size)), runtime.workers)
        sweep.append({"vocab_size": size, "bytes_per_token": round(num_bytes / max(1, used), 4)})
    by_language = _by_language(texts, lengths, runtime.workers)
    uses = _uses(encoding, shards, config.counted_tokens)
    result = {
        "held_out": {"documents": len(every), "bytes": num_bytes},
        "vocab_size": encoding.vocab_size,
        "twin_size": twin_size,
        "distinct": _distinct(every),
        "bytes_per_token": by_language,
        "sweep": sweep,
        "tokens": uses,
    }
    out.write_json(FILE, result)
    out.metric("held_out_bytes", num_bytes)
    out.metric("bytes_per_token", {row["language"]: row["BPE"] for row in by_language})
    out.metric("never_used", uses["never_used"])
    return out.commit()


def _held_out(documents: Documents, shards: TokenShards, num_bytes: int) -> tuple[Texts, int]:
    """Return held-out texts by language, and the hash up to which documents are held out."""
    with shards.open("index.parquet") as file:
        columns = ["document_id", "shard"]
        rows = pq.read_table(file, columns=columns, filters=[("split", "=", "validation")])
    ids, names = rows["document_id"].to_pylist(), rows["shard"].to_pylist()
    if not ids:
        raise InputError(
            f"{shards!r} holds no document out, so there is nothing to measure on; set "
            "shards.validation_fraction above 0"
        )
    files: dict[str, list[str]] = {}
    for document, name in zip(ids, names, strict=True):
        files.setdefault(name.rpartition("-")[0], []).append(document)
    texts: Texts = {}
    sizes: dict[str, int] = {}
    for key, wanted in files.items():
        with documents.open(f"kept/{key}.parquet") as file:
            names = pq.read_schema(file).names
            columns = ["id", "text", *(["language"] if "language" in names else [])]
            table = pq.read_table(file, columns=columns, filters=[("id", "in", wanted)])
        for row in table.to_pylist():
            language = row.get("language") or "unknown"
            if row["text"] and sizes.get(language, 0) < num_bytes:
                texts.setdefault(language, []).append(row["text"])
                sizes[language] = sizes.get(language, 0) + len(row["text"].encode())
        if sum(sizes.values()) >= 16 * num_bytes:
            break  # enough of enough languages: the other files need not be read
    return texts, max(map(document_hash, ids))


def _twin(
    documents: Documents, tokenizer: Tokenizer, config: VocabularyConfig, limit: int, workers: int
) -> list[tuple[bytes, bytes]]:
    """Train a vocabulary with the tokenizer's settings on what is not held out."""
    from lmpipe.tokenization.training import count_pre_tokens, train_bpe

    settings = TokenizerConfig.model_validate(tokenizer.manifest.config)
    learnt = min(settings.max_training_bytes, config.training_bytes)
    settings = settings.model_copy(update={"max_training_bytes": learnt})
    counts, _ = count_pre_tokens(
        documents, settings, workers=workers, keep=lambda name: document_hash(name) > limit
    )
    largest = max(*config.sizes, settings.vocab_size) - 256 - len(settings.specials)
    return train_bpe(counts, largest, settings.min_frequency)


def _encoding(merges: list[tuple[bytes, bytes]], pattern: str, specials: list[str]) -> Encoding:
    ranks = {bytes([byte]): byte for byte in range(256)}
    ranks |= {left + right: 256 + i for i, (left, right) in enumerate(merges)}
    return Encoding(ranks, pattern, {name: len(ranks) + i for i, name in enumerate(specials)})


def _token_counter(encoding: Encoding) -> Callable[[str], int]:
    return lambda text: len(encoding.encode_numpy(text))


def _total(texts: list[str], length: Callable[[str], int], workers: int) -> int:
    with ThreadPoolExecutor(workers) as pool:  # tiktoken works without the GIL
        return sum(pool.map(length, texts))


def _by_language(
    texts: Texts, lengths: dict[str, Callable[[str], int]], workers: int
) -> list[dict[str, Any]]:
    rows = []
    for language, part in texts.items():
        totals = {name: _total(part, length, workers) for name, length in lengths.items()}
        ratios = {name: round(totals["byte"] / max(1, used), 4) for name, used in totals.items()}
        rows.append({"language": language, "bytes": totals["byte"], **ratios})
    return sorted(rows, key=lambda row: (-row["bytes"], row["language"]))


def _distinct(texts: list[str]) -> dict[str, int]:
    """Return how many entries the plain vocabularies need for the held-out text alone."""
    words = {match.group() for text in texts for match in WORD.finditer(text)}
    return {"character": len({c for text in texts for c in text}), "word": len(words)}


def _uses(encoding: Encoding, shards: TokenShards, most: int) -> dict[str, Any]:
    """Return the longest tokens and those that the training text never uses."""
    counts = np.zeros(encoding.vocab_size, np.int64)
    for tokens in _token_files(shards, most):
        counts += np.bincount(tokens, minlength=encoding.vocab_size)
    ordinary = range(encoding.vocab_size - len(encoding.specials))
    names = {token: encoding.token_bytes(token) for token in ordinary}
    longest = sorted(ordinary, key=lambda token: (-len(names[token]), names[token]))
    unused = [token for token in ordinary if not counts[token]]
    merged = [token for token in unused if token >= 256]
    return {
        "counted": int(counts.sum()),
        "ordinary": len(ordinary),
        "never_used": len(merged),
        "never_used_bytes": len(unused) - len(merged),
        "longest": [_shown(names[t], int(counts[t])) for t in longest[:NUM_LISTED]],
        "unused": [_shown(names[t], 0) for t in merged[:NUM_LISTED]],
    }


def _shown(token: bytes, uses: int) -> dict[str, Any]:
    # a page would draw a run of spaces as one
    spelled = repr(token.decode(errors="replace")).replace(" ", "␣")
    return {"token": spelled, "bytes": len(token), "uses": uses}


def _token_files(shards: TokenShards, most: int) -> Iterable[NDArray[Any]]:
    """Yield training tokens of the first shards, `most` together."""
    dtype = token_dtype(shards.read_json("meta.json")["vocab_size"])
    for name in shards.names("train/"):
        size = min(most * dtype.itemsize, shards.record(name).bytes - HEADER_BYTES)
        if size <= 0:
            return
        record = shards.record(name)
        data = shards.store.read_range(record.path, HEADER_BYTES, HEADER_BYTES + size)
        tokens = np.frombuffer(data, dtype)
        most -= tokens.size
        yield tokens


def _gpt2(source: Source) -> Encoding:
    """Read GPT-2's merges as it publishes them: pairs of printable stand-ins for bytes.

    Raises:
        InputError: the files are others.
    """
    names = [n for n in source.names() if n.rpartition("/")[2] in ("merges.txt", "vocab.bpe")]
    if len(names) != 1:
        raise InputError(
            f"sources.gpt2 pins {', '.join(source.names()[:6])}; give GPT-2's merges.txt (also "
            "known as vocab.bpe), one file"
        )
    with source.open(names[0]) as file:
        lines = as_utf8(file.read()).decode(errors="replace").replace("\r", "").split("\n")
    pairs = [line.split(" ") for line in lines if line and not line.startswith("#version")]
    byte_of = {character: byte for byte, character in enumerate(byte_characters())}
    try:
        merges = [
            (bytes(byte_of[c] for c in left), bytes(byte_of[c] for c in right))
            for left, right in pairs
        ]
    except (ValueError, KeyError) as error:
        raise InputError(
            f"sources.gpt2: {names[0]} is no list of merges, two tokens a line ({error!r})"
        ) from error
    return _encoding(merges, pattern_regex("gpt2", 0), ["<|endoftext|>"])
