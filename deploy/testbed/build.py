"""The testbed's binaries: where they are, and how those that are missing are built.

A binary that a setting names wins, then one on PATH (of the Kubernetes parts only a release that the module
file pins), then the one built from the module files in `binaries/`. Built ones lie in the cache under the
hash of their module file, so that a change there builds anew and an old checkout keeps its own.
"""

import asyncio
import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from testbed import gpus
from testbed.processes import dying_with_us
from testbed.progress import Progress
from testbed.toolchain import go_command

MODULES = Path(__file__).parent / "binaries"
CACHE_SETTING = "GPU_RUNBOOKS_CACHE"


class BinaryMissingError(Exception):
    """A part of the testbed is not built yet."""


class BuildFailedError(Exception):
    """The Go compiler refused a part."""


@dataclass(frozen=True)
class Edit:
    """A change to one source file of a dependency, for the build only: the module itself stays as it is."""

    file: str
    """Path inside the module."""
    old: str
    new: str
    times: int
    """How often the old text is there. Another number means another release, whose text nobody has read."""


@dataclass(frozen=True)
class Adaptation:
    """What a program needs beyond its module file. None from elsewhere will do then."""

    dependency: str
    """Go module that is edited, and from which the folders are."""
    edits: tuple[Edit, ...]
    folders: tuple[str, ...]
    """Folders of the module whose files come to lie beside the program."""


@dataclass(frozen=True)
class Binary:
    """One program that the testbed runs and the Go package that it is built from."""

    name: str
    module: str
    package: str
    release_of: str = ""
    """Go module whose pinned release this program must have: another one on PATH is passed over."""
    adaptation: Adaptation | None = None

    @property
    def setting(self) -> str:
        return "GPU_RUNBOOKS_BIN_" + self.name.upper().replace("-", "_")

    @property
    def built(self) -> Path:
        digest = module_digest(self.module)
        if self.adaptation:
            digest = hashlib.sha256(f"{digest}{self.adaptation}".encode()).hexdigest()[:16]
        return cache() / "testbed" / digest / self.name


KUBERNETES = "k8s.io/kubernetes"

KARPENTER = Adaptation(
    dependency="sigs.k8s.io/karpenter",
    # It would serve metrics and health on all interfaces; no flag of it says otherwise.
    edits=(Edit("pkg/operator/operator.go", 'fmt.Sprintf(":%d"', 'fmt.Sprintf("127.0.0.1:%d"', times=2),),
    folders=("pkg/apis/crds", "kwok/apis/crds"),
)

BINARIES = (
    Binary("etcd", "kubernetes", "go.etcd.io/etcd/server/v3"),
    Binary("kube-apiserver", "kubernetes", f"{KUBERNETES}/cmd/kube-apiserver", KUBERNETES),
    Binary("kube-controller-manager", "kubernetes", f"{KUBERNETES}/cmd/kube-controller-manager", KUBERNETES),
    Binary("kube-scheduler", "kubernetes", f"{KUBERNETES}/cmd/kube-scheduler", KUBERNETES),
    Binary("kubectl", "kubernetes", f"{KUBERNETES}/cmd/kubectl", KUBERNETES),
    Binary("kwok", "kubernetes", "sigs.k8s.io/kwok/cmd/kwok"),
    Binary("alertmanager", "alertmanager", "github.com/prometheus/alertmanager/cmd/alertmanager"),
    Binary("karpenter", "karpenter", "sigs.k8s.io/karpenter/kwok", adaptation=KARPENTER),
)


def cache() -> Path:
    """Cache folder of the project, outside the checkout."""
    return Path(os.environ.get(CACHE_SETTING) or Path.home() / ".cache" / "gpu-runbooks")


def module_digest(module: str) -> str:
    """Hash of a module file and its sums: what decides whether a binary is still the right one."""
    content = b"".join((MODULES / module / name).read_bytes() for name in ("go.mod", "go.sum"))
    return hashlib.sha256(content).hexdigest()[:16]


def pinned_release(module: str, dependency: str) -> str:
    """Version of a dependency in a module file, for example `v1.36.3`."""
    found = re.search(
        rf"^\s*{re.escape(dependency)} (v\S+)", (MODULES / module / "go.mod").read_text(), re.MULTILINE
    )
    if not found:
        raise BuildFailedError(f"{MODULES / module / 'go.mod'} does not require {dependency}")
    return found[1]


def path_of(name: str) -> Path:
    """Where a binary is. Raises `BinaryMissingError` when it is neither given nor built."""
    binary = next(binary for binary in BINARIES if binary.name == name)
    if found := _find(binary):
        return found
    raise BinaryMissingError(
        f"{name} is not built: run `make binaries`, or set {binary.setting} to one of your own"
    )


