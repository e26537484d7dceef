from pathlib import Path

import pytest

from lmpipe.runtime.devices import gpu_names


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    for bus, model in (("0000:01:00.0", "NVIDIA H200"), ("0000:02:00.0", "NVIDIA L4")):
        (tmp_path / bus).mkdir()
        (tmp_path / bus / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 1\n")
    return tmp_path


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, ["cuda:0 NVIDIA H200", "cuda:1 NVIDIA L4"]),
        ("1", ["cuda:0 NVIDIA L4"]),
        ("1,0", ["cuda:0 NVIDIA L4", "cuda:1 NVIDIA H200"]),
        ("", []),
        ("7", []),
    ],
)
def test_gpus_are_named_in_the_order_in_which_they_are_visible(
    driver: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, expected: list[str]
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu_names(driver) == expected


def test_without_a_driver_there_is_none(tmp_path: Path) -> None:
    assert gpu_names(tmp_path / "none") == []
