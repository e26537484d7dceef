"""The control of decontamination: what is hidden must be found, what is innocent must not flag.

It runs inside the stage, with the stage's own index and settings, on real documents of the input:

- positives: items pasted into a document, once verbatim and once in capitals with other
  punctuation. Each must be flagged, by that item;
- negatives: the same documents with items too short to be looked for, or with the n-grams that
  many items share (the benchmark's template). None may be flagged.

Documents that hold an indexed n-gram by themselves host nothing: whether they are contaminated is
the very question. Their absence would flatter precision only if hosts were counted, and a bare
host is not. The alternative, invented filler text, has no boilerplate and quotes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from lmpipe.artifacts.types import Documents
from lmpipe.curation.decontamination.look_alikes import hash_look_alikes
from lmpipe.curation.decontamination.matching import flag_documents, scan_texts
from lmpipe.curation.decontamination.ngram_index import NgramIndex, Part
from lmpipe.documents.read import read_documents

if TYPE_CHECKING:
    from lmpipe.curation.decontamination.config import DecontaminateConfig

MAX_PLANTED = 64  # items; each is planted twice
MAX_NEGATIVES = 64
MAX_HOSTS = 64
HOST_CHARACTERS = 2000
FILLER = "the weather in the harbour stayed as grey as anyone there could remember"


@dataclass(frozen=True)
class Control:
    """What the control hid, and what came of it.

    Attributes:
        planted: texts with a whole item.
        lost: items of those that were not found.
        negatives: texts with a short item or a template.
        false: items that flagged one of those.
    """

    planted: int
    lost: list[str]
    negatives: int = 0
    false: list[str] = field(default_factory=list)

    def figures(self) -> dict[str, float]:
        """Return counts, precision and recall for the manifest."""
        found = self.planted - len(self.lost)
        return {
            "planted": self.planted,
            "found": found,
            "negatives": self.negatives,
            "flagged_negatives": len(self.false),
            "recall": found / max(1, self.planted),
            "precision": found / max(1, found + len(self.false)),
        }


def real_texts(documents: Documents) -> list[str]:
    """Return the beginnings of the first documents."""
    texts: list[str] = []
    for batch in read_documents(documents, ["text"], batch_rows=MAX_HOSTS):
        texts += [text[:HOST_CHARACTERS] for text in batch.column("text").to_pylist()]
        if len(texts) >= MAX_HOSTS:
            break
    return texts[:MAX_HOSTS]


def run_control(index: NgramIndex, config: "DecontaminateConfig", texts: Sequence[str]) -> Control:
    """Plant items and innocents in texts, search them, and compare.

    Items that hold n-grams of their benchmark's template are not planted: they flag less by design.
    """
    hosts = _innocent(index, texts) or [FILLER]
    chosen = _spread(_distinct_parts(index, config), MAX_PLANTED)
    few = [n for n, part in enumerate(index.parts) if 0 < part.num_words < config.min_item_words]
    short = _spread(few, MAX_NEGATIVES)
    planted = [form for number in chosen for form in _forms(_text_of(index.parts[number]))]
    innocent = [_text_of(index.parts[number]) for number in short] + _templates(index, config)
    flagged = _flagged_items(index, config, [*_hide(planted, hosts), *_hide(innocent, hosts)])
    owners = [index.parts[number].item.name for number in chosen for _ in range(2)]
    return Control(
        planted=len(planted),
        lost=[owner for place, owner in enumerate(owners) if owner not in flagged[place]],
        negatives=len(innocent),
        false=[min(items) for items in flagged[len(planted) :] if items],
    )


def _innocent(index: NgramIndex, texts: Sequence[str]) -> list[str]:
    hits = index.scan(hash_look_alikes(texts))
    own = set(hits.texts.tolist())
    return [text for number, text in enumerate(texts) if number not in own and text.strip()]


def _distinct_parts(index: NgramIndex, config: "DecontaminateConfig") -> list[int]:
    template = index.num_owning_items > config.template_items
    return [
        number
        for number, part in enumerate(index.parts)
        if part.is_checked and not template[index.grams_of(number)].any()
    ]


def _spread(numbers: list[int], count: int) -> list[int]:
    return numbers[:: max(1, len(numbers) // count)][:count]


def _text_of(part: Part) -> str:
    return dict(part.item.contaminating)[part.label]


def _forms(text: str) -> list[str]:
    return [text, f"«{' , '.join(text.split()).swapcase()}»!"]


def _templates(index: NgramIndex, config: "DecontaminateConfig") -> list[str]:
    """Return the words of n-grams that more items share than `template_items`."""
    found: list[str] = []
    grams = np.flatnonzero(index.num_owning_items > config.template_items)
    for gram in grams[:: max(1, len(grams) // MAX_NEGATIVES)][:MAX_NEGATIVES].tolist():
        text = _text_of(index.parts[int(index.owners_of(gram)[0])])
        hits = index.scan(hash_look_alikes([text]))
        at = int(np.flatnonzero(hits.grams == gram)[0])
        found.append(text.encode()[hits.starts[at] : hits.ends[at]].decode())
    return found


def _hide(texts: list[str], hosts: list[str]) -> list[str]:
    """Put each text between the halves of a host, at a blank."""
    hidden = []
    for number, text in enumerate(texts):
        host = hosts[number % len(hosts)]
        middle = host.find(" ", len(host) // 2)
        middle = len(host) if middle < 0 else middle
        hidden.append(f"{host[:middle]}. {text} {host[middle:]}")
    return hidden


def _flagged_items(
    index: NgramIndex, config: "DecontaminateConfig", texts: list[str]
) -> list[set[str]]:
    """Return the items that flag each text, each searched as if it were the only document."""
    alone = config.model_copy(update={"boilerplate_documents": 0})
    flags, _ = flag_documents(scan_texts(index, texts, 0), index, alone)
    items: list[set[str]] = [set() for _ in texts]
    for flag in flags:
        items[flag.document].add(index.parts[flag.part].item.name)
    return items
