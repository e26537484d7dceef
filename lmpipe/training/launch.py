"""Start the ranks of a training job, watch them, and end them together.

The ranks are plain children of the stage's process. DeepSpeed's and PyTorch's launchers, the
alternative, import everything once more in a process of their own, start ranks in sessions that
outlive a killed agent, and say of a dead rank only that it died. What is lost is elasticity: here a
dead rank ends the job, and the stage resumes from its newest checkpoint.
"""

import contextlib
import importlib.util
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from lmpipe.artifacts.output import Output
from lmpipe.errors import ConfigError, InputError, TrainingError
from lmpipe.runtime import Runtime
from lmpipe.runtime.devices import gpu_names, num_gpus, resolve_device
from lmpipe.runtime.preflight import check_device
from lmpipe.runtime.processes import describe_exit, end_trees

if TYPE_CHECKING:
    from lmpipe.training.rank import RankContext

Entry = Callable[[dict[str, Any], "RankContext"], Any]

GRACE_SECONDS = 5.0
_POLL_SECONDS = 0.1
_STDERR_LINES_KEPT = 20


class _Terminated(BaseException):
    """SIGTERM reached the stage's process; like KeyboardInterrupt, not for `except Exception`."""


@dataclass
class _Rank:
    number: int
    process: "subprocess.Popen[str]"
    threads: list[threading.Thread] = field(default_factory=list)
    stderr_tail: "deque[str]" = field(default_factory=lambda: deque(maxlen=_STDERR_LINES_KEPT))


@dataclass
class _Outcome:
    """What the ranks have said so far about how they ended."""

    result: dict[str, Any] | None = None
    errors: dict[int, dict[str, Any]] = field(default_factory=dict)


def run_ranks(entry: Entry, job: dict[str, Any], out: Output[Any], runtime: Runtime) -> Any:
    """Run `entry(job, context)` in every rank and wait for all of them.

    Rank 0's events go to `out`, in the caller's thread. Output of the ranks goes to this process's
    own stdout and stderr, each line with its rank. PR_SET_PDEATHSIG is tied to the calling thread:
    when it ends, so do the ranks.

    Args:
        entry: a function of a module, which the ranks import; it imports torch inside, so that
            the stage's own process goes without.
        job: anything JSON can hold; the same for all ranks.

    Returns:
        What rank 0's function returned (JSON).

    Raises:
        ConfigError: the runtime asks for what cannot be started, or a rank raised it.
        TrainingError: a rank died; says which, how, and its last lines of stderr.
    """
    check_device(runtime)
    device = resolve_device(runtime)
    num_ranks = resolve_num_ranks(runtime, device)
    if device == "cuda":
        out.use_devices(gpu_names()[:num_ranks] or [f"cuda:{n}" for n in range(num_ranks)])
    events: queue.SimpleQueue[tuple[int, dict[str, Any]]] = queue.SimpleQueue()
    port = _free_port()
    ranks: list[_Rank] = []
    with tempfile.TemporaryDirectory(prefix="lmpipe-job-", dir=runtime.scratch_folder()) as folder:
        job_path = Path(folder) / "job.json"
        request = {
            "entry": reference(entry),
            "job": job,
            "runtime": runtime.model_dump(),
            "device": device,
        }
        job_path.write_text(json.dumps(request, allow_nan=False))
        try:
            with _sigterm_as_exception():
                for number in range(num_ranks):
                    env = rank_environment(number, num_ranks, port, device, runtime)
                    ranks.append(_start_rank(number, job_path, env, events))
                    pid = ranks[-1].process.pid
                    out.emit({"type": "process", "pid": pid, "name": f"rank {number}"})
                return _watch(ranks, events, out)
        except _Terminated:
            ended = _end(ranks)
            if ended:
                out.log(f"SIGTERM: ended {', '.join(ended)}", "warning")
                print(f"SIGTERM: ended {', '.join(ended)}", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGTERM)  # now under the handler that was there before
            raise TrainingError("the job was ended by SIGTERM") from None
        finally:
            _end(ranks)


def reference(entry: Entry) -> str:
    """Return `module:function`, from which a rank imports its entry."""
    name = f"{entry.__module__}:{entry.__qualname__}"
    assert entry.__module__ != "__main__" and "<" not in name, f"no rank can import {name}"
    return name


def check_ranks(runtime: Runtime | None, **counts: int) -> None:
    """Refuse what `run_ranks` or its ranks would: see there.

    Args:
        runtime: None where another machine will run them.
        counts: what the ranks share evenly in a step.

    Raises:
        ConfigError: names the key, what it got and the remedy.
    """
    if runtime is None:
        return
    check_device(runtime)
    device = resolve_device(runtime)
    if device == "cuda" and runtime.zero_stage == 0:
        raise ConfigError(
            "runtime.zero_stage=0 in bf16 keeps no fp32 master weights; use 1, 2 or 3"
        )
    ranks = resolve_num_ranks(runtime, device)
    for what, count in counts.items():
        equal_share(count, ranks, what)


