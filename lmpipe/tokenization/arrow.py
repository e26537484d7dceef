"""Text as it lies in Arrow's buffers: no Python object per document."""

from typing import Any

import numpy as np
import pyarrow as pa


def utf8(text: Any) -> tuple[Any, Any]:
    """Return the bytes of an Arrow string array and the edges of its strings, without a copy."""
    text = text.cast(pa.large_string())
    _, edges, data = text.buffers()
    if not len(text) or data is None:  # no string, or none that has a byte
        return np.frombuffer(b"", np.uint8), np.zeros(len(text) + 1, np.int64)
    all_edges = np.frombuffer(edges, np.int64)[text.offset : text.offset + len(text) + 1]
    return np.frombuffer(data, np.uint8), all_edges.copy()
