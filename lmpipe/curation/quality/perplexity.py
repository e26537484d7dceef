"""KenLM perplexity, as CCNet uses it: how surprising is a document to a model of good text?

The model is trained on text normalised by `normalise_lines`, and documents are scored after the
same normalisation: lower case, digits to 0, our own words, one sentence per line. CCNet cuts words
into SentencePiece units instead; that needs a second model file, and helps where words are long.

Perplexities of two languages cannot be compared, so each may have a model of its own, named in the
file's name: `de.kenlm`, `pt-5gram.arpa`. A file whose name begins with no language is for all
others; a document whose language has no model has no perplexity.

Source: Wenzek et al. 2019 (CCNet), section 4.
"""

import argparse
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow.parquet as pq

from lmpipe.curation.quality.language import normalise_language
from lmpipe.curation.quality.language_policy import said_as
from lmpipe.curation.text.words import split_words
from lmpipe.documents.text_files import read_text_file
from lmpipe.errors import ConfigError, InputError

ANY_LANGUAGE = ""
_DIGITS = re.compile(r"\d")


def normalise_lines(text: str) -> Iterator[str]:
    """Yield a text's lines as the language model reads them; blank ones are left out."""
    for line in _DIGITS.sub("0", text.lower()).splitlines():
        words = split_words(line)
        if words:
            yield " ".join(words)


def models_by_language(names: Sequence[str], known: Collection[str]) -> dict[str, str]:
    """Return model files by the language in their names; ANY_LANGUAGE is the one for all others.

    Args:
        known: the codes of the language model, of which a file may name another (nb for no).

    Raises:
        InputError: two files for one language.
    """
    found: dict[str, str] = {}
    for name in names:
        named = _language_of(name)
        for language in said_as(named, known) or [named]:
            if language in found:
                what = (
                    f"language {language!r}"
                    if language
                    else "all languages without one of their own"
                )
                raise InputError(
                    f"{found[language]} and {name} are both KenLM models for {what}; name each "
                    "file by its language (en.kenlm, de-5gram.kenlm) and keep one of them"
                )
            found[language] = name
    return found


def _language_of(name: str) -> str:
    try:
        return normalise_language(PurePosixPath(name).name.split(".")[0])
    except ConfigError:
        return ANY_LANGUAGE


class PerplexityModel:
    """Score texts with a KenLM binary or ARPA file."""

    def __init__(self, model: Path) -> None:
        self._model = load_kenlm(str(model))

    def __call__(self, text: str) -> float | None:
        """Return the perplexity per word, line ends included; None for a text without words."""
        log10 = 0.0
        tokens = 0
        for line in normalise_lines(text):
            log10 += self._model.score(line, bos=True, eos=True)
            tokens += line.count(" ") + 2
        return float(10 ** (-log10 / tokens)) if tokens else None


@lru_cache(200)  # every language's, since documents come mixed; binary files are mapped, not read
def load_kenlm(path: str) -> Any:
    """Load a KenLM model once per process."""
    import kenlm

    return kenlm.Model(path)


def main() -> None:
    """Print the training text of `make kenlm`: the normalised lines of Parquet or text files.

    With `--vocabulary FILE`, also write the 10,000 most frequent words seen five times or more, for
    lmplz's --limit_vocab_file: half the size of a model is names that occur once.
    """
    parser = argparse.ArgumentParser(prog="python -m lmpipe.curation.quality.perplexity")
    parser.add_argument("texts", nargs="+", help="Parquet with a column text, or plain text")
    parser.add_argument("--vocabulary", type=Path, help="where to write the frequent words")
    arguments = parser.parse_args()
    words: Counter[str] = Counter()
    for path in arguments.texts:
        for text in _texts(path):
            for line in normalise_lines(text):
                words.update(line.split(" "))
                print(line)
    if arguments.vocabulary:
        ranked = sorted(words.items(), key=lambda item: (-item[1], item[0]))
        chosen = [word for word, count in ranked[:10_000] if count >= 5]
        arguments.vocabulary.write_text("\n".join(chosen) + "\n", encoding="utf-8")


def _texts(path: str) -> Iterator[str]:
    if path.endswith(".parquet"):
        for batch in pq.ParquetFile(path).iter_batches(columns=["text"]):
            yield from batch.column("text").to_pylist()
    else:
        yield read_text_file(Path(path))


if __name__ == "__main__":
    main()
