import json
import random
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lmpipe.artifacts.types import Documents
from lmpipe.curation.decontamination import control as contamination_control
from lmpipe.curation.decontamination.config import DecontaminateConfig
from lmpipe.curation.decontamination.control import Control, run_control
from lmpipe.curation.decontamination.decontaminate import decontaminate
from lmpipe.curation.decontamination.matching import flag_documents, scan_texts
from lmpipe.curation.decontamination.ngram_index import NgramIndex
from lmpipe.curation.text import word_hashes
from lmpipe.errors import InputError
from lmpipe.eval_items.items import EvalItem, parse_item
from tests.curation.conftest import Workbench
from tests.curation.given import given, id_of, kept, removed, shards

GSM8K = Path(__file__).parents[2] / "data" / "gsm8k"
VOCABULARY = [f"term{number}" for number in range(3000)]
QUESTION = (
    "Janet's ducks lay sixteen eggs per day and she eats three for breakfast every morning while "
    "she bakes muffins for her friends with four more of them"
)
ANSWER = "so nine eggs remain to be sold at the market for two dollars each"
PAIR = ("Who should Derek hug after shocking Richard?", "Who should Derek hug Richard after it?")


def prose(seed: int, words: int = 120) -> str:
    return " ".join(random.Random(seed).choices(VOCABULARY, k=words))


