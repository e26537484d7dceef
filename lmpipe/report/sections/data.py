"""From web records to tokens: the funnel, what each filter removed, and what was left."""

from __future__ import annotations

import math
from typing import Any

from lmpipe.artifacts.types import Artifact, Documents
from lmpipe.report.blocks import (
    Cell,
    Charts,
    Funnel,
    FunnelStep,
    Sample,
    Samples,
    Section,
    Table,
    Tile,
    Tiles,
)
from lmpipe.report.read import DocumentStep, Row, Run, optional_json, read_values
from lmpipe.report.svg import Chart, Line, line_chart, number
from lmpipe.report.wording import count, excerpt, percent

MAX_REASONS = 12
MAX_LANGUAGES = 8
MAX_HOSTS = 12
NUM_BINS = 24
SCORES = {
    "quality_score": "Quality score",
    "kenlm_perplexity": "Perplexity",
    "language_score": "Language probability",
    "toxicity": "Toxicity",
    "nsfw": "NSFW score",
}
SKIPPED = "skipped: "  # how `extract` counts a record that is no page


def funnel(run: Run) -> Section:
    """Draw every documents stage: what entered, what stayed, and each removal reason."""
    section = Section(
        "data",
        "From web records to tokens",
        "Each bar is what a stage kept; the hatched end is what it removed, by the first rule that"
        " a record broke. Kept and removed add up to what entered, at every stage.",
    )
    steps = [*_records(run), *(_funnel_step(step) for step in run.documents)]
    if steps:
        section.add(Funnel(steps))
    section.add(_tokens(run), _languages(run), _hosts(run), _buckets(run), _scores(run))
    section.add(_bands(run), _compression(run))
    return section


def _records(run: Run) -> list[FunnelStep]:
    """What the WARC files held: pages, and records of other kinds that were passed over."""
    steps = []
    for artifact in run.of("extract"):
        kinds = artifact.metrics.get("records") or {}
        skipped = [(k.removeprefix(SKIPPED), n) for k, n in kinds.items() if k.startswith(SKIPPED)]
        skipped.sort(key=lambda item: (-item[1], item[0]))
        total = sum(kinds.values())
        if skipped:
            pages = total - sum(amount for _, amount in skipped)
            steps.append(FunnelStep("WARC records", total, pages, shortened(skipped), "pages"))
    return steps


def num_records(run: Run) -> int:
    """Records in the sources: of the WARC files where their kinds were counted."""
    counted = [step.entered for step in _records(run)]
    return sum(counted) or (run.documents[0].entered if run.documents else 0)


def _funnel_step(step: DocumentStep) -> FunnelStep:
    return FunnelStep(step.artifact.stage, step.entered, step.kept, shortened(step.reasons))


