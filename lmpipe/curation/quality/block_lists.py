"""Lists from outside: hosts and addresses that are not wanted, and adult words by language.

One source pins them all; a file's name says what it holds, one entry a line, `#` begins a comment:
`hosts*.txt` (a domain stands for its subdomains too), `urls*.txt` (beginnings of addresses, without
scheme), `words.LANGUAGE.txt` (words or phrases; counted in documents of that language alone, so
that one language's word is not another's insult).
"""

from collections.abc import Collection, Iterable
from pathlib import Path
from urllib.parse import urlsplit

from lmpipe.artifacts.types import Source
from lmpipe.curation.quality.language import policy_language
from lmpipe.curation.quality.language_policy import said_as
from lmpipe.curation.text.words import split_words
from lmpipe.documents.text_files import read_text_file
from lmpipe.errors import ConfigError, InputError

UNSPACED = ("ja", "th", "zh")  # scripts without spaces between words


class BlockLists:
    """Look documents up in the lists.

    Args:
        files: by name.
        known: the codes of the language model, of which a file may name another (nb for no).
    """

    def __init__(self, files: dict[str, Path], known: Collection[str] = ()) -> None:
        self._known = known
        self._hosts: set[str] = set()
        self._urls: dict[str, list[str]] = {}  # by host
        self._words: dict[str, set[str]] = {}
        self._phrases: dict[str, list[str]] = {}
        for name, path in sorted(files.items()):
            self._read(name.rsplit("/", 1)[-1], path)

    def _read(self, name: str, path: Path) -> None:
        lines = (line.split("#")[0].strip() for line in read_text_file(path).split("\n"))
        entries = [line for line in lines if line]
        if name.startswith("hosts"):
            self._hosts.update(_plain_host(entry) for entry in entries)
        elif name.startswith("urls"):
            for entry in entries:
                host, address = _address(entry)
                self._urls.setdefault(host, []).append(address)
        elif name.startswith("words.") and name.count(".") == 2:
            self._add_words(name, entries)
        else:
            raise InputError(
                f"block list {name!r} must be named hosts*.txt, urls*.txt or words.LANGUAGE.txt"
            )

    def _add_words(self, name: str, entries: Iterable[str]) -> None:
        try:
            named = policy_language(name.split(".")[1])
        except ConfigError as error:
            raise InputError(f"block list {name!r}: {error}") from error
        entries = list(entries)
        for language in said_as(named, self._known) or [named]:
            self._add_words_of(language, entries)

    def _add_words_of(self, language: str, entries: Iterable[str]) -> None:
        for entry in entries:
            parts = split_words(entry.lower())
            if language not in UNSPACED and len(parts) == 1:
                self._words.setdefault(language, set()).add(parts[0])
            else:
                phrase = entry.lower() if language in UNSPACED else f" {' '.join(parts)} "
                self._phrases.setdefault(language, []).append(phrase)

    def is_blocked(self, url: str | None, host: str | None) -> bool:
        """Say whether the host, a parent domain of it, or the address is on a list."""
        if not url and not host:
            return False
        at, address = _address(url) if url else (_plain_host(host or ""), "")
        labels = at.split(".")
        if any(".".join(labels[n:]) in self._hosts for n in range(len(labels))):
            return True
        return any(_begins(address, entry) for entry in self._urls.get(at, ()))

    def has_words(self, language: str | None) -> bool:
        """Say whether there is a list for a language."""
        return language in self._words or language in self._phrases

    def count_words(self, text: str, language: str | None) -> int:
        """Count the words and phrases of the language's list in a text."""
        if language is None or not self.has_words(language):
            return 0
        lowered = text.lower()
        phrases = self._phrases.get(language, ())
        if language in UNSPACED:
            return sum(lowered.count(phrase) for phrase in phrases)
        words = split_words(lowered)
        listed = self._words.get(language, set())
        count = sum(word in listed for word in words)
        if phrases:
            line = f" {'  '.join(words)} ".replace("  ", " ")
            count += sum(line.count(phrase) for phrase in phrases)
        return count


def read_block_lists(source: Source, known: Collection[str] = ()) -> BlockLists:
    """Read the lists that a source pins."""
    return BlockLists({name: source.local(name) for name in source.names()}, known)


def _plain_host(host: str) -> str:
    return host.lower().strip(".").removeprefix("www.")


def _address(url: str) -> tuple[str, str]:
    """Return the host and the address without scheme, www, query and fragment."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host = _plain_host(parts.hostname or "")
    except ValueError:
        return "", ""
    return host, f"{host}{parts.path.rstrip('/')}"


def _begins(address: str, entry: str) -> bool:
    """A listed path stands for itself and what is below it, not for /path2."""
    return address == entry or address.startswith(f"{entry}/")
