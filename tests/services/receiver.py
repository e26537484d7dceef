"""A web server on loopback that keeps what is posted to it."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.services.processes import wait_until


class Receiver:
    """Takes every POST; `posts` has path and JSON in order of arrival."""

    def __init__(self) -> None:
        self.posts: list[tuple[str, dict[str, Any]]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.posts.append((self.path, json.loads(body)))
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"ok")

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        """Take no more."""
        self._server.shutdown()
        self._server.server_close()

    def at(self, path: str, contains: str) -> list[dict[str, Any]]:
        """Return what was posted to a path and holds a text."""
        return [body for at, body in self.posts if at == path and contains in json.dumps(body)]

    def wait(self, found: Callable[[], list[dict[str, Any]]], what: str) -> dict[str, Any]:
        """Return the first post that `found` finds."""
        wait_until(
            lambda: bool(found()), timeout_seconds=45, what=f"{what}; there are {self.posts}"
        )
        return found()[0]
