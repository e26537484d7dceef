"""Where a command is to write: looked at before its work, so that no hour ends in a traceback."""

import os
from pathlib import Path

from lmpipe.errors import ConfigError


def check_file(option: str, path: Path | None) -> None:
    """Refuse a path at which no file can be written."""
    if path is None:
        return
    if path.is_dir():
        raise ConfigError(f"{option} {path} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise ConfigError(f"{option} {path}: there is no folder {path.parent}; make it first")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError(f"{option} {path} may not be written; name another place")


def check_folder(option: str, path: Path) -> None:
    """Refuse a path at which no folder can be made."""
    there = next(p for p in (path, *path.absolute().parents) if p.exists())
    if not there.is_dir():
        raise ConfigError(f"{option} {path}: {there} is a file; name a folder")
    if not os.access(there, os.W_OK):
        raise ConfigError(f"{option} {path}: {there} may not be written; name another place")
