"""A stage that says all it knows, as a careless library might."""

import base64
import os
import subprocess
import sys

from pydantic import Field

from lmpipe.artifacts.output import Output
from lmpipe.artifacts.stage import StageConfig, stage
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import Documents
from lmpipe.runtime import Runtime

URL_PASSWORD = "letmein-9f2c7b"  # stands in no variable of the environment


class LeakyConfig(StageConfig):
    """How it ends."""

    fails: bool = Field(description="Whether it raises, with all it knows in the message.")


@stage(version=1, kind="exact")
def leaky(out: Output[Documents], config: LeakyConfig, *, runtime: Runtime) -> Documents:
    """Print the environment natively, log and tabulate keys, ask for a bucket that is not there."""
    subprocess.run(["env"], check=True)
    secret = os.environ["AWS_SECRET_ACCESS_KEY"]
    auth = base64.b64encode(os.environ["PREFECT_API_AUTH_STRING"].encode()).decode()
    url = f"http://someone:{URL_PASSWORD}@127.0.0.1:1/file"
    print(f"Authorization: Basic {auth}; opening {url}", file=sys.stderr, flush=True)
    out.log(f"entering with {secret}", level="warning")
    out.table("options", [{"option": "secret", "value": secret}, {"option": "url", "value": url}])
    out.progress(1, 2, label=f"reading {url}")
    out.write_bytes("kept/done.txt", b"done")
    if config.fails:
        options = {"key": os.environ["AWS_ACCESS_KEY_ID"], "secret": secret}
        try:
            Store("s3://no-such-bucket").open("object")
        except Exception as error:
            raise RuntimeError(f"{options}, {url}, {dict(os.environ)}") from error
    return out.commit()
