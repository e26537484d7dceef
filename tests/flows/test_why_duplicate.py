import pytest
from rich.console import Console

from flows.lineage import print_fate
from lmpipe.curation.dedup import DedupConfig, dedup
from lmpipe.errors import StoreError
from tests.curation.conftest import Workbench
from tests.curation.given import given, id_of, shards
from tests.curation.test_dedup import prose


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
