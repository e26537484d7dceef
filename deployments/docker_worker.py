"""Prefect's docker worker, handing on what its machine knows of the object store.

A container needs the keys of the store, and job variables, where its environment is written down,
show in the UI. Prefect's worker hands on its own PREFECT_* settings past the API, the auth string
among them; this one does the same for the AWS variables. Secret blocks named in job variables were
the alternative: the keys then lie in Prefect's database, and everyone who may queue a run may read
them there. Files on every worker's machine were the other; a container's user must be let in.

    python -m deployments.docker_worker worker start --pool gpu --type docker  # `lmpipe worker gpu`
"""

import os
import warnings
from collections.abc import Mapping
from typing import Any

from prefect_docker.worker import DockerWorker, DockerWorkerJobConfiguration

from flows.waiting import start_watch

# No path of the machine (AWS_CA_BUNDLE, AWS_CONFIG_FILE): it is another one inside the container.
STORE_VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_DEFAULT_REGION",
    "AWS_REGION",
)


def store_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return those variables of an environment by which S3 is found and entered."""
    return {name: environment[name] for name in STORE_VARIABLES if name in environment}


class ContainerWithStore(DockerWorkerJobConfiguration):  # type: ignore[misc]
    """A container's settings; what a job variable sets wins over the worker's environment."""

    def prepare_for_flow_run(self, *arguments: Any, **options: Any) -> None:
        """Add the store's variables once the settings have left the API's hands."""
        super().prepare_for_flow_run(*arguments, **options)
        self.env: dict[str, str] = store_environment(os.environ) | self.env


with warnings.catch_warnings():
    # Prefect warns that the type `docker` now means this class, which is what we want.
    warnings.simplefilter("ignore", UserWarning)

    class DockerWorkerWithStore(DockerWorker):  # type: ignore[misc]
        """Takes the place of Prefect's worker of this type in this process."""

        type = "docker"
        job_configuration = ContainerWithStore


if __name__ == "__main__":
    from prefect.cli import app

    start_watch()
    app()
