"""Every extractor, importer and stage of documents on hostile files: nothing is lost unsaid."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from lmpipe.artifacts.stage import Stage, StageConfig
from lmpipe.artifacts.types import Documents, Source
from lmpipe.curation.decontamination.config import DecontaminateConfig
from lmpipe.curation.decontamination.decontaminate import decontaminate
from lmpipe.curation.dedup.config import DedupConfig
from lmpipe.curation.dedup.dedup import dedup
from lmpipe.curation.extraction.config import ExtractConfig, ImportDocumentsConfig
from lmpipe.curation.extraction.extract import extract
from lmpipe.curation.extraction.import_documents import import_documents
from lmpipe.curation.passages.config import DedupPassagesConfig
from lmpipe.curation.passages.dedup_passages import dedup_passages
from lmpipe.curation.privacy.config import MaskConfig
from lmpipe.curation.privacy.mask import mask
from lmpipe.curation.quality.config import SignalsConfig
from lmpipe.curation.quality.signals import signals
from lmpipe.curation.selection.config import ResampleConfig, SelectConfig
from lmpipe.curation.selection.resample import resample
from lmpipe.curation.selection.select import select
from lmpipe.documents.read import count_documents, read_documents, read_removed
from lmpipe.token_data.shards import ShardsConfig, shards
from lmpipe.tokenization.config import TokenizerConfig
from lmpipe.tokenization.encoding import Encoding
from lmpipe.tokenization.tokenizer import tokenizer
from tests.curation import hostile
from tests.curation.conftest import Workbench
from tests.curation.hostile import HostileFile
from tests.curation.selection.test_select import OFF


class TwoBenches:
    """Runs a stage with one worker and, in a store of its own, with two."""

    def __init__(self, root: Path) -> None:
        self.benches = []
        for workers in (1, 2):
            (root / str(workers)).mkdir()
            self.benches.append(Workbench(root / str(workers)))
            self.benches[-1].runtime = {"stop_host_lost_fraction": 1.0}

    def source(self, name: str, files: Sequence[HostileFile]) -> list[Source]:
        sources = []
        for bench in self.benches:
            folder = bench.root / name
            folder.mkdir()
            for file in files:
                (folder / file.name).write_bytes(file.data)
            sources.append(bench.source(name, folder / "*"))
        return sources

    def run(self, stage: Stage[Any], config: StageConfig, *inputs: Sequence[Any] | None) -> Any:
        """Return both artifacts, whose bytes are the same."""
        made = [
            bench.run(stage, config, *(i and i[n] for i in inputs), workers=n + 1)
            for n, bench in enumerate(self.benches)
        ]
        assert made[0].digest == made[1].digest, f"{stage.name}: one worker wrote other bytes"
        return made


@pytest.fixture(scope="module")
def benches(tmp_path_factory: pytest.TempPathFactory) -> TwoBenches:
    return TwoBenches(tmp_path_factory.mktemp("hostile"))


@pytest.fixture(scope="module")
def archives(benches: TwoBenches) -> list[Source]:
    return benches.source("archives", hostile.archive_files())


@pytest.fixture(scope="module")
def pages(benches: TwoBenches, archives: list[Source]) -> list[Documents]:
    made: list[Documents] = benches.run(extract, ExtractConfig(), archives)
    return made


@pytest.fixture(scope="module")
def rows(benches: TwoBenches) -> list[Documents]:
    source = benches.source("files", hostile.document_files())
    made: list[Documents] = benches.run(import_documents, ImportDocumentsConfig(), source)
    return made


def kept_rows(documents: Documents) -> list[dict[str, Any]]:
    return [row for batch in read_documents(documents) for row in batch.to_pylist()]


def removed_rows(documents: Documents) -> list[dict[str, Any]]:
    return [row for batch in read_removed(documents) for row in batch.to_pylist()]


def assert_conserved(documents: Documents, num_input: int) -> None:
    """Hold that what came in is kept or in the ledger: by the metrics, and by rows counted."""
    kept, removed = kept_rows(documents), removed_rows(documents)
    assert len(kept) + len(removed) == num_input == documents.metrics["input"]
    assert len(kept) == documents.metrics["kept"]
    assert len({row["id"] for row in (*kept, *removed)}) == num_input
    if "removed" in documents.metrics:
        assert sum(documents.metrics["removed"].values()) == len(removed)
    assert all(row["text"].strip() and row["text"].encode() for row in kept)


def assert_each_file(
    files: Sequence[HostileFile], documents: Documents, file_of: dict[str, str]
) -> None:
    """Hold what every file must become; all that differ are shown at once."""
    kept: dict[str, list[str]] = {file.name: [] for file in files}
    for row in kept_rows(documents):
        kept[row["warc_path"]].append(row["text"])
    reasons: dict[str, list[str]] = {file.name: [] for file in files}
    for row in removed_rows(documents):
        reasons[file_of[row["id"]]].append(row["reason"])
    found = [
        problem
        for file in files
        for problem in problems(file, kept[file.name], sorted(reasons[file.name]))
    ]
    assert not found, "\n".join(found)


def problems(file: HostileFile, texts: list[str], reasons: list[str]) -> Iterator[str]:
    if file.kept != hostile.SOME and len(texts) != file.kept:
        yield f"{file.name}: {len(texts)} documents, not {file.kept}"
    if file.reasons == hostile.ANY_LOSS:
        if not reasons or set(reasons) - hostile.LOSSES:
            yield f"{file.name}: removed for {reasons}"
    elif reasons != list(file.reasons):
        yield f"{file.name}: removed for {reasons}, not {list(file.reasons)}"
    left = list(texts)
    for words in file.says:
        holder = next((text for text in left if words in text), None)
        if holder is None:
            yield f"{file.name}: no document says {words!r}"
        else:
            left.remove(holder)
    if not file.is_lossy and any("\ufffd" in text for text in texts):
        yield f"{file.name}: U+FFFD, which its bytes do not demand"


@pytest.mark.parametrize("extractor", ["cascade", "trafilatura", "trafilatura_fast", "resiliparse"])
def test_every_extractor_names_what_it_cannot_read_and_keeps_the_rest(
    benches: TwoBenches, archives: list[Source], extractor: Any
) -> None:
    documents = benches.run(extract, ExtractConfig(extractor=extractor), archives)[0]
    with documents.open("origins.parquet") as file:
        origins = {row["id"]: row["warc_path"] for row in pq.read_table(file).to_pylist()}
    assert_conserved(documents, documents.metrics["records"]["pages"])
    assert_each_file(hostile.archive_files(), documents, origins)


def test_every_importer_names_what_it_cannot_read_and_keeps_the_rest(rows: list[Documents]) -> None:
    files = hostile.document_files()
    assert_conserved(rows[0], rows[0].metrics["input"])
    places = {row["id"]: row["url"].rpartition("#")[0] for row in removed_rows(rows[0])}
    assert_each_file(files, rows[0], places)


# a model of the web's labels: languages, one that no list has, and words that name none
LANGUAGES = {
    "eng_Latn": hostile.ENGLISH,
    "qqz_Zzzz": hostile.TEXTS["look-alikes"],
    "hin_Deva": hostile.TEXTS["indic"],
    "zho-Hans": hostile.TEXTS["pii-zh"],
    "spam": hostile.TEXTS["operators"],
    "": hostile.TEXTS["emoji"],
}


@pytest.fixture(scope="module")
def language_model(benches: TwoBenches, tmp_path_factory: pytest.TempPathFactory) -> list[Source]:
    import fasttext

    folder = tmp_path_factory.mktemp("lid")
    lines = [f"__label__{label} {text}\n" for label, text in LANGUAGES.items()]
    (folder / "train.txt").write_text("".join(lines * 20), encoding="utf-8")
    model = fasttext.train_supervised(
        str(folder / "train.txt"), dim=4, epoch=20, lr=0.5, thread=1, verbose=0, bucket=1000
    )
    model.save_model(str(folder / "lid.bin"))
    data = (folder / "lid.bin").read_bytes()
    return benches.source("lid", [HostileFile("lid.bin", data, 0)])


@pytest.fixture(scope="module")
def scored(
    benches: TwoBenches,
    rows: list[Documents],
    pages: list[Documents],
    language_model: list[Source],
) -> list[Documents]:
    """Return with its signals what importers and extractors kept, in few files."""
    texts = [hostile.TEXTS | {"hidden": f"Look: {hostile.HIDDEN}, we were told. " * 2}]
    texts += [
        {f"{name}-{n}": row["text"] for n, row in enumerate(kept_rows(made[0]))}
        for name, made in (("row", rows), ("page", pages))
    ]
    files = [HostileFile(f"{n}.jsonl", hostile.as_rows(part), 0) for n, part in enumerate(texts)]
    source = benches.source("corpus", files)
    entered = benches.run(import_documents, ImportDocumentsConfig(), source)
    assert count_documents(entered[0]) == sum(map(len, texts))
    made = benches.run(signals, SignalsConfig(), entered, language_model, None, None)
    before, after = (
        {row["id"]: row["text"] for row in kept_rows(each[0])} for each in (entered, made)
    )
    assert before == after
    assert_conserved(made[0], count_documents(entered[0]))
    languages = made[0].metrics["languages"]
    assert sum(languages.values()) == count_documents(made[0])
    assert set(languages) <= {"en", "qqz", "hi", "zh", "und"}
    return list(made)


@pytest.fixture(scope="module")
def benchmarks(benches: TwoBenches) -> list[Source]:
    items = ({"question": hostile.TEXTS["operators"], "answer": hostile.TEXTS["indic"]},
             {"question": hostile.HIDDEN, "answer": "no \ud83d half"},
             {"question": hostile.TEXTS["signs"], "answer": "\u2028"})  # fmt: skip
    data = "\ufeff" + "\n\n".join(json.dumps(item) for item in items)
    return benches.source("items", [HostileFile("quiz.jsonl", data.encode(), 0)])


@pytest.fixture(scope="module")
def target(benches: TwoBenches) -> list[Source]:
    data = (hostile.ENGLISH + "\u2028\x85").encode("utf-16")
    return benches.source("target", [HostileFile("target.txt", data, 0)])


def by_key(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return rows of documents or of the ledger by the keys of hostile.TEXTS."""
    return {str(row["url"]).rpartition("/")[2]: row for row in rows}


