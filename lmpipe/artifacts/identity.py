"""What makes two artifacts the same: canonical bytes, ids and digests.

    id     = hash(stage name, stage version, config, digests of the inputs)
    digest = hash(name and sha256 of every output)          for an exact stage
           = hash(the same, and the attempt's token)        for a statistical stage

The id is known before a stage runs, the digest only after. Because inputs enter an id by digest and
not by id, a stage that is run again and gives the same bytes leaves all below it valid (early
cut-off). Hashing the source code instead (as some systems do) would rebuild a corpus for every
comment; the price of our choice is a version that is bumped by hand, guarded by golden digests.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

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


def artifact_id(
    stage: str, version: int, config: Mapping[str, Any], inputs: Mapping[str, list[str]]
) -> str:
    """Return the id of what `stage` makes from `config` and inputs (role to content digests)."""
    identity = {"stage": stage, "version": version, "config": config, "inputs": inputs}
    return hashlib.sha256(canonical_json(identity)).hexdigest()[:ID_LENGTH]


def content_digest(outputs: Iterable[tuple[str, str]], attempt: str | None) -> str:
    """Return the digest of outputs (name, sha256); statistical stages give their attempt."""
    content = {"outputs": sorted(outputs), "attempt": attempt}
    return hashlib.sha256(canonical_json(content)).hexdigest()
