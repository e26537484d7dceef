"""The sweep: what is trained, one real sweep in a rank, and what is made of its points."""

import io
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pydantic import Field, ValidationError

from lmpipe.artifacts.build import build
from lmpipe.artifacts.lookup import list_manifests
from lmpipe.artifacts.output import Output
from lmpipe.artifacts.stage import StageConfig, stage
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import ScalingFit, Tokenizer, TokenShards, open_artifact
from lmpipe.errors import ConfigError
from lmpipe.model.config import ModelConfig
from lmpipe.runtime import Runtime
from lmpipe.scaling.config import ScaleConfig, ScaleSchedule
from lmpipe.scaling.scale import describe, scale, sweep_series
from lmpipe.scaling.sweep_rank import Sweep
from lmpipe.token_data.dataset import TokenReader
from lmpipe.token_data.order import SequenceOrder
from lmpipe.token_data.shard_file import pack_shard

VOCAB = 61
TINY = ScaleConfig(
    model=ModelConfig(num_layers=1, d_model=32, num_heads=2, num_kv_heads=1, max_seq_len=32),
    widths=(16, 32),
    token_budgets=(4096, 8192),
    held_out_width=48,
    held_out_tokens=16_384,
    batch_tokens=512,
    schedule=ScaleSchedule(warmup_steps=2),
    validation_tokens=1024,
    num_resamples=20,
)


class DataConfig(StageConfig):
    """Stands for the configs of the stages before."""

    length: int = Field(20_000, ge=1, description="Training tokens.")
    validation: int = Field(2000, ge=1, description="Validation tokens.")


def chain(length: int, seed: int) -> Any:
    """Tokens of a noisy cycle: each is the one before plus 7, or else anything."""
    rng = np.random.default_rng(seed)
    jumps = rng.random(length) < 0.3
    tokens = np.empty(length, np.int64)
    current = 0
    for i in range(length):
        current = int(rng.integers(VOCAB)) if jumps[i] else (current + 7) % VOCAB
        tokens[i] = current
    return tokens


@stage(version=1, kind="exact")
def shards(out: Output[TokenShards], config: DataConfig, *, runtime: Runtime) -> TokenShards:
    """Publish token shards of one document a split."""
    rows = []
    for split, length, seed in (("train", config.length, 1), ("validation", config.validation, 2)):
        out.write_bytes(f"{split}/00000.bin", pack_shard(chain(length, seed), VOCAB, "00" * 32))
        rows.append({"document_id": split, "split": split, "shard": "00000", "start": 0,
                     "length": length})  # fmt: skip
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), buffer)
    out.write_bytes("index.parquet", buffer.getvalue())
    tokens = {"train": config.length, "validation": config.validation}
    out.write_json("meta.json", {"vocab_size": VOCAB, "tokens": tokens})
    return out.commit()


@stage(version=1, kind="exact")
def tokenizer(out: Output[Tokenizer], config: DataConfig, *, runtime: Runtime) -> Tokenizer:
    """Publish what the sweep reads of a tokenizer."""
    out.write_json("meta.json", {"vocab_size": VOCAB})
    return out.commit()


@pytest.fixture(scope="module")
def fit(tmp_path_factory: pytest.TempPathFactory) -> ScalingFit:
    store = Store(str(tmp_path_factory.mktemp("store")))
    runtime = Runtime(device="cpu", ranks=1, threads_per_rank=1)
    data = build(shards, DataConfig(), {}, store=store, runtime=runtime)
    words = build(tokenizer, DataConfig(), {}, store=store, runtime=runtime)
    inputs = {"shards": data, "tokenizer": words}
    return build(scale, TINY, inputs, store=store, runtime=runtime)


class CountingEngine:
    """One of two ranks' engine, which trains nothing and counts what it is given."""

    def __init__(self, rank: int) -> None:
        self.rank, self.world_size = rank, 2
        self.device = torch.device("cpu")
        self.position = SimpleNamespace(steps=0)
        self.targets = 0.0
        self.passes: list[tuple[int, bool]] = []

    def __call__(self, token_BT: torch.Tensor, document_BT: object = None) -> torch.Tensor:
        return torch.zeros(*token_BT.shape, VOCAB)

    def begin_step(self, weight: float) -> None:
        self.targets += weight

    def accumulate(self, loss_sum: torch.Tensor, *, last: bool) -> None:
        self.passes.append((round(loss_sum.item() / math.log(VOCAB)), last))

    def step(self) -> SimpleNamespace:
        self.position.steps += 1
        return SimpleNamespace(loss=0.0)


