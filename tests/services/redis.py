"""A Redis of its own, in memory only, on a socket file: as docker/compose.yaml has it."""

import contextlib
import socket
import tempfile
from pathlib import Path

from tests.services.processes import ServiceProcess


class Redis:
    """Messaging, leases and docket of a shared Prefect server."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        # the name of a socket has at most 107 characters, and the folder admits its owner only
        self._entrance = tempfile.TemporaryDirectory(prefix="lmpipe-redis-")
        self.socket = Path(self._entrance.name) / "redis.sock"
        options = [
            "--port",
            "0",
            "--unixsocket",
            str(self.socket),
            "--save",
            "",
            "--dir",
            str(folder),
        ]
        self.process = ServiceProcess("redis", ["redis-server", *options], folder)

    def url(self, database: int = 0) -> str:
        """Return unix:///... of one of its 16 databases."""
        return f"unix://{self.socket}?db={database}"

    def start(self) -> None:
        """Start, or start again empty."""
        self.process.start(lambda: self.command("PING") == "+PONG", timeout_seconds=20)

    def delete(self) -> None:
        """Stop and remove the socket's folder."""
        self.process.stop()
        self._entrance.cleanup()

    def command(self, line: str) -> str:
        """Send one inline command and return its answer's first line; "" when nobody listens."""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(2)
            connection.connect(str(self.socket))
            connection.sendall(f"{line}\r\n".encode())
            return connection.makefile("rb").readline().decode().strip()
        return ""
