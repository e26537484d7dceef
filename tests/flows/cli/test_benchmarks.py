"""Options of benchmarks are checked before anything runs."""

import pkgutil
from pathlib import Path

import pytest
from rich.console import Console

import lmpipe.bench
from flows.cli.benchmarks import run_benchmark
from lmpipe.errors import ConfigError


def test_a_wrong_or_missing_option_is_named_beside_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        run_benchmark(Console(), "mup", None, ["step=3"])
    said = str(caught.value)
    assert "paths: Field required" in said
    assert "step: Extra inputs are not permitted" in said
    assert "steps: Optimizer steps of each run." in said


def test_an_unknown_benchmark_is_named_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'mup'"):
        run_benchmark(Console(), "mupp", None, [])


def test_every_benchmark_refuses_an_option_that_it_does_not_have() -> None:
    modules = (module.name for module in pkgutil.iter_modules(lmpipe.bench.__path__))
    for name in (module for module in modules if not module.startswith("_")):
        with pytest.raises(ConfigError, match="mistyped: Extra inputs are not permitted"):
            run_benchmark(Console(), name, None, ["mistyped=1"])
