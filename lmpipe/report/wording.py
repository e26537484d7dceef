"""Numbers and names as people read them; the same everywhere in the report."""

from __future__ import annotations

import math
import re

from lmpipe.report.svg import number

LABELS = {
    "lr": "learning rate",
    "grad_norm": "gradient norm",
    "kl": "KL to the reference",
    "loss": "loss",
    "validation_loss": "validation loss",
    "bits_per_byte": "bits per byte",
    "tokens_per_second": "tokens per second",
    "mfu": "model FLOP utilisation",
    "heldout_reward": "held-out reward",
    "acc": "accuracy",
    "acc_bytes": "accuracy, by likelihood per byte",
    "acc_norm": "accuracy, by likelihood per character",
}
UNITS = (("h", 3600.0), ("min", 60.0), ("s", 1.0))


def label(name: str) -> str:
    """Turn a column or metric name into words."""
    words = name.replace("heldout_", "held-out ").replace("_", " ").replace("/", ": ")
    return LABELS.get(name, words)


def sentence(text: str) -> str:
    """Begin a text with a capital letter, and leave the rest."""
    return text[:1].upper() + text[1:]


def count(value: float | None) -> str:
    """Write a count: exact below a hundred thousand, else three digits and a suffix."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) < 1e5 else number(value)


def duration(seconds: float) -> str:
    """Write a time in seconds below 90 s, minutes below 90 min, else hours."""
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"


def period(seconds: float) -> str:
    """Write a time from microseconds to years."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 2 * 86_400:
        return duration(seconds)
    days = seconds / 86_400
    if days < 1000:
        return f"{days:.1f} days" if days < 100 else f"{days:.0f} days"
    return f"{days / 365.25:,.1f} years"


def size(num_bytes: float) -> str:
    """Write bytes with three digits and a decimal unit, B to TB."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:.3g} {unit}"
    return f"{num_bytes:.0f} B"


def with_error(value: float, stderr: float | None) -> str:
    """Write a value with its standard error, both to the error's second digit."""
    if stderr is None or stderr <= 0:
        return f"{value:.3f}"
    digits = 1 if stderr >= 1 else 2 if stderr >= 0.1 else 3 if stderr >= 0.001 else 4
    return f"{value:.{digits}f} ± {stderr:.{digits}f}"


def percent(share: float) -> str:
    """Write a share in percent; near but below 1, with a digit more, so that it is no 100%."""
    return f"{share:.1%}" if share < 0.995 or share > 1 else f"{share:.2%}"


def excerpt(text: str, length: int = 600) -> str:
    """Cut a text for display, saying how much is left out."""
    text = text.strip()
    if len(text) <= length:
        return text
    return f"{text[:length].rstrip()} … ({len(text) - length:,} more characters)"


def cell(name: str, value: object) -> object:
    """Write a number of a table for people, with the unit that its column's name says it has.

    What is no number stays as it is.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if isinstance(value, float) and not math.isfinite(value):
        return "–"
    if re.search(r"(^|[_ ])bytes$", name):
        return size(value)
    if re.search(r"(^|[_ ])seconds$|^took$", name):
        return f"{value:,.1f} s" if value < 90 else duration(value)
    if isinstance(value, int) or value.is_integer():
        return f"{value:,.0f}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