def lines(*rows: dict[str, object]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def benchmarks(bench: Workbench):
    return bench.files(
        "eval",
        gsm__jsonl=lines(
            {"question": QUESTION, "answer": ANSWER},
            {"question": "What?", "answer": "Too short."},
        ),
        blimp__jsonl=lines({"sentence_good": PAIR[0], "sentence_bad": PAIR[1]}),
        NOTICE__txt="no benchmark",
    )


def run(
    bench: Workbench, texts: Sequence[dict[str, str]], workers: int = 1, **options: object
) -> Documents:
    documents = bench.run(given, shards(*texts))
    config = DecontaminateConfig(**options)
    return bench.run(decontaminate, config, documents, benchmarks(bench), workers=workers)


def test_finds_planted_items_whatever_their_case_and_punctuation(bench: Workbench):
    words = QUESTION.split()
    texts = {
        "verbatim": f"{prose(1)} {QUESTION} {prose(2)}",
        "reworded": f"{prose(3)}\n\n“{' – '.join(words).upper()}”{prose(4)}",
        "thirteen": f"{prose(5)} {' '.join(words[4:17])} {prose(6)}",
        "answer": f"{prose(7)} {ANSWER}",
        "pair": f"{prose(8)} WHO should Derek\nhug Richard (after it) {prose(9)}",
        "twelve": f"{prose(10)} {' '.join(words[4:16])} {prose(11)}",
        "clean": prose(12),
    }
    result = run(bench, [texts])
    gone = removed(result)
    assert set(kept(result)) == {id_of("twelve"), id_of("clean")}
    assert gone[id_of("pair")]["reason"] == "contaminated_by_blimp"
    assert gone[id_of("pair")]["reasons"] == ["blimp:0"]
    assert gone[id_of("verbatim")]["reasons"] == ["gsm:0"]
    assert gone[id_of("verbatim")]["score"] == 1
    assert 0 < gone[id_of("thirteen")]["score"] < 0.1
    control = result.metrics["control"]
    assert (control["planted"], control["found"], control["recall"]) == (10, 10, 1.0)
    assert (control["negatives"], control["flagged_negatives"]) == (3, 0)


def test_the_report_names_items_and_the_evidence_quotes_them(bench: Workbench):
    result = run(bench, [{"leak": f"{prose(1)} {QUESTION}", "clean": prose(2)}])
    report = result.read_json("contamination.json")["benchmarks"]
    assert report["gsm"]["found"]["0"] == {
        "documents": 1,
        "remaining": 0,
        "shares": {"item": pytest.approx((28 - 12) / (28 + 14 - 12), abs=1e-6), "question": 1.0},
    }
    assert report["gsm"]["dirty"] == [] and report["gsm"]["unchecked"] == [1]
    assert report["gsm"]["too_short"] == 1 and report["gsm"]["items"] == 2
    assert report["blimp"]["found"] == {}
    table = pq.read_table(pa.BufferReader(result.read_bytes("overlaps/00000.parquet"))).to_pylist()
    assert {row["id"] for row in table} == {id_of("leak")}
    assert table[0]["text"] == QUESTION and table[0]["action"] == "removed"
    assert (table[0]["part"], table[0]["end"] - table[0]["start"]) == ("question", len(QUESTION))
    (shown,) = [e["rows"] for e in bench.events if e.get("name") == "contamination"]
    assert [(row["benchmark"], row["documents"]) for row in shown] == [("blimp", 0), ("gsm", 1)]


def test_cuts_only_the_lines_that_hold_an_item(bench: Workbench):
    before, after = prose(1), prose(2)
    half = " ".join(QUESTION.split()[:14]) + "\n" + " ".join(QUESTION.split()[14:])
    texts = {
        "long": f"{before}\nQ: {QUESTION}\n{after} zürich\n",
        "split": f"{before}\n{half}\n{after}",
        "all": f"{QUESTION} {ANSWER}",
    }
    result = run(bench, [texts], remove="paragraph")
    assert kept(result) == {
        id_of("long"): f"{before}\n{after} zürich\n",
        id_of("split"): f"{before}\n{after}",
    }
    assert set(removed(result)) == {id_of("all")}
    assert result.metrics["cut"] == 2


def test_isolated_boilerplate_flags_nothing_and_is_reported(bench: Workbench):
    phrase = " ".join(QUESTION.split()[4:17])
    texts = {str(n): f"{prose(n)} {phrase} {prose(100 + n)}" for n in range(12)}
    texts["leak"] = f"{prose(50)} {ANSWER}"
    result = run(bench, [texts])
    assert set(removed(result)) == {id_of("leak")}
    del texts["leak"]
    result = run(bench, [texts])
    assert removed(result) == {}
    report = result.read_json("contamination.json")
    assert report["benchmarks"]["gsm"]["unsure"]["0"]["documents"] == 12
    assert (report["contaminated_documents"], report["unsure_documents"]) == (0, 12)
    assert "1 items of gsm occur and flag nothing" in str(bench.events)
    everything = run(bench, [texts | {"clean": prose(60)}], boilerplate_documents=0)
    assert set(kept(everything)) == {id_of("clean")}


@pytest.mark.parametrize("count", [1, 10, 11, 40])
def test_an_item_leaked_however_often_is_found_in_every_copy(bench: Workbench, count: int):
    leaks = {f"leak{n}": f"{prose(n)} {QUESTION} {prose(100 + n)}" for n in range(count)}
    short = {f"short{n}": f"{prose(200 + n)} {PAIR[0]} {prose(300 + n)}" for n in range(count)}
    half = {
        f"half{n}": f"{prose(400 + n)} {' '.join(QUESTION.split()[:22])} {prose(500 + n)}"
        for n in range(count)
    }
    result = run(bench, [leaks | short | half | {"clean": prose(60)}])
    assert set(kept(result)) == {id_of("clean")}
    report = result.read_json("contamination.json")
    assert report["flagged_documents"] == 3 * count and report["unsure_documents"] == 0


LATIN = "aceopxyABCEHKMOPTXijsAEIKMNOTXYopv"
ALIKE = "асеорхуАВСЕНКМОРТХіјѕΑΕΙΚΜΝΟΤΧΥορν"
DISGUISES = {
    "letters": lambda text: text.translate(str.maketrans(LATIN, ALIKE)),
    "full width": lambda text: "".join(
        chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text
    ),
    "mathematical": lambda text: "".join(
        chr(0x1D41A + ord(c) - 97) if "a" <= c <= "z" else c for c in text
    ),
    "zero width": lambda text: "\u200b".join(text.replace(" ", " \ufeff")),
    "soft hyphens": lambda text: text.replace("e", "e\u00ad"),
    "joiners": lambda text: text.replace("a", "a\u2060\u200d\u034f"),
    "digits": lambda text: text.translate(str.maketrans("oil", "011")),
    "strokes": lambda text: text.translate(str.maketrans("lodt", "łøđŧ")),
}


@pytest.mark.parametrize("disguise", sorted(DISGUISES))
def test_an_item_in_letters_that_look_alike_is_found(bench: Workbench, disguise: str):
    change = DISGUISES[disguise]
    assert change(QUESTION) != QUESTION
    texts = {
        "question": f"{prose(1)} {change(QUESTION)} {prose(2)}",
        "pair": f"{prose(3)} {change(PAIR[0])} {prose(4)}",
        "clean": change(prose(5)),
    }
    assert set(kept(run(bench, [texts]))) == {id_of("clean")}


def test_items_of_other_scripts_are_found_in_either_case_and_told_apart(bench: Workbench):
    greek = "Στην πόλη αυτή ο ήλιος ανατέλλει κάθε πρωί πάνω από τη θάλασσα και νωρίς το βράδυ δύει"
    russian = "Мой дядя самых честных правил когда не в шутку занемог он уважать себя заставил и"
    source = bench.files("other", other__jsonl=lines({"text": greek}, {"text": russian}))
    texts = {
        "greek": f"{prose(1)} {greek.upper()}",
        "russian": f"{prose(2)} {russian.upper()}",
        "words": " ".join(sorted(russian.split())),
    }
    documents = bench.run(given, shards(texts))
    result = bench.run(decontaminate, DecontaminateConfig(), documents, source)
    assert set(kept(result)) == {id_of("words")}


def mistyped(text: str, every: int, seed: int = 0) -> str:
    """Change one letter in each run of so many words."""
    rng, words = random.Random(seed), text.split()
    for first in range(0, len(words), every):
        place = min(len(words) - 1, first + rng.randrange(every))
        at = rng.randrange(len(words[place]))
        words[place] = words[place][:at] + rng.choice("bdfgkq") + words[place][at + 1 :]
    return " ".join(words)


def test_items_with_typing_errors_are_found_and_quotations_are_not(bench: Workbench):
    rows = [json.loads(row) for row in (GSM8K / "test.jsonl").read_text().splitlines()][:40]
    source = bench.files("gsm", gsm8k__jsonl=lines(*rows))
    questions = [str(row["question"]) for row in rows]
    wrong = {f"wrong{n}": f"{prose(n)} {mistyped(q, 8, n)}" for n, q in enumerate(questions)}
    quoted = {
        f"quoted{n}": f"{prose(n)} {' '.join(q.split()[3:12])} {prose(n + 1)}"
        for n, q in enumerate(questions)
    }
    result = bench.run(
        decontaminate,
        DecontaminateConfig(),
        bench.run(given, shards({**wrong, **quoted, "clean": prose(99)})),
        source,
    )
    gone = removed(result)
    assert not set(gone) & {id_of(key) for key in quoted}
    assert len(gone) >= 38
    for number in range(40):
        if id_of(f"wrong{number}") in gone:
            assert gone[id_of(f"wrong{number}")]["reasons"] == [f"gsm8k:{number}"]


def items(*questions: str) -> list[EvalItem]:
    rows = [{"question": question, "answer": "yes"} for question in questions]
    return [parse_item("set", n, json.dumps(row), "test") for n, row in enumerate(rows)]


TEMPLATE = "Which of the following statements about the text above is most likely to be true of"


def test_a_benchmarks_template_flags_nothing_but_its_items_do():
    index = NgramIndex(items(*(f"{TEMPLATE} {prose(n, 20)}" for n in range(20))), 13, 5)
    config = DecontaminateConfig()
    texts = [f"{prose(900)} {TEMPLATE} {prose(901)}", f"{prose(902)} {TEMPLATE} {prose(3, 20)}"]
    flags, boilerplate = flag_documents(scan_texts(index, texts, 0), index, config)
    assert {(flag.document, index.parts[flag.part].item.index) for flag in flags} == {(1, 3)}
    assert len(boilerplate) == 19


def test_least_share_spares_documents_that_quote_a_little():
    index = NgramIndex(items(prose(1, 60)), 13, 5)
    text = [f"{prose(5)} {' '.join(prose(1, 60).split()[:20])}"]
    hits = scan_texts(index, text, 0)
    assert flag_documents(hits, index, DecontaminateConfig())[0]
    assert not flag_documents(hits, index, DecontaminateConfig(min_share=0.5))[0]


def test_short_items_and_short_texts_flag_nothing():
    index = NgramIndex(items("Is it so", prose(1, 40)), 13, 5)
    texts = ["Is it so yes", "", "...", "is", prose(1, 12)]
    assert not flag_documents(scan_texts(index, texts, 0), index, DecontaminateConfig())[0]


def test_the_control_notices_a_broken_search(monkeypatch):
    index, config = NgramIndex(items(prose(1, 40), prose(2, 8)), 13, 5), DecontaminateConfig()
    assert run_control(index, config, [prose(9)]).figures()["recall"] == 1
    broken = scan_texts
    monkeypatch.setattr(contamination_control, "scan_texts", lambda i, t, f: broken(i, t, f)[:-20])
    control = run_control(index, config, [prose(9)])
    assert set(control.lost) == {"set:1"} and control.figures()["recall"] < 1


def test_the_control_notices_what_flags_the_innocent(monkeypatch):
    shared = [f"{TEMPLATE} {prose(n, 20)}" for n in range(20)]
    index = NgramIndex(items("Is it so", prose(300, 40), *shared), 13, 5)
    config = DecontaminateConfig()
    good = run_control(index, config, [prose(n, 60) for n in range(5)])
    assert good.negatives > 2 and good.figures()["precision"] == 1
    monkeypatch.setattr(contamination_control, "_templates", lambda i, c: [prose(300, 40)])
    bad = run_control(index, config, [prose(n, 60) for n in range(40, 45)])
    assert bad.false == ["set:1"] and bad.figures()["precision"] < 1


def test_documents_that_hold_an_item_host_no_plants():
    index = NgramIndex(items(prose(1, 40)), 13, 5)
    leaked = f"{prose(5)} {prose(1, 40)}"
    control = run_control(index, DecontaminateConfig(), [leaked, prose(6)])
    assert control.false == [] and control.negatives == 1  # the answer, too short
    assert run_control(index, DecontaminateConfig(), [leaked]).lost == []  # filler serves


def test_reports_only_or_cuts_the_words_of_the_item_alone(bench: Workbench):
    text = {"leak": f"{prose(1)} – {QUESTION}! {prose(2)} ü", "clean": prose(3)}
    told = run(bench, [text], remove="nothing")
    assert removed(told) == {} and kept(told)[id_of("leak")] == text["leak"]
    report = told.read_json("contamination.json")
    assert (report["documents"], report["contaminated_documents"]) == (2, 1)
    assert report["benchmarks"]["gsm"]["dirty"] == [0]
    assert told.metrics["contaminated"] == 1
    cut = run(bench, [text], remove="span")
    assert kept(cut)[id_of("leak")] == f"{prose(1)} – ! {prose(2)} ü"
    assert cut.read_json("contamination.json")["benchmarks"]["gsm"]["dirty"] == []
    assert cut.metrics["contaminated"] == 0 and cut.metrics["flagged"] == 1


def test_an_answer_without_its_question_is_found_if_it_is_long_enough(bench: Workbench):
    texts = {"answer": f"{prose(7)} {ANSWER} {prose(8)}", "clean": prose(9)}
    found = run(bench, [texts]).read_json("contamination.json")["benchmarks"]["gsm"]["found"]
    assert found["0"]["shares"]["answer"] == 1 and "question" not in found["0"]["shares"]
    short = [
        parse_item("set", 0, json.dumps({"question": prose(1, 30), "answer": prose(2, 8)}), "")
    ]
    index = NgramIndex(short, 13, 5)
    hits = scan_texts(index, [f"{prose(3)} {prose(2, 8)} {prose(4)}"], 0)
    assert not flag_documents(hits, index, DecontaminateConfig())[0]


def test_benchmarks_that_can_never_match_are_an_error(bench: Workbench):
    documents = bench.run(given, shards({"a": prose(1)}))
    short = bench.files("short", set__jsonl=lines({"text": "one two"}))
    with pytest.raises(InputError, match="none of 1 items"):
        bench.run(decontaminate, DecontaminateConfig(), documents, short)
    template = bench.files("template", set__jsonl=lines(*[{"text": TEMPLATE}] * 9))
    with pytest.raises(InputError, match="template_items"):
        bench.run(decontaminate, DecontaminateConfig(), documents, template)


def test_training_on_the_benchmark_alone_is_an_error(bench: Workbench):
    with pytest.raises(InputError, match="kept none of 1"):
        run(bench, [{"a": QUESTION}])


def test_order_and_shards_do_not_change_what_is_found(bench: Workbench):
    texts = {str(n): f"{prose(n)} {QUESTION if n % 7 == 0 else ''}" for n in range(30)}
    texts["pair"] = f"{prose(77)} {PAIR[0]}"
    order = list(texts.items())
    random.Random(1).shuffle(order)
    one = run(bench, [texts])
    two = run(bench, [dict(order[:11]), {}, dict(order[11:])])
    assert kept(one) == kept(two) and removed(one) == removed(two)
    assert one.read_json("contamination.json") == two.read_json("contamination.json")


def test_bytes_are_equal_for_any_number_of_workers(new_bench, monkeypatch):
    monkeypatch.setattr(word_hashes, "DOCUMENTS_PER_WORKER", 1)
    texts = [{f"{s}-{n}": f"{prose(n)} {PAIR[n % 2]}" for n in range(6)} for s in range(2)]
    options = {"boilerplate_documents": 0}
    texts.append({"clean": prose(99)})
    digests = {
        run(new_bench(str(workers)), texts, workers=workers, **options).digest for workers in (1, 3)
    }
    assert len(digests) == 1


def alarms(bench: Workbench) -> list[dict[str, object]]:
    return [event for event in bench.events if event["type"] == "alarm"]


def test_more_contamination_than_the_run_allows_raises_an_alarm(bench: Workbench):
    texts = {str(n): f"{prose(n)} {QUESTION if n < 2 else ''}" for n in range(10)}
    run(bench, [texts])
    (alarm,) = alarms(bench)
    assert alarm["name"] == "curation.contamination"
    assert "2 of 10 documents hold evaluation items" in str(alarm["message"])
    assert alarm["values"] == {"documents": 10, "flagged": 2, "limit": 0.05}


def test_no_alarm_at_the_limit_and_the_limit_changes_no_id(bench: Workbench, new_bench):
    texts = {str(n): f"{prose(n)} {QUESTION if n < 1 else ''}" for n in range(20)}
    one = run(bench, [texts])
    other = new_bench("strict")
    other.runtime = {"alarm_contaminated_fraction": 0.0, "alarm_kept_fraction": 1.0}
    two = run(other, [texts])
    assert alarms(bench) == []
    assert sorted(a["name"] for a in alarms(other)) == [
        "curation.contamination",
        "curation.low-yield",
    ]
    assert (one.id, one.digest) == (two.id, two.digest)


def test_a_lost_positive_control_raises_an_alarm_and_stops(bench: Workbench, monkeypatch):
    lossy = Control(planted=4, lost=["gsm:1"])
    monkeypatch.setattr(contamination_control, "run_control", lambda *args: lossy)
    with pytest.raises(InputError, match="1 of 4 planted items were not found"):
        run(bench, [{"a": prose(1)}])
    (alarm,) = alarms(bench)
    assert alarm["name"] == "curation.contamination"
    assert alarm["values"] == {"planted": 4, "lost": 1}


def gsm8k(split: str) -> list[str]:
    rows = map(json.loads, (GSM8K / f"{split}.jsonl").read_text().splitlines())
    return [f"{row['question']}\n{row['answer']}" for row in rows]


def test_gsm8k_training_problems_are_clean_and_merged_test_items_are_exactly_those_found(
    bench: Workbench,
):
    source = bench.files("gsm", gsm8k__jsonl=(GSM8K / "test.jsonl").read_text())
    train = {f"train{n}": text for n, text in enumerate(gsm8k("train"))}
    config = DecontaminateConfig(min_share=1.0)
    clean = bench.run(decontaminate, config, bench.run(given, shards(train)), source)
    assert removed(clean) == {} and len(kept(clean)) == 120
    leaked = {f"test{n}": text for n, text in enumerate(gsm8k("test")) if n % 4 == 0}
    merged = bench.run(given, shards({**train, **leaked}))
    found = removed(bench.run(decontaminate, config, merged, source))
    assert set(found) == {id_of(key) for key in leaked}
    for key in leaked:
        assert found[id_of(key)]["reasons"] == [f"gsm8k:{key.removeprefix('test')}"]


LABELLED = Path(__file__).parents[2] / "data" / "contamination"


def labelled_run(bench: Workbench, **options: object) -> tuple[Documents, set[tuple[str, int]]]:
    """Search labelled items in real pages; return what was found as (document, item)."""
    pages = map(json.loads, (LABELLED / "documents.jsonl").read_text().splitlines())
    documents = bench.run(given, shards({str(n): page["text"] for n, page in enumerate(pages)}))
    source = bench.files("real", real__jsonl=(LABELLED / "items.jsonl").read_text())
    config = DecontaminateConfig(remove="nothing", **options)
    result = bench.run(decontaminate, config, documents, source)
    table = pq.read_table(pa.BufferReader(result.read_bytes("overlaps/00000.parquet")))
    return result, {(row["id"], row["item"]) for row in table.to_pylist()}


def labels(name: str) -> dict[int, str]:
    """Return the items of a label, and the documents that they were taken from."""
    rows = map(json.loads, (LABELLED / "items.jsonl").read_text().splitlines())
    return {n: id_of(str(row["document"])) for n, row in enumerate(rows) if row["label"] == name}


def test_in_real_pages_the_leaked_items_are_found_and_no_innocent_one(bench: Workbench):
    result, found = labelled_run(bench)
    leaked = {(document, item) for item, document in labels("leaked").items()}
    # a whole item in over ten documents is a leak or is boilerplate itself: nothing tells which
    everywhere = set(labels("boilerplate"))
    assert len(leaked) == 16 and {pair for pair in found if pair[1] not in everywhere} == leaked
    assert {item for _, item in found} == {item for _, item in leaked} | everywhere
    report = result.read_json("contamination.json")["benchmarks"]["real"]
    assert report["dirty"] == sorted([*labels("leaked"), *everywhere])
    assert report["unchecked"] == sorted(labels("short")) and len(report["unchecked"]) == 12
    assert all(report["found"][str(item)]["documents"] > 10 for item in everywhere)
    assert (len(labels("quoted")), len(labels("absent"))) == (12, 12)
    control = result.metrics["control"]
    assert control["recall"] == control["precision"] == 1 and control["negatives"] >= 12


def test_in_real_pages_each_guard_spares_the_items_that_it_is_for(bench: Workbench):
    _, leaked = labelled_run(bench)
    for options, spared in (
        ({"min_item_words": 1}, "short"),
        ({"ngram": 12}, "quoted"),
    ):
        _, found = labelled_run(bench, **options)
        assert leaked <= found
        assert {item for _, item in found - leaked} <= set(labels(spared)), options
        assert found - leaked, options