def test_select_removes_what_breaks_a_rule_and_nothing_else(
    benches: TwoBenches, scored: list[Documents]
) -> None:
    bounds = OFF.model_copy(update={"gopher_min_words": 6})
    languages = {"en": 0.0, "qqz": 0.0, "zh": 0.0, "und": 0.0}
    config = SelectConfig(languages=languages, thresholds=bounds)
    made = benches.run(select, config, scored)
    assert_conserved(made[0], count_documents(scored[0]))
    removed = removed_rows(made[0])
    assert {row["reason"] for row in removed} == {"language", "gopher_min_words"}
    assert all(row["reason"] == row["reasons"][0] for row in removed)


def test_dedup_removes_equal_and_near_texts_alone(
    benches: TwoBenches, scored: list[Documents]
) -> None:
    made = benches.run(dedup, DedupConfig(), scored, [[], []])
    assert_conserved(made[0], count_documents(scored[0]))
    ids = {row["id"] for row in (*kept_rows(made[0]), *removed_rows(made[0]))}
    for row in removed_rows(made[0]):
        assert row["reason"] in {"exact_duplicate", "same_words", "near_duplicate"}
        assert row["keeper"] in ids - {row["id"]}
    texts = {row["id"]: row["text"] for row in kept_rows(scored[0])}
    for row in removed_rows(made[0]):
        if row["reason"] == "exact_duplicate":
            assert texts[row["id"]].split() == texts[row["keeper"]].split()
    # of what only looks or nearly reads alike both stay, in one of their two copies
    kept_texts = {row["text"] for row in kept_rows(made[0])}
    for key in ("operators", "operators-2", "indic", "indic-2", "look-alikes", "pii-zh", "numbers"):
        assert hostile.TEXTS[key].strip() in kept_texts, key


