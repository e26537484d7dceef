"""From logits to tokens: temperature, top-k, top-p, and a draw of the row's own.

A token is drawn by inverting the cumulative distribution at a uniform number. The uniforms of a row
come from a stream of its own (seed, prompt, sample), so what a row says does not change with the
rows beside it, with their order of finishing or with the device. Alternative not taken:
torch.multinomial with one generator, whose draws shift as soon as any row leaves the batch.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from lmpipe.model.named_shapes import checked_shapes


class SamplingConfig(BaseModel):
    """How tokens are chosen from the model's distribution."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    temperature: float = Field(
        1.0, ge=0.0, le=100.0, description="Divides the logits; 0 takes the likeliest token."
    )
    top_k: int = Field(
        0, ge=0, le=2**20, description="Keep the k likeliest tokens only; 0 keeps all."
    )
    top_p: float = Field(
        1.0,
        gt=0.0,
        le=1.0,
        description="Keep the likeliest tokens that together reach this probability; 1 keeps all.",
    )


def row_uniforms(seed: int, prompt: int, sample: int, count: int) -> NDArray[np.float64]:
    """Return the `count` uniforms in [0, 1) of one completion, the same on every machine.

    They are multiples of 2^-32, so that uniform * total stays below total in float64: inverting
    never runs past the last token of positive probability.
    """
    # Raw words of the bit generator: numpy keeps these forever, the methods of Generator not.
    words = np.random.Philox(np.random.SeedSequence([seed, prompt, sample])).random_raw(count)
    return (words >> np.uint64(32)) / 2.0**32


def token_logprobs(
    logits_BV: Float[torch.Tensor, "B V"], temperature: float
) -> Float[torch.Tensor, "B V"]:
    """Log-probabilities of softmax(logits / temperature) in fp32, before any truncation.

    This is what a trainer recomputes from its own logits. After top-k or top-p the sampler's
    distribution is larger by the log of the kept mass, which would leak into every importance
    ratio. At temperature 0 it is taken at 1.
    """
    return torch.log_softmax(logits_BV.float() / (temperature or 1.0), dim=-1)


@checked_shapes
def choose(
    logprob_BV: Float[torch.Tensor, "B V"],
    uniform_B: Float[torch.Tensor, " B"],
    config: SamplingConfig,
) -> Int[torch.Tensor, " B"]:
    """Pick one token per row from the (truncated) distribution; the likeliest at temperature 0."""
    if config.temperature == 0:
        return logprob_BV.argmax(dim=-1)
    # Summed in float64: in fp32 the cumulative of 100,000 tokens drifts by more than a rare token's
    # probability.
    cumulative_BV = truncate(logprob_BV, config).exp().cumsum(dim=-1, dtype=torch.float64)
    target_B1 = uniform_B.double()[:, None] * cumulative_BV[:, -1:]
    # right=True: the first token whose cumulative exceeds the target, so one of probability 0 is
    # never taken.
    return torch.searchsorted(cumulative_BV, target_B1, right=True)[:, 0]


def truncate(
    logprob_BV: Float[torch.Tensor, "B V"], config: SamplingConfig
) -> Float[torch.Tensor, "B V"]:
    """Set what top-k and then top-p leave out to -inf. At least the likeliest token stays.

    Source: Holtzman et al., The Curious Case of Neural Text Degeneration (2020), for top-p.
    """
    num_tokens = logprob_BV.shape[-1]
    if 0 < config.top_k < num_tokens:
        kept_BK = logprob_BV.topk(config.top_k, dim=-1)
        truncated_BV = torch.full_like(logprob_BV, float("-inf"))
        logprob_BV = truncated_BV.scatter(-1, kept_BK.indices, kept_BK.values)
    if config.top_p < 1:
        sorted_BV, order_BV = logprob_BV.sort(dim=-1, descending=True, stable=True)
        probability_BV = sorted_BV.softmax(dim=-1)
        mass_before_BV = probability_BV.cumsum(dim=-1) - probability_BV
        dropped_BV = mass_before_BV >= config.top_p
        dropped_BV[:, 0] = False
        sorted_BV = sorted_BV.masked_fill(dropped_BV, float("-inf"))
        logprob_BV = torch.empty_like(logprob_BV).scatter(-1, order_BV, sorted_BV)
    return logprob_BV
