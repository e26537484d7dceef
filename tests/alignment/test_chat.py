import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmpipe.alignment.chat import (
    ASSISTANT,
    BEGIN,
    CHAT_TEMPLATE,
    END,
    USER,
    ChatTokenizer,
    Message,
    check_template,
    exchange,
    question,
    read_conversations,
    tokenizer_config,
)
from lmpipe.errors import ConfigError, InputError
from tests.alignment.toy import toy_tokenizer

TEXT = st.text(max_size=20) | st.sampled_from([BEGIN, USER, ASSISTANT, END, f"a{END}b{ASSISTANT}"])


@pytest.fixture(scope="module")
def chat() -> ChatTokenizer:
    return ChatTokenizer(toy_tokenizer())


def test_targets_are_the_answer_and_its_end_and_nothing_else(chat: ChatTokenizer) -> None:
    rendered = chat.render(exchange("Sort: 3 1 2", "1 2 3"))
    taught = [t for t, target in zip(rendered.tokens, rendered.mask, strict=True) if target]
    assert taught == [*chat.encode("1 2 3"), chat.end]
    untaught = [t for t, target in zip(rendered.tokens, rendered.mask, strict=True) if not target]
    assert untaught == [
        chat.begin,
        chat.user,
        *chat.encode("Sort: 3 1 2"),
        chat.end,
        chat.assistant,
    ]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=4))
def test_user_tokens_are_never_targets_and_each_end_is_one_once(
    chat: ChatTokenizer, turns: list[tuple[str, str]]
) -> None:
    conversation = [m for user, assistant in turns for m in exchange(user, assistant)]
    rendered = chat.render(conversation)
    expected = sum(len(chat.encode(assistant)) + 1 for _, assistant in turns)
    assert rendered.num_targets == expected
    ends = [m for t, m in zip(rendered.tokens, rendered.mask, strict=True) if t == chat.end]
    assert ends == [False, True] * len(turns)


@settings(max_examples=60, deadline=None)
@given(TEXT)
def test_markers_typed_by_a_user_stay_text(chat: ChatTokenizer, text: str) -> None:
    tokens = chat.render(question(text)).tokens
    markers = [t for t in tokens if t in (chat.begin, chat.user, chat.assistant, chat.end)]
    assert markers == [chat.begin, chat.user, chat.end]
    assert chat.tokenizer.decode(tokens[2:-1], skip_special_tokens=False) == text


def test_exactly_one_begin_token_for_training_and_for_prompts(chat: ChatTokenizer) -> None:
    assert chat.render(exchange("a", "b")).tokens.count(chat.begin) == 1
    assert chat.render_prompt(question("a")).count(chat.begin) == 1


def test_training_continues_exactly_where_the_prompt_ends(chat: ChatTokenizer) -> None:
    prompt = chat.render_prompt(question("Sort: 3 1 2"))
    rendered = chat.render(exchange("Sort: 3 1 2", "1 2 3"))
    assert rendered.tokens[: len(prompt)] == prompt
    assert rendered.mask.index(True) == len(prompt)


def test_jinja_template_gives_the_same_ids_and_the_same_mask(
    chat: ChatTokenizer, tmp_path: Path
) -> None:
    from transformers import PreTrainedTokenizerFast

    toy_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(256)))
    other = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    conversation = [*exchange("Sort: 3 1 2", "1 2 3"), *exchange("Sort: 9 8", "8 9")]
    rendered = chat.render(conversation)
    messages = [{"role": m.role, "content": m.content} for m in conversation]
    theirs = other.apply_chat_template(
        messages, return_dict=True, return_assistant_tokens_mask=True
    )
    assert theirs["input_ids"] == rendered.tokens
    assert theirs["assistant_masks"] == [int(m) for m in rendered.mask]
    prompt = other.apply_chat_template(messages[:1], add_generation_prompt=True, return_dict=True)[
        "input_ids"
    ]
    assert prompt == chat.render_prompt(conversation[:1])
    assert other.eos_token == END and other.pad_token != other.eos_token


def test_a_template_without_generation_markers_is_refused() -> None:
    check_template(CHAT_TEMPLATE)
    bare = CHAT_TEMPLATE.replace("{% generation %}", "").replace("{% endgeneration %}", "")
    with pytest.raises(ConfigError, match="marks no assistant tokens"):
        check_template(bare)


def test_a_tokenizer_without_chat_markers_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"<\|assistant\|>"):
        ChatTokenizer(toy_tokenizer((BEGIN, USER, END)))


@pytest.mark.parametrize(
    "line",
    [
        '{"messages": [{"role": "user", "content": "a"}]}',
        '{"messages": [{"role": "system", "content": "a"}]}',
        '{"messages": [{"role": "assistant", "content": 3}]}',
        '{"turns": []}',
        "[]",
        "{",
    ],
)
def test_a_bad_line_names_the_file_and_the_line(tmp_path: Path, line: str) -> None:
    good = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}'
    path = tmp_path / "chats.jsonl"
    path.write_text(f"{good}\n\n{line}\n")
    with pytest.raises(InputError, match=r"chats\.jsonl, line 3"):
        read_conversations(path)


def test_conversations_are_read(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    messages = [{"role": "user", "content": "é"}, {"role": "assistant", "content": "b"}]
    path.write_text(json.dumps({"messages": messages}) + "\n", encoding="utf-8")
    assert read_conversations(path) == [[Message("user", "é"), Message("assistant", "b")]]


def test_half_an_emoji_in_a_conversation_is_read_as_the_replacement_character(
    tmp_path: Path,
) -> None:
    path = tmp_path / "c.jsonl"
    turns = '{"role": "user", "content": "a\\ud83d"}, {"role": "assistant", "content": "b"}'
    path.write_text(f'{{"messages": [{turns}]}}\n')
    assert read_conversations(path) == [[Message("user", "a\ufffd"), Message("assistant", "b")]]
