"""The page of a fake run: complete, self-contained, and deaf to what web pages say."""

import copy
import itertools
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from lmpipe.artifacts.build import build
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import Artifact, Report
from lmpipe.documents.schema import document_id
from lmpipe.report.blocks import Code, Table
from lmpipe.report.config import ReportConfig
from lmpipe.report.read import DocumentStep, Run, read_values
from lmpipe.report.report import report
from lmpipe.report.sections import vocabulary
from lmpipe.report.sections.accounts import reproduce
from lmpipe.report.wording import percent
from lmpipe.runtime import Runtime
from tests.curation.given import MeasuredConfig, measured
from tests.report.fake_run import HOSTILE

SECTIONS = [
    "glance", "data", "classifiers", "tokenizer", "pretrain", "sft", "dpo", "grpo", "evals",
    "scaling", "contamination", "passages", "removed", "kept", "cost", "reproduce", "lineage",
]  # fmt: skip
VOID = {"meta", "br"}  # SVG shapes close themselves or hold a title


class Outline(HTMLParser):
    """Collects tags, attributes and text, and checks that tags nest."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="module")
def outline(html: str) -> Outline:
    parser = Outline()
    parser.feed(html)
    parser.close()
    return parser


def test_the_page_is_well_formed(outline: Outline) -> None:
    assert outline.open == []


def test_every_part_of_a_run_has_its_section_in_reading_order(outline: Outline) -> None:
    found = [attrs["id"] for tag, attrs in outline.tags if tag == "section"]
    assert found == SECTIONS
    links = [attrs["href"] for tag, attrs in outline.tags if tag == "a"]
    assert links == [f"#{name}" for name in SECTIONS]


def test_every_stage_is_listed_with_its_id(html: str, artifacts: list[Artifact]) -> None:
    for artifact in artifacts:
        assert artifact.stage in html
        assert f"<code>{artifact.id}</code>" in html


def test_the_page_loads_nothing_and_runs_nothing(outline: Outline, html: str) -> None:
    tags = {tag for tag, _ in outline.tags}
    assert not tags & {"script", "link", "img", "iframe", "object", "embed", "form", "base"}
    for _, attrs in outline.tags:
        assert not any(name.startswith("on") for name in attrs)
        assert "src" not in attrs
        assert (attrs.get("href") or "#").startswith("#")
    style = html.partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style
    assert "default-src 'none'" in html


def test_hostile_text_is_shown_as_text(outline: Outline, html: str, markdown: str) -> None:
    assert HOSTILE.split("\n")[0] in "".join(outline.text)
    assert "<script" not in html
    outside = re.sub(r"(?ms)^(`{3,})text\n.*?^\1$", "", markdown)
    assert "<script" not in outside.replace("\\<script", "")
    assert "alert" not in outside


def test_no_number_is_missing_or_not_a_number(outline: Outline) -> None:
    text = " ".join(outline.text)
    assert not re.search(r"\b(nan|NaN|None|inf|undefined)\b", text)
    for _, attrs in outline.tags:
        assert not any("nan" in (value or "").split() for value in attrs.values())


def test_a_scaling_fit_sizes_the_next_run(outline: Outline) -> None:
    text = " ".join(outline.text)
    assert "1.2M parameters on 3M tokens, 2.2e+13 FLOPs, by the law" in text and "3.510" in text
    assert "Faint: what the law says of the same runs." in text


def test_the_code_to_check_out_is_that_of_the_last_artifact(artifacts: list[Artifact]) -> None:
    def at(artifact: Artifact, commit: str) -> Artifact:
        made = copy.copy(artifact)
        provenance = made.manifest.provenance.model_copy(update={"git_commit": commit})
        made.manifest = made.manifest.model_copy(update={"provenance": provenance})
        return made

    ordered = Run(artifacts).artifacts
    run = Run([*(at(a, "f" * 40) for a in ordered[:-1]), at(ordered[-1], "a" * 40)])
    (code,) = [block for block in reproduce(run, "demo").blocks if isinstance(block, Code)]
    assert code.text.startswith(f"git checkout {'a' * 40}\nlmpipe run demo\n")


def test_the_tokenizer_is_priced_by_size_and_compared_by_language(
    outline: Outline, artifacts: list[Artifact]
) -> None:
    text = " ".join(outline.text)
    for expected in ("BPE (4,096)", "GPT-2 (50,257)", "word (8,123 seen)", "Never-used tokens"):
        assert expected in text
    assert "V·d" not in text  # the invented run's config does not say how wide the model is
    base = copy.copy(next(a for a in artifacts if a.stage == "pretrain"))
    base.manifest = base.manifest.model_copy(
        update={"config": {"model": {"d_model": 100, "tied_embeddings": False}}}
    )
    run = Run([base, *(a for a in artifacts if a.stage != "pretrain")])
    tables = [block for block in vocabulary.section(run).blocks if isinstance(block, Table)]
    (sizes,) = [table for table in tables if "Sizes" in table.caption]
    rows = {row[0]: row for row in sizes.rows}
    assert "V·d parameters, d=100" in sizes.columns and "counted twice" in sizes.caption
    assert rows["4,096"][1] == "3.50"
    assert rows["4,096"][2] == f"{4_680_000 / 3.5 / 1e6:.2f}M"
    assert rows["4,096"][3] == "819k"
    parameters = base.read_json("meta.json")["parameters"]
    share = 819_200 / parameters
    assert rows["4,096"][4] == (percent(share) if share < 1 else "–")


def test_the_page_says_what_each_token_set_gave_and_what_packing_costs(outline: Outline) -> None:
    text = "|".join(outline.text)
    assert "What each token set gave|token set|share|tokens|epochs|stage 1|stage 2|main" in text
    assert "|70.0%|614k|0.47|90.0%|50.0%|code" in text
    assert "Documents in sequences" in text and "|5,078|0.2%|69.0%|81" in text


def test_no_chart_is_empty(outline: Outline, html: str) -> None:
    charts = re.findall(r"<svg.*?</svg>", html)
    assert len(charts) >= 20
    for chart in charts:
        assert re.search(r"<(polyline|circle|rect)", chart)
        assert chart.count("<text") >= 5  # ticks and both names
        assert 'aria-label="' in chart


def test_every_chart_has_a_title_and_names_its_lines(html: str) -> None:
    for figure in re.findall(r"<figure>.*?</figure>", html):
        assert re.search(r"<figcaption>[^<]+</figcaption>", figure)
        drawn = set(re.findall(r'<polyline class="line (k\d)', figure))
        if len(drawn) > 1:
            assert set(re.findall(r'<span class="(k\d)', figure)) >= drawn


def test_colours_are_given_by_the_style_alone(html: str) -> None:
    assert not re.search(r'(fill|stroke)="', html)
    assert "prefers-color-scheme: dark" in html


def test_kept_and_removed_add_up_in_the_funnel(artifacts: list[Artifact], html: str) -> None:
    run = Run(artifacts)
    for before, after in itertools.pairwise(run.documents):
        assert before.kept == after.entered
    assert run.documents[0].entered == 1500
    assert "request <b>400</b>" in html
    for step in run.documents:
        for reason, count in step.reasons:
            assert "<span style=" in html and f"{reason} <b>{count:,}</b>" in html


def test_artifacts_come_after_their_inputs_in_any_order_given(artifacts: list[Artifact]) -> None:
    for given in (artifacts, artifacts[::-1]):
        order = [(a.stage, a.id) for a in Run(given).artifacts]
        for artifact in given:
            for record in artifact.manifest.inputs:
                assert order.index((record.stage, record.id)) < order.index(
                    (artifact.stage, artifact.id)
                )


def test_removed_documents_are_quoted_with_text_value_and_limit(html: str) -> None:
    removed = html.partition('<section id="removed">')[2].partition("</section>")[0]
    assert "The parser reads one record" in removed
    assert "limit 50" in removed
    assert "kept instead: " in removed
    assert "similarity 0." in removed


def test_contamination_shows_the_control_and_the_dirty_items(html: str) -> None:
    part = html.partition('<section id="contamination">')[2].partition("</section>")[0]
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", part))
    assert "128 of 128, half of them in capitals" in text and "recall 100.00%" in text
    assert "1 of 40 did: precision 99.2%" in text
    assert "Dirty items 2" in text and "in the training text 7, 31" in text
    assert "met by boilerplate alone 12" in text and "blimp, item 1, good" in text
    glance = html.partition('<section id="glance">')[2].partition("</section>")[0]
    assert "3 that hold some are in the training text" in glance


def test_repeated_passages_show_what_went_and_what_a_filter_does_not_know(html: str) -> None:
    part = html.partition('<section id="passages">')[2].partition("</section>")[0]
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", part))
    assert "Characters cut 9.0%" in text and "Keepers lost 2" in text
    assert "19,880 of 580,000 keys, 1 MB, 10 probes: about 0.2 unique passages" in text
    assert text.index("3 copies") < text.index("1 copies") < text.index("seen before")


def test_the_twin_has_the_same_sections(html: str, markdown: str) -> None:
    titles = re.findall(r"<h2>([^<]+)</h2>", html)
    assert [line[3:] for line in markdown.splitlines() if line.startswith("## ")] == titles


def test_tables_of_the_twin_have_as_many_cells_as_columns(markdown: str) -> None:
    outside = re.sub(r"(?ms)^(`{3,})text\n.*?^\1$", "", markdown)
    for table in re.findall(r"(?:^\|.*\|\n)+", outside, re.M):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(widths) == 1, table


def test_a_run_of_one_artifact_still_has_a_page(
    store_root: Path, artifacts: list[Artifact]
) -> None:
    only = [a for a in artifacts if a.stage == "extract"]
    made = build(
        report, ReportConfig(title="half <b>"), {"everything": only}, store=Store(str(store_root)),
        runtime=Runtime(),
    )  # fmt: skip
    page = made.read_bytes("report.html").decode()
    assert "half &lt;b&gt;" in page
    assert '<section id="pretrain">' not in page


def test_a_removed_objects_counts_come_from_the_files_where_the_manifest_has_none(
    artifacts: list[Artifact],
) -> None:
    from lmpipe.report.read import num_rows

    extract = next(a for a in artifacts if a.stage == "extract")
    counted = num_rows(extract, "kept/")
    bare = extract.manifest.model_copy(
        update={"outputs": [r.model_copy(update={"rows": None}) for r in extract.manifest.outputs]}
    )
    assert num_rows(type(extract)(extract.store, bare), "kept/") == counted


def test_the_report_imports_neither_torch_nor_matplotlib() -> None:
    code = (
        "import sys, lmpipe.report.page, lmpipe.report.html, lmpipe.report.markdown\n"
        "heavy = {'torch', 'matplotlib', 'pandas', 'transformers', 'pyarrow'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_stage_writes_both_files_and_counts_them(made: Report) -> None:
    assert made.names() == ["report.html", "report.md"]
    assert made.metrics["sections"] == len(SECTIONS)
    assert made.metrics["bytes"] < 400_000


def test_scores_and_texts_come_from_shards_all_over_a_run(tmp_path: Path) -> None:
    """A source's files are in an order that means something: the first do not stand for all."""
    rows = [
        ({"key": f"{shard}", "language": "en", "quality_score": shard / 100},)
        for shard in range(100)
    ]
    store = Store(str(tmp_path))

    def values(count: int) -> tuple[list[float], bool]:
        config = MeasuredConfig(shards=tuple(rows[:count]))
        return read_values(
            build(measured, config, {}, store=store, runtime=Runtime()), "quality_score"
        )

    few, is_all = values(60)
    assert len(few) == 60 and is_all
    spread, is_all = values(100)
    assert [round(100 * value) for value in spread] == list(range(0, 100, 2)) and not is_all
    documents = build(
        measured, MeasuredConfig(shards=tuple(rows)), {}, store=store, runtime=Runtime()
    )
    wanted = {document_id("test", key): f"text of {key}" for key in ("0", "57", "99")}
    assert DocumentStep(documents).texts({*wanted, "no such id"}) == wanted
