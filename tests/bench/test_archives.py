from pathlib import Path

import pytest

from lmpipe.bench import archives, extraction_memory
from lmpipe.errors import InputError
from tests.curation.warcs import archive

WARC = Path(__file__).parents[1] / "data" / "warc"


def test_each_file_is_counted_whole_and_cut() -> None:
    paths = [str(WARC / "broken.warc"), str(WARC / "real" / "*.lz4")]
    rows = archives.run({"paths": paths, "num_cuts": 5})
    found = {(row["case"], row["metric"]): row["value"] for row in rows}
    assert found["broken.warc", "records"] == 7
    assert found["broken.warc", "removed: bad_http_header"] == 1
    assert found["broken.warc", "first unreadable byte"] == 3321
    assert found["common-crawl-2020.warc.lz4", "with text"] == 2
    cuts = [value for (_, metric), value in found.items() if metric == "undefined"]
    assert cuts == [0, 0]
    with pytest.raises(InputError, match="match no file"):
        archives.run({"paths": ["none/*.warc"]})


def test_memory_is_measured_in_ten_rows_for_worker_and_child(tmp_path: Path) -> None:
    (tmp_path / "a.warc.gz").write_bytes(archive(7))
    rows = extraction_memory.run({"paths": [str(tmp_path / "*.gz")], "num_pages": 1000})
    assert [row["case"].split(",")[0] for row in rows] == ["worker", "child"] * 10
    assert all(20 < row["value"] < 2000 for row in rows)
    with pytest.raises(InputError, match="hold no page"):
        extraction_memory.run({"paths": [str(tmp_path / "none")]})
