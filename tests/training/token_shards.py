"""Token shards that can be learnt, without a corpus: a document counts on by its own step."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lmpipe.token_data.shard_file import pack_shard

VOCAB, EOS = 64, 63


def write_shards(folder: Path, seed: int = 0) -> dict[str, Any]:
    """Write the layout of a TokenShards artifact; return its meta.json."""
    generator = np.random.default_rng(seed)
    rows, tokens, counts = [], {}, {}
    for split, num_shards in (("train", 2), ("validation", 1)):
        (folder / split).mkdir(parents=True)
        total, histogram = 0, np.zeros(VOCAB)
        for shard in range(num_shards):
            documents = [_document(generator) for _ in range(60)]
            start = 0
            for number, document in enumerate(documents):
                name = f"{split}-{shard}-{number}"
                row = {"document_id": name, "split": split, "shard": f"{shard:05d}"}
                rows.append({**row, "start": start, "length": document.size})
                start += document.size
            stream = np.concatenate(documents)
            path = folder / split / f"{shard:05d}.bin"
            path.write_bytes(pack_shard(stream, VOCAB, "0" * 64))
            total += stream.size
            histogram += np.bincount(stream, minlength=VOCAB)
        tokens[split], counts[split] = total, histogram
    pq.write_table(pa.Table.from_pylist(rows), folder / "index.parquet")
    probability = (counts["train"] + 1) / (counts["train"] + 1).sum()
    entropy = -(counts["validation"] * np.log(probability)).sum() / counts["validation"].sum()
    meta = {
        "vocab_size": VOCAB,
        "eos": EOS,
        "tokens": tokens,
        "text_bytes": {split: 3 * count for split, count in tokens.items()},
        "unigram_entropy_nats": float(entropy),
    }
    (folder / "meta.json").write_text(json.dumps(meta))
    return meta


def _document(generator: np.random.Generator) -> np.ndarray[Any, np.dtype[np.int64]]:
    length, start, step = generator.integers((10, 0, 1), (90, EOS, 4))
    return np.append((start + step * np.arange(length)) % EOS, EOS)
