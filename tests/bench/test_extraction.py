import gzip
import json
from pathlib import Path

import pytest

from lmpipe.bench.extraction import run, score, shingles
from lmpipe.errors import InputError


def test_shingles_are_counted_and_a_short_text_is_one() -> None:
    assert shingles("a b c d a b c d e")[("a", "b", "c", "d")] == 2
    assert dict(shingles("only three words")) == {("only", "three", "words"): 1}
    assert shingles("") == {}


def test_scores_are_means_over_pages_and_an_empty_prediction_has_no_precision() -> None:
    truth = {"x": "a b c d e", "y": "q r s t"}
    found = score(truth, {"x": "a b c d z", "y": ""})
    assert found["precision"] == 0.5
    assert found["recall"] == 0.25
    assert found["f1"] == pytest.approx(1 / 3)


def test_every_extractor_is_measured_on_a_labelled_folder(tmp_path: Path) -> None:
    sentence = "Sentence {} of the page is long enough for all extractors, which keep it as prose. "
    prose = [sentence.format(number) for number in range(9)]
    paragraphs = "".join(f"<p>{each}</p>" for each in prose)
    body = f"<html><body><nav>Home</nav><article>{paragraphs}</article></body></html>"
    (tmp_path / "html").mkdir()
    (tmp_path / "html" / "k.html.gz").write_bytes(gzip.compress(body.encode()))
    truth = {"k": {"articleBody": "".join(prose)}}
    (tmp_path / "ground-truth.json").write_text(json.dumps(truth))
    rows = run({"folder": str(tmp_path)})
    f1 = {row["case"].split(",")[0]: row["value"] for row in rows if row["metric"] == "f1"}
    assert set(f1) == {"cascade", "trafilatura", "trafilatura_fast", "resiliparse"}
    assert f1["cascade"] == 1.0
    with pytest.raises(InputError, match="labelled set"):
        run({"folder": str(tmp_path / "none")})
