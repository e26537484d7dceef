"""How S3 is asked again: each request is patient on its own, however many others are refused.

Botocore's standard mode shares 500 credits among all requests of a client and takes five a retry.
Where an overloaded store answers SlowDown to more than about a third of the requests, the credits
run out, and the next refusal ends a build that a pause would have carried through. Its legacy mode
has no credits, but pauses of up to four minutes. So an event handler answers before botocore's:
growing pauses with jitter, up to a number of tries. Imports S3's client, so import it late.
"""

import random
from typing import Any

from aiobotocore.session import AioSession
from botocore.exceptions import ConnectionError, HTTPClientError

MAX_PAUSE_SECONDS = 20
_BUSY = frozenset({429, 500, 502, 503, 504})


class PatientSession(AioSession):  # type: ignore[misc]
    """A session whose S3 clients try a request that the store has no time for `attempts` times."""

    def __init__(self, attempts: int) -> None:
        super().__init__()
        self._attempts = attempts
        self.register("needs-retry.s3", self._pause, unique_id="lmpipe-pause")

    def __repr__(self) -> str:
        """Name what it does: fsspec keeps one filesystem per repr of its options."""
        return f"PatientSession({self._attempts})"

    def _pause(
        self, response: Any, attempts: int, caught_exception: Exception | None = None, **_: Any
    ) -> float | None:
        """Return the seconds before the next try; None leaves the decision to botocore."""
        is_busy = isinstance(caught_exception, ConnectionError | HTTPClientError) or (
            response is not None and response[0].status_code in _BUSY
        )
        if not is_busy or attempts >= self._attempts:
            return None
        return random.random() * min(2.0 ** (attempts - 1), MAX_PAUSE_SECONDS)


def s3_options(attempts: int) -> dict[str, Any]:
    """Return what every S3 filesystem of lmpipe is opened with."""
    return {
        "use_listings_cache": False,
        "default_block_size": 16 * 2**20,
        "config_kwargs": {"retries": {"mode": "standard", "total_max_attempts": attempts}},
        "session": PatientSession(attempts),
    }
