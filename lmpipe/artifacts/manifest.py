"""The manifest: the one object whose existence says that an artifact is whole.

It is written last, by a conditional put, and names every output with its size and sha256. Schema
changes bump SCHEMA_VERSION; readers refuse a newer one and say so.
"""

import json
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lmpipe.errors import StoreError

# 2: provenance names the run (origin) and the CPU time
# 3: the files whose bytes enter the id; what an adopted artifact was adopted from
SCHEMA_VERSION = 3


class FileRecord(BaseModel):
    """One output: its logical name, where it lies, and what its bytes are."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    path: str = Field(
        description="Relative to the store's root: outputs may lie in an earlier attempt."
    )
    bytes: int
    sha256: str
    rows: int | None = None
    digest: bool = Field(True, description="Whether it counts for the content digest.")


class InputRecord(BaseModel):
    """One input artifact and the role it plays."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    role: str
    stage: str
    id: str
    digest: str


class Origin(BaseModel):
    """Which run asked for it; all empty for a build without a flow."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    flow_run: str = Field("", description="Id of the Prefect flow run.")
    flow_run_name: str = ""
    flow: str = Field("", description="Such as pipeline or curate.")
    recipe: str = ""
    step: str = Field("", description="The stage's use in the flow, such as source[crawl].")


class Provenance(BaseModel):
    """Who made it, when, with what: for people and accounting, never for identity."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    started: str
    finished: str
    seconds: float
    host: str
    command: list[str]
    git_commit: str
    git_dirty: str = Field(description="Hash of the uncommitted changes, or empty.")
    python: str
    packages: dict[str, str]
    devices: list[str] = Field(default_factory=list)
    gpu_hours: float = 0.0
    cpu_hours: float | None = Field(
        None, description="CPU time of the stage and of the processes it waited for; None: unknown."
    )
    bytes_read: int = 0
    reason: str = ""
    origin: Origin = Origin()


class Adoption(BaseModel):
    """An operator's word that another artifact serves as this one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stage: str
    id: str = Field(description="The artifact that serves; its objects are these.")
    fields: dict[str, list[Any]] = Field(
        description="Each field in which the two differ, with its old and its new value."
    )


class Manifest(BaseModel):
    """What an artifact is, what it was made from, and what it holds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = SCHEMA_VERSION
    stage: str
    version: int
    kind: str
    type: str = Field(description="Name of the artifact's class in lmpipe.artifacts.types.")
    id: str
    attempt: str
    config: dict[str, Any]
    files: dict[str, str] = Field(
        default_factory=dict,
        description="sha256 of the files that enter the id, by name.",
    )
    inputs: list[InputRecord]
    outputs: list[FileRecord]
    digest: str
    metrics: dict[str, Any]
    inexact: list[dict[str, str]] = Field(
        default_factory=list, description="Records that a time or memory limit stopped."
    )
    adopted: Adoption | None = Field(
        None, description="What it was adopted from; None: its stage has made it."
    )
    provenance: Provenance

    @classmethod
    def parse(cls, data: bytes, url: str) -> "Manifest":
        """Read a manifest.

        Raises:
            StoreError: `url` is no manifest, or one of a newer lmpipe.
        """
        try:
            raw = json.loads(data)
        except ValueError as error:
            raise StoreError(
                f"{url} is not JSON: {error}; delete it to rebuild the artifact"
            ) from error
        if not isinstance(raw, dict):
            raise StoreError(f"{url} is no manifest; delete it to rebuild the artifact")
        if raw.get("schema_version", 0) > SCHEMA_VERSION:
            raise StoreError(
                f"{url} has schema {raw['schema_version']}, this lmpipe reads up to "
                f"{SCHEMA_VERSION}; upgrade lmpipe"
            )
        try:
            return cls.model_validate(raw)
        except ValidationError as error:
            wrong = [
                f"{'.'.join(str(part) for part in detail['loc'])}: {detail['msg']}"
                for detail in error.errors()
            ]
            raise StoreError(
                f"{url} is no manifest: {'; '.join(wrong)}; delete it to rebuild the artifact"
            ) from error

    def dump(self) -> bytes:
        """Serialise for the store: indented, since people read it."""
        return self.model_dump_json(indent=1).encode()
