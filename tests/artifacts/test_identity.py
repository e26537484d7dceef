import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from lmpipe.artifacts.identity import artifact_id, canonical_json, content_digest
from lmpipe.artifacts.stage import StageConfig
from lmpipe.errors import ConfigError
from tests.artifacts.stages import CountConfig

SCRIPT = """
from lmpipe.artifacts.identity import artifact_id
print(artifact_id("s", 1, {"b": 1, "a": {"y": 0.1, "x": [1, 2]}}, {"in": ["d"]}))
"""


def test_the_id_is_the_same_in_every_process():
    ids = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": "."},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert len(ids) == 1


@given(st.dictionaries(st.text(), st.integers() | st.text() | st.booleans()))
def test_key_order_bears_no_identity(config):
    backwards = dict(reversed(config.items()))
    assert artifact_id("s", 1, config, {}) == artifact_id("s", 1, backwards, {})


@pytest.mark.parametrize("value", [{1, 2}, Path("a"), float("nan"), float("inf")])
def test_values_without_an_order_or_a_meaning_are_refused(value):
    with pytest.raises((TypeError, ValueError)):
        canonical_json({"v": value})


def test_a_config_with_a_set_or_a_path_is_refused_at_its_definition():
    with pytest.raises(ConfigError, match="sorted tuple"):

        class WithSet(StageConfig):
            languages: set[str] = Field(description="x")

    with pytest.raises(ConfigError, match="path"):

        class WithPath(StageConfig):
            folders: list[Path] = Field(description="x")

    with pytest.raises(ConfigError, match="no description"):

        class Undescribed(StageConfig):
            lines: int = 3


def test_every_part_of_identity_changes_the_id():
    base = artifact_id("s", 1, CountConfig().identity(), {"a": ["d"]})
    assert (
        len(
            {
                base,
                artifact_id("t", 1, CountConfig().identity(), {"a": ["d"]}),
                artifact_id("s", 2, CountConfig().identity(), {"a": ["d"]}),
                artifact_id("s", 1, CountConfig(lines=4).identity(), {"a": ["d"]}),
                artifact_id("s", 1, CountConfig().identity(), {"a": ["e"]}),
                artifact_id("s", 1, CountConfig().identity(), {"b": ["d"]}),
            }
        )
        == 6
    )


def test_a_statistical_digest_depends_on_the_attempt_and_an_exact_one_on_bytes_only():
    outputs = [("a", "1"), ("b", "2")]
    assert content_digest(outputs, None) == content_digest(outputs[::-1], None)
    assert content_digest(outputs, "x") != content_digest(outputs, "y")
