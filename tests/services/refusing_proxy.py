"""An HTTP proxy that answers 503 SlowDown to a share of the requests, as an overloaded S3 does."""

import http.client
import http.server
import random
import threading
from types import TracebackType

SLOW_DOWN = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>SlowDown</Code>'
    b"<Message>Please reduce your request rate.</Message></Error>"
)
_OF_ONE_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "content-length"}


class RefusingProxy:
    """Forwards loopback requests to `target_port`; use as a context manager.

    Args:
        share: of the requests that are refused, by a seeded draw.
        most_in_a_row: bound on refusals one after the other; without it, one request in
            2**10 would meet ten of them at a share of one half.
    """

    def __init__(self, target_port: int, share: float, most_in_a_row: int = 5) -> None:
        self.refused = 0
        self.passed = 0
        self._in_a_row = 0
        draw, lock = random.Random(7), threading.Lock()
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = 2**16  # head and body in one segment: two would wait 40 ms for an ACK

            def handle_expect_100(self) -> bool:
                is_expected = super().handle_expect_100()
                self.wfile.flush()
                return is_expected

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                with lock:
                    is_refused = draw.random() < share and proxy._in_a_row < most_in_a_row
                    proxy._in_a_row = proxy._in_a_row + 1 if is_refused else 0
                    proxy.refused += is_refused
                    proxy.passed += not is_refused
                if is_refused:
                    self.reply(503, {"Content-Type": "application/xml"}, SLOW_DOWN)
                    return
                server = http.client.HTTPConnection("127.0.0.1", target_port, timeout=60)
                server.request(self.command, self.path, body, dict(self.headers.items()))
                reply = server.getresponse()
                headers = {
                    name: value
                    for name, value in reply.getheaders()
                    if name.lower() not in _OF_ONE_CONNECTION
                }
                data = reply.read()
                length = reply.getheader("Content-Length")
                server.close()
                self.reply(reply.status, headers, data, length)

            def reply(
                self, status: int, headers: dict[str, str], data: bytes, length: str | None = None
            ) -> None:
                self.send_response_only(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                is_head = self.command == "HEAD"
                self.send_header("Content-Length", (is_head and length) or str(len(data)))
                self.end_headers()
                if not is_head:
                    self.wfile.write(data)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_port

    def __enter__(self) -> "RefusingProxy":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
