"""The image of deploy/Dockerfile, built from nothing: a base by debootstrap, the rest as a user
builds it; then two ranks train in it, and its SSH client and server know each other.

No registry is asked. Packages come from where this host's own come from, its pip.conf included.
Everything is made in a folder of the test's own, and leaves with it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkout import TOP

pytestmark = pytest.mark.whole(because="an image takes a build of its own, of many minutes")

BASE, IMAGE = "localhost/taco-base", "localhost/taco-torch"
SOURCES = Path("/etc/apt/sources.list"), Path("/etc/apt/sources.list.d")


def why_not() -> str | None:
    if os.environ.get("TACO_TEST_IMAGE", "0") != "1":
        return "TACO_TEST_IMAGE=1 builds the image, for a quarter of an hour"
    missing = [name for name in ("buildah", "debootstrap") if not shutil.which(name)]
    if missing:
        return f"not installed: {', '.join(missing)}"
    if os.geteuid() != 0:
        return "debootstrap needs root"
    return None if debian() else "this host is no Debian: its mirror is not known"


def debian() -> tuple[str, str] | None:
    """The release of this host and the mirror that it is installed from."""
    release = re.search(r"^VERSION_CODENAME=(\w+)$", Path("/etc/os-release").read_text(), re.M)
    files = [path for path in SOURCES if path.is_file()]
    files += sorted(SOURCES[1].glob("debian.*")) if SOURCES[1].is_dir() else []
    text = "\n".join(path.read_text() for path in files)
    mirror = re.search(r"^(?:URIs:|deb(?: \[.*\])?) +(https?://\S+/debian/?)\s", text, re.M)
    return (release[1], mirror[1]) if release and mirror else None


def run(*command: str | Path, timeout: float = 600, **variables: str) -> str:
    """Standard output of a command that must succeed."""
    done = subprocess.run(
        list(map(str, command)),
        env={**os.environ, **variables},
        cwd=TOP,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


class Buildah:
    """buildah with a store of its own, without a daemon and without user namespaces."""

    def __init__(self, folder: Path) -> None:
        # Another driver would leave mounts behind; a variable does not count beside --root.
        self._store = [f"--root={folder / 'images'}", f"--runroot={folder / 'run'}"]
        self._store.append("--storage-driver=vfs")
        self._variables = {"BUILDAH_ISOLATION": "chroot", "TMPDIR": str(folder)}

    def __call__(self, *arguments: str | Path, timeout: float = 600) -> str:
        return run("buildah", *self._store, *arguments, timeout=timeout, **self._variables)


def make_base(folder: Path, buildah: Buildah) -> None:
    """A Debian of this host's release with what apt needs, and no more."""
    found = debian()
    assert found is not None
    root = folder / "base"
    options = ["--variant=minbase", "--include=ca-certificates"]
    run("debootstrap", *options, found[0], root, found[1], timeout=1200)
    for settings in Path("/etc/apt/apt.conf.d").iterdir():
        if "Acquire::" in settings.read_text():
            shutil.copy(settings, root / "etc/apt/apt.conf.d")
    shutil.rmtree(root / "var/cache/apt/archives", ignore_errors=True)
    recipe = folder / "base.Dockerfile"
    recipe.write_text("FROM scratch\nCOPY base /\n")
    buildah("build", "--quiet", "--tag", BASE, "--file", recipe, folder)
    shutil.rmtree(root)


def volumes(folder: Path) -> list[str]:
    """Mounts by which pip finds in the build what it finds on this host: the settings, and the
    folders and the certificates that they name."""
    pip = ["python3", "-m", "pip", "config", "list"]
    listed = subprocess.run(pip, capture_output=True, text=True, check=False).stdout
    lines, mounts = ["[global]"], []
    for name, value in re.findall(r"^(?:global|:env:)\.([\w-]+)='(.*)'$", listed, re.MULTILINE):
        if name not in ("find-links", "index-url", "extra-index-url", "cert", "trusted-host"):
            continue
        for place in re.findall(r"(?:^|\s|file://)(/\S+)", value):
            inside = "/run/taco-certificates" if name == "cert" else place
            source = Path(place) if name == "cert" else Path(*Path(place).parts[:3])
            inside = inside if name == "cert" else str(source)
            mounts.append(f"--volume={source}:{inside}:ro")
            value = "/run/taco-certificates" if name == "cert" else value
        if not any(line.startswith(f"{name} = ") for line in lines):
            lines.append(f"{name} = {value}")
    settings = folder / "pip.conf"
    settings.write_text("\n".join(lines) + "\n")
    return [f"--volume={settings}:/etc/pip.conf:ro", *dict.fromkeys(mounts)]


