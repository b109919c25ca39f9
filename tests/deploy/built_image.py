"""The image, built from deploy/Dockerfile as it stands, without Docker; and docker-compose.yml's services in it.

In the place of `python:3.11-slim-bookworm` stands a minimal Debian with the same Python. Containers are processes of
this machine in the image's file system (`buildah run --isolation chroot`): they share its network and its processes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.deploy.deployment import DEPLOY, IMAGE, ROOT
from tests.deploy.wiring import Wiring

__all__ = ["Image", "ImageWiring", "build", "require_builders"]

BASE = "docker.io/library/python:3.11-slim-bookworm"
PACKAGES = "python3,python3-venv,python3-pip,ca-certificates"
RELEASE = "http://deb.debian.org/debian/dists/bookworm/Release"
# A folder that an earlier run of these tests left, with the image built: saves its minutes.
BUILT = os.environ.get("DKGP_TEST_IMAGE_STORAGE")


def require_builders() -> None:
    """Skip where the image cannot be built, and say why."""
    if os.geteuid() != 0 or not Path("/etc/debian_version").exists():
        pytest.skip("building the image needs root on Debian")
    missing = [name for name in ("debootstrap", "buildah") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (apt-get install debootstrap buildah)")
    try:
        urllib.request.urlopen(RELEASE, timeout=30).close()
    except OSError as error:
        pytest.skip(f"Debian's packages cannot be reached: {error}")


@dataclass
class Image:
    """The image, and one container of it."""

    storage: Path

    def buildah(self, *words: str | Path, **options: object) -> str:
        """Run buildah on this storage; what it prints."""
        ran = subprocess.run([*self.command, *words], capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
        assert ran.returncode == 0, f"buildah {words}: {ran.returncode}\n{ran.stdout[-3000:]}{ran.stderr[-6000:]}"
        return str(ran.stdout).strip()

    @property
    def command(self) -> list[str | Path]:
        """Return the first words of every command line."""
        return [
            "buildah",
            "--storage-driver",
            "vfs",
            "--root",
            self.storage / "root",
            "--runroot",
            self.storage / "run",
        ]


def build(storage: Path) -> Image:
    """Build the base and the image; nothing is changed in the Dockerfile."""
    image = Image(storage)
    if not (storage / "root").exists():
        tree = storage / "debian"
        subprocess.run(
            ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", tree],
            check=True,
            stdout=sys.stderr,
        )
        (tree / "usr/bin/python").symlink_to("python3")
        container = image.buildah("from", "scratch")
        mounted = image.buildah("mount", container)
        subprocess.run(["cp", "--archive", f"{tree}/.", mounted], check=True)
        image.buildah("umount", container)
        image.buildah("commit", "--rm", container, BASE)
        shutil.rmtree(tree)
    # This machine's way to the package index, whatever it is, and its certificates: for the build alone.
    if BUILT and image.buildah("images", "--quiet", "--filter", f"reference=localhost/{IMAGE}"):
        return image
    (storage / "pip.conf").write_text(_pip_configuration())
    image.buildah(
        *("bud", "--isolation", "chroot", "--pull-never", "--network", "host", "--format", "docker"),
        *("--volume", f"{storage / 'pip.conf'}:/etc/pip.conf:ro", "--volume", "/etc/ssl/certs:/etc/ssl/certs:ro"),
        *("--file", DEPLOY / "Dockerfile", "--tag", IMAGE, "."),
        cwd=ROOT,
    )
    return image


def _pip_configuration() -> str:
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    lines = ["[global]"]
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        # What names files of this machine is not in the build, and the lock says which versions.
        is_of_files = name.rpartition(".")[2] in ("constraint", "find-links") or "file:" in value
        if name.startswith(("global.", ":env:.")) and not is_of_files:
            lines.append(f"{name.rpartition('.')[2]} = {value[1:-1].encode().decode('unicode_escape')}")
    return "\n".join({line.partition(" ")[0]: line for line in lines}.values()) + "\n"


@dataclass
class ImageWiring(Wiring):
    """The services as processes in the image, with its programs, user, environment and a /tmp of their own."""

    image: Image | None = None
    container: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        # Containers run as the image's user, in the group that may read the secrets; Compose mounts them one by one.
        self.folder.chmod(0o755)
        (self.folder / "secrets").chmod(0o750)
        for name in ("home", "queue", "tmp"):
            os.chown(self.folder / name, 10001, 10001)

    def command(self, name: str, *more: str, replica: int = 0) -> list[str]:
        words = super().command(name, *more, replica=replica)
        return self.inside(name, words, replica=replica)

    def inside(self, name: str, words: list[str], replica: int = 0) -> list[str]:
        """The command line that runs `words` in a container of the service."""
        assert self.image is not None
        tmp = self.scratch(name, replica)
        tmp.mkdir(exist_ok=True)
        tmp.chmod(0o1777)
        passed = {k: v for k, v in super().environment(name, replica).items() if k not in ("PATH", "PYTHONPATH")}
        passed["DASK_TEMPORARY_DIRECTORY"] = "/tmp/dask"
        return [
            *map(str, self.image.command),
            *("run", "--isolation", "chroot", "--user", f"10001:{os.getegid()}"),
            *("--volume", f"{self.folder}:{self.folder}", "--volume", f"{tmp}:/tmp"),
            *(word for key, value in passed.items() for word in ("--env", f"{key}={value}")),
            *(self.container, "--", *words),
        ]

    def scratch(self, name: str, replica: int = 0) -> Path:
        """Return the folder that the container sees as /tmp."""
        return self.folder / f"scratch-{name}-{replica}"

    def environment(self, name: str, replica: int = 0) -> dict[str, str]:
        return {**super().environment(name, replica), "PATH": os.environ["PATH"]}

    def _is_healthy(self, label: str, environment: dict[str, str]) -> bool:
        assert self.processes[label].poll() is None, f"{label} ended:\n{self.log(label)}"
        name, _, replica = label.partition("-")
        check = self.inside(name, ["dkgp-health"], int(replica or 0))
        return subprocess.run(check, env=environment, capture_output=True).returncode == 0

    def of_container(self, label: str) -> list[psutil.Process]:
        """The processes in a container, buildah's own left out."""
        own = psutil.Process(self.processes[label].pid)
        return [child for child in own.children(recursive=True) if "buildah" not in child.name()]

    def __exit__(self, *problem: object) -> None:
        for label in self.processes:
            if self.processes[label].poll() is None:
                for process in self.of_container(label):
                    process.kill()
        super().__exit__(*problem)
