"""Run a function on untrusted input in a child process that can be stopped.

Real pages make parsers hang, recurse and explode (`colspan=9007199254740991`), inside C code that
no signal handler interrupts. So the work is done in a forked child with an address-space limit; a
page that passes a limit costs the child, and the next page gets a new one. Forking (10 ms, all
imports shared) and not spawning (1.5 s of imports per killed page) is safe here because workers of
data stages start no threads that hold locks the extractors use.

The limit is on CPU time of the child, so that a busy machine stops no more pages than an idle one.
"""

import gc
import os
import pickle
import resource
import select
import signal
import struct
import time
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from lmpipe.runtime.processes import die_with_parent

_TICKS = os.sysconf("SC_CLK_TCK")
_MAX_WALL_FACTOR = 20
_MAX_CALLS = 1000  # then a fresh child: parsers leak about 1 MB a page on some inputs


class StoppedError(Exception):
    """The function passed a limit, or took its process down; `reason` is a ledger reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Sandbox:
    """Call `function` in a child process. Use as a context manager.

    Args:
        function: bytes or any picklable value in, any picklable value out.
        max_seconds: CPU time per call.
        max_bytes: address space that the child may add to what it inherits.
    """

    def __init__(self, function: Callable[[Any], Any], max_seconds: float, max_bytes: int) -> None:
        self._function = function
        self._max_seconds = max_seconds
        self._max_bytes = max_bytes
        self._pid = 0
        self._calls = 0
        self._to_child = self._from_child = -1

    @property
    def pid(self) -> int:
        """The child's process id; 0 before the first call and after a stop."""
        return self._pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def __call__(self, value: Any) -> Any:
        """Return function(value).

        Raises:
            StoppedError: a limit was passed or the child died.
        """
        if self._calls == _MAX_CALLS:
            self._end()
        if not self._pid:
            self._start()
        self._calls += 1
        before = _cpu_seconds(self._pid)
        try:
            _send(self._to_child, value)
            self._wait(before)
            failed, result = _receive(self._from_child)
        except (EOFError, BrokenPipeError) as error:
            self._end()
            raise StoppedError("extractor_died") from error
        if failed:
            raise StoppedError(result)
        return result

    def _wait(self, before: float) -> None:
        """Wait for the child's answer until it has used its CPU time."""
        give_up = time.monotonic() + self._max_seconds * _MAX_WALL_FACTOR
        wait = self._max_seconds
        while not select.select([self._from_child], [], [], wait)[0]:
            used = _cpu_seconds(self._pid) - before
            if used >= self._max_seconds or time.monotonic() > give_up:
                self._end()
                raise StoppedError("time_limit")
            wait = max(0.05, self._max_seconds - used)

    def _start(self) -> None:
        self._calls = 0
        child_in, self._to_child = os.pipe()
        self._from_child, child_out = os.pipe()
        parent = os.getpid()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 on fork beside threads
            self._pid = os.fork()
        if self._pid == 0:
            try:
                os.close(self._to_child)
                os.close(self._from_child)
                self._serve(child_in, child_out, parent)
            finally:
                os._exit(0)
        os.close(child_in)
        os.close(child_out)

    def _serve(self, source: int, target: int, parent: int) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        die_with_parent(parent)
        limit = _address_space() + self._max_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        gc.freeze()  # what is inherited is not searched again and again, and stays shared
        while True:
            try:
                value = _receive(source)
            except EOFError:
                return
            try:
                answer = (False, self._function(value))
            except MemoryError:
                answer = (True, "memory_limit")
            except RecursionError:
                answer = (True, "recursion_limit")
            except Exception as error:  # a page's failure is kept with the page
                answer = (True, f"extractor_error:{type(error).__name__}")
            _send(target, answer)

    def _end(self) -> None:
        if self._pid:
            os.close(self._to_child)
            os.close(self._from_child)
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0


def _send(file: int, value: Any) -> None:
    data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    view = memoryview(struct.pack("<Q", len(data)) + data)
    while view:
        view = view[os.write(file, view) :]


def _receive(file: int) -> Any:
    (size,) = struct.unpack("<Q", _read(file, 8))
    return pickle.loads(_read(file, size))


def _read(file: int, size: int) -> bytes:
    pieces = []
    while size:
        piece = os.read(file, min(size, 1 << 20))
        if not piece:
            raise EOFError
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
        fields = file.read().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _address_space() -> int:
    with open("/proc/self/statm", "rb") as file:  # noqa: PTH123
        return int(file.read().split()[0]) * resource.getpagesize()