class Container:
    """A container of the image, as its own user."""

    def __init__(self, buildah: Buildah) -> None:
        self._buildah = buildah
        self._name = buildah("from", IMAGE).strip()

    def run(self, *command: str, user: str = "1000:1000", timeout: float = 600) -> str:
        # The host's name must lead somewhere, as in docker and Kubernetes: torchrun asks for it.
        options = ["--hostname=localhost", "--env=HOME=/srv/taco", f"--user={user}"]
        return self._buildah("run", *options, self._name, "--", *command, timeout=timeout)


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("image")
    buildah = Buildah(folder)
    try:
        make_base(folder, buildah)
        build = ["build", "--tag", IMAGE, "--file", "deploy/Dockerfile", *volumes(folder)]
        # torch from where this host's pip finds it, not from torch's own index.
        arguments = [f"--build-arg=BASE={BASE}", "--build-arg=TORCH_INDEX="]
        buildah(*build, *arguments, ".", timeout=5400)
        yield Container(buildah)
    finally:
        if (folder / "images").exists():
            buildah("rm", "--all")
            buildah("rmi", "--all", "--force")
        shutil.rmtree(folder, ignore_errors=True)


def test_the_image_is_nobody_of_importance(container: Container) -> None:
    assert container.run("id", "-un").strip() == "taco"
    assert container.run("sh", "-c", "cd && pwd").strip() == "/srv/taco"
    find = ["find", "/", "-xdev", "-type", "f", "-perm", "-2"]
    assert not container.run(*find, user="0").strip()


def test_the_image_has_the_package_and_its_commands(container: Container) -> None:
    assert "taco_torch" in container.run("python", "-m", "taco_torch.info")
    for name in ("harp-setup", "harp-perf", "harp-stat"):
        assert f"usage: {name}" in container.run(name, "--help")
    waited = container.run("taco-wait-for-hosts", "localhost", "--", "echo", "there")
    assert waited == "there\n"


def test_no_tool_of_the_build_is_left(container: Container) -> None:
    for name in ("g++", "cmake", "ninja"):
        container.run("sh", "-c", f"! command -v {name}")


def test_two_ranks_train_the_digits_in_the_image(container: Container) -> None:
    launch = ["torchrun", "--standalone", "--nproc-per-node=2"]
    script = ["/opt/taco/examples/train_digits.py", "--backend=taco", "--epochs=2"]
    text = container.run("env", "OMP_NUM_THREADS=1", *launch, *script)
    found = re.search(r"taco: test accuracy (\d+\.\d)% on 360 images", text)
    assert found is not None, text
    assert float(found[1]) > 60


SSH = """
set -e
mkdir -p ~/.ssh && ssh-keygen -q -t ecdsa -N '' -f ~/.ssh/id_rsa
cp ~/.ssh/id_rsa.pub ~/.ssh/authorized_keys
/usr/sbin/sshd -De -f /etc/ssh/taco_sshd_config 2>/tmp/sshd.log & server=$!
trap 'kill $server' EXIT
taco-wait-for-hosts localhost --port 2222 --timeout 30 -- ssh localhost 'command -v python; id -un'
ssh-keygen -q -t ecdsa -N '' -f ~/.ssh/other
{ echo "ecdsa-sha2-nistp256"; cut -d' ' -f2 ~/.ssh/other.pub; } | paste -sd' ' >~/.ssh/id_rsa.pub
if ssh localhost true; then echo "a stranger was trusted"; fi
"""


def test_hosts_of_a_job_know_each_other_and_no_stranger(container: Container) -> None:
    text = container.run("bash", "-c", SSH)
    assert text == "/opt/taco/bin/python\ntaco\n"
