"""Addresses that name the same page: normalised, then hashed."""

import hashlib
import re
from collections.abc import Sequence
from urllib.parse import parse_qsl, urlencode, urlsplit

import numpy as np
from numpy.typing import NDArray

# Whole names: `side` and `sidx` begin like `sid` and say which page is meant.
_DROPPED = frozenset(
    ("fbclid", "gclid", "dclid", "msclkid", "yclid", "mc_cid", "mc_eid", "ref_src",
     "sid", "sessid", "sessionid", "session_id", "phpsessid", "jsessionid", "aspsessionid")
)  # fmt: skip
_DROPPED_PREFIX = "utm_"  # utm_source, utm_medium and whatever an analyst adds to them
_PATH_SESSION = re.compile(r";jsessionid=[^/;]*", re.IGNORECASE)  # servlets write it into the path
_INDEX = ("index.html", "index.htm", "index.php", "default.aspx")


def normalise_url(url: str) -> str:
    """Return the address without what does not change the page.

    Scheme, `www.`, user, default port, fragment, trailing slash, index file and the parameters of
    sessions and advertisements go; host case and the order of parameters do not count. The path's
    case does.
    """
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        return url.strip()  # such as a broken IPv6 host: the address is its own name
    host = (parts.hostname or "").rstrip(".").removeprefix("www.")
    if port and port not in (80, 443):
        host = f"{host}:{port}"
    path = _PATH_SESSION.sub("", parts.path)
    for name in _INDEX:
        if path.lower().endswith("/" + name):
            path = path[: -len(name)]
    query = sorted(
        (key, value)
        for key, value in parse_qsl(parts.query, keep_blank_values=True)
        if key.lower() not in _DROPPED and not key.lower().startswith(_DROPPED_PREFIX)
    )
    return f"{host}{path.rstrip('/')}" + (f"?{urlencode(query)}" if query else "")


def url_keys(urls: Sequence[str | None]) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each address; 0 for none."""
    return np.array([_key(url) if url else 0 for url in urls], np.uint64)


def _key(url: str) -> int:
    digest = hashlib.blake2b(normalise_url(url).encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest(), "little") or 1