def test_ranks_with_unequal_shares_make_the_same_number_of_passes(fit: ScalingFit) -> None:
    (data,) = (m for m in list_manifests(fit.store) if m.stage == "shards")
    sweep = Sweep.__new__(Sweep)
    sweep.train = TokenReader(open_artifact(fit.store, data).local_dir(), "train", 32)
    sweep.order, sweep.device = SequenceOrder(sweep.train.num_sequences, 0), torch.device("cpu")
    sweep.batch, sweep.micro_batch = 3, 1
    ranks = [CountingEngine(0), CountingEngine(1)]
    for engine in ranks:
        sweep._train(engine, 1)  # type: ignore[arg-type]
    # three sequences: ZeRO's collectives want a second pass of rank 1 too, in which nothing counts
    assert [engine.passes for engine in ranks] == [
        [(32, False), (32, True)],
        [(32, False), (0, True)],
    ]
    assert [engine.targets for engine in ranks] == [64, 32]


def test_a_sweep_trains_every_size_on_every_budget_and_one_more(fit: ScalingFit) -> None:
    points = fit.read_json("points.json")
    done = [(p["width"], p["budget"], p["held_out"]) for p in points]
    assert done == [
        (16, 4096, False), (16, 8192, False), (32, 4096, False), (32, 8192, False),
        (48, 16_384, True),
    ]  # fmt: skip
    for point in points:
        assert point["tokens"] == point["budget"]
        assert point["flops"] == 6 * point["parameters"] * point["tokens"]


def test_more_training_gives_a_lower_loss_and_all_learn(fit: ScalingFit) -> None:
    points = fit.read_json("points.json")
    assert points[1]["loss"] < points[0]["loss"] < math.log(VOCAB)
    assert points[3]["loss"] < points[2]["loss"]
    assert points[4]["loss"] < points[3]["loss"]


def test_the_prediction_is_compared_with_the_run_itself(fit: ScalingFit) -> None:
    found = fit.read_json("fit.json")
    prediction, held_out = found["prediction"], fit.read_json("points.json")[-1]
    assert prediction["actual"] == held_out["loss"]
    assert prediction["predicted"] == held_out["fitted"]
    assert prediction["interval"][0] <= prediction["interval"][1]
    assert prediction["error"] == pytest.approx(prediction["predicted"] / held_out["loss"] - 1)
    assert found["law"] == "power law in compute"  # four runs cannot carry five constants


@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_split_without_a_full_sequence_is_refused_before_a_rank_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: str
) -> None:
    monkeypatch.setattr("lmpipe.scaling.scale.run_ranks", lambda *_: pytest.fail("started"))
    store, runtime = Store(str(tmp_path)), Runtime(device="cpu")
    short = DataConfig(**{"length" if split == "train" else "validation": 32})
    data = build(shards, short, {}, store=store, runtime=runtime)
    words = build(tokenizer, DataConfig(), {}, store=store, runtime=runtime)
    says = rf"the {split} split of .* has 32 tokens.* scale.model.max_seq_len=32 needs 33"
    with pytest.raises(ConfigError, match=says):
        build(scale, TINY, {"shards": data, "tokenizer": words}, store=store, runtime=runtime)


def test_heads_and_layers_grow_with_the_width() -> None:
    config = ScaleConfig()
    for width in (*config.widths, config.held_out_width):
        shape = config.shape(width)
        assert shape.head_size == config.model.head_size
        assert shape.num_heads % shape.num_kv_heads == 0
    assert config.shape(128).num_layers == 2 * config.model.num_layers


def test_a_wider_run_gets_a_lower_rate_and_more_parameters() -> None:
    series = sweep_series(ScaleConfig(), 4096)
    assert [s["rate"] for s in series] == sorted((s["rate"] for s in series), reverse=True)
    assert [s["parameters"] for s in series] == sorted(s["parameters"] for s in series)
    assert [s["held_out"] for s in series] == [False, False, False, True]


