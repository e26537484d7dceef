from pathlib import Path

import pytest
from typer.testing import CliRunner

from deployments.cli import app
from lmpipe.errors import ConfigError


def command(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["cost", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def test_a_size_has_its_estimate_and_its_page(tmp_path: Path) -> None:
    page = tmp_path / "7B.html"
    text = command("7b", "--ranks", "64", "--tokens", "2e12", "--zero", "3", "--to", str(page))
    assert "parameters 6.74B" in text and "time 42.1 days" in text and "fits in 80 GB" in text
    assert "price" not in text
    assert "<svg" in page.read_text()


def test_a_price_of_an_hour_gives_the_run_one() -> None:
    assert "price 162k 2.5 a device-hour" in command(
        "7B", "--ranks", "64", "--tokens", "2e12", "--price", "2.5"
    )


def test_a_recipe_is_priced_with_its_own_tokens_batch_and_sequence() -> None:
    text = command("demo", "--device", "cpu", "--ranks", "2")
    assert "parameters 2.36M" in text and "tokens 1.31M" in text
    assert "2 × CPU" in text and "a sequence of 256 tokens" in text
    deeper = command("demo", "--device", "cpu", "--set", "pretrain.model.num_layers=8")
    assert "parameters 3.94M" in deeper


def test_without_a_name_the_sizes_are_listed() -> None:
    text = command()
    assert "1M 1,049,728" in text and "70B 70,553,706,496" in text


def test_an_unknown_name_is_told_which_sizes_and_recipes_there_are() -> None:
    with pytest.raises(ConfigError, match=r"sizes: 1M, .*70B; recipes: demo, scale_demo"):
        command("9B")
    with pytest.raises(ConfigError, match="--set changes a recipe, and 7B is a size"):
        command("7B", "--set", "pretrain.seed=1")
    with pytest.raises(ConfigError, match="no device 'H300'"):
        command("7B", "--device", "H300")
    with pytest.raises(ConfigError, match="multiple of ranks x micro-batch x sequence"):
        command("demo", "--ranks", "3")
