"""A PostgreSQL of its own in a temporary folder, from Debian's binaries."""

import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from tests.services.processes import ServiceError, ServiceProcess, free_port

USER = "lmpipe"


def _binaries() -> Path:
    versions = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3])
    )
    if versions:
        return versions[-1].parent
    found = shutil.which("initdb")
    if found is None:
        raise ServiceError("no initdb: install Debian's postgresql")
    return Path(found).resolve().parent


class Postgres:
    """One cluster on a free loopback port; `start` after `stop` finds its data again."""

    def __init__(self) -> None:
        self.port = free_port()
        self.password = secrets.token_hex(16)
        self._binaries = _binaries()
        # The server refuses root, and the unprivileged user cannot enter pytest's 0700 folders.
        self._system_user = "postgres" if os.geteuid() == 0 else None
        self._folder = Path(tempfile.mkdtemp(prefix="lmpipe-postgres-"))
        self._initialise()
        options = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self._folder,
            "max_connections": 60,
        }
        command = [str(self._binaries / "postgres"), "-D", str(self._folder / "data")]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        self.process = ServiceProcess("postgres", command, self._folder, user=self._system_user)

    def _initialise(self) -> None:
        password_file = self._folder / "password"
        password_file.write_text(self.password)
        command = [self._binaries / "initdb", "-D", self._folder / "data", "-U", USER]
        command += ["--auth=scram-sha-256", "--pwfile", password_file, "-E", "UTF8", "--no-sync"]
        privileges: list[str] = []
        if self._system_user is not None:
            for path in (self._folder, password_file):
                shutil.chown(path, self._system_user)
            privileges = ["runuser", "-u", self._system_user, "--"]
        subprocess.run(
            [*privileges, *map(str, command)], check=True, capture_output=True, cwd=self._folder
        )

    def start(self) -> None:
        """Start, or start again over the same data."""
        ready = [str(self._binaries / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        self.process.start(lambda: subprocess.run(ready).returncode == 0, timeout_seconds=60)

    def stop(self) -> None:
        """Shut down fast: sessions are ended, nothing committed is lost."""
        self.process.stop(signal.SIGINT)

    def delete(self) -> None:
        """Stop and remove the data."""
        self.stop()
        shutil.rmtree(self._folder)

    def sql(self, statement: str, database: str = "postgres") -> str:
        """Run one statement through psql and return its bare output."""
        command = ["psql", "-h", "127.0.0.1", "-p", str(self.port), "-U", USER, "-d", database]
        done = subprocess.run(
            [*command, "-v", "ON_ERROR_STOP=1", "-At", "-c", statement],
            env={**os.environ, "PGPASSWORD": self.password},
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise ServiceError(f"psql refused {statement!r}: {done.stderr.strip()}")
        return done.stdout.strip()

    def dump(self, database: str) -> bytes:
        """Return all that a database holds, as SQL."""
        command = [str(self._binaries / "pg_dump"), "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(
            [*command, "-U", USER, database],
            env={**os.environ, "PGPASSWORD": self.password},
            check=True,
            capture_output=True,
        ).stdout

    def create_database(self, name: str) -> str:
        """Make a database and return its SQLAlchemy URL for asyncpg."""
        if re.fullmatch(r"[a-z][a-z0-9_]*", name) is None:
            raise ValueError(f"database name {name!r}: lower-case letters, digits and _ only")
        self.sql(f"CREATE DATABASE {name}")
        return f"postgresql+asyncpg://{USER}:{self.password}@127.0.0.1:{self.port}/{name}"