def equal_share(count: int, ranks: int, what: str) -> int:
    """Return a rank's share of a step.

    Raises:
        ConfigError: the ranks cannot have equal shares.
    """
    if count % ranks:
        raise ConfigError(
            f"{what}={count} must divide by the {ranks} ranks; "
            f"try {count + ranks - count % ranks}, or another runtime.ranks"
        )
    return count // ranks


def resolve_num_ranks(runtime: Runtime, device: str) -> int:
    """Return the ranks to start on this host: those asked for, else one per GPU, or cpu_ranks."""
    available = num_gpus() if device == "cuda" else 0
    if runtime.hostfile:
        hosts = _read_hostfile(runtime.hostfile)
        others = [host for host, _ in hosts if host not in ("localhost", socket.gethostname())]
        if others:
            raise ConfigError(
                f"runtime.hostfile={runtime.hostfile} names {', '.join(others)}: training on "
                "several hosts is not supported yet; leave hostfile empty and use one host's GPUs"
            )
        slots = sum(slots for _, slots in hosts)
        if runtime.ranks not in (0, slots):
            raise ConfigError(
                f"runtime.ranks={runtime.ranks}, but runtime.hostfile={runtime.hostfile} has "
                f"{slots} slots; set one of them"
            )
        if slots > available > 0:
            raise ConfigError(
                f"runtime.hostfile={runtime.hostfile} has {slots} slots, this host has {available} "
                "GPUs; use at most as many"
            )
        return slots
    if runtime.ranks > available > 0:
        raise ConfigError(
            f"runtime.ranks={runtime.ranks} is more than the {available} GPUs of this host; use at "
            "most as many, or 0 for all"
        )
    return runtime.ranks or available or runtime.cpu_ranks


def _read_hostfile(path: str) -> list[tuple[str, int]]:
    try:
        return parse_hostfile(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"runtime.hostfile={path} cannot be read: {error}; name a text file of lines "
            "`name slots=8`, or leave it empty for one host"
        ) from error
    except ConfigError as error:
        raise ConfigError(f"runtime.hostfile={path}: {error}") from error


def parse_hostfile(text: str) -> list[tuple[str, int]]:
    """Parse DeepSpeed's hostfile: one `name slots=n` a line, # for comments."""
    hosts: list[tuple[str, int]] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        key, _, slots = words[-1].partition("=")
        if len(words) != 2 or key != "slots" or not slots.isdigit() or int(slots) < 1:
            raise ConfigError(f"hostfile line {number}: {line!r}; expected `name slots=8`")
        if words[0] in dict(hosts):
            raise ConfigError(f"hostfile line {number}: {words[0]} is named twice")
        hosts.append((words[0], int(slots)))
    if not hosts:
        raise ConfigError("the hostfile names no host; expected lines `name slots=8`")
    return hosts


def rank_environment(
    number: int, num_ranks: int, port: int, device: str, runtime: Runtime
) -> dict[str, str]:
    """Return the environment of one rank: ours, what torch.distributed and DeepSpeed read."""
    threads = runtime.threads_per_rank or max(1, (os.cpu_count() or 1) // num_ranks)
    package_root = str(Path(__file__).resolve().parents[2])
    search_path = [package_root, *filter(None, [os.environ.get("PYTHONPATH")])]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lmpipe"
    env = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": str(number),
        "LOCAL_RANK": str(number),
        "WORLD_SIZE": str(num_ranks),
        "OMP_NUM_THREADS": str(threads),
        "PYTHONPATH": os.pathsep.join(search_path),
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
        # without these DeepSpeed probes for accelerators and compiles operators at the first run:
        # minutes, and a killed compile leaves a lock that stops the next run
        "DS_ACCELERATOR": device,
        "DS_BUILD_OPS": "0",
        "TORCH_EXTENSIONS_DIR": str(cache / "torch_extensions"),
    }
    # gloo resolves the host's name to choose an interface, which fails in many containers
    env.setdefault("GLOO_SOCKET_IFNAME", "lo")
    env.setdefault("DS_IGNORE_CUDA_DETECTION", "1")
    if device == "cpu":
        env["CUDA_VISIBLE_DEVICES"] = ""
    if env.get("PYTHONDONTWRITEBYTECODE") and not _has_bytecode("torch"):
        # 19 s of CPU a rank to compile the sources of torch and DeepSpeed, 3 s to load bytecode
        del env["PYTHONDONTWRITEBYTECODE"]
        env.setdefault("PYTHONPYCACHEPREFIX", str(cache / "bytecode"))
    return env


def _has_bytecode(package: str) -> bool:
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.cached is not None and Path(spec.cached).exists()


