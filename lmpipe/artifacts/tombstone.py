"""What gc says of an artifact: which of its attempts it means to delete, and which it has deleted.

One object beside the manifest, `<stage>/<id>/gc.json`, changed by conditional puts only. An entry
is the name of an attempt, or of a folder in one (`<attempt>/checkpoints`):

    condemned   gc means to delete it. Whoever wants it takes the word back (`claim`), and gc, whose
                own next put depends on the same etag, then finds that it may not.
    collected   the word is final. Its objects go or are gone; nobody counts them as there, adopts
                them or resumes from them, even if a killed gc has left some behind.

So of a hit and a deletion at the same moment exactly one wins, by one compare-and-swap and without
a clock. `lmpipe.artifacts.gc` has the whole protocol.
"""

from pydantic import BaseModel, ConfigDict

from lmpipe.artifacts.manifest import Manifest
from lmpipe.artifacts.store import Store
from lmpipe.errors import StoreRefused

NAME = "gc.json"
MAX_TRIES = 20  # each lost race means that somebody else made progress


class Tombstone(BaseModel):
    """Entries that gc condemned and those that it collected, and when."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    condemned: tuple[str, ...] = ()
    collected: tuple[str, ...] = ()
    at: str = ""  # when something was collected last

    def dump(self) -> bytes:
        """Serialise for the store."""
        return self.model_dump_json().encode()


def read_tombstone(store: Store, home: str) -> tuple[Tombstone, str | None]:
    """Return what gc says of an artifact, and the etag of that; None if gc never said anything."""
    found = store.read_tagged(f"{home}/{NAME}")
    if found is None:
        return Tombstone(), None
    return Tombstone.model_validate_json(found[0]), found[1]


def write_tombstone(store: Store, home: str, word: Tombstone, etag: str | None) -> str | None:
    """Write what gc says if nobody has changed it since `etag`; return the new etag or None."""
    path = f"{home}/{NAME}"
    if etag is None:
        return store.create(path, word.dump())
    return store.replace(path, word.dump(), etag)


def claim(store: Store, home: str) -> tuple[str, ...]:
    """Take back what gc has condemned here, and return what it has collected for good.

    Who may not write here cannot take it back, and counts it as collected.
    """
    for _ in range(MAX_TRIES):
        word, etag = read_tombstone(store, home)
        if not word.condemned:
            return word.collected
        kept = word.model_copy(update={"condemned": ()})
        try:
            if write_tombstone(store, home, kept, etag) is not None:
                return word.collected
        except StoreRefused:
            return (*word.collected, *word.condemned)
    return read_tombstone(store, home)[0].collected


def covers(entries: tuple[str, ...], home: str, path: str) -> bool:
    """Whether an object belongs to one of the entries of its artifact."""
    return path.startswith(tuple(f"{home}/attempts/{entry}/" for entry in entries))


def names_any(entries: tuple[str, ...], manifest: Manifest) -> bool:
    """Whether a manifest names an object that belongs to one of the entries."""
    home = f"{manifest.stage}/{manifest.id}"
    return any(covers(entries, home, file.path) for file in manifest.outputs)


def when_collected(store: Store, manifest: Manifest) -> str:
    """Return when gc took an artifact's objects, or "" if it did not."""
    word, _ = read_tombstone(store, f"{manifest.stage}/{manifest.id}")
    return word.at if names_any(word.collected, manifest) else ""
