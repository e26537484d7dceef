"""The stage `shards`: encode documents to flat token files with an index from token to document.

A file of documents gives token files of its own, so that any number of workers writes the same
bytes. No document is cut between files: one larger than `shard_tokens` gets a file to itself. Every
document, an empty one too, ends with the EOS token: a split holds as many of them as documents. The
order within a split is that of the input; shuffling is the reader's (`order.py`).
"""

import io
import math
import queue
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash
from numpy.typing import NDArray
from pydantic import Field

from lmpipe.artifacts.output import Output, ShardOutput
from lmpipe.artifacts.shards import run_shards
from lmpipe.artifacts.stage import StageConfig, stage
from lmpipe.artifacts.types import Documents, Tokenizer, TokenShards
from lmpipe.errors import InputError
from lmpipe.runtime import Runtime
from lmpipe.token_data.shard_file import pack_shard, token_dtype
from lmpipe.tokenization.arrow import utf8
from lmpipe.tokenization.encoding import Encoding

if TYPE_CHECKING:
    from lmpipe.tokenization.bulk_encoding import BufferEncoder

SPLITS = ("train", "validation")
PORTION_BYTES = 1 << 20  # of text that a thread encodes at a time
# threads in a process: they need no start-up, but the bookkeeping per document holds the GIL
MAX_THREADS = 4
INDEX_SCHEMA = pa.schema(
    [
        pa.field("document_id", pa.string(), nullable=False),
        pa.field("split", pa.string(), nullable=False),
        pa.field("shard", pa.string(), nullable=False),
        pa.field("start", pa.int64(), nullable=False),
        pa.field("length", pa.int64(), nullable=False),
    ]
)


class ShardsConfig(StageConfig):
    """How documents become token files."""

    validation_fraction: float = Field(
        0.01,
        ge=0,
        le=0.5,
        description="Share of documents held out, chosen by the hash of their ids; unless it is 0, "
        "at least one.",
    )
    shard_tokens: int = Field(
        1 << 25, ge=1, le=1 << 32, description="A token file is closed before it grows past this."
    )


