"""`DecoderLM`: our decoder behind lm-eval's `LM` interface.

lm-eval asks three questions: how likely is a continuation after a context, how likely is a whole
text, and what does the model write next. All likelihood questions become `Row`s (tokens, how many
at the end are scored) and go through one batched function, longest first, padded on the right (a
causal model never looks at the padding).

Where the text of context and continuation meets, a token may span the join ("foo" + "bar" is one
token). lm-eval's own Hugging Face adapter then scores whatever is left after as many tokens as
the context has alone, which may be nothing. Here the split is taken from the joined encoding
where the context's tokens begin it, and the two halves are encoded apart where they do not: each
choice of a question is then scored after the same tokens. The price: after such a join the tokens
are not those that the model saw in training.

Text is encoded as training encodes it: it never becomes a control token, whatever it spells. (With
lm-eval's own adapter `<|endoftext|>` in a text becomes the token that ends documents, and another
text is scored.) Every context starts with exactly one `<|endoftext|>`, put in by id, as every
training document does; one that is cut on the left to fit the model's length loses it, and is
counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from tokenizers import Tokenizer

from lmpipe.errors import ConfigError
from lmpipe.inference.generate import generate
from lmpipe.model.decoder import Decoder

Progress = Callable[[int, int], None]

SAMPLING_KEYS = {"temperature", "top_k", "top_p"}
LENGTH_KEYS = ("max_gen_toks", "max_new_tokens", "max_tokens")
DEFAULT_NEW_TOKENS = 128


@dataclass(frozen=True)
class Row:
    """One forward pass: the last `num_scored` tokens are predicted from all before them."""

    tokens: tuple[int, ...]
    num_scored: int

    @property
    def width(self) -> int:
        """Tokens that go into the model: all but the last."""
        return len(self.tokens) - 1


@dataclass(frozen=True)
class Sampling:
    """Generation arguments of a request; hashable, so that equal requests share a batch."""

    until: tuple[str, ...]
    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float


class DecoderLM(LM):  # type: ignore[misc]
    """Answer lm-eval's requests with a decoder of ours.

    Args:
        tokenizer: its `encode_special_tokens` is switched on here, for text to stay text.
        batch_tokens: padded positions of one forward pass.
        on_progress: called with (requests done, requests in all) of the running question.
    """

    def __init__(
        self,
        model: Decoder,
        tokenizer: Tokenizer,
        *,
        max_length: int,
        eos: str = "<|endoftext|>",
        batch_tokens: int = 4096,
        on_progress: Progress | None = None,
    ) -> None:
        super().__init__()
        eos_id = tokenizer.token_to_id(eos)
        if eos_id is None:
            raise ConfigError(f"the tokenizer has no token {eos!r} to start a context with")
        tokenizer.encode_special_tokens = True
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.eos, self.eos_id = eos, int(eos_id)
        self.max_length, self.batch_tokens = max_length, batch_tokens
        self.on_progress = on_progress or (lambda done, total: None)
        self._device = next(iter(model.parameters())).device
        self.num_split_joins = 0  # pairs whose tokens span the join of context and continuation
        self.num_cut_contexts = 0  # contexts and prompts that lost their beginning to fit

    # --- text to tokens

    def encode(self, text: str) -> list[int]:
        """Encode plain text, nothing added; control tokens in it stay text."""
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def encode_context(self, text: str) -> list[int]:
        """Encode with exactly one end-of-text token in front."""
        return [self.eos_id, *self.encode(text)]

    def encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Split at the join; the context's trailing spaces belong to the continuation."""
        stripped = context.rstrip(" ")
        continuation = context[len(stripped) :] + continuation
        before = self.encode_context(stripped)
        whole = self.encode_context(stripped + continuation)
        if whole[: len(before)] == before and len(whole) > len(before):
            return before, whole[len(before) :]
        after = self.encode(continuation)
        self.num_split_joins += bool(after)
        return before, after

    def rows_of(self, context: Sequence[int], targets: Sequence[int]) -> Iterator[Row]:
        """Cut targets into rows of at most `max_length` inputs; every target is scored exactly
        once.

        One row, its context cut on the left, if the targets fit; else rolling rows: the first
        starts from the context's last token, each later one from the last token before it, the
        last one is filled with context.
        """
        if not targets:
            return
        if len(targets) <= self.max_length:
            tokens = (*context, *targets)[-(self.max_length + 1) :]
            yield Row(tokens, len(targets))
            return
        sequence = (context[-1], *targets)
        for start in range(0, len(targets), self.max_length):
            end = min(start + self.max_length, len(targets))
            yield Row(sequence[max(0, end - self.max_length) : end + 1], end - start)

    # --- lm-eval's three questions

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """Score each continuation after its context; an empty one is certain: (0, True)."""
        pairs = [self.encode_pair(*request.args) for request in requests]
        for before, after in pairs:
            room = max(1, self.max_length + 1 - len(after))
            self.num_cut_contexts += bool(after) and len(before) > room
        return self._score([list(self.rows_of(before, after)) for before, after in pairs])

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        """Score whole texts from the end-of-text token on."""
        texts = [self.encode(request.args[0]) for request in requests]
        rows = [list(self.rows_of([self.eos_id], targets)) for targets in texts]
        return [value for value, _ in self._score(rows)]

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """Write on from each context until a stop string, end of text, or the length limit.

        Raises:
            ConfigError: a request asks for so many new tokens that its prompt has no room.
        """
        groups: dict[Sampling, list[int]] = defaultdict(list)
        for index, request in enumerate(requests):
            groups[parse_sampling(request.args[1])].append(index)
        texts = [""] * len(requests)
        done = 0
        for sampling, indices in groups.items():
            prompts = {i: self._prompt(requests[i].args[0], sampling) for i in indices}
            indices = sorted(indices, key=lambda i: -len(prompts[i]))
            width = len(prompts[indices[0]]) + sampling.max_new_tokens
            batch = max(1, self.batch_tokens // width)
            for chunk in (indices[at : at + batch] for at in range(0, len(indices), batch)):
                answers = self._generate([prompts[i] for i in chunk], sampling)
                for i, answer in zip(chunk, answers, strict=True):
                    texts[i] = answer
                done += len(chunk)
                self.on_progress(done, len(requests))
        return texts

    # --- the two loops

    @torch.inference_mode()
    def _score(self, rows_of_request: list[list[Row]]) -> list[tuple[float, bool]]:
        """Sum log-probabilities per request; greedy holds if it holds for all of its rows."""
        rows = [(request, row) for request, own in enumerate(rows_of_request) for row in own]
        rows.sort(
            key=lambda pair: -pair[1].width
        )  # the largest batch first: a lack of memory shows at once
        values, greedy = [0.0] * len(rows_of_request), [True] * len(rows_of_request)
        at = 0
        while at < len(rows):
            batch = rows[at : at + max(1, self.batch_tokens // rows[at][1].width)]
            scored = self._score_batch([row for _, row in batch])
            for (request, _), (value, is_greedy) in zip(batch, scored, strict=True):
                values[request] += value
                greedy[request] &= is_greedy
            at += len(batch)
            self.on_progress(at, len(rows))
        return list(zip(values, greedy, strict=True))

    def _score_batch(self, rows: list[Row]) -> list[tuple[float, bool]]:
        """Run one forward pass; the softmax is taken over the scored positions only."""
        width = rows[0].width
        tokens_BT = torch.full((len(rows), width), self.eos_id, dtype=torch.long)
        for b, row in enumerate(rows):
            tokens_BT[b, : row.width] = torch.tensor(row.tokens[:-1])
        logits_BTV = self.model(tokens_BT.to(self._device))
        scored_V = torch.cat(
            [logits_BTV[b, r.width - r.num_scored : r.width] for b, r in enumerate(rows)]
        ).float()
        target = torch.tensor([t for r in rows for t in r.tokens[-r.num_scored :]])
        target = target.to(self._device)
        log_probability = scored_V.log_softmax(-1).gather(-1, target[:, None])[:, 0]
        is_greedy = scored_V.argmax(-1) == target
        values, greedy, results = log_probability.cpu().double(), is_greedy.cpu(), []
        for row in rows:
            results.append(
                (float(values[: row.num_scored].sum()), bool(greedy[: row.num_scored].all()))
            )
            values, greedy = values[row.num_scored :], greedy[row.num_scored :]
        return results

    def _prompt(self, context: str, sampling: Sampling) -> list[int]:
        """Encode, cut on the left so that the answer fits into the model's length."""
        room = self.max_length - sampling.max_new_tokens
        if room < 1:
            raise ConfigError(
                f"a request asks for max_gen_toks={sampling.max_new_tokens} new tokens of a model "
                f"that takes {self.max_length} in all, which leaves no room for its prompt "
                f"{context[:40]!r}; set max_gen_toks in the task's generation_kwargs to "
                f"{self.max_length - 1} or less, and below that by as many tokens as prompts have"
            )
        tokens = self.encode_context(context)
        self.num_cut_contexts += len(tokens) > room
        return tokens[-room:]

    def _generate(self, prompts: list[list[int]], sampling: Sampling) -> list[str]:
        stops = [self._stop_id(stop) for stop in sampling.until]
        stop_ids = [self.eos_id, *(stop for stop in stops if stop is not None)]
        completions = generate(
            self.model,
            prompts,
            max_new_tokens=sampling.max_new_tokens,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            stop_ids=stop_ids,
            seed=0,
            num_samples=1,
        )
        said = [c.tokens[:-1] if c.tokens[-1:] == [self.eos_id] else c.tokens for c in completions]
        # special tokens are kept in the text: a stop string may be one of them
        texts = [self.tokenizer.decode(tokens, skip_special_tokens=False) for tokens in said]
        return [cut_at_first(text, sampling.until) for text in texts]

    def _stop_id(self, stop: str) -> int | None:
        """Return the token that a stop string is: a control token, or a single one of text."""
        ids = self.encode(stop)
        added = {token.content: n for n, token in self.tokenizer.get_added_tokens_decoder().items()}
        return added.get(stop, ids[0] if len(ids) == 1 else None)


def parse_sampling(arguments: dict[str, Any]) -> Sampling:
    """Read a task's generation arguments.

    Raises:
        ConfigError: for an argument that would be silently ignored, or stop strings that are no
            strings.
    """
    rest = dict(arguments)
    until = rest.pop("until", None) or []
    stops = [until] if isinstance(until, str) else list(until)
    if not all(isinstance(stop, str) for stop in stops):
        raise ConfigError(f"until must be a string or a list of strings, got {until!r}")
    lengths = [int(rest.pop(key)) for key in LENGTH_KEYS if key in rest]
    sampled = bool(rest.pop("do_sample", float(rest.get("temperature") or 0.0) > 0))
    unknown = sorted(set(rest) - SAMPLING_KEYS)
    if unknown:
        raise ConfigError(
            f"generation argument {unknown[0]!r} is not supported;"
            f" known: until, do_sample, {', '.join((*LENGTH_KEYS, *sorted(SAMPLING_KEYS)))}"
        )
    temperature = rest.get("temperature")
    return Sampling(
        until=tuple(stop for stop in stops if stop),
        max_new_tokens=lengths[0] if lengths else DEFAULT_NEW_TOKENS,
        temperature=(1.0 if temperature is None else float(temperature)) if sampled else 0.0,
        top_k=int(rest.get("top_k") or 0),
        top_p=float(rest.get("top_p") or 1.0),
    )


def cut_at_first(text: str, stops: Sequence[str]) -> str:
    """Cut at the earliest stop string; strings that contain each other cut at the earlier start."""
    ends = [at for at in (text.find(stop) for stop in stops) if at >= 0]
    return text[: min(ends)] if ends else text


def load_tokenizer(folder: Path) -> Tokenizer:
    """Load tokenizer.json without transformers (2 s of import)."""
    return Tokenizer.from_file(str(folder / "tokenizer.json"))
