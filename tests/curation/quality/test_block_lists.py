"""Lists of hosts, addresses and words, alone and through signals and select."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lmpipe.curation.extraction.config import ImportDocumentsConfig
from lmpipe.curation.extraction.import_documents import import_documents
from lmpipe.curation.quality.block_lists import BlockLists
from lmpipe.curation.quality.config import QualityClassifierConfig, SignalsConfig
from lmpipe.curation.quality.quality_classifier import quality_classifier
from lmpipe.curation.quality.signals import signals
from lmpipe.curation.selection.select import select
from lmpipe.documents.read import read_documents, read_removed
from lmpipe.errors import InputError
from tests.curation.conftest import Workbench
from tests.curation.selection.test_select import EXAMPLES, LANGUAGE, LOOSE


def lists(folder: Path, **files: str) -> BlockLists:
    paths = {}
    for name, text in files.items():
        file = name.replace("__", ".")
        (folder / file).write_text(text)
        paths[file] = folder / file
    return BlockLists(paths)


@pytest.mark.parametrize(
    ("url", "blocked"),
    [
        ("https://bad.example/a", True),
        ("https://www.bad.example/", True),
        ("http://deep.below.bad.example/x", True),
        ("https://notbad.example/", False),
        ("https://bad.example.org/", False),
        ("https://fair.example/forum/private/1", True),
        ("https://fair.example/forum/private?q=1", True),
        ("https://fair.example/forum/privateer", False),
        ("https://fair.example/", False),
        ("http://[broken", False),
    ],
)
def test_a_domain_stands_for_its_subdomains_and_a_path_for_what_is_below(
    tmp_path: Path, url: str, blocked: bool
) -> None:
    found = lists(
        tmp_path,
        hosts__txt="# ads\nwww.Bad.example\n",
        urls__txt="https://fair.example/forum/private/\n",
    )
    assert found.is_blocked(url, None) is blocked


def test_words_count_in_their_own_language_alone(tmp_path: Path) -> None:
    found = lists(
        tmp_path,
        words__en__txt="gift\nhot stuff\n",
        words__deu__txt="gift # poison\n",
        words__ja__txt="毒\n",
    )
    assert found.count_words("A gift, hot stuff, HOT STUFF and giftware.", "en") == 3
    assert found.count_words("Das Gift.", "de") == 1
    assert found.count_words("Le gift", "fr") == found.count_words("gift", None) == 0
    assert found.count_words("これは毒です毒", "ja") == 2


def test_a_list_with_another_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"words\.LANGUAGE\.txt"):
        lists(tmp_path, domains__txt="a\n")
    with pytest.raises(InputError, match="unknown"):
        lists(tmp_path, words__xx__txt="a\n")


def test_signals_looks_up_and_select_removes(bench: Workbench) -> None:
    texts = [json.loads(line)["text"] for line in EXAMPLES.read_text().splitlines()[:6]]
    rows = [
        {"text": f"{text} rudeword" if n == 1 else text, "url": f"https://h{n}.example/"}
        for n, text in enumerate(texts)
    ]
    files = bench.files("docs", a__jsonl="\n".join(json.dumps(row) for row in rows))
    documents = bench.run(import_documents, ImportDocumentsConfig(), files)
    pinned = bench.files("lists", hosts__txt="h2.example\n", words__en__txt="rudeword\n")
    config = QualityClassifierConfig(buckets=5000)
    toxic = bench.run(quality_classifier, config, bench.source("examples", EXAMPLES))
    language = bench.source("language", LANGUAGE)
    inputs = (documents, language, None, None, toxic, None, pinned)
    measured = bench.run(signals, SignalsConfig(), *inputs)
    rows = [row for batch in read_documents(measured) for row in batch.to_pylist()]
    assert [row["is_blocked"] for row in rows] == [False, False, True, False, False, False]
    assert [row["num_adult_words"] for row in rows] == [0, 1, 0, 0, 0, 0]
    assert all(0 <= row["toxicity"] <= 1 and row["nsfw"] is None for row in rows)
    bound = sorted(row["toxicity"] for row in rows)[-2]
    config_ = LOOSE.model_copy(
        update={"languages": {}, "max_adult_words": 0, "max_toxicity": float(bound)}
    )
    kept = bench.run(select, config_, measured)
    reasons = [row["reasons"] for batch in read_removed(kept) for row in batch.to_pylist()]
    assert {reason for found in reasons for reason in found} == {
        "blocked", "max_adult_words", "max_toxicity",
    }  # fmt: skip


def test_a_list_reads_alike_whatever_the_locale(tmp_path: Path) -> None:
    (tmp_path / "words.de.txt").write_text("Stra\u00dfe\n", encoding="utf-8")
    code = (
        "import sys, pathlib; from lmpipe.curation.quality.block_lists import BlockLists\n"
        "lists = BlockLists({'words.de.txt': pathlib.Path(sys.argv[1])})\n"
        "print(lists.count_words('Die Stra\\u00dfe', 'de'))"
    )
    ascii_only = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "words.de.txt")],
        env=os.environ | ascii_only,
        capture_output=True,
        check=True,
    )
    assert done.stdout == b"1\n"
