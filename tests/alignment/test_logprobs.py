import torch

from lmpipe.alignment.logprobs import pad_rows, token_logprobs
from tests.alignment.toy import ToyModel

PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8], [9, 10]]
COMPLETIONS = [[11, 12, 13, 14], [15], [16, 17, 18]]


def test_targets_are_the_completion_ids_verbatim() -> None:
    rows = pad_rows(PROMPTS, COMPLETIONS, padding=12)  # padding equals a real token on purpose
    for row, (prompt, completion) in enumerate(zip(PROMPTS, COMPLETIONS, strict=True)):
        assert rows.tokens_BT[row][rows.targets_BT[row]].tolist() == completion
        assert rows.tokens_BT[row, : len(prompt)].tolist() == prompt


def test_logprob_of_each_token_is_that_of_the_distribution_before_it() -> None:
    model = ToyModel()
    rows = pad_rows(PROMPTS, COMPLETIONS, padding=0)
    scored = token_logprobs(model, *rows).logprobs_BT
    for row, (prompt, completion) in enumerate(zip(PROMPTS, COMPLETIONS, strict=True)):
        for n, token in enumerate(completion):
            seen = torch.tensor([[*prompt, *completion[:n]]])
            expected = model(seen)[0, -1].log_softmax(-1)[token]
            torch.testing.assert_close(scored[row, len(prompt) + n], expected)
    assert (scored[~rows.targets_BT] == 0).all()


def test_a_padded_batch_scores_like_single_rows() -> None:
    model = ToyModel()
    together = token_logprobs(model, *pad_rows(PROMPTS, COMPLETIONS, padding=0)).logprobs_BT.sum(1)
    for row in range(3):
        alone = pad_rows([PROMPTS[row]], [COMPLETIONS[row]], padding=0)
        torch.testing.assert_close(
            token_logprobs(model, *alone).logprobs_BT.sum(1)[0], together[row]
        )


def test_the_first_answer_token_has_a_gradient() -> None:
    model = ToyModel()
    rows = pad_rows([[1, 2, 3]], [[11, 12]], padding=0)
    token_logprobs(model, *rows).logprobs_BT[0, 3].backward()
    assert model.output.weight.grad is not None and model.output.weight.grad.abs().sum() > 0


def test_a_temperature_scores_the_tempered_distribution() -> None:
    model = ToyModel()
    rows = pad_rows([[1, 2]], [[5]], padding=0)
    expected = (model(torch.tensor([[1, 2]]))[0, -1] / 0.7).log_softmax(-1)
    scored = token_logprobs(model, *rows, temperature=0.7)
    torch.testing.assert_close(scored.logprobs_BT[0, 2], expected[5])
    torch.testing.assert_close(scored.entropy_BT[0, 2], -(expected.exp() * expected).sum())


def test_a_repeated_answer_has_twice_the_logprob_when_its_tokens_are_independent() -> None:
    def uniform(tokens_BT, **_):
        return torch.zeros(*tokens_BT.shape, 40)

    once = token_logprobs(uniform, *pad_rows([[1]], [[2, 3]], padding=0)).logprobs_BT.sum()
    twice = token_logprobs(uniform, *pad_rows([[1]], [[2, 3, 2, 3]], padding=0)).logprobs_BT.sum()
    torch.testing.assert_close(twice, 2 * once)


def test_a_batch_without_targets_scores_zero_with_a_finite_gradient() -> None:
    model = ToyModel()
    rows = pad_rows([[1, 2, 3]], [[]], padding=0)
    total = token_logprobs(model, *rows).logprobs_BT.sum()
    total.backward()
    assert total == 0
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
