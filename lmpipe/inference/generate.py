"""Continue prompts with a KV cache, in one batch of rows of different length.

    prefill each prompt once  ->  share its cache among its samples  ->  one token a row and step,
    until all have stopped

Rows that have stopped leave the batch once they are a quarter of it: GRPO's answers differ in
length, and a padded batch would spend most of its last steps on rows that say nothing. Token ids go
in and come out as they are, since decoding and encoding again is not the identity and would train
on tokens that were never drawn.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from lmpipe.errors import ConfigError
from lmpipe.inference.kv_cache import KVCache
from lmpipe.inference.sampling import SamplingConfig, choose, row_uniforms, token_logprobs
from lmpipe.model.decoder import Decoder

COMPACT_AT = 0.75  # fraction of the batch; below it, copying the live rows beats carrying the rest


@dataclass
class Completion:
    """What one row said.

    Attributes:
        prompt: index of the prompt that it continues.
        tokens: the new tokens, a stop token included.
        logprobs: of each token under softmax(logits / temperature) of the whole vocabulary, before
            top-k and top-p (token_logprobs says why).
        finished: True if it ended with a stop token, False if it ran out of max_new_tokens.
    """

    prompt: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finished: bool = False


@torch.inference_mode()
def generate(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    stop_ids: Collection[int] = (),
    seed: int = 0,
    num_samples: int = 1,
    stream_numbers: Sequence[int] | None = None,
) -> list[Completion]:
    """Return num_samples completions of each prompt, those of prompt 0 first.

    Args:
        prompts: token ids, each at least one; lengths may differ.
        max_new_tokens: most new tokens of a row; the longest prompt and these must fit max_seq_len.
        temperature, top_k, top_p: see SamplingConfig; temperature 0 is greedy.
        stop_ids: a row ends with the first of these that it says.
        seed: decides all draws. A row's draws depend on (seed, number of its prompt, index of the
            sample) alone.
        stream_numbers: the prompts' numbers in a larger batch that this is a part of, so that its
            rows say the same however it is split; 0, 1, 2 … if left out.

    Cost: one forward pass of the prompts (not of each sample), then one of a token a running row
        and step. 2 CPU cores,
    3M parameters: see LOG.
    """
    if not prompts:
        return []
    _check(model, prompts, max_new_tokens, num_samples)
    sampling = SamplingConfig(temperature=temperature, top_k=top_k, top_p=top_p)
    device = model.model.embed_tokens.weight.device
    rows = [Completion(prompt) for prompt in range(len(prompts)) for _ in range(num_samples)]
    uniform_RT = torch.from_numpy(
        np.stack(
            [
                row_uniforms(seed, number, sample, max_new_tokens)
                for number in stream_numbers or range(len(prompts))
                for sample in range(num_samples)
            ]
        )
    ).to(device)

    cache, logits_BV = _prefill(model, prompts)
    sample_R = torch.arange(len(prompts), device=device).repeat_interleave(num_samples)
    cache = cache.take(sample_R, cache.used + max_new_tokens)
    logits_BV = logits_BV[sample_R]

    running = list(range(len(rows)))  # the completion that each row of the batch writes
    stops = frozenset(stop_ids)
    for step in range(max_new_tokens):
        logprob_BV = token_logprobs(logits_BV, sampling.temperature)
        token_B = choose(logprob_BV, uniform_RT[running, step], sampling)
        chosen_B = logprob_BV.gather(-1, token_B[:, None])[:, 0]
        _record(rows, running, token_B, chosen_B, stops)

        alive = [i for i, row in enumerate(running) if not rows[row].finished]
        if not alive or step + 1 == max_new_tokens:
            break
        if len(alive) <= COMPACT_AT * len(running):
            keep_B = torch.tensor(alive, device=device)
            cache, token_B = cache.take(keep_B), token_B[keep_B]
            running = [running[i] for i in alive]
        cache.reserve(1)
        logits_BV = model(token_B[:, None], cache=cache)[:, -1]
        cache.advance(1)
    return rows


def _prefill(model: Decoder, prompts: Sequence[Sequence[int]]) -> tuple[KVCache, Tensor]:
    """Read the prompts, padded on the right; return the cache and the logits after each one."""
    weight = model.model.embed_tokens.weight
    length_B = torch.tensor([len(prompt) for prompt in prompts])
    longest = int(length_B.max())
    tokens_BT = torch.zeros(
        len(prompts), longest, dtype=torch.long
    )  # any token: its slot is never seen
    for row, prompt in enumerate(prompts):
        tokens_BT[row, : len(prompt)] = torch.tensor(prompt)
    cache = KVCache(model.config, len(prompts), longest, device=weight.device, dtype=weight.dtype)
    cache.reserve(longest)
    features_BTD = model.model(tokens_BT.to(weight.device), cache=cache)
    length_B = length_B.to(weight.device)
    cache.advance(length_B)
    row_B = torch.arange(len(prompts), device=weight.device)
    return cache, model.logits(features_BTD[row_B, length_B - 1])


def _record(
    rows: list[Completion],
    running: list[int],
    token_B: Tensor,
    logprob_B: Tensor,
    stops: frozenset[int],
) -> None:
    """Add each row's token to its completion, unless that one has stopped already."""
    for row, token, logprob in zip(running, token_B.tolist(), logprob_B.tolist(), strict=True):
        completion = rows[row]
        if not completion.finished:
            completion.tokens.append(token)
            completion.logprobs.append(logprob)
            completion.finished = token in stops


def _check(
    model: Decoder, prompts: Sequence[Sequence[int]], max_new_tokens: int, num_samples: int
) -> None:
    empty = [i for i, prompt in enumerate(prompts) if not len(prompt)]
    if empty:
        raise ConfigError(f"prompt {empty[0]} is empty; give it at least the separator token")
    if max_new_tokens < 1 or num_samples < 1:
        raise ConfigError(
            f"max_new_tokens={max_new_tokens} and num_samples={num_samples} must be at least 1"
        )
    longest = max(len(prompt) for prompt in prompts)
    room = model.config.max_seq_len - longest
    if max_new_tokens > room:
        raise ConfigError(
            f"the longest prompt of {longest} tokens and max_new_tokens={max_new_tokens} exceed "
            f"max_seq_len={model.config.max_seq_len}; use at most {room} new"
        )
