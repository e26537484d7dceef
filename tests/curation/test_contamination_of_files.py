import hashlib
import json
from pathlib import Path

import pytest

from lmpipe.benchmarks.contamination import parse_report
from lmpipe.curation.contamination_of_files import report_on_files
from lmpipe.errors import InputError

GSM8K = Path(__file__).parents[1] / "data" / "gsm8k"


def test_conversations_that_hold_test_items_are_told_item_by_item(tmp_path: Path):
    leaked = json.loads((GSM8K / "test.jsonl").read_text().splitlines()[3])
    clean = json.loads((GSM8K / "train.jsonl").read_text().splitlines()[0])
    chat = tmp_path / "chat.jsonl"
    chat.write_text(
        "".join(
            json.dumps({"messages": [{"role": "user", "content": row["question"].upper()},
                                     {"role": "assistant", "content": row["answer"]}]}) + "\n"
            for row in (clean, leaked)
        )
    )  # fmt: skip
    report = report_on_files([chat], [GSM8K / "test.jsonl"], 13)
    record = parse_report(report, "chat")
    digest = hashlib.sha256((GSM8K / "test.jsonl").read_bytes()).hexdigest()
    assert (record.documents, record.contaminated_documents) == (2, 1)
    assert record.flag("test", 3, digest) == "dirty" and record.flag("test", 4, digest) == "clean"
    for line, message in (("{broken", r"chat.jsonl:1 is no JSON"), ('{"n": 1}', "holds no text")):
        chat.write_text(line + "\n")
        with pytest.raises(InputError, match=message):
            report_on_files([chat], [GSM8K / "test.jsonl"], 13)
