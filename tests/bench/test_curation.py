import zlib
from pathlib import Path

from lmpipe.bench.curation import run

CRAWL = Path(__file__).parents[2] / "flows" / "recipes" / "demo_data" / "warc"


def first_records(path: Path, max_bytes: int) -> bytes:
    data = path.read_bytes()
    at = 0
    while True:
        inflater = zlib.decompressobj(31)
        inflater.decompress(data[at:])
        end = len(data) - len(inflater.unused_data)
        if end > max_bytes or end == len(data):
            return data[:at]
        at = end


def test_every_stage_from_source_to_select_is_measured(tmp_path: Path) -> None:
    """A bench that nothing else runs would rot."""
    path = CRAWL / "docs-00000.warc.gz"
    (tmp_path / "a.warc.gz").write_bytes(first_records(path, 400_000))
    rows = run({"paths": [str(tmp_path / "*.gz")], "workers": 1, "peer_files": 0})
    stages = [row["case"].split(",")[0] for row in rows if row["metric"] == "time"]
    assert stages == ["extract", "signals", "select", "source to select"]
    found = {row["metric"]: row["value"] for row in rows}
    assert found["kept"] > 0
    assert 50 < found["peak_memory_of_a_process"] < 1500