@functools.cache
def _find(binary: Binary) -> Path | None:
    if binary.adaptation:
        return binary.built if binary.built.exists() else None
    if given := os.environ.get(binary.setting):
        if not os.access(given, os.X_OK):
            raise BinaryMissingError(f"{binary.setting} names {given}, which is no program that can be run")
        return Path(given)
    if (on_path := shutil.which(binary.name)) and _has_release(binary, on_path):
        return Path(on_path)
    return binary.built if binary.built.exists() else None


def _has_release(binary: Binary, program: str) -> bool:
    if not binary.release_of:
        return True
    question = [program, "version", "--client"] if binary.name == "kubectl" else [program, "--version"]
    answer = subprocess.run(question, capture_output=True, text=True, check=False, timeout=30).stdout
    minor = pinned_release(binary.module, binary.release_of).rpartition(".")[0]
    return f"{minor}." in answer


async def build_missing(progress: Progress) -> None:
    """Build what is missing, one program after another, each first under a name of its own.

    A killed build leaves nothing half under the final name; a second one that starts meanwhile waits.
    """
    gpus.library()  # first: without a C compiler the minutes that follow would be in vain
    if all(_find(binary) for binary in BINARIES):
        return
    with _only_one(progress):
        _find.cache_clear()
        missing = [binary for binary in BINARIES if not _find(binary)]
        if not missing:
            return
        progress.say(
            f"Building {len(missing)} of the testbed's {len(BINARIES)} programs from source. "
            "This takes minutes (about 9 on 2 cores with an empty Go cache) and is done once."
        )
        for number, binary in enumerate(missing, 1):
            with progress.step(f"{number}/{len(missing)} {binary.name}"):
                await _build(binary)
    _find.cache_clear()


async def _build(binary: Binary) -> None:
    target = binary.built
    target.parent.mkdir(parents=True, exist_ok=True)
    for left_behind in target.parent.glob(f".{target.name}.*"):
        left_behind.unlink()
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    options = ["-ldflags", _linker_flags(binary), "-o", str(unfinished)]
    try:
        with tempfile.TemporaryDirectory() as work:
            if binary.adaptation:
                options += [f"-modfile={await _adapted(binary, binary.adaptation, Path(work))}"]
            await _go(binary, "build", *options, binary.package)
        unfinished.rename(target)
    finally:
        unfinished.unlink(missing_ok=True)


async def _adapted(binary: Binary, adaptation: Adaptation, work: Path) -> Path:
    """Put the module's folders beside the program; return a module file that names an edited copy of it."""
    dependency = adaptation.dependency
    module = Path(json.loads(await _go(binary, "mod", "download", "-json", dependency))["Dir"])
    for folder in adaptation.folders:
        for file in (module / folder).iterdir():
            shutil.copyfile(file, binary.built.parent / file.name)  # without the cache's read-only mode
    copy = work / "edited"
    shutil.copytree(module, copy, copy_function=shutil.copyfile)
    for folder, _, _ in os.walk(copy):
        Path(folder).chmod(0o755)
    for edit in adaptation.edits:
        text = (copy / edit.file).read_text()
        if text.count(edit.old) != edit.times:
            raise BuildFailedError(
                f"{edit.file} of {dependency} has {edit.old!r} {text.count(edit.old)} times and not "
                f"{edit.times}: read it anew before it is edited"
            )
        (copy / edit.file).write_text(text.replace(edit.old, edit.new))
    for name in ("go.mod", "go.sum"):
        shutil.copyfile(MODULES / binary.module / name, work / name)
    await _go(binary, "mod", "edit", f"-replace={dependency}={copy}", str(work / "go.mod"))
    return work / "go.mod"


async def _go(binary: Binary, *arguments: str) -> str:
    """Run the Go command in the folder of a binary's module file and return what it printed."""
    folder = MODULES / binary.module
    process = await asyncio.create_subprocess_exec(
        *dying_with_us(go_command(folder / "go.mod"), *arguments),
        cwd=folder,
        env={**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        output, complaint = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise BuildFailedError(f"building {binary.name} in {folder} failed:\n{complaint.decode()[-4000:]}")
    return output.decode()


def _linker_flags(binary: Binary) -> str:
    """Strip symbols; a Kubernetes program built outside its own scripts must be told its version."""
    if not binary.release_of:
        return "-s -w"
    release = pinned_release(binary.module, binary.release_of)
    major, minor, _ = release.removeprefix("v").split(".")
    version = {"gitVersion": release, "gitMajor": major, "gitMinor": minor}
    stamps = [f"-X k8s.io/component-base/version.{name}={value}" for name, value in version.items()]
    return " ".join(["-s -w", *stamps])


@contextmanager
def _only_one(progress: Progress) -> Iterator[None]:
    """Hold the cache's build lock: two builds at once would take longer than one after the other."""
    folder = cache() / "testbed"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "build.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.say("Another build of the testbed is running; waiting for it.")
            while not _try_lock(lock.fileno()):
                time.sleep(0.5)
        yield


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
