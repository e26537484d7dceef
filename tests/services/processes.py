"""One service process of a test: started, watched, and ended with just what it started.

`setpriv` (util-linux, on every Debian) execs the service, so its pid is the one we hold, drops
root where a service refuses it, and ties the service's life to ours: a test run killed with -9
leaves nothing behind. The alternative, `runuser`, stays in between as a parent and passes no
signal on.
"""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil


class ServiceError(RuntimeError):
    """A service did not come up, or ended by itself; carries the end of its log."""


def free_port() -> int:
    """Return a loopback port that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def wait_until(
    condition: Callable[[], bool], *, timeout_seconds: float, what: str, every_seconds: float = 0.2
) -> None:
    """Poll `condition`; raise TimeoutError naming `what` when it stays false."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not happen within {timeout_seconds:g} s")
        time.sleep(every_seconds)


def descendants(pid: int) -> list[psutil.Process]:
    """Return the living children of `pid`, of any generation and session; [] when it is gone."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


class ServiceProcess:
    """A command in a session of its own, with its output in a file."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        folder: Path,
        *,
        environment: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> None:
        self.name = name
        self.command = list(command)
        self.log_path = folder / f"{name}.log"
        self._environment = environment
        self._user = user
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the running service."""
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the service was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self, ready: Callable[[], bool], *, timeout_seconds: float) -> None:
        """Start the service and return when `ready` says so.

        Raises:
            ServiceError: it ended, or was not ready in time; the end of its log is in the message.
        """
        assert not self.running, f"{self.name} runs already"
        privileges = ["--pdeathsig", "KILL"]
        if self._user is not None:
            privileges += ["--reuid", self._user, "--regid", self._user, "--init-groups"]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                ["setpriv", *privileges, *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(self._environment) if self._environment is not None else None,
                cwd=self.log_path.parent,
                start_new_session=True,
            )
        deadline = time.monotonic() + timeout_seconds
        while not ready():
            if self._process.poll() is not None:
                raise ServiceError(
                    f"{self.name} ended with {self._process.returncode}:\n{self.log_tail()}"
                )
            if time.monotonic() > deadline:
                self.stop()
                raise ServiceError(
                    f"{self.name} not ready in {timeout_seconds:g} s:\n{self.log_tail()}"
                )
            time.sleep(0.1)

    def log_tail(self, num_bytes: int = 4000) -> str:
        """Return the end of what the service printed."""
        return self.log_path.read_bytes()[-num_bytes:].decode(errors="replace")

    def pause(self) -> None:
        """Freeze the service and its children: connections stay open and nothing answers."""
        os.killpg(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused service go on."""
        os.killpg(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End the service alone with -9, as a crash would: its children live on."""
        if self.running:
            os.kill(self.pid, signal.SIGKILL)
            self._reap()

    def stop(self, with_signal: signal.Signals = signal.SIGTERM, grace_seconds: float = 20) -> None:
        """Ask the service to end, then end what is left of it and of every process it started."""
        if not self.running:
            return
        family = descendants(self.pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGCONT)  # a paused process sees no other signal
            os.kill(self.pid, with_signal)
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_seconds)
        for process in [*family, *descendants(self.pid)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if self.running:
            os.kill(self.pid, signal.SIGKILL)
            self._reap()

    def _reap(self) -> None:
        assert self._process is not None
        self._process.wait(10)


@contextlib.contextmanager
def stopped_at_exit(service: ServiceProcess) -> Iterator[ServiceProcess]:
    """Stop `service` when the block ends, whatever happened in it."""
    try:
        yield service
    finally:
        service.stop()
