"""One benchmark a module; `lmpipe bench` lists them. What they all return stands here."""

from typing import Any

from lmpipe.artifacts.provenance import provenance

Row = dict[str, Any]


def row(bench: str, impl: str, case: str, metric: str, value: float, unit: str) -> Row:
    """Return one row of a benchmark's result."""
    commit = provenance("", 0.0, devices=[], bytes_read=0, reason="").git_commit
    return {
        "bench": bench, "impl": impl, "case": case, "metric": metric,
        "value": round(value, 4), "unit": unit, "device": "cpu", "commit": commit,
    }  # fmt: skip
