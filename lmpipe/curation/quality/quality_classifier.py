"""quality_classifier: labelled examples → a fastText classifier of good and bad text.

H(V + K) parameters and no hidden layer: a bag of words and bigrams hashed into buckets, which is
what DCLM and GPT-3 filtered the web with. One thread, so that equal inputs give equal bytes
(fastText's threads race on shared weights); the price is a minute per 100 MB of examples.

Source: Joulin et al. 2016; Li et al. 2024 (DCLM), section 4.4.
"""

import gzip
import hashlib
from typing import Any

from lmpipe.artifacts.output import Output
from lmpipe.artifacts.stage import stage
from lmpipe.artifacts.types import Model, Source
from lmpipe.curation.quality.config import QualityClassifierConfig
from lmpipe.documents.text_files import json_lines, parse_json
from lmpipe.errors import InputError
from lmpipe.runtime import Runtime


@stage(version=2, kind="exact")
def quality_classifier(
    out: Output[Model], config: QualityClassifierConfig, examples: Source, *, runtime: Runtime
) -> Model:
    """Train a fastText model on JSONL examples of {"text", "label"}; report it on a held-out part.

    Raises:
        InputError: a bad line, or fewer than two labels.
    """
    import fasttext

    train, held_out = _split(_read_examples(examples, config), config)
    labels = sorted({label for label, _ in train})
    if config.positive_label not in labels or len(labels) < 2:
        raise InputError(
            f"source {examples.name!r} has the training labels {labels}; "
            f"{config.positive_label!r} and at least one other are needed"
        )
    with out.scratch(runtime) as folder:
        lines = folder / "train.txt"
        labelled = "".join(f"__label__{label} {text}\n" for label, text in train)
        lines.write_text(labelled, encoding="utf-8")
        model = fasttext.train_supervised(
            str(lines),
            dim=config.dimensions,
            bucket=config.buckets,
            wordNgrams=config.word_ngrams,
            minCount=config.min_count,
            epoch=config.epochs,
            lr=config.learning_rate,
            seed=config.seed,
            thread=1,
            verbose=0,
        )
        model.save_model(str(folder / "model.bin"))
        out.put_file("model.bin", folder / "model.bin")
    out.write_json("meta.json", {"positive_label": config.positive_label, "labels": labels})
    out.metric("examples", len(train))
    scored = _scored(model, held_out, config.positive_label)
    out.write_json(
        "held_out.json",
        {"scores": [score for score, _ in scored], "positive": [truth for _, truth in scored]},
    )
    out.metric("held_out", held_out_report(scored))
    return out.commit()


def classifier_text(text: str) -> str:
    """Return a text as the classifier reads it, in training and in scoring alike."""
    from lmpipe.curation.text.words import split_words

    return " ".join(split_words(text.lower()))


def positive_score(model: Any, text: str, positive_label: str) -> float:
    """Return the probability of the positive label."""
    labels, scores = model.predict(classifier_text(text), k=-1)
    for label, score in zip(labels, scores, strict=True):
        if label == f"__label__{positive_label}":
            return min(1.0, float(score))
    return 0.0


def _read_examples(examples: Source, config: QualityClassifierConfig) -> list[tuple[str, str]]:
    rows = []
    for name in examples.names():
        data = examples.local(name).read_bytes()
        if name.endswith(".gz"):
            data = gzip.decompress(data)
        for number, line in json_lines(data):
            try:
                row = parse_json(line)
                label, text = str(row[config.label_field]), str(row["text"])
            except (ValueError, KeyError, TypeError) as error:
                fields = f'{{"text", "{config.label_field}"}}'
                raise InputError(
                    f"{name} line {number} is no {fields} object: {error!r}"
                ) from error
            label = config.rename_labels.get(label, label)
            rows.append((label.replace(" ", "_"), classifier_text(text)))
    return rows


def _split(
    rows: list[tuple[str, str]], config: QualityClassifierConfig
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Split by a hash of the text: an example stays on its side when others are added."""
    train: list[tuple[str, str]] = []
    held_out: list[tuple[str, str]] = []
    for row in rows:
        draw = int.from_bytes(hashlib.blake2b(row[1].encode(), digest_size=8).digest(), "big")
        (held_out if draw < config.held_out_fraction * 2**64 else train).append(row)
    return train, held_out


def _scored(model: Any, rows: list[tuple[str, str]], positive: str) -> list[tuple[float, bool]]:
    """Return each held-out example's score and whether it is positive.

    They are kept beside the model: a report can then say precision and recall at whatever threshold
    a selection takes, and how far a score of 0.8 means eight in ten.
    """
    return [
        (round(positive_score(model, text, positive), 6), label == positive) for label, text in rows
    ]


def held_out_report(scored: list[tuple[float, bool]]) -> dict[str, Any]:
    """Return precision, recall, macro-F1 and accuracy at 0.5, Brier score and calibration.

    `calibration` has a row per tenth of the score: examples, mean score, share of positives;
    `calibration_error` is their mean distance, weighted by examples.
    """
    count = max(1, len(scored))
    chosen = [truth for score, truth in scored if score >= 0.5]
    passed = [truth for score, truth in scored if score < 0.5]
    hits, misses = sum(chosen), sum(passed)
    bins = []
    for tenth in range(10):
        inside = [pair for pair in scored if min(9, int(pair[0] * 10)) == tenth]
        if inside:
            mean = sum(score for score, _ in inside) / len(inside)
            share = sum(truth for _, truth in inside) / len(inside)
            bins.append({"examples": len(inside), "mean_score": mean, "positive_fraction": share})
    return {
        "examples": len(scored),
        "positives": hits + misses,
        "precision": hits / max(1, len(chosen)),
        "recall": hits / max(1, hits + misses),
        "accuracy": (hits + len(passed) - misses) / count,
        "macro_f1": (
            _f1(hits, len(chosen), hits + misses)
            + _f1(len(passed) - misses, len(passed), len(scored) - hits - misses)
        )
        / 2,
        "brier": sum((score - truth) ** 2 for score, truth in scored) / count,
        "calibration_error": sum(
            b["examples"] * abs(b["mean_score"] - b["positive_fraction"]) for b in bins
        )
        / count,
        "calibration": bins,
    }


def _f1(hits: int, chosen: int, truths: int) -> float:
    return 2 * hits / max(1, chosen + truths)