@stage(version=1, kind="exact")
def shards(
    out: Output[TokenShards],
    config: ShardsConfig,
    documents: Documents,
    tokenizer: Tokenizer,
    *,
    runtime: Runtime,
) -> TokenShards:
    """Encode documents on runtime.workers threads, then join the index and the counts."""
    settings = tokenizer.read_json("meta.json")
    _check_ends(settings)
    names = [name for name in documents.names("kept/") if name.endswith(".parquet")]
    keys = [name.removeprefix("kept/").removesuffix(".parquet") for name in names]
    work = partial(
        _encode_file,
        documents=documents,
        tokenizer=tokenizer,
        config=config,
        limit=_validation_limit(documents, names, config.validation_fraction),
        threads=min(runtime.workers, MAX_THREADS),
    )
    processes = -(-runtime.workers // MAX_THREADS)
    records = run_shards(out, keys, work, runtime.model_copy(update={"workers": processes}))
    totals = {name: sum(int(record.counts[name]) for record in records) for name in _COUNTS}
    histograms = _gather(out, keys, totals)

    meta = _meta(settings, tokenizer.digest, totals, histograms)
    meta["shards"] = {
        split: sorted(name.split("/")[1][:-4] for name in out.files if name.startswith(f"{split}/"))
        for split in SPLITS
    }
    out.write_json("meta.json", meta)
    for name, value in totals.items():
        out.metric(name, value)
    return out.commit()


_COUNTS = tuple(f"{split}_{what}" for split in SPLITS for what in ("documents", "tokens", "bytes"))


def document_hash(document_id: str) -> int:
    """Return the 64 bits by which a document is held out or not."""
    return int(xxhash.xxh3_64_intdigest(b"validation" + document_id.encode()))


def _check_ends(settings: dict[str, Any]) -> None:
    """Refuse a tokenizer whose end or beginning of a document is not in its own vocabulary."""
    first = next(iter(settings["specials"].values()), None)
    for role in ("eos", "bos"):
        token = settings[role]
        if token not in settings["specials"].values() or token >= settings["vocab_size"]:
            raise InputError(
                f"the tokenizer's {role}={token} is none of its special tokens "
                f"{settings['specials']} below vocab_size={settings['vocab_size']}; build it again "
                "(lmpipe run … --force tokenizer)"
            )
    if settings["eos"] != first:
        raise InputError(
            f"the tokenizer's eos={settings['eos']} is not its first special token ({first}), "
            "which ends documents; build it again (lmpipe run … --force tokenizer)"
        )


def _validation_limit(documents: Documents, names: list[str], fraction: float) -> int:
    """Return the hash below which documents are held out, so that at least one is."""
    smallest, count = 2**64, 0
    for name in names:
        with documents.open(name) as file:
            ids = pq.ParquetFile(file).read(columns=["id"])["id"].to_pylist()
        count += len(ids)
        smallest = min(smallest, min(map(document_hash, ids), default=2**64))
    if count == 0:
        raise InputError(
            "there is no document to encode: all were removed; look at the ledger (removed/) for "
            "the reasons, and loosen the stage that took most"
        )
    if fraction == 0:
        return 0
    if count < 2:
        raise InputError(
            "one document cannot be split into train and validation: give more documents or set "
            "validation_fraction=0"
        )
    return max(int(fraction * 2**64), smallest + 1)


class _SplitWriter:
    """Collects the documents of one split and writes files that hold whole documents."""

    def __init__(
        self, shard: ShardOutput, split: str, shard_tokens: int, vocab_size: int, digest: str
    ) -> None:
        self._shard = shard
        self._split = split
        self._shard_tokens = shard_tokens
        self._vocab_size = vocab_size
        self._digest = digest
        self._parts: list[NDArray[Any]] = []
        self._filled = 0
        self._num_files = 0
        self.histogram = np.zeros(vocab_size, np.int64)
        self.rows: dict[str, list[Any]] = {name: [] for name in INDEX_SCHEMA.names}

    def add(self, document_id: str, tokens: NDArray[Any]) -> None:
        """Append a document, its EOS included."""
        if self._filled and self._filled + tokens.size > self._shard_tokens:
            self.flush()
        row = (document_id, self._split, self._name(), self._filled, tokens.size)
        for column, value in zip(self.rows.values(), row, strict=True):
            column.append(value)
        self._parts.append(tokens)
        self._filled += tokens.size

    def flush(self) -> None:
        """Write what was collected as one file; an empty split gives none."""
        if not self._filled:
            return
        tokens = np.concatenate(self._parts)
        self.histogram += np.bincount(tokens, minlength=self._vocab_size)
        name = f"{self._split}/{self._name()}.bin"
        self._shard.write_bytes(name, pack_shard(tokens, self._vocab_size, self._digest))
        self._shard.set_rows(name, tokens.size)
        self._parts, self._filled = [], 0
        self._num_files += 1

    def _name(self) -> str:
        return f"{self._shard.key}-{self._num_files:03d}"


def _encode_file(
    shard: ShardOutput,
    key: str,
    *,
    documents: Documents,
    tokenizer: Tokenizer,
    config: ShardsConfig,
    limit: int,
    threads: int,
) -> None:
    """Encode one file of documents."""
    encoding = Encoding.load(tokenizer)
    writers = [
        _SplitWriter(shard, split, config.shard_tokens, encoding.vocab_size, tokenizer.digest)
        for split in SPLITS
    ]
    for name in _COUNTS:
        shard.count(name, 0)
    with documents.open(f"kept/{key}.parquet") as file:
        for ids, sizes, tokens, edges in _encoded(pq.ParquetFile(file), encoding, threads):
            held_out = np.array([document_hash(document_id) < limit for document_id in ids], bool)
            for document_id, split, start, stop in zip(
                ids, held_out.tolist(), edges[:-1].tolist(), edges[1:].tolist(), strict=True
            ):
                writers[split].add(document_id, tokens[start:stop])
            for split, mine in zip(SPLITS, (~held_out, held_out), strict=True):
                shard.count(f"{split}_documents", int(mine.sum()))
                shard.count(f"{split}_tokens", int(np.diff(edges)[mine].sum()))
                shard.count(f"{split}_bytes", int(sizes[mine].sum()))
    for writer in writers:
        writer.flush()
    rows = {name: writers[0].rows[name] + writers[1].rows[name] for name in INDEX_SCHEMA.names}
    with shard.open(f"parts/{key}.parquet") as part:
        pq.write_table(pa.table(rows, INDEX_SCHEMA), part, compression="zstd")
    buffer = io.BytesIO()
    np.save(buffer, np.stack([writer.histogram for writer in writers]))
    shard.write_bytes(f"parts/{key}.npy", buffer.getvalue())


Encoded = tuple[list[str], NDArray[np.int64], NDArray[Any], NDArray[np.int64]]


def _encoded(file: pq.ParquetFile, encoding: "Encoding", threads: int) -> Iterator[Encoded]:
    """Yield ids, bytes, tokens with EOS and their edges of some documents at a time, in order."""
    dtype = token_dtype(encoding.vocab_size)
    first = encoding.buffer_encoder()
    encoders: queue.SimpleQueue[BufferEncoder] = queue.SimpleQueue()
    if first is not None:
        for number in range(threads):
            encoders.put(first.copy() if number else first)

    def encode(ids: list[str], text: NDArray[np.uint8], edges: NDArray[np.int64]) -> Encoded:
        if first is None:
            tokens, token_edges = _encode_texts(encoding, ids, text, edges)
        else:
            encoder = encoders.get()
            try:
                tokens, token_edges = encoder.encode(text, edges)
            finally:  # a portion that fails must not leave the next one waiting for its encoder
                encoders.put(encoder)
        return ids, np.diff(edges), tokens.astype(dtype), token_edges

    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[Encoded]] = deque()
        for work in _portions(file):
            waiting.append(pool.submit(encode, *work))
            if len(waiting) > 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _portions(
    file: pq.ParquetFile,
) -> Iterator[tuple[list[str], NDArray[np.uint8], NDArray[np.int64]]]:
    """Cut a file into runs of whole documents of about PORTION_BYTES of text."""
    for batch in file.iter_batches(1024, columns=["id", "text"]):
        ids = batch["id"].to_pylist()
        text, edges = utf8(batch["text"])
        start = 0
        while start < len(ids):
            stop = int(np.searchsorted(edges, edges[start] + PORTION_BYTES, side="right"))
            stop = min(max(stop, start + 1), len(ids))
            yield ids[start:stop], text, edges[start : stop + 1]
            start = stop


