import time

import pytest
import torch

from lmpipe.errors import ConfigError
from lmpipe.inference.generate import Completion, generate
from lmpipe.model.config import ModelConfig
from lmpipe.model.decoder import Decoder

CONFIG = ModelConfig(
    vocab_size=60, num_layers=2, d_model=32, num_heads=4, num_kv_heads=2, d_ff=64, max_seq_len=64
)
PROMPTS = [[5], [1, 2, 3, 4, 5, 6, 7, 8, 9], [7, 7], [5], [30, 31, 32, 33]]  # two are the same


@pytest.fixture
def model() -> Decoder:
    return Decoder(CONFIG).initialise(0)


def greedy_without_cache(model: Decoder, prompt: list[int], count: int) -> Completion:
    """Read everything again for each token."""
    tokens, completion = list(prompt), Completion(0)
    for _ in range(count):
        with torch.no_grad():
            logprob_V = model(torch.tensor([tokens]))[0, -1].log_softmax(-1)
        token = int(logprob_V.argmax())
        completion.tokens.append(token)
        completion.logprobs.append(float(logprob_V[token]))
        tokens.append(token)
    return completion


@pytest.mark.parametrize("length", [1, 2, 3, 15, 16, 17, 31, 32, 33, 43])
def test_greedy_equals_the_uncached_forward_at_every_length(model: Decoder, length: int) -> None:
    prompt = torch.randint(0, 60, (length,), generator=torch.Generator().manual_seed(length))
    expected = greedy_without_cache(model, prompt.tolist(), 20)
    (got,) = generate(model, [prompt.tolist()], max_new_tokens=20, temperature=0)
    assert got.tokens == expected.tokens
    assert got.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
    assert not got.finished


def test_a_prompt_alone_says_what_it_says_in_a_batch(model: Decoder) -> None:
    batch = generate(model, PROMPTS, max_new_tokens=12, temperature=0)
    for prompt, together in zip(PROMPTS, batch, strict=True):
        (alone,) = generate(model, [prompt], max_new_tokens=12, temperature=0)
        assert alone.tokens == together.tokens
        assert alone.logprobs == pytest.approx(together.logprobs, abs=1e-4)
    assert [c.prompt for c in batch] == [0, 1, 2, 3, 4]
    assert batch[0].tokens == batch[3].tokens


def test_draws_depend_on_seed_prompt_and_sample_alone(model: Decoder) -> None:
    settings = {"max_new_tokens": 10, "temperature": 1.5}
    all_rows = generate(model, PROMPTS, seed=3, num_samples=4, **settings)
    again = generate(model, PROMPTS, seed=3, num_samples=4, **settings)
    assert [c.tokens for c in all_rows] == [c.tokens for c in again]
    first = generate(model, PROMPTS[:1], seed=3, num_samples=2, **settings)
    assert [c.tokens for c in first] == [c.tokens for c in all_rows[:2]]
    assert len({tuple(c.tokens) for c in all_rows[:4]}) == 4  # samples of a prompt differ
    assert all_rows[0].tokens != all_rows[12].tokens  # so do those of two equal prompts
    other = generate(model, PROMPTS, seed=4, num_samples=4, **settings)
    assert [c.tokens for c in all_rows] != [c.tokens for c in other]


def test_rows_end_with_their_stop_token_and_the_rest_go_on_undisturbed(model: Decoder) -> None:
    settings = {"max_new_tokens": 30, "temperature": 2.0, "num_samples": 6}
    free = generate(model, PROMPTS, **settings)
    stop_ids = {11, 12, 13}
    stopped = generate(model, PROMPTS, stop_ids=stop_ids, **settings)
    for whole, cut in zip(free, stopped, strict=True):
        ends = [i for i, token in enumerate(whole.tokens) if token in stop_ids]
        length = ends[0] + 1 if ends else 30
        assert cut.tokens == whole.tokens[:length]
        assert cut.logprobs == pytest.approx(whole.logprobs[:length], abs=1e-4)
        assert cut.finished == bool(ends)
    assert sum(c.finished for c in stopped) > 0
    assert len({len(c.tokens) for c in stopped}) > 5  # so the batch was compacted on the way


@pytest.mark.parametrize("truncation", [{"top_k": 3}, {"top_p": 0.5}, {"top_k": 5, "top_p": 0.9}])
def test_log_probabilities_are_those_a_trainer_recomputes(
    model: Decoder, truncation: dict[str, float]
) -> None:
    rows = generate(
        model,
        PROMPTS,
        max_new_tokens=8,
        temperature=0.7,
        num_samples=2,
        **truncation,  # type: ignore[arg-type]
    )
    for row in rows:
        prompt = PROMPTS[row.prompt]
        with torch.no_grad():
            logits_TV = model(torch.tensor([prompt + row.tokens]))[0, len(prompt) - 1 : -1]
        logprob_TV = (logits_TV / 0.7).log_softmax(-1)
        recomputed = logprob_TV.gather(-1, torch.tensor(row.tokens)[:, None])[:, 0]
        assert row.logprobs == pytest.approx(recomputed.tolist(), abs=1e-4)


def test_the_same_model_still_trains_after_it_has_generated(model: Decoder) -> None:
    generate(model, PROMPTS, max_new_tokens=3)
    model(torch.tensor([[1, 2, 3]])).square().mean().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_refuses_what_cannot_be_continued(model: Decoder) -> None:
    assert generate(model, [], max_new_tokens=3) == []
    with pytest.raises(ConfigError, match="prompt 1 is empty"):
        generate(model, [[1], []], max_new_tokens=3)
    with pytest.raises(ConfigError, match="at most 60 new"):
        generate(model, [[1, 2, 3, 4]], max_new_tokens=61)
    assert len(generate(model, [[1, 2, 3, 4]], max_new_tokens=60)[0].tokens) == 60
    with pytest.raises(ConfigError, match="at least 1"):
        generate(model, [[1]], max_new_tokens=0)


def test_a_demo_sized_model_generates_thousands_of_tokens_per_cpu_second() -> None:
    config = ModelConfig(vocab_size=4096, num_layers=6, d_model=192, num_heads=6, num_kv_heads=2)
    model = Decoder(config).initialise(0)
    prompts = [[i + 1] * 12 for i in range(16)]
    generate(model, prompts, max_new_tokens=2, num_samples=8)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # threads that wait for one another on a busy machine burn CPU time
    rates = []
    for _ in range(3):
        begin = time.process_time()  # CPU seconds, so that a busy machine does not fail the test
        rows = generate(model, prompts, max_new_tokens=16, num_samples=8)
        rates.append(sum(len(row.tokens) for row in rows) / (time.process_time() - begin))
    torch.set_num_threads(threads)
    rate = max(rates)
    print(f"{rate:,.0f} tokens per CPU second")
    assert rate > 1000  # 4,000 on one core of a 2-core machine
