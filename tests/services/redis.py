"""A Redis of its own, in memory only, on a free loopback port, with a password."""

import secrets
import socket
from pathlib import Path

from tests.services.processes import ServiceProcess, free_port


class Redis:
    """Messaging, leases and docket of a shared Prefect server."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.password = secrets.token_hex(16)
        folder.mkdir(parents=True)
        config = folder / "redis.conf"  # a file, not arguments: those are in the process list
        config.write_text(
            f"bind 127.0.0.1\nport {self.port}\nrequirepass {self.password}\n"
            f'save ""\ndir {folder}\n'
        )
        self.process = ServiceProcess("redis", ["redis-server", str(config)], folder)

    def url(self, database: int = 0) -> str:
        """Return redis://... of one of its 16 databases."""
        return f"redis://:{self.password}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start, or start again empty."""
        self.process.start(lambda: self.command("PING") == "+PONG", timeout_seconds=20)

    def command(self, line: str) -> str:
        """Send one inline command and return its answer's first line; "" when nobody listens."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
                answers = connection.makefile("rb")
                connection.sendall(f"AUTH {self.password}\r\n{line}\r\n".encode())
                answers.readline()
                return answers.readline().decode().strip()
        except OSError:
            return ""
