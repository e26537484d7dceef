"""Adopting: an operator says that one artifact serves as another that a recipe now asks for.

An id is a promise about bytes that lmpipe can keep by itself. Where a version was bumped, a field
renamed or an input written anew, and somebody knows that a model trained before is the model
wanted, training it again is the price of not being able to say so. The word is checked as far as
it can be: the stage is the same, the objects are whole, and every field in which the two differ is
named, none too many. It stands in the manifest of the new id, whose objects are those of the old
one; `plan` and `show` tell it. The content digest is the old one's, so what was made from the old
artifact is found below the new one.
"""

from collections.abc import Sequence

from lmpipe.artifacts.build import find, is_collected
from lmpipe.artifacts.lock import BuildLock
from lmpipe.artifacts.lookup import (
    differences_to,
    home,
    homes_of,
    identify,
    input_records,
    manifest_path,
    read_manifest,
)
from lmpipe.artifacts.manifest import Adoption, Manifest
from lmpipe.artifacts.provenance import now, provenance
from lmpipe.artifacts.stage import Inputs, Stage, StageConfig
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.tombstone import claim
from lmpipe.artifacts.types import Artifact, open_artifact
from lmpipe.errors import ConfigError, StoreError
from lmpipe.runtime import Runtime


def adopt(
    old: Manifest,
    stage: Stage[Artifact],
    config: StageConfig,
    inputs: Inputs,
    *,
    store: Store,
    fields: Sequence[str],
    reason: str,
) -> Manifest:
    """Publish the manifest of what `stage` would make, with the objects of another artifact.

    Args:
        old: the artifact that serves.
        stage: what would be run.
        config: with this config.
        inputs: and these inputs.
        store: where both lie.
        fields: every field in which the two may differ, such as `version` or `config.packing`; a
            section (`config.mixture`) names all its fields.
        reason: why it serves, for the manifest.

    Raises:
        ConfigError: another stage, a field that differs and is not named or the other way round, no
            reason; or the artifact asked for is there.
        StoreError: the old artifact is not whole.
    """
    wanted = identify(stage, config, inputs)
    _check(old, stage, wanted, store, reason)
    found = differences_to(old, stage, config, inputs)
    _check_fields(old, {d.field: str(d) for d in found}, fields)
    place = home(stage.name, wanted)
    with BuildLock(store, f"{place}/lock.json", leases=homes_of(old)) as lock:
        gone = is_collected(store, old)
        lost = open_artifact(store, old).missing()
        if gone or lost:
            what = "gc has collected it" if gone else f"it has lost {lost[0]}"
            raise StoreError(f"{old.stage}/{old.id} cannot serve: {what}")
        claim(store, place)
        current = read_manifest(store, stage.name, wanted)
        manifest = old.model_copy(
            update={
                "version": stage.version,
                "id": wanted,
                "config": config.model_dump(mode="json"),
                "files": config.identity_file_digests(),
                "inputs": input_records(inputs),
                "adopted": Adoption(
                    stage=old.stage, id=old.id, fields={d.field: [d.old, d.new] for d in found}
                ),
                "provenance": provenance(now(), 0.0, devices=[], bytes_read=0, reason=reason),
            }
        )
        lock.check()
        path = manifest_path(stage.name, wanted)
        if current is None:
            etag = store.create(path, manifest.dump())
        else:
            etag = store.replace(path, manifest.dump(), current[1])
        if etag is None:
            raise StoreError(f"{store.url(path)} was published by a builder meanwhile; plan again")
    return manifest


def _check(old: Manifest, stage: Stage[Artifact], wanted: str, store: Store, reason: str) -> None:
    if old.stage != stage.name:
        raise ConfigError(f"{old.stage}/{old.id} is no {stage.name}: it cannot serve as one")
    if old.id == wanted or find(stage, wanted, store, Runtime()) is not None:
        raise ConfigError(f"the recipe finds {stage.name}/{wanted} already; nothing to adopt")
    if not reason.strip():
        raise ConfigError("say with --reason how it is known that the bytes hold")


def _check_fields(old: Manifest, differing: dict[str, str], named: Sequence[str]) -> None:
    """Require that what differs is named, and that what is named differs."""
    lacking = [
        text
        for field, text in differing.items()
        if not any(field == name or field.startswith(f"{name}.") for name in named)
    ]
    if lacking:
        options = " ".join(f"--but '{text.partition(': ')[0]}'" for text in lacking)
        raise ConfigError(
            f"{old.stage}/{old.id} differs from what the recipe asks for in fields that are not "
            f"named: {'; '.join(lacking)}. If it serves all the same, say so: {options}"
        )
    for name in named:
        if not any(field == name or field.startswith(f"{name}.") for field in differing):
            raise ConfigError(
                f"--but {name!r}: the two do not differ in it; they do in {', '.join(differing)}"
            )
