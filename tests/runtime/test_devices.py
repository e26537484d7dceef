from pathlib import Path

import pytest

from lmpipe.runtime import Runtime
from lmpipe.runtime.devices import gpu_names, num_gpus, resolve_device


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


@pytest.mark.parametrize(
    ("visible", "expected"), [(None, 2), ("", 0), ("-1", 0), ("1", 1), ("0, 1", 2)]
)
def test_gpus_are_counted_by_what_is_visible_else_by_their_device_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, expected: int
) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert num_gpus(tmp_path) == expected


def test_a_device_that_is_named_is_taken_and_auto_asks_for_gpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert resolve_device(Runtime()) == resolve_device(Runtime(device="cuda")) == "cuda"
    assert resolve_device(Runtime(device="cpu")) == "cpu"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert resolve_device(Runtime()) == "cpu"