def test_points_of_a_known_law_predict_the_held_out_run() -> None:
    points: list[dict[str, Any]] = [
        {"parameters": n, "tokens": t, "held_out": held,
         "loss": 2.0 + 400 * n**-0.4 + 900 * t**-0.4}
        for n, t, held in [
            *((n, t, False) for n in (10**4, 10**5, 10**6) for t in (10**6, 10**7, 10**8)),
            (10**7, 10**9, True),
        ]
    ]  # fmt: skip
    found = describe(points, ScaleConfig(num_resamples=10))
    assert found["left_out"] == []
    assert found["law"] == "E, N and D"
    assert abs(found["prediction"]["error"]) < 0.01
    json.dumps(found, allow_nan=False)
    next_run = found["next_run"]
    assert 6 * next_run["parameters"] * next_run["tokens"] == pytest.approx(next_run["flops"])
    assert next_run["loss"] < found["prediction"]["actual"]


def sweep_points(diverged: tuple[int, ...]) -> list[dict[str, Any]]:
    runs = [(n, t) for n in (10**4, 10**5, 10**6) for t in (10**6, 10**7, 10**8)] + [(10**7, 10**9)]
    return [
        {"parameters": n, "tokens": t, "held_out": n == 10**7, "training_loss": 2.0,
         "loss": math.nan if i in diverged else 2.0 + 400 * n**-0.4 + 900 * t**-0.4}
        for i, (n, t) in enumerate(runs)
    ]  # fmt: skip


def test_a_run_that_diverged_is_named_and_left_out_of_the_fit() -> None:
    config = ScaleConfig(num_resamples=10)
    points = sweep_points(diverged=(4,))
    found = describe(points, config)
    assert found["left_out"] == ["100000 parameters on 10000000 tokens"]
    assert points[4]["loss"] is None and points[4]["fitted"] > 2
    rest = sweep_points(diverged=())
    del rest[4]
    assert found["constants"] == describe(rest, config)["constants"]
    json.dumps([found, points], allow_nan=False)


def test_a_held_out_run_that_diverged_leaves_the_prediction_without_an_error() -> None:
    found = describe(sweep_points(diverged=(9,)), ScaleConfig(num_resamples=10))
    assert found["prediction"]["actual"] is None and found["prediction"]["error"] is None
    assert found["prediction"]["predicted"] > 2
    assert found["left_out"] == ["10000000 parameters on 1000000000 tokens"]


def test_a_sweep_of_which_one_run_is_left_is_refused_with_the_diverged_ones() -> None:
    with pytest.raises(ConfigError, match=r"1 runs are left .* 10000 parameters on 1000000 tokens"):
        describe(sweep_points(diverged=tuple(range(8))), ScaleConfig(num_resamples=10))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"model": {"mup_base_width": 64, "attention_scale": "inverse"}},
            "mup_base_width=64 and width_exponent=0.5 both scale",
        ),
        ({"widths": (33,)}, "multiple of the head size 32"),
        ({"widths": (32,), "token_budgets": (131_072,)}, "different compute"),
        ({"batch_tokens": 65_536}, "lower schedule.warmup_steps or batch_tokens"),
        ({"schedule": {"warmup_fraction": 0.1}}, "warmup_fraction=0.1 must be 0: one run serves"),
        ({"schedule": {"decay_fraction": 0}}, "decay_fraction=0 must be above 0"),
        ({"schedule": {"name": "cosine"}}, "'warmup_stable_decay'"),
    ],
)
def test_a_sweep_that_cannot_be_fitted_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        ScaleConfig(**change)


def test_runs_that_say_nothing_of_the_entropy_still_give_an_interval() -> None:
    measured = [  # tiny models, far from convergence: the best fit has E = 0
        (147_456, 131_072, 6.878), (147_456, 262_144, 6.509), (147_456, 524_288, 5.892),
        (360_448, 131_072, 6.874), (360_448, 262_144, 6.353), (360_448, 524_288, 5.662),
        (1_310_720, 131_072, 6.624), (1_310_720, 262_144, 6.05), (1_310_720, 524_288, 5.402),
        (2_242_560, 1_048_576, 4.833),
    ]  # fmt: skip
    points: list[dict[str, Any]] = [
        {"parameters": n, "tokens": t, "loss": loss, "held_out": n > 2_000_000}
        for n, t, loss in measured
    ]
    found = describe(points, ScaleConfig(num_resamples=20))
    assert found["constants"]["E"] < 1e-6
    low, high = found["prediction"]["interval"]
    assert low < found["prediction"]["predicted"] < high
    json.dumps(found, allow_nan=False)
