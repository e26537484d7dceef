"""Whom the server notifies: webhook and Slack blocks.

A block is the only place for a URL that lets its holder write to a channel: Prefect encrypts it and
its API shows asterisks. So the URL comes from the environment, not from an option that shows in a
process list, and no message of ours repeats it.
"""

import os
import re
from typing import TYPE_CHECKING, Any

from deployments.automations import Channel
from lmpipe.errors import ConfigError

if TYPE_CHECKING:
    from prefect.blocks.core import Block

NAME = "lmpipe"  # of the blocks that deploy makes
WEBHOOK_URL, SLACK_URL = "LMPIPE_NOTIFY_WEBHOOK_URL", "LMPIPE_NOTIFY_SLACK_URL"
# What Prefect's Slack block takes. It hands the URL to Apprise, which drops what it does not know
# without an error, and the alerts with it.
SLACK_SHAPES = (
    r"https://hooks\.slack(-gov)?\.com/services/[A-Za-z0-9]+/[A-Za-z0-9]+/[A-Za-z0-9]+/?",
    r"mmosts?://[^/\s]+/\S+",  # Mattermost, whose webhooks take Slack's format
)


def find_channels(webhook_block: str, slack_block: str, changes: list[str]) -> list[Channel]:
    """Return the blocks to notify; ours are made or changed if the environment has their URL.

    Args:
        webhook_block: name of a Webhook or Custom Webhook block to use instead of ours.
        slack_block: name of a Slack Webhook block, likewise.
        changes: gets a line for a block that was made or changed.

    Raises:
        ConfigError: a named block does not exist, or a URL is of no use.
    """
    from prefect.blocks.notifications import CustomWebhookNotificationBlock, SlackWebhook
    from prefect.blocks.webhook import Webhook

    channels: list[Channel] = []
    if webhook_block:
        channels.append(_named(webhook_block, [Webhook, CustomWebhookNotificationBlock]))
    else:
        url = _url(WEBHOOK_URL, [r"https?://[^/\s]+\S*"], "http:// or https://")
        headers = {"Content-Type": "application/json"}
        channels += _ours(Webhook, url, {"headers": headers}, changes)
    if slack_block:
        channels.append(_named(slack_block, [SlackWebhook]))
    else:
        shape = "https://hooks.slack.com/services/…/…/… or mmosts://host/token"
        channels += _ours(SlackWebhook, _url(SLACK_URL, SLACK_SHAPES, shape), {}, changes)
    return channels


def _url(variable: str, shapes: Any, allowed: str) -> str:
    url = os.environ.get(variable, "").strip()
    if url and not any(re.fullmatch(shape, url) for shape in shapes):
        raise ConfigError(f"{variable} is not a URL that can be notified; it must be {allowed}")
    return url


def _named(name: str, kinds: list["type[Block]"]) -> Channel:
    for kind in kinds:
        if block := _load(kind, name):
            return _channel(block, name)
    slugs = " or ".join(kind.get_block_type_slug() for kind in kinds)
    raise ConfigError(f"no block {name!r} of type {slugs}; make it in the UI under Blocks")


def _ours(
    kind: "type[Block]", url: str, fields: dict[str, Any], changes: list[str]
) -> list[Channel]:
    """Return our block, if there is one or the environment says where it points."""
    block: Any = _load(kind, NAME)
    if url and (block is None or block.url.get_secret_value() != url):
        known = block is not None
        block = kind(url=url, **fields)
        block.save(NAME, overwrite=True)
        slug = kind.get_block_type_slug()
        changes.append(f"block {slug}/{NAME}: {'new URL' if known else 'created'}")
    return [] if block is None else [_channel(block, NAME)]


def _load(kind: "type[Block]", name: str) -> "Block | None":
    try:
        block: Any = kind.load(name)
    except ValueError:  # what Prefect raises for a block that does not exist
        return None
    loaded: Block = block
    return loaded


def _channel(block: Any, name: str) -> Channel:
    slug = block.get_block_type_slug()
    return Channel(f"{slug}/{name}", str(block._block_document_id), slug == "webhook")
