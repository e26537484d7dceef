"""The adapter: splits, rows, sums by hand, and agreement with lm-eval's own adapter."""

import itertools
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lm_eval.api.instance import Instance

from lmpipe.errors import ConfigError
from lmpipe.evaluation.adapter import DecoderLM, Row, cut_at_first, load_tokenizer, parse_sampling
from lmpipe.inference.generate import Completion
from tests.evaluation.tiny import make_tokenizer, save_tiny_llama

TOKENIZER = make_tokenizer()
MAX_LENGTH = 48


class Bigram(torch.nn.Module):
    """Logits of the next token from a table row of the current one."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.table_VV = torch.nn.Parameter(torch.randn(vocab_size, vocab_size, generator=generator))
        self.shapes: list[tuple[int, int]] = []

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        self.shapes.append((tokens_BT.shape[0], tokens_BT.shape[1]))
        return self.table_VV[tokens_BT]


def requests(kind: str, arguments: list[tuple[Any, ...]]) -> list[Instance]:
    return [Instance(kind, {}, args, i) for i, args in enumerate(arguments)]


def bigram_lm(max_length: int = MAX_LENGTH, batch_tokens: int = 64) -> DecoderLM:
    model = Bigram(TOKENIZER.get_vocab_size())
    return DecoderLM(model, TOKENIZER, max_length=max_length, batch_tokens=batch_tokens)


SHARED = bigram_lm()  # for the property tests: building one takes 20 ms


def by_hand(lm: DecoderLM, tokens: list[int]) -> float:
    """Sum of log p(next | current) over a sequence, from the table."""
    table = lm.model.table_VV.detach().double().log_softmax(-1)
    return float(sum(table[a, b] for a, b in itertools.pairwise(tokens)))


def test_a_continuation_is_the_sum_of_its_tokens_log_probabilities() -> None:
    lm = bigram_lm()
    context, continuation = "The cat", " sits on the mat."
    before = lm.encode_context(context)
    after = lm.encode(continuation)
    [(value, greedy)] = lm.loglikelihood(requests("loglikelihood", [(context, continuation)]))
    assert value == pytest.approx(by_hand(lm, [before[-1], *after]), abs=1e-5)
    assert greedy is False


def test_the_likeliest_continuation_is_marked_greedy() -> None:
    lm = bigram_lm()
    best = int(lm.model.table_VV[lm.encode("mat")[-1]].argmax())
    [row] = lm.rows_of(lm.encode_context("mat"), [best])
    assert lm._score([[row]])[0][1] is True


def test_an_empty_context_is_the_end_of_text_token() -> None:
    lm = bigram_lm()
    [(value, _)] = lm.loglikelihood(requests("loglikelihood", [("", "The cat")]))
    assert value == pytest.approx(by_hand(lm, [lm.eos_id, *lm.encode("The cat")]), abs=1e-5)


def test_an_empty_continuation_is_certain() -> None:
    lm = bigram_lm()
    assert lm.loglikelihood(requests("loglikelihood", [("The cat", ""), ("", "")])) == [
        (0.0, True),
        (0.0, True),
    ]


def test_a_context_starts_with_exactly_one_end_of_text_token() -> None:
    lm = bigram_lm()
    for text in ("", "The cat", "<|endoftext|>The cat"):
        ids = lm.encode_context(text)
        assert ids[0] == lm.eos_id
        assert ids.count(lm.eos_id) == 1


SPELLED = "The cat<|endoftext|> sits<|user|>."


def test_control_tokens_spelled_in_a_text_stay_text_as_in_training() -> None:
    from tests.alignment.toy import toy_tokenizer

    lm = DecoderLM(Bigram(261), toy_tokenizer(), max_length=256)
    controls = {lm.tokenizer.token_to_id(name) for name in ("<|endoftext|>", "<|user|>")}
    before, after = lm.encode_pair(SPELLED, SPELLED)
    assert before[0] == lm.eos_id
    assert not controls & {*before[1:], *after, *lm.encode(SPELLED)}
    assert bytes(lm.tokenizer.decode(before[1:]), "utf-8") == SPELLED.encode()
    [value] = lm.loglikelihood_rolling(requests("loglikelihood_rolling", [(SPELLED,)]))
    letters = [lm.encode(letter)[0] for letter in SPELLED]  # one merge: "So"
    assert value == pytest.approx(by_hand(lm, [lm.eos_id, *letters]), rel=1e-5)


def test_trailing_spaces_of_the_context_are_scored_with_the_continuation() -> None:
    lm = bigram_lm()
    assert lm.encode_pair("The cat ", "sits") == lm.encode_pair("The cat", " sits")


def test_a_token_across_the_join_leaves_every_choice_after_the_same_tokens() -> None:
    lm = bigram_lm()
    assert len(lm.encode(" foobar")) < len(lm.encode(" foo")) + len(lm.encode("bar"))
    before, after = lm.encode_pair("A foo", "bar")
    assert after == lm.encode("bar")
    assert lm.num_split_joins == 1
    other, _ = lm.encode_pair("A foo", " bar")
    assert before == other


@given(st.text(max_size=30), st.text(max_size=30))
def test_the_two_halves_spell_the_text(context: str, continuation: str) -> None:
    lm = SHARED
    lm.num_split_joins = 0
    before, after = lm.encode_pair(context, continuation)
    text = TOKENIZER.decode([*before[1:], *after], skip_special_tokens=False)
    if lm.num_split_joins == 0:
        assert text == context + continuation
    assert before[0] == lm.eos_id


@given(st.integers(1, 30), st.lists(st.integers(4, 300), max_size=90), st.integers(2, 16))
def test_every_target_is_scored_once_within_the_models_length(
    num_context: int, targets: list[int], max_length: int
) -> None:
    SHARED.max_length = max_length
    rows = list(SHARED.rows_of([1] * num_context, targets))
    scored = [token for row in rows for token in row.tokens[-row.num_scored :]]
    assert scored == targets
    assert all(row.width <= max_length for row in rows)
    if len(rows) > 1:
        assert all(row.width == max_length for row in rows)


def test_a_long_text_is_rolled_over_the_models_length() -> None:
    lm = bigram_lm(max_length=5)
    text = "The cat sits on the mat. The dogs sit on the mats."
    tokens = lm.encode(text)
    assert len(tokens) > 10
    [value] = lm.loglikelihood_rolling(requests("loglikelihood_rolling", [(text,)]))
    assert value == pytest.approx(by_hand(lm, [lm.eos_id, *tokens]), abs=1e-4)


def test_a_long_context_loses_its_beginning() -> None:
    lm = bigram_lm(max_length=5)
    [row] = lm.rows_of(list(range(10, 40)), [7, 8])
    assert row == Row((36, 37, 38, 39, 7, 8), 2)


def test_batches_run_longest_first_within_the_token_budget() -> None:
    lm = bigram_lm(batch_tokens=40)
    pairs = [("The cat", " sits" * n) for n in range(1, 12)]
    lm.loglikelihood(requests("loglikelihood", pairs))
    widths = [width for _, width in lm.model.shapes]
    assert widths == sorted(widths, reverse=True)
    assert all(rows * width <= 40 for rows, width in lm.model.shapes)


def test_scores_do_not_depend_on_the_batch() -> None:
    pairs = [("The cat", " sits" * n) for n in range(1, 9)]
    alone = bigram_lm(batch_tokens=1).loglikelihood(requests("loglikelihood", pairs))
    together = bigram_lm(batch_tokens=4096).loglikelihood(requests("loglikelihood", pairs))
    assert [v for v, _ in alone] == pytest.approx([v for v, _ in together], abs=1e-5)


@pytest.mark.parametrize("max_gen_toks", [MAX_LENGTH, 256, 32_768])
def test_a_request_that_leaves_no_room_for_its_prompt_is_refused(max_gen_toks: int) -> None:
    asked = [("The cat", {"until": ["."], "max_gen_toks": max_gen_toks})]
    says = rf"max_gen_toks={max_gen_toks} .* takes 48 in all.* 'The cat'; set .* to 47 or less"
    with pytest.raises(ConfigError, match=says):
        bigram_lm().generate_until(requests("generate_until", asked))


def test_prompts_and_contexts_that_lose_their_beginning_are_counted(ours: DecoderLM) -> None:
    ours.num_cut_contexts = 0
    long = "Who sits where?" * 12
    for text in ("The cat", long):
        ours.generate_until(requests("generate_until", [(text, {"max_gen_toks": 8})]))
        ours.loglikelihood(requests("loglikelihood", [(text, " sits"), (text, "")]))
    assert ours.num_cut_contexts == 2


def test_a_control_token_as_stop_string_stops_generation_at_its_id(
    ours: DecoderLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}
    end = ours.tokenizer.token_to_id("<|end|>")

    def generated(model: Any, prompts: Any, **arguments: Any) -> list[Completion]:
        seen.update(arguments)
        return [Completion(0, [*ours.encode("The cat<|endoftext|>"), end], [], True)]

    monkeypatch.setattr("lmpipe.evaluation.adapter.generate", generated)
    arguments = {"until": ["<|end|>", "dogs sit"], "max_gen_toks": 8}
    [text] = ours.generate_until(requests("generate_until", [("Who", arguments)]))
    assert seen["stop_ids"] == [ours.eos_id, end]
    assert text == "The cat<|endoftext|>"  # spelled, not said: it ends nothing


def test_stop_strings_may_be_one_string_or_a_list() -> None:
    assert parse_sampling({"until": "\n\n"}).until == ("\n\n",)
    assert parse_sampling({"until": ["\n\n", "Q:"]}).until == ("\n\n", "Q:")
    assert parse_sampling({}).until == ()


def test_generation_is_greedy_unless_a_temperature_is_asked_for() -> None:
    assert parse_sampling({"do_sample": False, "temperature": 0.7}).temperature == 0.0
    assert parse_sampling({"temperature": 0.7}).temperature == 0.7
    assert parse_sampling({"do_sample": True}).temperature == 1.0
    assert parse_sampling({"max_gen_toks": 7}).max_new_tokens == 7


@pytest.mark.parametrize("arguments", [{"num_beams": 4}, {"until": [3]}])
def test_arguments_that_would_be_ignored_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        parse_sampling(arguments)


def test_text_is_cut_at_the_earliest_stop_string() -> None:
    assert cut_at_first("a\nb<|end|>c", ("<|end|>", "\n")) == "a"
    assert cut_at_first("abc", ("x",)) == "abc"


def test_the_same_tokens_split_elsewhere_are_another_question() -> None:
    """lm-eval's Hugging Face adapter answers both with the first one's number."""
    lm = bigram_lm()
    pairs = [("The cat", " sits"), ("", "The cat sits")]
    part, whole = (v for v, _ in lm.loglikelihood(requests("loglikelihood", pairs)))
    tokens = lm.encode_context("The cat sits")
    assert part == pytest.approx(by_hand(lm, tokens[len(lm.encode_context("The cat")) - 1 :]))
    assert whole == pytest.approx(by_hand(lm, tokens), abs=1e-5)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    save_tiny_llama(folder, TOKENIZER, max_length=MAX_LENGTH)
    return folder


@pytest.fixture(scope="module")
def ours(llama: Path) -> DecoderLM:
    from lmpipe.model.huggingface import load_model

    model = load_model(llama)
    return DecoderLM(model, load_tokenizer(llama), max_length=MAX_LENGTH, batch_tokens=256)


@pytest.fixture(scope="module")
def theirs(llama: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("accelerate")
        from lm_eval.models.huggingface import HFLM

        return HFLM(
            pretrained=str(llama),
            device="cpu",
            dtype="float32",
            batch_size=4,
            max_length=MAX_LENGTH,
        )


PAIRS = [
    ("The cat", " sits on the mat."),
    ("The dog ", "sits on the mats."),
    ("Who sits where? " * 12, "The cat."),
    ("", "The dogs sit on the mats."),
    ("", "Ärger über Öl."),
]


def test_log_likelihoods_agree_with_lm_evals_own_adapter(ours: DecoderLM, theirs: Any) -> None:
    mine = ours.loglikelihood(requests("loglikelihood", PAIRS))
    # their adapter puts the token in front of an empty context only, and takes it from the text
    marked = [(context and f"<|endoftext|>{context}", choice) for context, choice in PAIRS]
    others = theirs.loglikelihood(requests("loglikelihood", marked), disable_tqdm=True)
    assert [v for v, _ in mine] == pytest.approx([v for v, _ in others], abs=2e-3)
    assert [g for _, g in mine] == [g for _, g in others]


def test_rolling_log_likelihoods_agree_with_lm_evals_own_adapter(
    ours: DecoderLM, theirs: Any
) -> None:
    texts: list[tuple[Any, ...]] = [("The cat sits. " * n,) for n in (1, 9, 30)]
    mine = ours.loglikelihood_rolling(requests("loglikelihood_rolling", texts))
    others = theirs.loglikelihood_rolling(
        requests("loglikelihood_rolling", texts), disable_tqdm=True
    )
    assert mine == pytest.approx(others, rel=1e-5)


def test_greedy_texts_agree_with_lm_evals_own_adapter(ours: DecoderLM, theirs: Any) -> None:
    arguments: dict[str, Any] = {"until": ["."], "max_gen_toks": 12, "do_sample": False}
    asked: list[tuple[Any, ...]] = [("The cat", arguments), ("Who sits", arguments)]
    mine = ours.generate_until(requests("generate_until", asked))
    asked = [(f"<|endoftext|>{text}", arguments) for text, _ in asked]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        others = theirs.generate_until(requests("generate_until", asked), disable_tqdm=True)
    cut = [text.split("<|endoftext|>")[0] for text in mine]
    assert cut == [text.split("<|endoftext|>")[0] for text in others]
