"""A whole run made of small invented artifacts, published through the real store.

Layouts are the ones that the stages write; the numbers are plausible, the texts hostile on purpose.
"""

import io
import json
import math
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from lmpipe.artifacts.build import build
from lmpipe.artifacts.output import Output
from lmpipe.artifacts.stage import Role, Stage, StageConfig
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import (
    Artifact,
    Checkpoint,
    Documents,
    Measures,
    Model,
    ScalingFit,
    Scores,
    Source,
    Tokenizer,
    TokenShards,
)
from lmpipe.curation.quality.quality_classifier import held_out_report
from lmpipe.runtime import Runtime

HOSTILE = '<script>alert("x")</script><img src=http://evil.example/p.png> `|*_ ```\n</pre></html>'
LANGUAGES = ["en"] * 14 + ["de", "fr", "es", "ru", "ja", "zh"]
Write = Callable[[Output[Any]], None]


class FakeConfig(StageConfig):
    """Stands for any config."""

    seed: int = Field(1, ge=0, description="Seed.")
    note: str = Field("</script>", description="Hostile text in a config.")


def parquet(rows: list[dict[str, Any]], schema: pa.Schema) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema), buffer)
    return buffer.getvalue()


DOCUMENTS = pa.schema(
    [("id", pa.string()), ("url", pa.string()), ("text", pa.string()), ("language", pa.string()),
     ("language_score", pa.float32()), ("quality_score", pa.float32())]
)  # fmt: skip
REMOVED = pa.schema(
    [("id", pa.string()), ("stage", pa.string()), ("reason", pa.string()),
     ("score", pa.float64()), ("threshold", pa.float64()), ("keeper", pa.string()),
     ("similarity", pa.float64()), ("url", pa.string())]
)  # fmt: skip


OVERLAPS = pa.schema(
    [("id", pa.string()), ("benchmark", pa.string()), ("item", pa.int64()), ("part", pa.string()),
     ("share", pa.float64()), ("action", pa.string()), ("text", pa.string())]
)  # fmt: skip
CUTS = pa.schema(
    [("id", pa.string()), ("action", pa.string()), ("segment", pa.int64()),
     ("num_words", pa.int64()), ("keeper", pa.string()), ("copies", pa.int64()),
     ("text", pa.string())]
)  # fmt: skip


def document(index: int) -> dict[str, Any]:
    words = "The parser reads one record at a time and returns the tree that it has built. "
    text = HOSTILE + words if index % 7 == 0 else words * (1 + index % 5)
    return {
        "id": f"{(index * 2654435761) % 2**32:08x}".ljust(32, "0"),
        "url": f"https://docs{index % 9}.example/a/very/long/path/that/would/not/wrap/{index}.html",
        "text": text,
        "language": LANGUAGES[index % len(LANGUAGES)],
        "language_score": 0.5 + index % 50 / 100,
        "quality_score": index % 97 / 97,
    }


