"""Taking secrets out of what a process says, before it is shown or stored.

Passwords and keys come in through the environment. What a stage prints, or the message of what it
raised, may hold them: a client that shows its options, a URL with a password, a native library that
dumps its environment. There is one place through which all words of a stage pass on their way to
the terminal, to Prefect and to the stored log: its parent, which reads them from a pipe. Filters on
Python's logging, the alternative, miss native output. What a stage writes into its own artifact is
data, and is not searched.
"""

import base64
import json
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any

REDACTED = "***"
SECRET_WORDS = {"SECRET", "PASSWORD", "PASSWD", "TOKEN", "KEY", "AUTH", "CREDENTIAL", "CREDENTIALS"}
SHORTEST = 6  # letters of a secret; "true" or "1" in a variable of such a name is none
URL_WITH_PASSWORD = r"^\w+://[^/@]*:[^/@]*@"
IN_URL = re.compile(r"(\w+://[^\s/:@'\"]*:)([^\s/@'\"]+)(?=@)")


class Redactor:
    """Replaces the secrets of an environment, in every form in which they are likely to appear."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        forms = {form for secret in secrets_of(environment) for form in _forms(secret)}
        longest_first = sorted(forms, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def text(self, text: str) -> str:
        """Return a text without secrets and without the password of any URL."""
        return IN_URL.sub(rf"\1{REDACTED}", self._pattern.sub(REDACTED, text))

    def value(self, value: Any) -> Any:
        """Return plain data with every text in it redacted, keys excepted."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {key: self.value(item) for key, item in value.items()}
        return [self.value(item) for item in value] if isinstance(value, list) else value


def without_password(url: str) -> str:
    """Return a path or URL from a config as it is.

    Raises:
        ValueError: it holds a password, which would stand in parameters, logs and manifests.
    """
    if re.search(URL_WITH_PASSWORD, url):
        host = url.rpartition("@")[2]
        raise ValueError(
            f"a password in a URL (…@{host}) shows in parameters and manifests; leave it out and "
            "give credentials by the environment of the worker"
        )
    return url


def secrets_of(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield values of variables named like secrets, and passwords in URLs and `user:password`."""
    for name, value in environment.items():
        words = name.upper().split("_")
        candidates = [password for _, password in IN_URL.findall(value)]
        if SECRET_WORDS & set(words) and words[-1] != "ID":  # AWS_ACCESS_KEY_ID is a name
            candidates += [value, value.rpartition(":")[2]]
        yield from (candidate for candidate in candidates if len(candidate) >= SHORTEST)


def _forms(secret: str) -> Iterator[str]:
    yield secret
    yield urllib.parse.quote(secret, safe="")
    yield json.dumps(secret)[1:-1]
    yield repr(secret)[1:-1]
    yield base64.b64encode(secret.encode()).decode().rstrip("=")
