"""Secrets of the environment are taken out of texts, and nothing else is."""

import base64
import urllib.parse

import pytest

from lmpipe.runtime.redaction import Redactor, secrets_of

ENVIRONMENT = {
    "AWS_SECRET_ACCESS_KEY": "s3/secret+key",
    "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE",
    "PREFECT_API_AUTH_STRING": "lmpipe:auth-pass",
    "DATABASE": "postgresql+asyncpg://lmpipe:pg-password@127.0.0.1/prefect",
    "REDIS": "redis://:redis-password@127.0.0.1/0",
    "TOKENIZERS_PARALLELISM": "enabled",
    "SOME_TOKEN": "true",
    "HOME": "/home/lmpipe",
}
SECRETS = ["s3/secret+key", "auth-pass", "pg-password", "redis-password"]


def test_it_knows_secrets_by_name_and_passwords_in_urls() -> None:
    assert set(secrets_of(ENVIRONMENT)) == {*SECRETS, "lmpipe:auth-pass"}


@pytest.mark.parametrize("secret", SECRETS)
def test_no_form_of_a_secret_remains(secret: str) -> None:
    forms = [secret, urllib.parse.quote(secret, safe=""), repr({"password": secret})]
    forms.append(base64.b64encode(secret.encode()).decode())
    forms.append(base64.b64encode(b"lmpipe:auth-pass").decode())
    said = Redactor(ENVIRONMENT).text(f"failed with {' '.join(forms)}")
    assert "***" in said
    assert not any(form.strip("=") in said for form in forms)


def test_the_password_of_any_url_is_taken_out_and_the_rest_stays() -> None:
    said = Redactor({}).text("cannot open https://me:letmein@host:8443/file?x=1, retry")
    assert said == "cannot open https://me:***@host:8443/file?x=1, retry"


@pytest.mark.parametrize(
    "text",
    [
        "step 10: loss 4.2",
        "s3://bucket/a:b",
        "http://127.0.0.1:4200/api",
        "a@b.example",
        "/home/lmpipe",
    ],
)
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert Redactor(ENVIRONMENT).text(text) == text


def test_texts_inside_events_are_redacted_and_numbers_stay() -> None:
    redactor = Redactor({"PASSWORD": "12345678"})
    event = {"type": "table", "rows": [{"url": "x 12345678 y", "loss": 12345678}]}
    assert redactor.value(event)["rows"] == [{"url": "x *** y", "loss": 12345678}]
