"""A duplicate beside its keeper, and passages that were cut: the evidence, for people."""

import difflib
from typing import Any

from rich.console import Console

from lmpipe.artifacts.lookup import read_manifest
from lmpipe.artifacts.tombstone import when_collected
from lmpipe.artifacts.types import Documents
from lmpipe.documents.read import find_removed, find_rows

MAX_DIFF_LINES = 60
MAX_CUTS = 20
LINE_WORDS = 16


def print_comparison(console: Console, artifact: Documents, document: str, keeper: str) -> None:
    """Print the evidence of a duplicate's removal, and what it says that its keeper does not."""
    evidence = _evidence_of(artifact, document)
    for key in ("containment", "keeper_containment", "novel_words", "num_words"):
        if evidence.get(key) is not None:
            console.print(f"  {key}: {evidence[key]}", markup=False, highlight=False)
    bodies = [
        Documents(artifact.store, found[0])
        for entry in artifact.manifest.inputs
        if (found := read_manifest(artifact.store, entry.stage, entry.id))
        and not when_collected(artifact.store, found[0])
    ]
    texts = [_text_of(bodies, id_) for id_ in (keeper, document)]
    if None in texts:
        console.print("  the texts are gone: gc has collected what dedup read")
        return
    old, new = (_lines(text or "") for text in texts)
    names = f"keeper {keeper}", f"removed {document}"
    diff = list(difflib.unified_diff(old, new, *names, n=0, lineterm=""))
    if not diff:
        console.print("  its words are those of its keeper")
    for line in diff[:MAX_DIFF_LINES]:
        console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)
    if len(diff) > MAX_DIFF_LINES:
        console.print(f"  … {len(diff) - MAX_DIFF_LINES} more lines")


def _evidence_of(artifact: Documents, document: str) -> dict[str, Any]:
    """Return what dedup measured before it removed a document; empty where it verified nothing."""
    for name in artifact.names("evidence/"):
        with artifact.open(name) as file:
            row = next(find_rows(file, "id", [document]), None)
        if row is not None:
            return row
    return {}


def print_cuts(console: Console, artifact: Documents, document: str) -> bool:
    """Print which passages of a document went, and whose they are; say whether there were any."""
    from lmpipe.curation.passages.cutting import find_cuts

    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    cuts = find_cuts(artifact, document)
    if cuts and cuts[0]["action"] == "cut":
        words = sum(cut["num_words"] for cut in cuts)
        say(f"{artifact.stage}/{artifact.id[:12]} kept it and cut {words} words")
    unit = artifact.manifest.config.get("unit", "segment").removesuffix("s")
    for cut in cuts[:MAX_CUTS]:
        last = cut["segment"] + cut["num_segments"] - 1
        which = f"{unit} {cut['segment']}" + (f" to {last}" if last > cut["segment"] else "")
        whose = (
            f"stands in {cut['keeper']}, {unit} {cut['keeper_segment']}, {cut['copies']} copies"
            if cut["keeper"]
            else "was seen before; a Bloom filter does not know where"
        )
        where = f"bytes {cut['start']}:{cut['end']}, {cut['num_words']} words"
        say(f"  {which} ({where}) {whose}: {' '.join(cut['text'].split())[:160]}")
        if cut["keeper"] and _is_removed(artifact, cut["keeper"]):
            say("    which was removed as well: this text is in no document any more")
    if len(cuts) > MAX_CUTS:
        say(f"  … {len(cuts) - MAX_CUTS} more passages")
    return bool(cuts)


def _is_removed(artifact: Documents, document: str) -> bool:
    return find_removed(artifact, document) is not None


def _text_of(bodies: list[Documents], document: str) -> str | None:
    for body in bodies:
        for name in body.names("kept/"):
            with body.open(name) as file:
                row = next(find_rows(file, "id", [document], ["text"]), None)
            if row is not None:
                return str(row["text"])
    return None


def _lines(text: str) -> list[str]:
    """Return a text's own lines, the long ones cut at every few words so that a diff is short."""
    lines = []
    for line in text.splitlines():
        words = line.split()
        lines += [" ".join(words[a : a + LINE_WORDS]) for a in range(0, len(words), LINE_WORDS)]
    return lines