@pytest.mark.parametrize("unit", ["paragraph", "sentences", "document"])
def test_dedup_passages_cuts_repeats_and_names_what_it_empties(
    benches: TwoBenches, scored: list[Documents], unit: Any
) -> None:
    made = benches.run(dedup_passages, DedupPassagesConfig(unit=unit), scored)
    assert_conserved(made[0], count_documents(scored[0]))


def test_resample_draws_and_names_what_it_leaves(
    benches: TwoBenches, scored: list[Documents], target: list[Source]
) -> None:
    made = benches.run(resample, ResampleConfig(num_buckets=1000), scored, target)
    assert_conserved(made[0], count_documents(scored[0]))
    assert {row["reason"] for row in removed_rows(made[0])} == {"not_drawn"}


@pytest.mark.parametrize("remove", ["document", "paragraph", "span"])
def test_decontaminate_removes_what_holds_an_item(
    benches: TwoBenches, scored: list[Documents], benchmarks: list[Source], remove: Any
) -> None:
    made = benches.run(decontaminate, DecontaminateConfig(remove=remove), scored, benchmarks)
    assert_conserved(made[0], count_documents(scored[0]))
    gone = by_key(removed_rows(made[0]))
    assert {row["reason"] for row in gone.values()} == {"contaminated_by_quiz"}
    assert "hidden" in gone and "operators" in gone and "indic" in gone
    assert not gone.keys() & {"indic-2", "prose", "numbers"}


