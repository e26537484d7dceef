"""What the exact stages made of a small input when these numbers were written down.

A change here without a new stage VERSION means that a version was not bumped, or that a library
changed its output. Rows and not files are hashed: a Parquet file names the library that wrote it.
"""

import hashlib
import json

import pytest

from lmpipe.artifacts.types import Documents
from lmpipe.curation.decontamination.config import DecontaminateConfig
from lmpipe.curation.decontamination.decontaminate import decontaminate
from lmpipe.curation.extraction.config import ExtractConfig, ImportDocumentsConfig
from lmpipe.curation.extraction.extract import extract
from lmpipe.curation.extraction.import_documents import import_documents
from lmpipe.curation.quality.config import QualityClassifierConfig, SignalsConfig
from lmpipe.curation.quality.language import load_fasttext
from lmpipe.curation.quality.quality_classifier import positive_score, quality_classifier
from lmpipe.curation.quality.signals import signals
from lmpipe.curation.selection.config import SelectConfig
from lmpipe.curation.selection.select import select
from lmpipe.documents.read import read_documents, read_removed
from tests.curation.conftest import WARC, Workbench
from tests.curation.selection.test_select import EXAMPLES, LANGUAGE, PERPLEXITY

# columns that came later: they count where they hold a value, so that older digests stay good
LATER = {"toxicity", "nsfw", "num_adult_words", "is_blocked"}
LATER |= {"perplexity_bucket", "ensemble_band"}


def digest(documents: Documents) -> str:
    """Hash the kept and removed rows; floats to 5 digits, as far as CPUs agree."""
    hasher = hashlib.sha256()
    for batches in (read_documents(documents), read_removed(documents)):
        for batch in batches:
            for row in batch.to_pylist():
                plain = {
                    k: f"{v:.5g}" if isinstance(v, float) else v
                    for k, v in row.items()
                    if v is not None or k not in LATER
                }
                hasher.update(json.dumps(plain, sort_keys=True).encode())
    return hasher.hexdigest()[:16]


GOLDEN_EXTRACT = {
    "cascade": (7, "9db936ff8de590da"),
    "trafilatura": (7, "bd88998307478e12"),
    "trafilatura_fast": (7, "0355b7a09db8af5c"),
    "resiliparse": (7, "c336b0ef9fce00b4"),
}
GOLDEN_TEXTS = {
    "import_documents": (5, "9a28d0ec691efde2"),
    "signals": (5, "cfb8eaf7f524e062"),
    "select": (4, "1f0c8891a66b3f5d"),
}


@pytest.mark.parametrize("extractor", sorted(GOLDEN_EXTRACT))
def test_extract_gives_what_its_version_gave(bench: Workbench, extractor: str) -> None:
    source = bench.source("golden", WARC / "*.warc", WARC / "*.gz")
    documents = bench.run(extract, ExtractConfig(extractor=extractor), source)
    assert (extract.version, digest(documents)) == GOLDEN_EXTRACT[extractor]


def test_text_stages_give_what_their_versions_gave(bench: Workbench) -> None:
    rows = "\n".join([*EXAMPLES.read_text().splitlines()[:40], "{broken"])
    source = bench.files("golden", a__jsonl=rows)
    first = bench.run(import_documents, ImportDocumentsConfig(), source)
    models = bench.source("lid", LANGUAGE), None, bench.source("perplexity", PERPLEXITY)
    second = bench.run(signals, SignalsConfig(), first, *models)
    third = bench.run(select, SelectConfig(languages={"en": 0.3}), second)
    made = {
        stage.name: (stage.version, digest(documents))
        for stage, documents in ((import_documents, first), (signals, second), (select, third))
    }
    assert made == GOLDEN_TEXTS


def test_decontaminate_gives_what_its_version_gave(bench: Workbench) -> None:
    texts = [json.loads(line)["text"] for line in EXAMPLES.read_text().splitlines()[:20]]
    leaked = {"question": texts[3], "answer": "none of the above at all"}
    benchmarks = bench.files("eval", quiz__jsonl=json.dumps(leaked) + "\n")
    rows = "\n".join(json.dumps({"text": text}) for text in texts)
    documents = bench.run(
        import_documents, ImportDocumentsConfig(), bench.files("golden", a__jsonl=rows)
    )
    clean = bench.run(decontaminate, DecontaminateConfig(), documents, benchmarks)
    assert (decontaminate.version, digest(clean)) == (3, "d2d8d7b10d5d889c")


def test_quality_classifier_gives_what_its_version_gave(bench: Workbench) -> None:
    """Scores and not model bytes: those also hold the order of a hash table of the library."""
    config = QualityClassifierConfig(buckets=5000, dimensions=8)
    made = bench.run(quality_classifier, config, bench.source("examples", EXAMPLES))
    model = load_fasttext(str(made.local("model.bin")))
    texts = [json.loads(line)["text"] for line in EXAMPLES.read_text().splitlines()[::60]]
    scores = [round(positive_score(model, text, "positive"), 2) for text in texts]
    assert (quality_classifier.version, scores) == (2, [0.0, 0.0, 0.0, 0.0, 0.01, 0.95])
