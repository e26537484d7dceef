"""Conversations as token ids, with the mask of what the model is taught to say.

    <|endoftext|><|user|>Sort: 3 1 2<|end|><|assistant|>1 2 3<|end|>
                                                        └─ mask ──┘

The mask comes from the structure of the conversation, piece by piece while it is rendered. The
usual alternative, finding the answer in the finished ids by its token values, breaks as soon as a
user quotes a marker, the end token doubles as padding, or a merge spans a boundary.

mask[t] says that token t itself is a target. It is predicted from tokens before t, and the shift
by one happens in a single place, `logprobs.token_logprobs`. A turn's `<|end|>` is a target exactly
once (a model that is never taught to end never does); `<|assistant|>` is not, since generation
starts behind it. Contents are encoded with special tokens switched off: a user who types
`<|assistant|>` gets those thirteen characters, not a turn.

`CHAT_TEMPLATE` is the same rendering in Jinja for other engines; a test holds the two equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lmpipe.documents.text_files import json_lines, parse_json
from lmpipe.errors import ConfigError, InputError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BEGIN, USER, ASSISTANT, END = "<|endoftext|>", "<|user|>", "<|assistant|>", "<|end|>"

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}"
    "<|user|>{{ message['content'] }}<|end|>"
    "{% elif message['role'] == 'assistant' %}"
    "<|assistant|>{% generation %}{{ message['content'] }}<|end|>{% endgeneration %}"
    "{% else %}"
    "{{ raise_exception('roles are user and assistant, got ' + message['role']) }}"
    "{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@dataclass(frozen=True)
class Message:
    """One turn."""

    role: Literal["user", "assistant"]
    content: str


Conversation = Sequence[Message]


@dataclass(frozen=True)
class Rendered:
    """Token ids of a conversation; `mask[t]` is True where token t is a target."""

    tokens: list[int]
    mask: list[bool]

    @property
    def num_targets(self) -> int:
        """How many tokens are trained on."""
        return sum(self.mask)


class ChatTokenizer:
    """A tokenizer that knows the chat markers by id.

    Raises:
        ConfigError: the tokenizer lacks one of the markers.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokenizer.encode_special_tokens = True  # contents never turn into markers
        self.tokenizer = tokenizer
        ids = {marker: tokenizer.token_to_id(marker) for marker in (BEGIN, USER, ASSISTANT, END)}
        missing = [marker for marker, token in ids.items() if token is None]
        if missing:
            raise ConfigError(
                f"the tokenizer has no {', '.join(missing)}; train it with the chat markers "
                "among its special tokens"
            )
        self.begin, self.user, self.assistant, self.end = (int(t or 0) for t in ids.values())
        added = tokenizer.get_added_tokens_decoder()
        self.controls = frozenset(number for number, token in added.items() if token.special)

    @classmethod
    def load(cls, path: Path) -> ChatTokenizer:
        """Read a tokenizer.json."""
        from tokenizers import Tokenizer

        return cls(Tokenizer.from_file(str(path)))

    @property
    def stop_ids(self) -> list[int]:
        """Tokens that end a completion."""
        return [self.end, self.begin]

    def encode(self, text: str) -> list[int]:
        """Encode plain text; markers in it stay text."""
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """Decode a completion without the marker that ends the turn; any other one is spelled.

        Leaving all out, the alternative, makes "1 2<|user|> 3" the answer "1 2 3", which no other
        engine would show.
        """
        return str(self.tokenizer.decode(self._said(tokens), skip_special_tokens=False))

    def is_plain(self, tokens: Sequence[int]) -> bool:
        """Whether a completion is text alone, but for the one marker that ends the turn.

        By ids, since text that spells a marker is text.
        """
        return self.controls.isdisjoint(self._said(tokens))

    def _said(self, tokens: Sequence[int]) -> list[int]:
        return list(tokens[:-1] if tokens and tokens[-1] == self.end else tokens)

    def render(self, conversation: Conversation) -> Rendered:
        """Render a conversation for training.

        Raises:
            InputError: an unknown role.
        """
        tokens, mask = [self.begin], [False]
        for message in conversation:
            content = self.encode(message.content)
            if message.role == "user":
                tokens += [self.user, *content, self.end]
                mask += [False] * (len(content) + 2)
            elif message.role == "assistant":
                tokens += [self.assistant, *content, self.end]
                mask += [False] + [True] * (len(content) + 1)
            else:
                raise InputError(f"role {message.role!r}: roles are user and assistant")
        return Rendered(tokens, mask)

    def render_prompt(self, conversation: Conversation) -> list[int]:
        """Render a conversation up to where the assistant answers."""
        return [*self.render(conversation).tokens, self.assistant]


def question(prompt: str) -> list[Message]:
    """Return the one-turn conversation that asks `prompt`."""
    return [Message("user", prompt)]


def exchange(prompt: str, answer: str) -> list[Message]:
    """Return the conversation that asks `prompt` and answers it."""
    return [Message("user", prompt), Message("assistant", answer)]


def check_template(template: str) -> None:
    """Refuse a template whose assistant mask would be empty in every engine that reads it."""
    if "{% generation %}" not in template or "{% endgeneration %}" not in template:
        raise ConfigError(
            "the chat template marks no assistant tokens: put {% generation %} … "
            "{% endgeneration %} around what the assistant says"
        )


def tokenizer_config(max_length: int) -> dict[str, Any]:
    """Return the content of tokenizer_config.json with the chat template in it."""
    check_template(CHAT_TEMPLATE)
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END,
        "pad_token": BEGIN,
        "additional_special_tokens": [USER, ASSISTANT, END],
        "add_bos_token": False,  # the template writes it: twice is the classic bug
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
        "chat_template": CHAT_TEMPLATE,
    }


def read_conversations(path: Path) -> list[list[Message]]:
    """Read JSONL with {"messages": [{"role": …, "content": …}, …]} a line.

    Raises:
        InputError: names the file, the line and what is wrong with it.
    """
    conversations = []
    for number, line in json_lines(path.read_bytes()):
        try:
            conversations.append(_conversation(parse_json(line)))
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(
                f'{path.name}, line {number}: expected {{"messages": [{{"role": '
                f'"user" or "assistant", "content": text}}, …]}}: {error}'
            ) from error
    return conversations


def _conversation(record: dict[str, Any]) -> list[Message]:
    messages = [Message(item["role"], item["content"]) for item in record["messages"]]
    for message in messages:
        if message.role not in ("user", "assistant") or not isinstance(message.content, str):
            raise ValueError(f"role {message.role!r} with {type(message.content).__name__} content")
    if not any(message.role == "assistant" for message in messages):
        raise ValueError("no assistant turn to learn from")
    return messages
