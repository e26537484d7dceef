"""whatif, why and trace on a store with selected, deduplicated and encoded documents."""

from pathlib import Path

import pytest
from pydantic import Field
from typer.testing import CliRunner

from deployments.cli import app
from lmpipe.artifacts.build import build
from lmpipe.artifacts.output import Output
from lmpipe.artifacts.source import SourceSpec, pin, source
from lmpipe.artifacts.stage import StageConfig, stage
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import Documents
from lmpipe.curation.dedup.config import DedupConfig
from lmpipe.curation.dedup.dedup import dedup
from lmpipe.curation.extraction.config import ExtractConfig
from lmpipe.curation.extraction.extract import extract
from lmpipe.curation.quality.rules import Thresholds
from lmpipe.curation.selection.config import SelectConfig
from lmpipe.curation.selection.select import select
from lmpipe.curation.selection.whatif import compare
from lmpipe.documents.ledger import write_ledger
from lmpipe.documents.read import count_documents, read_removed
from lmpipe.documents.write import DocumentWriter
from lmpipe.errors import ConfigError, InputError, StoreError
from lmpipe.runtime import Runtime
from lmpipe.token_data.shards import ShardsConfig, shards
from lmpipe.tokenization.config import TokenizerConfig
from lmpipe.tokenization.tokenizer import tokenizer
from tests.curation.warcs import page, response

OFF = Thresholds(
    **{name: None for name in Thresholds.model_fields if not name.startswith("c4_no")},
    c4_no_lorem_ipsum=False,
    c4_no_curly_bracket=False,
)