def write_documents(
    out: Output[Any], kept: list[int], removed: dict[str, list[int]], name: str
) -> None:
    if name == "extract":
        pages = len(kept) + sum(map(len, removed.values()))
        out.metric("records", {"pages": pages, "skipped: request": 400, "skipped: metadata": 60})
    if name == "decontaminate":
        write_contamination(out)
    if name == "dedup_passages":
        write_cuts(out, len(kept))
    halves = [kept[: len(kept) // 2], kept[len(kept) // 2 :]]
    for shard, indices in enumerate(halves):
        data = parquet([document(i) for i in indices], DOCUMENTS)
        out.write_bytes(f"kept/{shard:05d}.parquet", data)
        out.set_rows(f"kept/{shard:05d}.parquet", len(indices))
    buckets: dict[str, list[dict[str, Any]]] = {}
    for reason, indices in removed.items():
        for i in indices:
            doc = document(i)
            row = {"id": doc["id"], "stage": name, "reason": reason, "url": doc["url"],
                   "score": 12.0 + i % 30, "threshold": 50.0}  # fmt: skip
            if reason == "near_duplicate":
                row |= {"keeper": document(i + 1)["id"], "similarity": 0.8 + i % 20 / 100}
            buckets.setdefault(doc["id"][0], []).append(row)
    for bucket, rows in sorted(buckets.items()):
        out.write_bytes(f"removed/{bucket}.parquet", parquet(rows, REMOVED))
        out.set_rows(f"removed/{bucket}.parquet", len(rows))


def write_contamination(out: Output[Any]) -> None:
    row = {"benchmark": "blimp", "items": 300, "contaminated items": 2, "documents": 1}
    out.metric("benchmarks", {"blimp": row})
    out.metric("contaminated", 3)
    out.metric("control", {"planted": 128, "found": 128, "negatives": 40, "flagged_negatives": 1,
                           "recall": 1.0, "precision": 128 / 129})  # fmt: skip
    sets = {"blimp": {"dirty": [7, 31], "unsure": {"12": {"documents": 40}}}}
    out.write_json(
        "contamination.json",
        {"documents": 900, "flagged_documents": 21, "contaminated_documents": 3,
         "benchmarks": sets},
    )  # fmt: skip
    rows = [{"id": "ab" * 16, "benchmark": "blimp", "item": n, "part": "good", "share": 1 / n,
             "action": "removed", "text": HOSTILE} for n in (1, 2)]  # fmt: skip
    out.write_bytes("overlaps/00000.parquet", parquet(rows, OVERLAPS))


def write_cuts(out: Output[Any], kept: int) -> None:
    for name, value in {
        "input": kept + 9, "kept": kept, "cut": 30, "passages": 20_000, "repeats": 120,
        "kept_characters": 90_000, "cut_characters": 9_000, "dropped_characters": 1_000,
        "lost_keepers": 2, "bloom_bits": 8 << 20, "bloom_probes": 10, "bloom_capacity": 580_000,
        "bloom_keys": 19_880, "bloom_expected_errors": 0.2,
    }.items():  # fmt: skip
        out.metric(name, value)
    rows = [{"id": "ab" * 16, "action": "cut", "segment": n, "num_words": 9, "copies": n or None,
             "keeper": "cd" * 16 if n else None, "text": f"{n} {HOSTILE}"}
            for n in range(4)]  # fmt: skip
    out.write_bytes("cuts/00000.parquet", parquet(rows, CUTS))


def split(indices: list[int], shares: dict[str, float]) -> tuple[list[int], dict[str, list[int]]]:
    """Deal indices out to removal reasons; the rest is kept."""
    rng = random.Random(len(indices))
    kept: list[int] = []
    removed: dict[str, list[int]] = {reason: [] for reason in shares}
    for i in indices:
        draw, edge, where = rng.random(), 0.0, kept
        for reason, share in shares.items():
            edge += share
            if draw < edge:
                where = removed[reason]
                break
        where.append(i)
    return kept, {reason: rows for reason, rows in removed.items() if rows}


def write_classifier(out: Output[Any]) -> None:
    """Scores that mean what they say: of those near 0.8, eight in ten are positive."""
    rng = random.Random(3)
    scored = [(score, rng.random() < score) for score in (rng.random() ** 2 for _ in range(400))]
    out.write_json("meta.json", {"positive_label": "toxic", "labels": ["neither", "toxic"]})
    out.write_json(
        "held_out.json", {"scores": [s for s, _ in scored], "positive": [t for _, t in scored]}
    )
    out.metric("held_out", held_out_report(scored))


def write_curves(out: Output[Any], rows: list[dict[str, Any]]) -> None:
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), buffer)
    with out.open("curves.parquet", digest=False) as file:
        file.write(buffer.getvalue())


def write_pretrain(out: Output[Any]) -> None:
    rng = random.Random(1)
    rows = []
    for step in range(1, 301):
        loss = 3.9 + 4.3 * math.exp(-step / 45) + rng.gauss(0, 0.05)
        held_out = step % 50 == 0 or step == 300
        lr = 3e-3 * min(1, step / 20, (300 - step) / 60 + 0.02)
        rows.append(
            {"step": step, "tokens": step * 4096, "loss": loss, "lr": lr,
             "validation_loss": loss + 0.05 if held_out else None,
             "bits_per_byte": (loss + 0.05) / 2.4 if held_out else None,
             "grad_norm": 0.4 + 3 * math.exp(-step / 30) + abs(rng.gauss(0, 0.05)),
             "tokens_per_second": 6500 + rng.gauss(0, 150), "seconds": step * 0.63}
        )  # fmt: skip
    write_curves(out, rows)
    shares = {"main": [0.9, 0.5], "code": [0.1, 0.5]}
    out.metric(
        "mixture",
        {
            name: {"tokens": 614_400, "share": sum(part) / 2, "epochs": 0.47, "stage_shares": part}
            for name, part in shares.items()
        },
    )
    cut = {"sequences": 5078, "padding_fraction": 0.002, "cut_fraction": 0.69, "cut_documents": 81}
    out.metric("document_packing", dict.fromkeys(shares, cut))
    out.write_json(
        "meta.json", {"kind": "base", "parameters": 2_884_096, "tokens": 1_228_800, "step": 300}
    )


