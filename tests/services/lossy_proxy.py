"""A TCP proxy that can lose one answer: the request is carried out, and its sender never hears so.

That is what a connection reset does to a conditional put, and no server can be asked to do it.
"""

import contextlib
import socket
import threading
from threading import Event
from types import TracebackType

_BLOCK = 2**16


class LossyProxy:
    """Forwards loopback connections to `target_port`; use as a context manager."""

    def __init__(self, target_port: int) -> None:
        self._target = ("127.0.0.1", target_port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._condemned: tuple[bytes, bytes] | None = None
        self._lock = threading.Lock()
        self.lost = 0

    def __enter__(self) -> "LossyProxy":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.close()

    def lose_answer_to(self, method: bytes, part_of_path: bytes) -> None:
        """Lose the answer to the next request of this method (`PUT `) to such a path, once."""
        self._condemned = (method, part_of_path)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                doomed = threading.Event()
                for run in (self._requests, self._answers):
                    threading.Thread(target=run, args=[client, server, doomed], daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket, doom: Event) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(_BLOCK):
                if self._is_condemned(data):
                    doom.set()
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)

    def _answers(self, client: socket.socket, server: socket.socket, doom: Event) -> None:
        with contextlib.suppress(OSError), client, server:
            while data := server.recv(_BLOCK):
                if doom.is_set() and not data.startswith(b"HTTP/1.1 100"):
                    self.lost += 1
                    client.shutdown(socket.SHUT_RDWR)
                    return
                client.sendall(data)

    def _is_condemned(self, data: bytes) -> bool:
        with self._lock:
            if self._condemned is None:
                return False
            method, part = self._condemned
            line = data.partition(b"\r\n")[0]
            if not line.startswith(method) or part not in line:
                return False
            self._condemned = None
            return True
