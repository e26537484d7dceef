import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmpipe.inference.sampling import (
    SamplingConfig,
    choose,
    row_uniforms,
    token_logprobs,
    truncate,
)


def draw(logits: torch.Tensor, config: SamplingConfig, count: int) -> torch.Tensor:
    """Draw `count` tokens of one distribution."""
    logprob_BV = token_logprobs(logits, config.temperature).expand(count, -1)
    return choose(logprob_BV, torch.from_numpy(row_uniforms(0, 0, 0, count)), config)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_tempered_distribution(temperature: float) -> None:
    logits = torch.tensor([2.0, 0.0, -1.0, 1.0, -30.0])
    config = SamplingConfig(temperature=temperature)
    count = torch.bincount(draw(logits, config, 20_000), minlength=5).double()
    expected = 20_000 * (logits.double() / temperature).softmax(0)
    likely = expected > 5
    chi_square = ((count - expected)[likely] ** 2 / expected[likely]).sum()
    assert chi_square < 18.5  # 4 degrees of freedom: 1 in 1,000


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=30),
    st.integers(0, 40),
    st.floats(0.01, 1.0),
)
def test_truncation_keeps_the_likeliest_and_no_more_than_it_must(
    logits: list[float], top_k: int, top_p: float
) -> None:
    logprob_V = token_logprobs(torch.tensor([logits]), 1.0)
    kept_V = truncate(logprob_V, SamplingConfig(top_k=top_k, top_p=top_p))[0].isfinite()
    logprob_V = logprob_V[0]
    assert kept_V[logprob_V.argmax()] or (logprob_V[kept_V] == logprob_V.max()).any()
    if (~kept_V).any():
        assert logprob_V[kept_V].min() >= logprob_V[~kept_V].max()
    if top_k:
        assert kept_V.sum() <= max(top_k, 1)
    if kept_V.sum() > 1 and top_k == 0:  # the last one kept was needed to reach top_p
        mass = logprob_V[kept_V].double().exp()
        assert mass.sum() - mass.min() < top_p + 1e-5


def test_top_k_and_top_p_on_a_distribution_worked_by_hand() -> None:
    logprob_V = torch.tensor([[0.1, 0.4, 0.3, 0.2]]).log()

    def kept(**fields: float) -> list[int]:
        return truncate(logprob_V, SamplingConfig(**fields))[0].isfinite().nonzero()[:, 0].tolist()  # type: ignore[arg-type]

    assert kept(top_k=2) == [1, 2]
    assert kept(top_p=0.69) == [1, 2]
    assert kept(top_p=0.71) == [1, 2, 3]
    assert kept(top_k=2, top_p=0.5) == [1]  # of the renormalised 4/7 and 3/7
    assert kept(top_p=1e-6) == [1]


def test_log_probabilities_ignore_truncation_but_not_temperature() -> None:
    logits_BV = torch.randn(3, 11, generator=torch.Generator().manual_seed(0))
    logprob_BV = token_logprobs(logits_BV, 0.7)
    torch.testing.assert_close(logprob_BV, (logits_BV / 0.7).log_softmax(-1))
    torch.testing.assert_close(token_logprobs(logits_BV, 0), logits_BV.log_softmax(-1))


def test_a_token_of_probability_zero_is_never_drawn_even_at_the_edges() -> None:
    logprob_BV = torch.tensor([[-torch.inf, 0.0, -torch.inf]]).expand(3, -1)
    uniform_B = torch.tensor([0.0, 0.5, 1 - 2**-32], dtype=torch.float64)
    assert choose(logprob_BV, uniform_B, SamplingConfig()).tolist() == [1, 1, 1]


def test_the_uniforms_of_a_row_are_its_own_and_the_same_everywhere() -> None:
    row = row_uniforms(5, 1, 2, 4)
    assert np.array_equal(row, row_uniforms(5, 1, 2, 6)[:4])
    others = [row_uniforms(*key, 4) for key in [(6, 1, 2), (5, 2, 2), (5, 1, 3), (5, 2, 1)]]
    assert not any(np.array_equal(row, other) for other in others)
    golden = [0.014067, 0.257767, 0.471565, 0.09142]
    assert row_uniforms(0, 0, 0, 4).round(6).tolist() == golden


@pytest.mark.parametrize("fields", [{"temperature": -1.0}, {"top_p": 0.0}, {"top_k": -1}])
def test_refuses_what_is_no_distribution(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(fields))):
        SamplingConfig(**fields)  # type: ignore[arg-type]
