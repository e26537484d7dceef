"""A stage that says all it knows, and its flow: what a careless library might do."""

import base64
import os
import subprocess
import sys

from prefect import flow
from prefect.runtime import flow_run
from pydantic import Field

from flows.run import Silent
from lmpipe.artifacts.output import Output
from lmpipe.artifacts.stage import StageConfig, stage
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import Documents
from lmpipe.runtime import Runtime
from tasks.bridge import PrefectConductor, as_task
from tasks.conductor import Settings, conducted_by
from tasks.selection import Selection

URL = "http://someone:{password}@127.0.0.1:1/file"


class LeakyConfig(StageConfig):
    """How it ends."""

    fails: bool = Field(description="Whether it raises, with all it knows in the message.")


@stage(version=1, kind="exact")
def leaky(out: Output[Documents], config: LeakyConfig, *, runtime: Runtime) -> Documents:
    """Print the environment natively, log and tabulate keys, ask for a bucket that is not there."""
    subprocess.run(["env"], check=True)
    secret = os.environ["AWS_SECRET_ACCESS_KEY"]
    auth = base64.b64encode(os.environ["PREFECT_API_AUTH_STRING"].encode()).decode()
    url = URL.format(password=os.environ["LMPIPE_TEST_URL_WORD"])
    print(f"Authorization: Basic {auth}; opening {url}", file=sys.stderr, flush=True)
    out.log(f"entering with {secret}", level="warning")
    out.table("options", [{"option": "secret", "value": secret}, {"option": "url", "value": url}])
    out.progress(1, 2, label=f"reading {url}")
    out.write_bytes("kept/done.txt", b"done")
    if config.fails:
        options = {"key": os.environ["AWS_ACCESS_KEY_ID"], "secret": secret}
        try:
            Store("s3://no-such-bucket").read("object")
            Store("s3://no-such-bucket").create("object", b"")
        except Exception as error:
            raise RuntimeError(f"{options}, {url}, {dict(os.environ)}") from error
    return out.commit()


leaky_task = as_task(leaky)


@flow(name="run_leaky", log_prints=True)
def run_leaky(store: str) -> None:
    """Run the stage twice: well, and into a failure."""
    settings = Settings(Store(store), Runtime())
    run = str(flow_run.get_id())
    with conducted_by(
        PrefectConductor(settings, Selection(), {"leaky[well]", "leaky"}, Silent(), run)
    ):
        leaky_task(LeakyConfig(fails=False), label="well")
        leaky_task(LeakyConfig(fails=True))