def _encode_texts(
    encoding: "Encoding", ids: list[str], text: NDArray[np.uint8], edges: NDArray[np.int64]
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Encode document by document, which a custom pattern needs."""
    parts: list[NDArray[Any]] = []
    for i, document_id in enumerate(ids):
        document = text[edges[i] : edges[i + 1]].tobytes().decode()
        try:
            tokens = encoding.encode_numpy(document)
        except InputError as error:
            raise InputError(f"document {document_id}: {error}") from error
        parts.append(np.append(tokens, np.uint32(encoding.eos)))
    return np.concatenate(parts), np.cumsum([0, *map(len, parts)])


def _gather(
    out: Output[TokenShards], keys: list[str], totals: dict[str, int]
) -> dict[str, NDArray[np.int64]]:
    """Join the shards' index and token counts, check that nothing is lost, return the counts."""
    histogram: Any = 0
    found = dict.fromkeys(_COUNTS, 0)
    with (
        out.open("index.parquet") as file,
        pq.ParquetWriter(file, INDEX_SCHEMA, compression="zstd") as writer,
    ):
        for key in keys:
            part, counts = (out.take(f"parts/{key}.{kind}") for kind in ("parquet", "npy"))
            with out.store.open(part) as stored:
                table = pq.read_table(stored)
            if table.num_rows:
                writer.write_table(table)
            for split in SPLITS:
                lengths = table.filter(pc.equal(table["split"], split))["length"]
                found[f"{split}_documents"] += len(lengths)
                found[f"{split}_tokens"] += int(pc.sum(lengths).as_py() or 0)
            histogram = histogram + np.load(io.BytesIO(out.store.read(counts) or b""))
    for i, split in enumerate(SPLITS):
        files = [record for name, record in out.files.items() if name.startswith(f"{split}/")]
        rows = sum(record.rows or 0 for record in files)
        encoded = totals[f"{split}_tokens"]
        assert rows == found[f"{split}_tokens"] == int(histogram[i].sum()) == encoded, (
            f"{split}: {encoded} tokens encoded, {rows} written, "
            f"{found[f'{split}_tokens']} in the index"
        )
        assert found[f"{split}_documents"] == totals[f"{split}_documents"]
    if not totals["train_tokens"]:
        raise InputError(
            "every document was held out for validation: give more documents or set a smaller "
            "validation_fraction"
        )
    return dict(zip(SPLITS, histogram, strict=True))


def unigram_entropy_nats(train: NDArray[np.int64], validation: NDArray[np.int64]) -> float:
    """Return the loss of the best context-free model: add-one train counts on validation tokens.

    A trained model that is not below it has learnt nothing from context.
    """
    probability = (train + 1) / (train.sum() + train.size)
    # math.fsum does not depend on the order of adding, so the bytes are the same everywhere
    terms = (-validation * np.log(probability)).tolist()
    return round(math.fsum(terms) / max(1, int(validation.sum())), 9)


def _meta(
    settings: dict[str, Any],
    tokenizer_digest: str,
    totals: dict[str, int],
    histograms: dict[str, NDArray[np.int64]],
) -> dict[str, Any]:
    eos = settings["eos"]
    for split in SPLITS:
        ends, count = int(histograms[split][eos]), totals[f"{split}_documents"]
        assert ends == count, f"{split}: {ends} EOS tokens for {count} documents"
    entropy = unigram_entropy_nats(histograms["train"], histograms["validation"])
    return {
        "vocab_size": settings["vocab_size"],
        "eos": eos,
        "dtype": token_dtype(settings["vocab_size"]).name,
        "tokenizer_digest": tokenizer_digest,
        "unigram_entropy_nats": entropy if totals["validation_tokens"] else None,
        **{
            what: {split: totals[f"{split}_{what}"] for split in SPLITS}
            for what in ("documents", "tokens")
        },
        "text_bytes": {split: totals[f"{split}_bytes"] for split in SPLITS},
    }