def write_aligned(out: Output[Any], kind: str) -> None:
    rng = random.Random(kind)
    rows: list[dict[str, Any]] = []
    for step in range(1, 81):
        loss = 2.0 * math.exp(-step / 30) + rng.random() / 9
        row: dict[str, Any] = {
            "step": step, "loss": loss, "lr": 1e-3 * min(1, step / 8),
            "grad_norm": 0.5 + rng.random() / 5,
        }  # fmt: skip
        if kind == "dpo":
            row |= {"reward_margin": step / 60, "reward_accuracy": min(1.0, 0.5 + step / 160)}
        if kind == "grpo":
            row |= {"reward": 0.35 + 0.5 * step / 80 + rng.gauss(0, 0.04), "kl": step / 4000,
                    "heldout_reward": 0.36 + 0.45 * step / 80 if step % 20 in (0, 1) else None,
                    "heldout_stderr": 0.02, "skipped": 0.0}  # fmt: skip
        rows.append(row)
    write_curves(out, rows)
    if kind == "sft":
        counts = {"rows": 694, "conversations": 8192, "supervised_tokens": 58_178}
        out.metric("packing", counts)  # of conversations, unlike a base model's
    out.write_json("meta.json", {"kind": kind, "parameters": 2_884_096, "step": 80})
    out.write_json(
        "samples.json",
        [{"prompt": f"Sort: {i} 1 2", "completion": f"1 2 {i}" if i % 3 else HOSTILE,
          "reward": 1.0 if i % 3 else 0.0} for i in range(3, 12)],
    )  # fmt: skip


def write_scores(out: Output[Any], base: float) -> None:
    error = math.sqrt(base * (1 - base) / 300)
    out.write_json(
        "scores.json",
        {"blimp": {"acc": {"value": base, "stderr": error, "n": 300}},
         "docs_text": {"bits_per_byte": {"value": 2.31, "stderr": 0.02, "n": 171}}},
    )  # fmt: skip
    groups = {
        name: {"value": base + shift, "stderr": 0.06, "n": 60}
        for name, shift in (("determiner_noun_agreement_1", 0.2), ("npi_present_1", -0.1))
    }
    out.write_json(
        "tasks.json",
        {"blimp": {"title": "BLiMP", "chance": 0.5, "metric": "acc", "groups": groups,
                   "higher_is_better": {"acc": True}},
         "docs_text": {"title": "Held-out documentation", "chance": None, "groups": {},
                       "metric": "bits_per_byte", "higher_is_better": {"bits_per_byte": False}}},
    )  # fmt: skip
    item = {"doc_id": 0, "arguments": [["", "She sings."], ["", HOSTILE]],
            "responses": [[-12.1, False], [-14.9, False]], "target": 0, "acc": 1.0}  # fmt: skip
    out.write_bytes("samples/blimp.jsonl", (json.dumps(item) + "\n").encode())


def write_scale(out: Output[Any]) -> None:
    points = []
    for parameters in (40_000, 120_000, 400_000):
        for tokens in (100_000, 300_000, 900_000):
            loss = 2.5 + 30 / parameters**0.3 + 60 / tokens**0.32
            points.append(
                {"parameters": parameters, "tokens": tokens, "flops": 6.0 * parameters * tokens,
                 "loss": loss + 0.01, "fitted": loss, "held_out": parameters * tokens > 3e11}
            )  # fmt: skip
    out.write_json("points.json", points)
    out.write_json(
        "fit.json",
        {"law": "loss law", "formula": "E + A/N^alpha + B/D^beta", "level": 0.8,
         "constants": {"E": 2.5, "A": 30.0, "B": 60.0, "alpha": 0.3, "beta": 0.32},
         "intervals": {"E": [2.2, 2.7], "alpha": [0.2, 0.4]},
         "prediction": {"predicted": 4.0, "actual": 4.01, "interval": [3.9, 4.1],
                        "error": -0.0025},
         "next_run": {"parameters": 1.2e6, "tokens": 3e6, "flops": 2.2e13, "loss": 3.51}},
    )  # fmt: skip


def fake_stage(name: str, kind: str, output: type[Artifact], role: str) -> Stage[Any]:
    """Declare a stage of that name which runs the writer it is given through the registry."""

    def run(out: Output[Any], config: FakeConfig, _: Any, *, runtime: Runtime) -> Artifact:
        WRITERS[name, config.seed](out)
        return out.commit()

    declared = Role(role, Artifact, many=True, optional=False)
    return Stage(name, 1, kind, FakeConfig, (declared,), output, run)  # type: ignore[arg-type]