def test_mask_replaces_personal_data_and_leaves_the_words_around_it(
    benches: TwoBenches, scored: list[Documents]
) -> None:
    made = benches.run(mask, MaskConfig(), scored)
    assert_conserved(made[0], count_documents(scored[0]))
    assert removed_rows(made[0]) == []
    texts = {key: row["text"] for key, row in by_key(kept_rows(made[0])).items()}
    assert texts["pii-zh"] == "请联系张三，邮箱[EMAIL]谢谢。服务器[IP]已经停机。"
    assert texts["pii-ja"] == "お問い合わせは[EMAIL]までお願いします。電話[PHONE]へどうぞ。"
    assert texts["pii-ko"] == "문의는[EMAIL]으로 주세요. 카드 [CARD]을 쓰세요."
    assert texts["pii-thai"] == "ติดต่อ[EMAIL]ได้ตลอดเวลา"
    before = {key: row["text"] for key, row in by_key(kept_rows(scored[0])).items()}
    changed = {key for key in before if texts[key] != before[key] and key in hostile.TEXTS}
    assert changed == {"pii-zh", "pii-ja", "pii-ko", "pii-thai"}


def test_every_token_of_every_document_decodes_to_its_text(
    benches: TwoBenches, scored: list[Documents]
) -> None:
    learnt = benches.run(tokenizer, TokenizerConfig(vocab_size=400), scored)
    made = benches.run(shards, ShardsConfig(validation_fraction=0.1), scored, learnt)[0]
    texts = [row["text"] for row in kept_rows(scored[0])]
    counts = {what: made.metrics[f"train_{what}"] + made.metrics[f"validation_{what}"]
              for what in ("documents", "bytes", "tokens")}  # fmt: skip
    assert counts["documents"] == len(texts)
    assert counts["bytes"] == sum(len(text.encode()) for text in texts)
    encoding = Encoding.load(learnt[0])
    tokens = [encoding.encode_numpy(text) for text in texts]
    assert [encoding.decode(each.tolist()) for each in tokens] == texts
    assert counts["tokens"] == sum(map(len, tokens)) + len(texts)  # each ends with EOS
