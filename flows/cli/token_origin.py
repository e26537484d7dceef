"""From a token, or from a step of pretraining, back to documents and WARC records."""

from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from lmpipe.artifacts.alias import find_by_prefix
from lmpipe.artifacts.lookup import read_manifest
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import Artifact, TokenShards, open_artifact
from lmpipe.documents.read import find_rows
from lmpipe.errors import ConfigError, StoreError
from lmpipe.token_data.index import SplitIndex
from lmpipe.token_data.order import SequenceOrder
from lmpipe.token_data.packing import lay_out
from lmpipe.training.mixing import MixtureConfig

if TYPE_CHECKING:
    from lmpipe.token_data.mixture import MixtureOrder

ORIGIN = ("url", "warc_path", "warc_offset", "warc_record_id")


def print_tokens(console: Console, artifact: str, token: str, step: int | None, root: str) -> None:
    """Print the record behind a token, or the documents of a step, a line each."""
    if bool(token) == (step is not None):
        raise ConfigError(
            "give a document's id, --token SHARD:OFFSET, or a checkpoint's id and --step N"
        )
    store = Store(root)
    rows = token_rows(store, artifact, token) if token else step_rows(store, artifact, step or 0)
    for row in rows:
        line = "  ".join(f"{key}={value}" for key, value in row.items())
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def token_rows(store: Store, artifact: str, token: str) -> list[dict[str, Any]]:
    """Return the document of one token, and the WARC record that it came from."""
    shards = _shards(_found(store, artifact or "shards"))
    name, separator, offset = token.rpartition(":")
    if not separator or not offset.isdecimal():
        raise ConfigError(f"--token {token!r} must be SHARD:OFFSET, such as train/00001-000:17")
    split, _, shard = name.rpartition("/")
    index = SplitIndex.of(shards, split or "train")
    place = index.place(shard, int(offset))
    number = int(index.documents(place, place + 1)[0])
    document = index.document_id(number)
    return [
        {
            "token": f"{split or 'train'}/{shard}:{offset}",
            "document": document,
            "offset_in_document": place - int(index.document_starts[number]),
            **_origins(shards, {document: shard})[document],
        }
    ]


def step_rows(store: Store, artifact: str, step: int) -> list[dict[str, Any]]:
    """Return a row per sequence and document of a step of pretraining, in the order of reading."""
    checkpoint = _found(store, artifact or "pretrain")
    config = checkpoint.manifest.config
    if checkpoint.stage != "pretrain":
        raise ConfigError(
            f"{checkpoint!r} was not made by pretrain, whose data order alone is a function of the "
            "step; give the pretrain checkpoint that it began from (lmpipe show lists inputs)"
        )
    length = config["sequence_length"]
    batch = config["batch_tokens"] // length
    steps = config["total_tokens"] // config["batch_tokens"]
    if step >= steps:
        raise ConfigError(f"--step {step} must be in [0, {steps}): the run has {steps} steps")
    sets = [_shards(artifact) for artifact in _inputs(checkpoint, ("shards", "others"))]
    indexes = [SplitIndex.of(shards, "train") for shards in sets]
    # checkpoints from before these choices have no such keys
    packing = config.get("packing", "concatenate")
    layouts = [lay_out(index, length, packing) for index in indexes]
    names, order = _order(config, [layout.num_sequences for layout in layouts], steps, batch)
    offsets = np.cumsum([0, *(layout.num_sequences for layout in layouts)])
    rows: list[dict[str, Any]] = []
    where: list[dict[str, str]] = [{} for _ in sets]
    for position, number in enumerate(order.numbers(step * batch, batch).tolist()):
        source = int(np.searchsorted(offsets, number, side="right")) - 1
        index = indexes[source]
        for start, stop in layouts[source].spans(number - int(offsets[source])):
            documents = index.documents(start, stop)
            for document in dict.fromkeys(documents.tolist()):
                first = max(start, int(index.document_starts[document]))
                shard, offset = index.shard_of(first)
                row = {
                    "sequence": step * batch + position,
                    "set": names[source],
                    "token": f"train/{shard}:{offset}",
                    "tokens": int((documents == document).sum()),
                    "document": index.document_id(document),
                }
                where[source][row["document"]] = shard
                rows.append({key: value for key, value in row.items() if value != ""})
    origins = [_origins(shards, found) for shards, found in zip(sets, where, strict=True)]
    return [{**row, **origins[names.index(row.get("set", ""))][row["document"]]} for row in rows]


def _order(
    config: dict[str, Any], sizes: list[int], steps: int, batch: int
) -> "tuple[list[str], SequenceOrder | MixtureOrder]":
    """Return the names of the token sets, and in which order a run reads their sequences."""
    if config.get("mixture") is None:
        return [""], SequenceOrder(sizes[0], config["seed"])
    mixture = MixtureConfig.model_validate(config["mixture"])
    return list(mixture.names), mixture.order(sizes, (steps, batch), config["seed"])


def _origins(shards: TokenShards, where: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Return url and WARC record of documents, each looked for in the file its shard was made of.

    Args:
        where: document id to the name of its shard, FILE-NNN.
    """
    (documents,) = _inputs(shards, ("documents",))
    found: dict[str, dict[str, Any]] = {document: {} for document in where}
    for key in sorted({shard.rpartition("-")[0] for shard in where.values()}):
        with documents.open(f"kept/{key}.parquet") as file:
            wanted = [document for document, shard in where.items() if shard.startswith(f"{key}-")]
            rows = list(find_rows(file, "id", wanted, ORIGIN))
        for row in rows:
            document = row.pop("id")
            found[document] = {k: v for k, v in row.items() if v is not None}
    return found


def _found(store: Store, prefix: str) -> Artifact:
    return open_artifact(store, find_by_prefix(store, prefix))


def _inputs(artifact: Artifact, roles: tuple[str, ...]) -> list[Artifact]:
    inputs = []
    for record in artifact.manifest.inputs:
        if record.role not in roles:
            continue
        found = read_manifest(artifact.store, record.stage, record.id)
        if found is None:
            raise StoreError(
                f"{artifact!r} was made from {record.stage}/{record.id}, which is not in "
                f"{artifact.store.root}; run its recipe again"
            )
        inputs.append(open_artifact(artifact.store, found[0]))
    return inputs


def _shards(artifact: Artifact) -> TokenShards:
    if not isinstance(artifact, TokenShards):
        raise ConfigError(f"{artifact!r} holds no token shards; `lmpipe ls shards` lists some")
    return artifact
