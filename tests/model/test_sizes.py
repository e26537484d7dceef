import pytest

from lmpipe.errors import ConfigError
from lmpipe.model.cost import count_parameters
from lmpipe.model.sizes import SIZES, size_named

UNITS = {"M": 1e6, "B": 1e9}
PUBLISHED = {  # of meta-llama's checkpoints
    "7B": 6_738_415_616,
    "8B": 8_030_261_248,
    "13B": 13_015_864_320,
    "34B": 33_743_970_304,
    "70B": 70_553_706_496,
}


@pytest.mark.parametrize("name", SIZES)
def test_a_sizes_name_rounds_its_parameters(name: str) -> None:
    total = count_parameters(SIZES[name]).total
    assert total == pytest.approx(float(name[:-1]) * UNITS[name[-1]], rel=0.08)


def test_sizes_grow_from_1m_to_70b() -> None:
    totals = [count_parameters(config).total for config in SIZES.values()]
    assert totals == sorted(totals)
    assert (next(iter(SIZES)), next(reversed(SIZES))) == ("1M", "70B")


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_have_their_published_parameters(name: str) -> None:
    assert count_parameters(SIZES[name]).total == PUBLISHED[name]


def test_a_size_is_found_in_any_case_and_an_unknown_one_names_them_all() -> None:
    assert size_named("7b") is SIZES["7B"]
    with pytest.raises(ConfigError, match="no size '31M'; known are 1M, 3M"):
        size_named("31M")


def test_every_size_can_be_built_without_memory() -> None:
    import torch

    from lmpipe.model.decoder import Decoder

    for config in SIZES.values():
        with torch.device("meta"):
            model = Decoder(config)
        assert sum(p.numel() for p in model.parameters()) == count_parameters(config).total
