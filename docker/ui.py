"""Lay out the pages of Prefect's UI beside the package, as the server does at its first start.

The user of the image may not write there, and a server that cannot goes on without pages. What is
laid out once carries its version and base path, and is served as it is, by any user and from a
read-only root. Called again, this only tries the pages.
"""

from pathlib import Path

import prefect
from fastapi.testclient import TestClient
from prefect.server.api.server import create_ui_app

client = TestClient(create_ui_app(ephemeral=False))
for folder in (prefect.__ui_static_subpath__, prefect.__ui_v2_static_subpath__):
    for path in Path(folder).rglob("*"):
        mode = path.stat().st_mode
        if mode & 0o444 != 0o444:  # the package has files that only their owner may read
            path.chmod(mode | 0o444)
settings = client.get("/ui-settings").json()
assert settings["available_uis"] == ["v1", "v2"], f"no pages but of {settings['available_uis']}"
for base in ("/", settings["v1_base_url"], settings["v2_base_url"]):
    page = client.get(base, headers={"accept": "text/html"})
    assert page.is_success and "<script" in page.text, f"{base}: {page.status_code}"
