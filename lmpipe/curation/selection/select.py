"""select: keep the documents whose signals are within the recipe's thresholds.

Only columns are read to decide, so another threshold costs seconds. A document that breaks several
rules is removed once: under the first rule in the order language, rules, quality, perplexity, with
all of them listed beside it.
"""

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from lmpipe.artifacts.output import Output
from lmpipe.artifacts.stage import stage
from lmpipe.artifacts.types import Documents
from lmpipe.curation.selection.config import SelectConfig
from lmpipe.curation.selection.language_terms import in_models_terms
from lmpipe.curation.selection.perplexity_buckets import COLUMN as BUCKET
from lmpipe.documents.schema import DOCUMENT_SCHEMA
from lmpipe.documents.stage import MappedDocuments, StoredPart, map_documents
from lmpipe.runtime import Runtime

if TYPE_CHECKING:
    from lmpipe.curation.selection.thresholds import CountedThresholds, Verdicts


MARGIN_SAMPLES = 2  # documents on either side of each threshold


@stage(version=4, kind="exact")
def select(
    out: Output[Documents], config: SelectConfig, documents: Documents, *, runtime: Runtime
) -> Documents:
    """Keep documents within all thresholds; every other one goes to the ledger with its reasons.

    Raises:
        InputError: nothing is kept, or a threshold has no signal to look at.
        ConfigError: a language that the documents' language model never says.
    """
    from lmpipe.curation.selection.near_threshold import nearest_of
    from lmpipe.curation.selection.perplexity_buckets import joined
    from lmpipe.curation.selection.thresholds import count_thresholds

    config = in_models_terms(config, documents)
    counted = count_thresholds(documents, config)
    work = partial(_select, config=config, counted=counted)
    mapped = map_documents(out, documents, work, runtime)
    _report(out, mapped)
    mapped.require_kept(_nothing_kept(mapped))
    records = mapped.records
    margins = nearest_of((record.info["margins"] for record in records), MARGIN_SAMPLES)
    out.write_json("margins.json", margins)
    out.metric("perplexity_limits", counted.perplexity)
    out.metric("min_top_quality", counted.quality)
    out.metric("ensemble_edges", counted.edges)
    if config.ensemble is not None:
        bands = mapped.counter("bands")
        out.metric("ensemble_bands", {band: bands[band] for band in sorted(bands, key=int)})
    if config.perplexity_buckets is not None:
        out.metric("perplexity_cutoffs", {name: [*pair] for name, pair in counted.buckets.items()})
        out.metric("perplexity_buckets", joined(record.info["buckets"] for record in records))
    return mapped.finish()


def _select(part: StoredPart, *, config: SelectConfig, counted: "CountedThresholds") -> None:
    """Decide on one part; text is copied as it is."""
    from lmpipe.curation.selection.near_threshold import Margins
    from lmpipe.curation.selection.perplexity_buckets import BucketCounts
    from lmpipe.curation.selection.thresholds import BAND, judge_all, ledger_rows

    margins = Margins(MARGIN_SAMPLES)
    buckets, bands, broken = BucketCounts(), Counter[int](), Counter[str]()
    for batch in part.batches():
        verdicts = judge_all(batch, config, counted)
        keep = verdicts.keep
        removed = ledger_rows(batch, verdicts)
        margins.add(batch, verdicts)
        if BUCKET in verdicts.labels:
            labels = verdicts.labels[BUCKET].tolist()
            buckets.add(batch.column("language").to_pylist(), labels, keep.tolist())
        if BAND in verdicts.labels:
            found = verdicts.labels[BAND]
            bands.update(found[~np.isnan(found)].astype(int).tolist())
        broken.update(reason for row in removed for reason in row["reasons"])
        part.settle(batch, _labelled(batch, verdicts).filter(pa.array(keep)), removed)
    part.info["margins"] = margins.found
    part.info["buckets"] = buckets.counts
    part.info["bands"] = {str(band): count for band, count in bands.items()}
    part.info["broken"] = dict(broken)


def _labelled(batch: Any, verdicts: "Verdicts") -> Any:
    """Return a batch with the columns that its thresholds made."""
    for name, values in verdicts.labels.items():
        field = DOCUMENT_SCHEMA.field(name)
        column = pa.array(values, from_pandas=True).cast(field.type)
        at = batch.schema.get_field_index(name)
        if at < 0:  # written before this column was known
            batch = batch.append_column(field, column)
        else:
            batch = batch.set_column(at, field, column)
    return batch


def _report(out: Output[Documents], mapped: MappedDocuments) -> None:
    first, broken = mapped.reasons, mapped.counter("broken")
    out.metric("removed", dict(sorted(first.items())))
    out.metric("broken", dict(sorted(broken.items())))
    out.table(
        "removed",
        [
            {"rule": rule, "removed first": first[rule], "broken": count}
            for rule, count in broken.most_common()
        ],
    )


def _nothing_kept(mapped: MappedDocuments) -> str:
    if not mapped.num_input:
        return "select got no documents; look at what the stage before removed"
    if mapped.num_kept:
        return ""
    rule, count = mapped.reasons.most_common(1)[0]
    return (
        f"select kept none of {mapped.num_input} documents. {rule} removed most: {count}. Loosen "
        "its threshold in the recipe's `select`; `lmpipe whatif signals --set KEY=VALUE` shows "
        "what that would keep"
    )
