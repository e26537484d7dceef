"""What the tokenizer is worth on text it has not seen, and what a larger one would cost."""

from __future__ import annotations

from typing import Any

from lmpipe.report.blocks import Cell, Charts, Section, Table, Text, Tile, Tiles
from lmpipe.report.read import Run, optional_json
from lmpipe.report.sections.data import split_sizes
from lmpipe.report.svg import Line, line_chart, number
from lmpipe.report.wording import count, percent

MAX_LANGUAGES = 12
ORDER = ("BPE", "GPT-2", "word", "character", "byte")


def section(run: Run) -> Section:
    """Compare the tokenizer with others, and with other sizes of itself."""
    result = Section(
        "tokenizer",
        "Tokenizer",
        "Bytes of text per token, on documents held out: neither the tokenizers compared here nor"
        " the model have learnt from them. More bytes a token is less compute for the same text; a"
        " larger vocabulary buys it with rows of the embedding.",
    )
    found: dict[str, Any] | None = optional_json(run.one("vocabulary"), "vocabulary.json")
    if not found:
        return result
    result.add(_tiles(found), _languages(found), _chart(found), _sizes(run, found))
    result.add(_tokens("Longest tokens", found["tokens"]["longest"], uses=True))
    unused = found["tokens"]["unused"]
    result.add(_tokens("Never used in the training text", unused, uses=False))
    return result


def _tiles(found: dict[str, Any]) -> Tiles:
    tokens, held_out = found["tokens"], found["held_out"]
    note = f"of {count(tokens['ordinary'] - 256)} merges, in {count(tokens['counted'])} tokens"
    single = "of 256; text in UTF-8 lacks some"
    return Tiles(
        [
            Tile("Held-out text", f"{number(held_out['bytes'])}B",
                 f"{count(held_out['documents'])} documents"),
            Tile("Never-used tokens", count(tokens["never_used"]), note),
            Tile("Never-used bytes", count(tokens["never_used_bytes"]), single),
        ]
    )  # fmt: skip


def _languages(found: dict[str, Any]) -> Table | None:
    rows = found["bytes_per_token"]
    if not rows:
        return None
    names = [name for name in ORDER if name in rows[0]]
    best = max(row[name] for row in rows for name in names)
    sizes = {
        "BPE": count(found["twin_size"]),
        "byte": "256",
        "GPT-2": "50,257",
        **{name: f"{count(size)} seen" for name, size in found["distinct"].items()},
    }
    columns = ["language", "bytes", *(f"{name} ({sizes[name]})" for name in names)]
    cells: list[list[Cell | str]] = [
        [row["language"], f"{row['bytes']:,}",
         *(Cell(f"{row[name]:.2f}", row[name] / best) for name in names)]
        for row in rows[:MAX_LANGUAGES]
    ]  # fmt: skip
    return Table(columns, cells, (1,), caption="Bytes per token by language (vocabulary)")


def _chart(found: dict[str, Any]) -> Charts | None:
    sweep = found["sweep"]
    line = Line(
        "BPE",
        [row["vocab_size"] for row in sweep],
        [row["bytes_per_token"] for row in sweep],
        dots=True,
    )
    drawn = line_chart(
        "Bytes per token over the vocabulary", [line], x_label="vocabulary", y_label="bytes",
        log="x",
    )  # fmt: skip
    return Charts([drawn]) if drawn and len(sweep) > 1 else None


def _sizes(run: Run, found: dict[str, Any]) -> Table | None:
    """One row a size: what it saves in tokens and costs in parameters."""
    base = run.one("pretrain")
    model = (base.manifest.config.get("model") if base else None) or {}
    width, tied = model.get("d_model", 0), model.get("tied_embeddings", True)
    copies = 1 if tied else 2
    others = _other_parameters(run, width * copies * found["vocab_size"])
    meta = optional_json(run.one("shards"), "meta.json") or {}
    text_bytes = split_sizes(meta, "text_bytes").get("train", 0)
    columns = ["vocabulary", "bytes per token"]
    columns += ["training tokens"] if text_bytes else []
    columns += [f"V·d parameters, d={width}", "of the model"] if width else []
    rows: list[list[Cell | str]] = []
    for row in found["sweep"]:
        size, ratio = row["vocab_size"], row["bytes_per_token"]
        cells: list[Cell | str] = [f"{size:,}", f"{ratio:.2f}"]
        cells += [count(int(text_bytes / ratio))] if text_bytes else []
        if width:
            table = size * width * copies
            cells += [number(table), percent(table / (table + others)) if others else "–"]
        rows.append(cells)
    caption = "Sizes, each a prefix of the largest"
    if width and not tied:
        caption += "; V·d counted twice, for input and output"
    return Table(columns, rows, tuple(range(len(columns))), caption=caption) if rows else None


def _other_parameters(run: Run, table: int) -> int:
    """Return the model's parameters without its embedding, or 0 where that is not known."""
    meta: dict[str, Any] = optional_json(run.one("pretrain"), "meta.json") or {}
    return max(0, int(meta.get("parameters") or 0) - table)


def _tokens(caption: str, tokens: list[dict[str, Any]], *, uses: bool) -> Table | Text | None:
    if not tokens:
        return None
    columns = ["token", "bytes", *(["uses"] if uses else [])]
    rows: list[list[Cell | str]] = [
        [Cell(row["token"], code=True), str(row["bytes"]), *([f"{row['uses']:,}"] if uses else [])]
        for row in tokens
    ]
    return Table(columns, rows, tuple(range(1, len(columns))), caption=caption)
