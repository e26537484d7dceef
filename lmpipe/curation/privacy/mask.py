"""mask: documents → the same documents with personal data replaced by its type, such as [EMAIL].

It stands after the selection, where least text is left, and before the tokenizer, so that neither
vocabulary nor model sees what was masked. Nothing is removed: the ledger is empty, and the counts
by type are in the metrics.
"""

from collections import Counter
from functools import partial

import pyarrow as pa

from lmpipe.artifacts.output import Output
from lmpipe.artifacts.stage import stage
from lmpipe.artifacts.types import Documents
from lmpipe.curation.privacy.config import MaskConfig, PersonalType
from lmpipe.curation.privacy.pii import find
from lmpipe.curation.privacy.pii import mask as mask_text
from lmpipe.documents.stage import StoredPart, map_documents
from lmpipe.runtime import Runtime


@stage(version=2, kind="exact")
def mask(
    out: Output[Documents], config: MaskConfig, documents: Documents, *, runtime: Runtime
) -> Documents:
    """Replace e-mail, phone, public IP, card, IBAN and SSN by their types."""
    mapped = map_documents(out, documents, partial(_mask, types=config.types), runtime)
    out.metric("documents_masked", mapped.total("touched"))
    out.metric("masked", dict(sorted(mapped.counter("masked").items())))
    return mapped.finish()


def _mask(part: StoredPart, *, types: tuple[PersonalType, ...]) -> None:
    masked: Counter[str] = Counter()
    for batch in part.batches():
        texts = []
        for text in batch.column("text").to_pylist():
            spans = [span for span in find(text) if span.type in types]
            masked.update(span.type for span in spans)
            part.counts["touched"] += bool(spans)
            texts.append(mask_text(text, spans))
        at = batch.schema.get_field_index("text")
        field = batch.schema.field(at)
        part.settle(batch, batch.set_column(at, field, pa.array(texts, field.type)))
    part.info["masked"] = dict(masked)
