import pytest
from rich.console import Console

from flows.cli.lineage import print_fate
from lmpipe.curation.dedup.config import DedupConfig
from lmpipe.curation.dedup.dedup import dedup
from lmpipe.curation.passages.config import DedupPassagesConfig
from lmpipe.curation.passages.dedup_passages import dedup_passages
from lmpipe.errors import StoreError
from tests.curation.conftest import Workbench
from tests.curation.dedup.test_dedup import prose
from tests.curation.given import given, id_of, shards


def test_why_shows_what_a_duplicate_says_that_its_keeper_does_not(tmp_path, capsys):
    bench = Workbench(tmp_path)
    words = prose(1)
    near = [*words[:150], "newly", *words[151:-2]]
    documents = bench.run(given, shards({"long": " ".join(words), "near": " ".join(near)}))
    bench.run(dedup, DedupConfig(), documents)
    print_fate(Console(width=200), id_of("near"), bench.store.root)
    shown = capsys.readouterr().out
    assert "removed it: near_duplicate" in shown and f"keeper: {id_of('long')}" in shown
    assert "novel_words: 1" in shown and "num_words: 298" in shown
    (added,) = [line for line in shown.splitlines() if line.startswith("  +") and "newly" in line]
    assert f"--- keeper {id_of('long')}" in shown and words[149] in added
    with pytest.raises(StoreError, match="no ledger"):
        print_fate(Console(), "0" * 32, bench.store.root)


def test_why_shows_which_passages_went_and_whose_they_are(tmp_path, capsys):
    bench = Workbench(tmp_path)
    low, middle, high = sorted("abc", key=id_of)
    shared, other = " ".join(prose(1, 12)), " ".join(prose(2, 12))
    texts = {low: f"{shared}\n{' '.join(prose(3, 30))}",
             middle: f"{other}\n{shared}",
             high: f"{' '.join(prose(4, 30))}\n{shared}\n{other}"}  # fmt: skip
    documents = bench.run(given, shards(texts))
    bench.run(dedup_passages, DedupPassagesConfig(), documents)
    print_fate(Console(width=200), id_of(high), bench.store.root)
    shown = capsys.readouterr().out
    assert "kept it and cut 24 words" in shown
    assert f"12 words) stands in {id_of(low)}, paragraph 0, 3 copies: {shared[:40]}" in shown
    (lost,) = [line for line in shown.splitlines() if f"in {id_of(middle)}" in line]
    assert f"paragraph 0, 2 copies: {other[:40]}" in lost
    assert shown.count("this text is in no document any more") == 1
    print_fate(Console(width=200), id_of(middle), bench.store.root)
    assert "removed it: few_words_left" in capsys.readouterr().out
    bench.run(dedup_passages, DedupPassagesConfig(bloom_memory_mb=1), documents)
    print_fate(Console(width=200), id_of(high), bench.store.root)
    assert "was seen before; a Bloom filter does not know where" in capsys.readouterr().out
