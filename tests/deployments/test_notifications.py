"""Whom the server notifies, and what Slack gets."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from prefect.blocks.notifications import CustomWebhookNotificationBlock, SlackWebhook
from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import get_client

from deployments.notifications import NAME, SLACK_URL, WEBHOOK_URL, find_channels
from lmpipe.errors import ConfigError
from tests.services.receiver import Receiver

# Apprise imports all its services at first use, and one of them a module that Python will drop.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")
SLACK = "https://hooks.slack.com/services/T1AAAAAAA/B1AAAAAAA/c0ffeec0ffeec0ffeec0ffee"


@pytest.fixture
def clean(prefect_server: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """No URL in the environment, and no block of ours on the server afterwards."""
    for variable in (WEBHOOK_URL, SLACK_URL):
        monkeypatch.delenv(variable, raising=False)
    yield monkeypatch
    with get_client(sync_client=True) as client:
        for block in client.request("POST", "/block_documents/filter", json={}).json():
            if block["name"] in (NAME, "theirs"):
                client.request("DELETE", f"/block_documents/{block['id']}")


def find(webhook_block: str = "", slack_block: str = "") -> tuple[list[str], list[str]]:
    changes: list[str] = []
    channels = find_channels(webhook_block, slack_block, changes)
    return [channel.name for channel in channels], changes


def test_blocks_are_made_once_kept_without_the_url_and_changed_with_another(
    clean: pytest.MonkeyPatch,
) -> None:
    assert find() == ([], [])
    clean.setenv(WEBHOOK_URL, "https://example.org/hook/s3cret")
    clean.setenv(SLACK_URL, SLACK)
    both = ["webhook/lmpipe", "slack-webhook/lmpipe"]
    assert find() == (both, [f"block {name}: created" for name in both])
    assert find() == (both, [])
    clean.delenv(WEBHOOK_URL)
    assert find() == (both, [])
    clean.setenv(WEBHOOK_URL, "https://example.org/hook/other")
    assert find() == (both, ["block webhook/lmpipe: new URL"])
    block: Any = Webhook.load(NAME)
    assert block.url.get_secret_value() == "https://example.org/hook/other"


def test_a_block_of_the_operator_is_taken_by_name(clean: pytest.MonkeyPatch) -> None:
    CustomWebhookNotificationBlock(name="x", url="https://example.org").save("theirs")
    assert find("theirs") == (["custom-webhook/theirs"], [])
    with pytest.raises(ConfigError, match="no block 'typo' of type webhook or custom-webhook"):
        find("typo")
    with pytest.raises(ConfigError, match="no block 'theirs' of type slack-webhook"):
        find("", "theirs")


@pytest.mark.parametrize(
    ("variable", "url"),
    [
        (WEBHOOK_URL, "ftp://example.org/s3cret"),
        (WEBHOOK_URL, "s3cret"),
        (SLACK_URL, "https://example.org/s3cret"),
        (SLACK_URL, "https://hooks.slack.com/services/s3cret"),
    ],
)
def test_a_url_of_no_use_is_refused_and_not_repeated(
    monkeypatch: pytest.MonkeyPatch, variable: str, url: str
) -> None:
    monkeypatch.setenv(WEBHOOK_URL, "")
    monkeypatch.setenv(variable, url)
    monkeypatch.setattr("deployments.notifications._ours", lambda *_: [])
    with pytest.raises(ConfigError, match=variable) as error:
        find()
    assert "s3cret" not in str(error.value)


def test_slack_gets_subject_and_text_in_its_own_format(caplog: pytest.LogCaptureFixture) -> None:
    """Prefect's block sends to Slack's own host only; here that host is moved to loopback."""
    block = SlackWebhook(url=SLACK)
    receiver = Receiver()
    try:
        (service,) = block._apprise_client
        service.webhook_url = f"http://127.0.0.1:{receiver.port}/services"
        with caplog.at_level(logging.DEBUG), block.raise_on_failure():
            block.notify(subject="pipeline a-run: Failed", body="rank 1 died")
    finally:
        receiver.stop()
    ((path, message),) = receiver.posts
    assert path == "/services/T1AAAAAAA/B1AAAAAAA/c0ffeec0ffeec0ffeec0ffee"
    (attachment,) = message["attachments"]
    assert attachment["title"] == "pipeline a-run: Failed"
    assert attachment["text"] == "rank 1 died"


@pytest.mark.parametrize("url", [SLACK, SLACK.replace("slack.com", "slack-gov.com"), "mmost://h/t"])
def test_apprise_takes_every_url_that_we_take(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv(SLACK_URL, url)
    monkeypatch.setattr("deployments.notifications._ours", lambda kind, url, fields, changes: [])
    find()
    assert len(SlackWebhook(url=url)._apprise_client) == 1