def shortened(reasons: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Keep the commonest reasons and add the others up."""
    rest = reasons[MAX_REASONS:]
    if len(rest) < 2:
        return reasons
    return [*reasons[:MAX_REASONS], (f"{len(rest)} others", sum(amount for _, amount in rest))]


def _tokens(run: Run) -> Tiles | None:
    shards, tokenizer = run.one("shards"), run.one("tokenizer")
    meta = optional_json(shards, "meta.json") or {}
    vocabulary = (optional_json(tokenizer, "meta.json") or meta).get("vocab_size")
    tokens, num_bytes = split_sizes(meta, "tokens"), split_sizes(meta, "text_bytes")
    tiles = [Tile("Vocabulary", count(vocabulary), "byte-level BPE")] if vocabulary else []
    for split, amount in tokens.items():
        text_bytes = num_bytes.get(split)
        ratio = f"{text_bytes / amount:.2f} bytes per token" if text_bytes and amount else ""
        tiles.append(Tile(f"{split.capitalize()} tokens", count(amount), ratio))
    entropy = meta.get("unigram_entropy_nats")
    if entropy:
        tiles.append(
            Tile("Unigram entropy", f"{entropy:.3f}", "nats a token: what counting alone reaches")
        )
    return Tiles(tiles) if tiles else None


def split_sizes(meta: dict[str, Any], what: str) -> dict[str, int]:
    """Read {split: amount} from a shards meta."""
    return {split: int(value) for split, value in (meta.get(what) or {}).items()}


def _languages(run: Run) -> Table | None:
    """Compare languages where they were found with what is left at the end."""
    tagged = [(step, step.column_counts("language")) for step in run.documents]
    tagged = [(step, counts) for step, counts in tagged if counts]
    if not tagged:
        return None
    (first, before), (_, after) = tagged[0], tagged[-1]
    total = sum(before.values())
    rows: list[list[Cell | str]] = [
        [language, Cell(f"{number:,}", number / total), f"{after[language]:,}",
         percent(after[language] / number)]
        for language, number in before.most_common(MAX_LANGUAGES)
    ]  # fmt: skip
    return Table(
        ["language", f"after {first.artifact.stage}", "in training text", "kept"],
        rows,
        numeric=(2, 3),
        caption="Languages",
    )


def _hosts(run: Run) -> Table | None:
    """Compare hosts where documents were found with what is left at the end."""
    counted = [(step, step.column_counts("host")) for step in run.documents]
    counted = [(step, counts) for step, counts in counted if counts]
    if not counted:
        return None
    (first, before), (_, after) = counted[0], counted[-1]
    total = sum(before.values())
    rows: list[list[Cell | str]] = [
        [host, Cell(f"{amount:,}", amount / total), f"{after[host]:,}",
         percent(after[host] / amount)]
        for host, amount in before.most_common(MAX_HOSTS)
    ]  # fmt: skip
    more = len(before) - MAX_HOSTS
    return Table(
        ["host", f"after {first.artifact.stage}", "in training text", "kept"],
        rows,
        numeric=(2, 3),
        caption="Hosts" + (f" (the largest of {len(before):,})" if more > 0 else ""),
    )


def _buckets(run: Run) -> Table | None:
    """Say how perplexity splits each language, where it is cut, and what is left of each part."""
    metrics = getattr(run.one("select"), "metrics", {})
    counted = metrics.get("perplexity_buckets") or {}
    cutoffs = metrics.get("perplexity_cutoffs") or {}
    rows: list[list[Cell | str]] = []
    for language, parts in list(counted.items())[:MAX_LANGUAGES]:
        total = sum(part["entered"] for part in parts.values())
        head, tail = (number(cut) for cut in cutoffs.get(language) or (math.nan, math.nan))
        ranges = {"head": f"< {head}", "middle": f"{head} – {tail}", "tail": f"≥ {tail}"}
        for label, part in parts.items():
            rows.append(
                [language, label, ranges.get(label, "no model"),
                 Cell(f"{part['entered']:,}", part["entered"] / total), f"{part['kept']:,}"]
            )  # fmt: skip
    if not rows:
        return None
    more = len(counted) - MAX_LANGUAGES
    return Table(
        ["language", "part", "perplexity", "documents", "kept by select"],
        rows,
        numeric=(2, 4),
        caption="Head, middle and tail of each language by perplexity"
        + (f" (the largest of {len(counted)})" if more > 0 else ""),
    )


def _bands(run: Run) -> Table | None:
    """Say how many documents lie in each band of several scores, and which bands are kept."""
    select = run.one("select")
    counted = (select.metrics.get("ensemble_bands") if select else None) or {}
    if not select or not counted:
        return None
    lowest = select.manifest.config["ensemble"]["min_band"]
    most = max(counted.values())
    rows: list[list[Cell | str]] = [
        [band, Cell(f"{amount:,}", amount / most), "yes" if int(band) >= lowest else "no"]
        for band, amount in sorted(counted.items(), key=lambda item: -int(item[0]))
    ]
    scores = ", ".join(sorted(select.manifest.config["ensemble"]["columns"]))
    return Table(["band", "documents", "kept"], rows, caption=f"Bands of {scores}, the best first")


def _scores(run: Run) -> Charts | None:
    """Draw how the scores are spread, before select and after it."""
    before, after = run.one("signals"), run.one("select")
    if before is None:
        return None
    charts = [_histogram(before, after, column, title) for column, title in SCORES.items()]
    drawn = [chart for chart in charts if chart is not None]
    return Charts(drawn) if drawn else None


def _histogram(before: Artifact, after: Artifact | None, column: str, title: str) -> Chart | None:
    read = [read_values(artifact, column) for artifact in (before, after) if artifact is not None]
    found = [values for values, _ in read]
    if not found[0]:
        return None
    log = column == "kenlm_perplexity"
    low, high = min(found[0]), max(found[0])
    if high <= low or (log and low <= 0):
        return None
    at = math.log if log else float
    edge, width = at(low), (at(high) - at(low)) / NUM_BINS
    lines = []
    for number_, (name, values) in enumerate(
        zip(("before select", "after select"), found, strict=False), 1
    ):
        counts = [0] * NUM_BINS
        for value in values:
            counts[max(0, min(NUM_BINS - 1, int((at(value) - edge) / width)))] += 1
        middles = [edge + (n + 0.5) * width for n in range(NUM_BINS)]
        lines.append(
            Line(name, [math.exp(m) for m in middles] if log else middles, counts, number_)
        )
    label = "documents" if read[0][1] else f"documents of {len(found[0]):,}"
    return line_chart(
        title, lines, x_label=column.replace("_", " "), y_label=label, log="x" if log else ""
    )


def margins(run: Run) -> Section:
    """Quote the documents nearest to each threshold, on either side."""
    section = Section(
        "margins",
        "At the thresholds",
        "Just kept and just removed: the documents nearest to a threshold. Just removed are those"
        " that this one alone removed. Thresholds that remove nothing by themselves are left out.",
    )
    found: dict[str, list[Row]] = optional_json(run.one("select"), "margins.json") or {}
    rules = [key.removeprefix("removed ") for key in found if key.startswith("removed ")]
    for rule in rules:
        samples = [
            _margin_sample(row, side)
            for side in ("removed", "kept")
            for row in found.get(f"{side} {rule}", [])
        ]
        section.add(Samples(f"{rule}: just removed, then just kept", samples))
    return section


def _margin_sample(row: Row, side: str) -> Sample:
    facts = f"just {side}: value {number(row['score'])}, threshold {number(row['bound'])}"
    tone = "bad" if side == "removed" else "good"
    heading = str(row.get("url") or row["id"])
    return Sample(heading, excerpt(row["text"]), f"{facts}, id {row['id']}", tone)


def _compression(run: Run) -> Table | None:
    """Bytes per token by language: what the tokenizer is good at."""
    if run.one("vocabulary") is not None:
        return None  # there it is measured on text that the tokenizer has not seen
    tokenizer = run.one("tokenizer")
    ratios = (tokenizer.metrics.get("bytes_per_token") if tokenizer else None) or {}
    if not isinstance(ratios, dict) or not ratios:
        return None
    best = max(ratios.values())
    rows: list[list[Cell | str]] = [
        [language, Cell(f"{ratio:.2f}", ratio / best)]
        for language, ratio in list(ratios.items())[:MAX_LANGUAGES]
    ]
    return Table(["language", "bytes per token"], rows, caption="Tokenizer compression")


def removed(run: Run, per_reason: int) -> Section:
    """Quote documents that each rule removed."""
    section = Section(
        "removed",
        "What was removed",
        "The same few documents of each reason at every reading (lowest ids first). Texts come"
        " from the stage's input; before extraction there is none, so only the address is shown.",
    )
    for step in run.documents:
        by_reason = step.removed_samples(per_reason)
        texts = _texts(run, step, {row["id"] for rows in by_reason.values() for row in rows})
        counts = dict(step.reasons)
        for reason, rows in by_reason.items():
            title = f"{step.artifact.stage}: {reason} ({counts[reason]:,} removed)"
            samples = [_removed_sample(row, texts.get(row["id"], "")) for row in rows]
            section.add(Samples(title, samples))
    return section


def _texts(run: Run, step: DocumentStep, ids: set[str]) -> dict[str, str]:
    if not ids:
        return {}
    found: dict[str, str] = {}
    for artifact in run.inputs(step.artifact):
        before = run.step_of(artifact) if isinstance(artifact, Documents) else None
        if before is not None:
            found |= before.texts(ids)
    return found


def _removed_sample(row: Row, text: str) -> Sample:
    facts = []
    if row.get("score") is not None:
        facts.append(f"value {number(row['score'])}")
    if row.get("threshold") is not None:
        facts.append(f"limit {number(row['threshold'])}")
    if row.get("similarity") is not None:
        facts.append(f"similarity {row['similarity']:.2f}")
    if row.get("keeper"):
        facts.append(f"kept instead: {row['keeper']}")
    facts.append(f"id {row['id']}")
    return Sample(str(row.get("url") or row["id"]), excerpt(text), ", ".join(facts), "bad")


def kept(run: Run, num_samples: int) -> Section:
    """Quote documents that reached training."""
    section = Section("kept", "What was kept", "Documents spread evenly over the first shard.")
    if run.documents and num_samples:
        rows = run.documents[-1].kept_samples(num_samples)
        samples = [
            Sample(
                str(row.get("url") or row["id"]), excerpt(row["text"] or ""), _facts(row), "good"
            )
            for row in rows
        ]
        if samples:
            section.add(Samples("Documents that went into the training text", samples))
    return section


def _facts(row: Row) -> str:
    facts = []
    if row.get("language"):
        score = row.get("language_score")
        facts.append(row["language"] + (f" ({score:.2f})" if score is not None else ""))
    if row.get("quality_score") is not None:
        facts.append(f"quality {row['quality_score']:.2f}")
    facts.append(f"id {row['id']}")
    return ", ".join(facts)