def _start_rank(
    number: int,
    job_path: Path,
    env: dict[str, str],
    events: "queue.SimpleQueue[tuple[int, dict[str, Any]]]",
) -> _Rank:
    read_fd, write_fd = os.pipe()
    command = [sys.executable, "-m", "lmpipe.training.rank", str(job_path), str(write_fd)]
    try:
        process = subprocess.Popen(
            [*command, str(os.getpid())],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[write_fd],
            text=True,
            errors="replace",
        )
    finally:
        os.close(write_fd)
    rank = _Rank(number, process)
    assert process.stdout is not None and process.stderr is not None
    pipe = os.fdopen(read_fd, encoding="utf-8", errors="replace")
    for target, args in (
        (_forward, (process.stdout, sys.stdout, number, None)),
        (_forward, (process.stderr, sys.stderr, number, rank.stderr_tail)),
        (_collect_events, (pipe, number, events)),
    ):
        thread = threading.Thread(target=target, args=args, daemon=True)
        thread.start()
        rank.threads.append(thread)
    return rank


def _forward(source: IO[str], sink: IO[str], number: int, tail: "deque[str] | None") -> None:
    with source:
        for line in source:
            if tail is not None:
                tail.append(line.rstrip("\n"))
            # one write a line, so that lines of several ranks do not mix
            sink.write(
                f"[rank {number}] {line}" if line.endswith("\n") else f"[rank {number}] {line}\n"
            )
            sink.flush()


def _collect_events(
    pipe: IO[str], number: int, events: "queue.SimpleQueue[tuple[int, dict[str, Any]]]"
) -> None:
    with pipe:
        for line in pipe:
            try:
                events.put((number, json.loads(line)))
            except json.JSONDecodeError:  # the rank was killed in the middle of a line
                return


def _watch(
    ranks: list[_Rank], events: "queue.SimpleQueue[tuple[int, dict[str, Any]]]", out: Output[Any]
) -> Any:
    """Hand events on until all ranks have ended well; raise as soon as one has not."""
    outcome = _Outcome()
    while True:
        with contextlib.suppress(queue.Empty):
            _handle(*events.get(timeout=_POLL_SECONDS), out, outcome)
            continue
        codes = [rank.process.poll() for rank in ranks]
        if any(codes):
            _raise_failure(ranks, events, out, outcome)
        if all(code == 0 for code in codes):
            _drain(ranks, events, out, outcome)
            if outcome.result is None:
                raise TrainingError("rank 0 ended with exit code 0 but without a result")
            return outcome.result["value"]


def _handle(number: int, event: dict[str, Any], out: Output[Any], outcome: _Outcome) -> None:
    kind = event["type"]
    if kind == "error":
        outcome.errors[number] = event
    elif kind == "result":
        outcome.result = event
    elif kind == "checkpoint":
        folder = Path(event["folder"])
        out.save_checkpoint(event["step"], folder, keep=event["keep"])
        shutil.rmtree(folder)  # the rank waits for this before it writes the next
    else:
        out.emit(event)


def _drain(
    ranks: list[_Rank],
    events: "queue.SimpleQueue[tuple[int, dict[str, Any]]]",
    out: Output[Any],
    outcome: _Outcome,
) -> None:
    for rank in ranks:
        for thread in rank.threads:
            thread.join(timeout=GRACE_SECONDS)
    with contextlib.suppress(queue.Empty):
        while True:
            _handle(*events.get_nowait(), out, outcome)


def _raise_failure(
    ranks: list[_Rank],
    events: "queue.SimpleQueue[tuple[int, dict[str, Any]]]",
    out: Output[Any],
    outcome: _Outcome,
) -> None:
    dead = [rank for rank in ranks if rank.process.poll()]
    # a rank killed from outside is the cause; the others then fail on their broken connections
    time.sleep(_POLL_SECONDS)
    _end(ranks)
    _drain(ranks, events, out, outcome)
    for _, error in sorted(outcome.errors.items()):
        for kind in (ConfigError, InputError):  # no rank's fault: it fails the same way each time
            if error["error"] == kind.__name__:
                raise kind(error["message"])
    first = min(dead, key=lambda rank: (rank.process.returncode > 0, _is_echo(rank), rank.number))
    message = f"rank {first.number} ended with {describe_exit(first.process.returncode)}"
    if first.number in outcome.errors:
        message += f": {outcome.errors[first.number]['message']}"
    tail = "\n".join(f"    {line}" for line in first.stderr_tail)
    others = len(ranks) - 1
    message += f"; the other {others} were ended" if others else ""
    raise TrainingError(f"{message}\n  its last lines of stderr:\n{tail or '    (none)'}")


def _is_echo(rank: _Rank) -> bool:
    """Whether a rank seems to have failed only because another was gone."""
    text = "\n".join(rank.stderr_tail)
    return "Connection closed by peer" in text or "Connection reset by peer" in text


def _end(ranks: list[_Rank]) -> list[str]:
    names = {rank.process.pid: f"rank {rank.number}" for rank in ranks}
    living = [rank.process.pid for rank in ranks if rank.process.poll() is None]
    ended = end_trees(living, GRACE_SECONDS, names=names)
    for rank in ranks:
        rank.process.wait()
    return ended


@contextlib.contextmanager
def _sigterm_as_exception() -> Iterator[None]:
    """Turn SIGTERM into an exception while ranks run; only the main thread may set handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def raise_terminated(_number: int, _frame: Any) -> None:
        raise _Terminated

    previous = signal.signal(signal.SIGTERM, raise_terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