def command(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


class MeasuredConfig(StageConfig):
    number: int = Field(200, description="Documents.")


@stage(version=1, kind="exact")
def measured(out: Output[Documents], config: MeasuredConfig, *, runtime: Runtime) -> Documents:
    """Documents with one signal: as many words as their number; every fourth is a copy of one."""
    from lmpipe.curation.quality.rules import RULES

    with out.open("kept/00000.parquet", "wb") as file, DocumentWriter(file) as writer:
        for n in range(config.number):
            signals = {rule.column: (False if rule.kind == "flag" else 0) for rule in RULES}
            said = "copied words of one text" if n % 4 == 3 else f"words of number {n} are its own"
            writer.write(
                {
                    **signals,
                    "id": f"{n * 2654435761 % 2**32:032x}",
                    "text": " ".join(f"{said} {i}" for i in range(20)),
                    "url": f"https://h{n % 3}.example/{n}",
                    "host": f"h{n % 3}.example",
                    "language": "de" if n % 5 == 0 else "en",
                    "language_score": 0.9,
                    "warc_path": "crawl.warc.gz",
                    "warc_offset": 1000 + n,
                    "warc_record_id": f"<urn:uuid:{n}>",
                    "num_non_symbol_words": n,
                }
            )
    out.set_rows("kept/00000.parquet", config.number)
    write_ledger(out, [])
    return out.commit()


BEFORE = SelectConfig(languages={}, thresholds=OFF.model_copy(update={"gopher_min_words": 50}))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    root = f"file://{tmp_path_factory.mktemp('lineage')}"
    store, runtime = Store(root), Runtime()
    documents = build(measured, MeasuredConfig(), {}, store=store, runtime=runtime)
    kept = build(select, BEFORE, {"documents": documents}, store=store, runtime=runtime)
    unique = build(
        dedup,
        DedupConfig(),
        {"documents": kept, "earlier": []},
        store=store,
        runtime=runtime,
    )
    words = build(
        tokenizer, TokenizerConfig(vocab_size=300), {"documents": unique},
        store=store, runtime=runtime,
    )  # fmt: skip
    inputs = {"documents": unique, "tokenizer": words}
    tokens = build(shards, ShardsConfig(), inputs, store=store, runtime=runtime)  # type: ignore[arg-type]
    return {"root": root, "documents": documents, "select": kept, "dedup": unique, "shards": tokens}


def test_whatif_says_what_the_stage_then_does(made: dict[str, object]) -> None:
    documents = made["documents"]
    assert isinstance(documents, Documents)
    after = BEFORE.model_copy(
        update={
            "languages": {"en": 0.5},
            "thresholds": OFF.model_copy(update={"gopher_min_words": 30}),
        }
    )
    shift = compare(documents, BEFORE, after)
    run = build(
        select, after, {"documents": documents}, store=Store(str(made["root"])), runtime=Runtime()
    )
    assert shift.kept_after == count_documents(run)
    assert shift.kept_before == 150
    assert shift.num_documents == 200
    assert shift.kept_after - shift.kept_before == shift.num_gained - shift.num_lost
    assert len(shift.gained) == len(shift.lost) == 10
    assert shift.by_language["de"]["after"] == 0
    assert sum(counts["after"] for counts in shift.by_host.values()) == shift.kept_after
    assert {change.rule for change in shift.gained} == {"gopher_min_words"}
    assert all(30 <= change.score < 50 for change in shift.gained)
    assert {change.rule for change in shift.lost} == {"language"}


def test_the_command_starts_from_the_artifacts_own_bounds(made: dict[str, object]) -> None:
    said = command(
        "whatif", "select/" + made["select"].id, "--store", str(made["root"]),  # type: ignore[attr-defined]
        "--set", "select.thresholds.gopher_min_words=60", "--samples", "2",
    )  # fmt: skip
    assert "150 kept before, 140 after; 0 gained, 10 lost" in said
    assert said.count("lost ") >= 2
    for bad, hint in (
        ("thresholds.gopher_min_wrds=3", "did you mean 'gopher_min_words'"),
        ("select.treshold.gopher_min_words=3", "'treshold'; did you mean 'thresholds'"),
        ("ensemble.colums={}", "did you mean 'columns'"),
        ("wholly_else=3", "known are "),
        ("thresholds_by_language.de.gopher_min_wrds=3", "did you mean 'gopher_min_words'"),
        ("languages.en.least=0.5", "'en' is a value|Input should be a valid number"),
        ("thresholds.gopher_min_words=-1", "greater than or equal to 0"),
        ("nothing", "KEY=VALUE"),
    ):
        with pytest.raises(ConfigError, match=hint):
            command("whatif", "measured", "--store", str(made["root"]), "--set", bad)


def test_whatif_sets_bounds_by_language_and_sections_that_are_off(
    made: dict[str, object],
) -> None:
    root, kept = str(made["root"]), "select/" + made["select"].id  # type: ignore[attr-defined]
    said = command(
        "whatif", kept, "--store", root, "--set",
        "thresholds_by_language.de.gopher_min_words=100",
    )  # fmt: skip
    assert "150 kept before, 140 after; 0 gained, 10 lost" in said
    assert said.count("[de] gopher_min_words: ") == 10
    with pytest.raises(InputError, match="needs the column kenlm_perplexity, which is null"):
        command("whatif", kept, "--store", root, "--set", "perplexity_buckets.keep=[head]")


def test_whatif_refuses_what_select_has_thinned_out_and_what_holds_no_documents(
    made: dict[str, object],
) -> None:
    root, kept = str(made["root"]), made["select"]
    for name in ("dedup", "dedup/" + made["dedup"].id):  # type: ignore[attr-defined]
        with pytest.raises(ConfigError, match=f"give select/{kept.id[:12]}.*--only dedup"):  # type: ignore[attr-defined]
            command("whatif", name, "--store", root, "--set", "max_perplexity=3")
    with pytest.raises(ConfigError, match="is a Tokenizer; give a select or signals"):
        command("whatif", "tokenizer", "--store", root, "--set", "max_perplexity=3")


def test_trace_goes_back_to_the_record_and_forward_to_the_tokens(made: dict[str, object]) -> None:
    unique = made["dedup"]
    assert isinstance(unique, Documents)
    copies = {
        row["id"]: row["keeper"]
        for batch in read_removed(unique)
        for row in batch.to_pylist()
        if row["reason"] == "exact_duplicate"
    }
    copy, keeper = min(copies.items())
    assert len(copies) > 30
    said = command("trace", keeper, "--store", str(made["root"]))
    assert "warc_path: crawl.warc.gz" in said
    assert "warc_offset: 1" in said
    assert "keeps it for" in said
    assert "tokens " in said
    said = command("trace", copy, "--store", str(made["root"]))
    assert f"duplicate of {keeper}" in said
    assert "tokens " not in said
    with pytest.raises(StoreError, match="name the store that it was made in"):
        command("trace", "f" * 32, "--store", str(made["root"]))


def test_trace_shows_the_address_of_a_page_that_extract_removed(tmp_path: Path) -> None:
    store, runtime = Store(f"file://{tmp_path}/store"), Runtime()
    empty = response(b"<html><body></body></html>", url="http://empty.example/x")
    nameless = response(b"<html></html>", url="", record_id="<urn:uuid:7>")
    (tmp_path / "a.warc").write_bytes(response(page(1), record_id="<urn:1>") + empty + nameless)
    pinned = pin("crawl", SourceSpec(paths=(str(tmp_path / "a.warc"),)), tmp_path)
    place = Runtime(locations=pinned.locations)
    crawl = build(source, pinned.config, {}, store=store, runtime=place)
    pages = build(
        extract, ExtractConfig(extractor="cascade"), {"source": crawl}, store=store, runtime=runtime
    )
    said = [
        command("trace", row["id"], "--store", store.root)
        for batch in read_removed(pages)
        for row in batch.to_pylist()
    ]
    assert len(said) == 2
    assert all("extract/" in text and "removed it: no_text" in text for text in said)
    addresses = sorted(text.splitlines()[0] for text in said)
    assert addresses[1] == "url: http://empty.example/x"
    assert addresses[0].startswith("url: a.warc#")
    offset = len(response(page(1), record_id="<urn:1>"))
    for lines in (text.splitlines() for text in said):
        is_empty = lines[0] == "url: http://empty.example/x"
        place = offset if is_empty else offset + len(empty)
        assert lines[1:5] == [
            "date: 2024-01-01T00:00:00Z",
            "warc_path: a.warc",
            f"warc_offset: {place}",
            f"warc_record_id: <urn:uuid:{0 if is_empty else 7}>",
        ]


@pytest.mark.parametrize("name", ["why", "trace"])
def test_what_is_no_documents_id_or_in_no_store_is_told_apart(
    made: dict[str, object], name: str, tmp_path: Path
) -> None:
    root, known = str(made["root"]), f"{7 * 2654435761 % 2**32:032x}"
    for bad in ("xyz", known[:31], known + "0", known[:31] + "g", ""):
        if bad or name == "why":
            with pytest.raises(
                ConfigError, match=rf"32 hexadecimal digits, got '{bad}' \({len(bad)}"
            ):
                command(name, bad, "--store", root)
    with pytest.raises(StoreError, match=r"there is no artifact in file://.*right --store"):
        command(name, known, "--store", str(tmp_path / "elsewhere"))
    with pytest.raises(StoreError, match=r"holds f{32}"):
        command(name, "f" * 32, "--store", root)
    assert command(name, known.upper(), "--store", root) == command(name, known, "--store", root)


def test_why_names_reason_score_and_threshold(made: dict[str, object]) -> None:
    said = command("why", f"{7 * 2654435761 % 2**32:032x}", "--store", str(made["root"]))
    assert "removed it: gopher_min_words" in said
    assert "score: 7.0" in said
    assert "threshold: 50.0" in said
