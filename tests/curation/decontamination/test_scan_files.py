import hashlib
import json
from pathlib import Path

import pytest

from lmpipe.curation.decontamination.scan_files import report_on_files
from lmpipe.errors import InputError
from lmpipe.eval_items.contamination_record import parse_report

GSM8K = Path(__file__).parents[2] / "data" / "gsm8k"


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


def test_half_an_emoji_in_a_conversation_or_item_ends_no_search(tmp_path: Path) -> None:
    chat, items = tmp_path / "chat.jsonl", tmp_path / "items.jsonl"
    words = "one two three four five six seven eight nine ten eleven twelve thirteen"
    chat.write_text(
        '{"messages": [{"role": "user", "content": "half \\ud83d of one"},'
        f' {{"role": "assistant", "content": "{words}"}}]}}\n'
    )
    items.write_text(f'{{"question": "{words}", "answer": "\\ude00"}}\n')
    report = report_on_files([chat], [items], 13)
    assert (report["documents"], report["flagged_documents"]) == (1, 1)
    json.dumps(report, ensure_ascii=False).encode()
