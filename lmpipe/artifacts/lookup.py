"""Finding artifacts: is this id built, is it whole, and if not, what is its nearest relative?"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lmpipe.artifacts.identity import artifact_id
from lmpipe.artifacts.manifest import InputRecord, Manifest
from lmpipe.artifacts.stage import Inputs, Stage, StageConfig
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import Artifact
from lmpipe.errors import StoreError

RESERVED = frozenset({"aliases", "gc", "runs", "uses"})  # folders that are no stage
MAX_RELATIVES = 64  # manifests read for a diff; each costs one request


@dataclass(frozen=True)
class Difference:
    """One field in which two artifacts differ; None stands for absent."""

    field: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.field}: {_short(self.old)} → {_short(self.new)}"


def home(stage: str, artifact: str) -> str:
    """Return the folder of an artifact below the store's root."""
    return f"{stage}/{artifact}"


def homes_of(manifest: Manifest) -> list[str]:
    """Return the folders of an artifact's objects: its own, and that which it was adopted from."""
    adopted = manifest.adopted
    own = home(manifest.stage, manifest.id)
    outside = (
        {"/".join(file.path.split("/")[:2]) for file in manifest.outputs} if adopted else set()
    )
    return [own, *sorted(outside - {own})]


def manifest_path(stage: str, artifact: str) -> str:
    """Return the path of an artifact's manifest below the store's root."""
    return f"{home(stage, artifact)}/manifest.json"


def identify(stage: Stage[Any], config: StageConfig, inputs: Inputs) -> str:
    """Return the id of what a stage makes from a config and inputs."""
    files = config.identity_file_digests()
    return artifact_id(stage.name, stage.version, config.identity(), digests(inputs), files)


def digests(inputs: Inputs) -> dict[str, list[str]]:
    """Return the content digests of inputs by role."""
    return {role: [item.digest for item in as_list(value)] for role, value in inputs.items()}


def as_list(value: Artifact | list[Artifact] | None) -> list[Artifact]:
    """Return the artifacts that play one role."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def input_records(inputs: Inputs) -> list[InputRecord]:
    """Return what a manifest says of its inputs."""
    return [
        InputRecord(role=role, stage=item.stage, id=item.id, digest=item.digest)
        for role, value in inputs.items()
        for item in as_list(value)
    ]


def read_manifest(store: Store, stage: str, artifact: str) -> tuple[Manifest, str] | None:
    """Return an artifact's manifest and its etag, or None if it was never published."""
    path = manifest_path(stage, artifact)
    found = store.read_tagged(path)
    if found is None:
        return None
    return Manifest.parse(found[0], store.url(path)), found[1]


def list_stages(store: Store) -> list[str]:
    """Return the stages that have ever built something in a store."""
    return [name for name in store.children("") if name not in RESERVED]


def list_manifests(
    store: Store,
    stage: str | None = None,
    damaged: list[StoreError] | None = None,
    start: str = "",
) -> list[Manifest]:
    """Return all published manifests, newest first.

    Args:
        stage: only of this one.
        damaged: takes the errors of those that cannot be read. Left out, the first one is raised:
            who deletes must know what every manifest refers to.
        start: only of ids that begin so; no others are read.
    """
    stages = [stage] if stage else list_stages(store)
    found = []
    for name in stages:
        for artifact in (id_ for id_ in store.children(name) if id_.startswith(start)):
            try:
                entry = read_manifest(store, name, artifact)
            except StoreError as error:
                if damaged is None:
                    raise
                damaged.append(error)
                continue
            if entry is not None:
                found.append(entry[0])
    return sorted(found, key=lambda manifest: manifest.provenance.finished, reverse=True)


def nearest(
    store: Store, stage: Stage[Any], config: StageConfig, inputs: Inputs
) -> tuple[Manifest, list[Difference]] | None:
    """Return the stage's artifact with the fewest differing fields, newest on a tie.

    A damaged one is nobody's relative: it must not stop a plan that has no use for it.
    """
    best: tuple[Manifest, list[Difference]] | None = None
    for manifest in list_manifests(store, stage.name, damaged=[])[:MAX_RELATIVES]:
        found = differences_to(manifest, stage, config, inputs)
        if best is None or len(found) < len(best[1]):
            best = (manifest, found)
    return best


def differences_to(
    manifest: Manifest, stage: Stage[Any], config: StageConfig, inputs: Inputs
) -> list[Difference]:
    """Return in what an artifact differs from what a stage would make now.

    A neutral field that it has not yet is no difference.
    """
    files, by_role = config.identity_file_digests(), digests(inputs)
    new = _flatten(stage.version, config.model_dump(mode="json"), by_role, files)
    bearing = _flatten(stage.version, config.identity(), by_role, files)
    old = manifest_fields(manifest)
    return difference(old, {field: new[field] for field in new if field in bearing or field in old})


def manifest_fields(manifest: Manifest) -> dict[str, Any]:
    """Return all that bears an artifact's identity, flat: version, config, files, input digests."""
    by_role: dict[str, list[str]] = {}
    for record in manifest.inputs:
        by_role.setdefault(record.role, []).append(record.digest)
    return _flatten(manifest.version, manifest.config, by_role, manifest.files)


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Difference]:
    """Return the fields in which two flat mappings differ."""
    fields = sorted(old.keys() | new.keys())
    return [Difference(f, old.get(f), new.get(f)) for f in fields if old.get(f) != new.get(f)]


def _flatten(
    version: int,
    config: Mapping[str, Any],
    inputs: Mapping[str, Any],
    files: Mapping[str, str],
) -> dict[str, Any]:
    flat: dict[str, Any] = {"version": version}
    flat.update(_leaves("config", config))
    flat.update({f"file {name}": [digest] for name, digest in files.items()})
    flat.update({f"input.{role}": value for role, value in inputs.items() if value})
    return flat


def _leaves(prefix: str, value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {
            k: v for key, item in value.items() for k, v in _leaves(f"{prefix}.{key}", item).items()
        }
    return {prefix: value}


def _short(value: Any) -> str:
    if (
        isinstance(value, list)
        and value
        and all(isinstance(v, str) and len(v) == 64 for v in value)
    ):
        return "+".join(v[:8] for v in value)
    text = "absent" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
