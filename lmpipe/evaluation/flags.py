"""Which evaluation items the model's training data are known to hold.

Each sample gets a flag from the record that the checkpoint carries: clean, dirty, unsure (only
boilerplate met it), unchecked (too short to look for) or unknown (nobody looked). Beside the score
on all items stands the one on clean items alone; a gap between them is what contamination bought.
"""

from collections import Counter
from typing import Any

from lmpipe.benchmarks.contamination import ContaminationRecord
from lmpipe.benchmarks.items import benchmark_name

JsonObject = dict[str, Any]


def flag_samples(
    record: ContaminationRecord, file: str, samples: list[JsonObject]
) -> dict[str, int]:
    """Write each sample's flag into it and return how many there are of each.

    Args:
        file: the task's file among the benchmarks; an item's number is its row in it.
    """
    benchmark = benchmark_name(file)
    for sample in samples:
        sample["contamination"] = record.flag(benchmark, int(sample["doc_id"]))
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