def write_vocabulary(out: Output[Any]) -> None:
    kinds = {"BPE": 3.6, "character": 1.02, "byte": 1.0, "word": 3.1, "GPT-2": 4.1}
    rows = [
        {"language": language, "bytes": 90_000 // n, **{k: v / n for k, v in kinds.items()}}
        for n, language in enumerate(("en", "de", "unknown"), 1)
    ]
    token = {"token": repr("<script>|`*\n"), "bytes": 12, "uses": 3}
    out.write_json(
        "vocabulary.json",
        {
            "held_out": {"documents": 31, "bytes": 147_600},
            "vocab_size": 4096,
            "twin_size": 4096,
            "distinct": {"character": 214, "word": 8123},
            "bytes_per_token": rows,
            "sweep": [
                {"vocab_size": 1024 * 2**n, "bytes_per_token": 2.9 + 0.3 * n} for n in range(6)
            ],
            "tokens": {
                "counted": 1_300_000,
                "ordinary": 4092,
                "never_used": 17,
                "never_used_bytes": 13,
                "longest": [token] * 24,
                "unused": [{**token, "uses": 0}] * 17,
            },
        },
    )


WRITERS: dict[tuple[str, int], Write] = {}


def make_run(root: Path) -> list[Artifact]:
    """Publish the run and return its artifacts, not in order."""
    store = Store(str(root))
    everything: list[Artifact] = []

    def make(
        name: str,
        kind: str,
        output: type[Artifact],
        inputs: list[Artifact],
        write: Write,
        seed: int = 1,
    ) -> Artifact:
        WRITERS[name, seed] = write
        role = "checkpoint" if name == "evaluate" else "inputs"
        declared = fake_stage(name, kind, output, role)
        config = FakeConfig(seed=seed)
        made = build(declared, config, {role: inputs}, store=store, runtime=Runtime())
        everything.append(made)
        return made

    def narrow(
        name: str, before: Artifact, indices: list[int], shares: dict[str, float]
    ) -> tuple[Artifact, list[int]]:
        kept, removed = split(indices, shares)
        made = make(
            name, "exact", Documents, [before],
            partial(write_documents, kept=kept, removed=removed, name=name),
        )  # fmt: skip
        return made, kept

    pages = make("pages", "exact", Model, [], lambda out: out.write_json("files.json", []))
    docs, ids = narrow("extract", pages, list(range(1500)), {"not_html": 0.1, "empty_page": 0.06})
    make("quality_classifier", "exact", Model, [], write_classifier)
    docs, ids = narrow("signals", docs, ids, {})
    rules = {
        "too_few_words": 0.1,
        "wrong_language": 0.15,
        "low_quality": 0.04,
        "repeated_lines": 0.02,
    }
    docs, ids = narrow("select", docs, ids, rules)
    docs, ids = narrow("dedup", docs, ids, {"exact_duplicate": 0.05, "near_duplicate": 0.14})
    docs, ids = narrow("dedup_passages", docs, ids, {"few_words_left": 0.01})
    docs, ids = narrow("decontaminate", docs, ids, {"docs_cloze": 0.02, "blimp": 0.004})
    tokens = make("tokenizer", "exact", Tokenizer, [docs],
                  lambda out: out.write_json("meta.json", {"vocab_size": 4096}))  # fmt: skip
    shards = make(
        "shards", "exact", TokenShards, [docs, tokens],
        lambda out: out.write_json(
            "meta.json",
            {"vocab_size": 4096, "unigram_entropy_nats": 6.42,
             "tokens": {"train": 1_300_000, "validation": 41_000},
             "text_bytes": {"train": 4_680_000, "validation": 147_600}},
        ),
    )  # fmt: skip
    make("vocabulary", "exact", Measures, [docs, tokens, shards], write_vocabulary)
    base = make("pretrain", "statistical", Checkpoint, [shards, tokens], write_pretrain)
    sft = make("sft", "statistical", Checkpoint, [base], partial(write_aligned, kind="sft"))
    dpo = make("dpo", "statistical", Checkpoint, [sft], partial(write_aligned, kind="dpo"))
    grpo = make("grpo", "statistical", Checkpoint, [sft], partial(write_aligned, kind="grpo"))
    del dpo
    make("evaluate", "statistical", Scores, [base], partial(write_scores, base=0.61), 1)
    make("evaluate", "statistical", Scores, [grpo], partial(write_scores, base=0.59), 2)
    make("scale", "statistical", ScalingFit, [shards, tokens], write_scale)
    return everything[::-1]


__all__ = ["HOSTILE", "Source", "make_run"]
