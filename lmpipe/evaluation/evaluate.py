"""Stage `evaluate`: put a checkpoint through local eval tasks.

A task is a YAML file in lm-eval's format under tasks/, whose data file is looked up by name in
the pinned benchmarks source; nothing is fetched. Adding one takes a YAML file and a JSONL file.
The alternative, lm-eval's built-in tasks, would need the Hub at run time and would not say which
bytes were asked.

Cost: imports 7 s, then about 2 ms a request beside the model's own time.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import yaml

from lmpipe.artifacts.output import Output
from lmpipe.artifacts.stage import stage
from lmpipe.artifacts.types import Checkpoint, Scores, Source
from lmpipe.eval_items.contamination_record import record_in
from lmpipe.evaluation.config import TASK_FOLDER, EvaluateConfig
from lmpipe.evaluation.flags import clean_scores, flag_samples
from lmpipe.runtime import Runtime
from lmpipe.runtime.devices import gpu_names, resolve_device
from lmpipe.runtime.micro_batch import micro_batch_size
from lmpipe.runtime.preflight import check_device

if TYPE_CHECKING:
    from lmpipe.evaluation.adapter import DecoderLM

LIBRARY_SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "TQDM_DISABLE": "1",  # lm-eval's bars would fill the run's log; progress goes out as events
    "TOKENIZERS_PARALLELISM": "false",
}


def data_files(task: str) -> dict[str, str]:
    """Return the files that a task reads, by split."""
    config = yaml.safe_load((TASK_FOLDER / f"{task}.yaml").read_text("utf-8"))
    files: dict[str, str] = config["dataset_kwargs"]["data_files"]
    return files


def check_start(config: EvaluateConfig, given: frozenset[str], runtime: Runtime | None) -> None:
    """Refuse a device that this machine does not have."""
    if runtime is not None:
        check_device(runtime)


@stage(version=2, kind="statistical", check=check_start)
def evaluate(
    out: Output[Scores],
    config: EvaluateConfig,
    checkpoint: Checkpoint,
    benchmarks: Source,
    *,
    runtime: Runtime,
) -> Scores:
    """Score `checkpoint` on the tasks; write scores, facts of the tasks, and every answer."""
    os.environ.update(LIBRARY_SETTINGS)  # read when the libraries are imported, just below
    from lmpipe.evaluation.harness import run_tasks, task_config, task_file

    model = _load(out, checkpoint, runtime)
    with out.scratch(runtime) as scratch:
        configs = [task_config(name, benchmarks, scratch) for name in config.tasks]
        results = run_tasks(model, configs, config.limit)
    record, flags = record_in(checkpoint), {}
    for name, result in results.items():
        counts = flag_samples(record, benchmarks, task_file(name), result.samples)
        clean = clean_scores(result.samples, list(result.scores))
        flags[name] = {"items": counts, "clean": clean}
        if counts.get("dirty"):
            out.log(f"{counts['dirty']} items of {name} were in the training data", "warning")
        lines = [json.dumps(sample, ensure_ascii=False) for sample in result.samples]
        out.write_bytes(f"samples/{name}.jsonl", ("\n".join(lines) + "\n").encode())
        out.set_rows(f"samples/{name}.jsonl", len(lines))
        for metric, score in result.scores.items():
            out.metric(f"{name}/{metric}", score["value"])
    out.write_json("scores.json", {name: result.scores for name, result in results.items()})
    out.write_json("tasks.json", {name: result.facts for name, result in results.items()})
    out.write_json("contamination_flags.json", flags)
    out.metric("contamination", {name: entry["items"] for name, entry in flags.items()})
    out.metric("split_joins", model.num_split_joins)
    out.metric("cut_contexts", model.num_cut_contexts)
    if model.num_cut_contexts:
        out.log(
            f"{model.num_cut_contexts} contexts lost their beginning: they and their answers are "
            f"longer than the model's {model.max_length} tokens",
            "warning",
        )
    out.table(
        "scores",
        [
            {"task": name, "metric": metric, **score}
            for name, result in results.items()
            for metric, score in result.scores.items()
        ],
    )
    return out.commit()


def _load(out: Output[Scores], checkpoint: Checkpoint, runtime: Runtime) -> DecoderLM:
    import torch

    from lmpipe.evaluation.adapter import DecoderLM, load_tokenizer
    from lmpipe.model.huggingface import load_model

    device = resolve_device(runtime)
    if device == "cuda":
        out.use_devices(gpu_names()[:1] or ["cuda:0"])
    folder = checkpoint.local_dir("model")
    model = load_model(
        folder,
        device=device,
        dtype=torch.bfloat16 if device == "cuda" else torch.float32,
        attention=runtime.attention,
    )
    length = model.config.max_seq_len
    return DecoderLM(
        model,
        load_tokenizer(folder),
        max_length=length,
        batch_tokens=micro_batch_size(runtime, "evaluation", device, length) * length,
        on_progress=lambda done, total: out.progress(done, total, unit="requests"),
    )
