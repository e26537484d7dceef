"""What makes two artifacts the same: canonical bytes, ids and digests.

    id     = hash(stage name, stage version, config, its files, digests of the inputs)
    digest = hash(name and sha256 of every output)          for an exact stage
           = hash(the same, and the attempt's token)        for a statistical stage

The id is known before a stage runs, the digest only after. Because inputs enter an id by digest and
not by id, a stage that is run again and gives the same bytes leaves all below it valid (early
cut-off). Hashing the source code instead (as some systems do) would rebuild a corpus for every
comment; the price of our choice is a version that is bumped by hand, guarded by golden digests.
Files that users edit to say what is asked (a task's YAML, a reward) are hashed all the same.

A field that a later lmpipe adds must not orphan what is trained: `neutral(value)` declares the
value at which it leaves the stage as it was, and at that value it stays out of the id. Leaving out
whatever equals its default would not do: a default that is changed would keep the old ids.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

ID_LENGTH = 24  # hex digits, 96 bits: a collision among 1e9 artifacts has probability 6e-12


def canonical_json(value: Any) -> bytes:
    """Serialise to bytes that do not depend on process, hash seed, or dictionary order.

    Raises:
        TypeError: for a set, a path, bytes, or any other type without an order or a place-free
            meaning, and ValueError for NaN and infinities.
    """
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def neutral(value: Any) -> dict[str, Any]:
    """Declare at which value a field added later leaves the stage as it was before.

        packing: … = Field("concatenate", json_schema_extra=neutral("concatenate"), description=…)

    Args:
        value: as JSON has it.
    """
    return {"neutral": value}


def config_identity(config: BaseModel) -> dict[str, Any]:
    """Return the config as plain JSON values, without the fields that are neutral."""
    pruned: dict[str, Any] = _without_neutral(config, config.model_dump(mode="json"))
    return pruned


def _without_neutral(value: Any, dumped: Any) -> Any:
    if isinstance(value, BaseModel) and isinstance(dumped, dict):
        fields = type(value).model_fields
        return {
            name: _without_neutral(getattr(value, name), item)
            for name, item in dumped.items()
            if name not in fields or not _is_neutral(fields[name].json_schema_extra, item)
        }
    if isinstance(value, Mapping):
        pairs = zip(value.values(), dumped.items(), strict=True)
        return {key: _without_neutral(inner, item) for inner, (key, item) in pairs}
    if isinstance(value, list | tuple):
        return [_without_neutral(*pair) for pair in zip(value, dumped, strict=True)]
    return dumped


def _is_neutral(extra: Any, dumped: Any) -> bool:
    return isinstance(extra, dict) and "neutral" in extra and extra["neutral"] == dumped


def file_digest(path: Path) -> str:
    """Return the sha256 of a file that is part of what a stage does."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def artifact_id(
    stage: str,
    version: int,
    config: Mapping[str, Any],
    inputs: Mapping[str, list[str]],
    files: Mapping[str, str] | None = None,
) -> str:
    """Return the id of what `stage` makes from `config` and inputs (role to content digests).

    Args:
        files: name to sha256 of the files that say what the stage does.
    """
    given = {role: found for role, found in inputs.items() if found}  # a new role orphans nothing
    identity = {"stage": stage, "version": version, "config": config, "inputs": given}
    if files:
        identity["files"] = files
    return hashlib.sha256(canonical_json(identity)).hexdigest()[:ID_LENGTH]


def content_digest(outputs: Iterable[tuple[str, str]], attempt: str | None) -> str:
    """Return the digest of outputs (name, sha256); statistical stages give their attempt."""
    content = {"outputs": sorted(outputs), "attempt": attempt}
    return hashlib.sha256(canonical_json(content)).hexdigest()
