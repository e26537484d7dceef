"""Which evaluation items the model's training data are known to hold.

Each sample gets a flag from the record that the checkpoint carries: clean, dirty, unsure (only
boilerplate met it), unchecked (too short to look for) or unknown (nobody looked, or for another
file of that name). Beside the score on all items stands the one on clean items alone; a gap between
them is what contamination bought.
"""

from collections import Counter
from typing import Any

from lmpipe.eval_items.contamination_record import ContaminationRecord
from lmpipe.eval_items.items import Files, benchmark_digest, benchmark_name

JsonObject = dict[str, Any]


def flag_samples(
    record: ContaminationRecord, benchmarks: Files, file: str, samples: list[JsonObject]
) -> dict[str, int]:
    """Write each sample's flag into it and return how many there are of each.

    Args:
        benchmarks: what is asked; where it is not what the training data were searched for, nothing
            is known of its items.
        file: the task's file among them; an item's number is its row in it.
    """
    benchmark, digest = benchmark_name(file), benchmark_digest(benchmarks, file)
    for sample in samples:
        sample["contamination"] = record.flag(benchmark, int(sample["doc_id"]), digest)
    return dict(sorted(Counter(sample["contamination"] for sample in samples).items()))


def clean_scores(samples: list[JsonObject], metrics: list[str]) -> dict[str, JsonObject]:
    """Return the means over clean items of the metrics that are means over items."""
    from lmpipe.evaluation.harness import mean_stderr

    clean = [sample for sample in samples if sample["contamination"] == "clean"]
    return {
        metric: mean_stderr([float(sample[metric]) for sample in clean])
        for metric in metrics
        if clean and all(isinstance(sample.get(metric), int | float) for sample in clean)
    }
