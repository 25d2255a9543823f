"""GPUs of a simulated node: the state file that stands behind the stand-in NVML and nvidia-smi.

`nvml/state.h` documents the file. Rewriting it changes the hardware under running processes; each process
that is started with `environment(path)` sees the node whose state file that is.
"""

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path


class CompilerMissingError(Exception):
    """There is no C compiler."""


SOURCES = Path(__file__).with_name("nvml")
"""Holds the C source of the library and the stand-in `nvidia-smi`."""

STATE_VARIABLE = "GPU_RUNBOOKS_NVML_STATE"

NVLINKS = 18
"""NVLinks of an H100 SXM, as in p5.48xlarge."""

P5_PCI_ADDRESSES = tuple(f"0000:{bus}:00" for bus in ("53", "64", "75", "86", "97", "a8", "b9", "ca"))


@dataclass(frozen=True)
class Refuses:
    """In place of a value: the call behind it returns this NVML code, for example 3, not supported."""

    code: int


class Presence(StrEnum):
    PRESENT = "present"
    MISSING = "missing"
    """Not counted by NVML."""
    LOST = "lost"
    """Counted, but every call on it returns 15, GPU is lost."""


class ResetAnswer(StrEnum):
    """What the stand-in nvidia-smi does when asked for a reset."""

    DONE = "done"
    """Clears recovery action, pending repairs of memory and volatile errors, and brings back a lost GPU."""
    NOTHING = "nothing"
    """Says done, changes nothing."""
    BUSY = "busy"
    """Refuses: in use by another client. It does so as well where a GPU has processes or persistence mode."""
    BUSY_ONCE = "busy-once"
    """Refuses the first time only."""
    NEEDS_PEERS = "needs-peers"
    """Refuses one GPU, not all together. It does so as well for a GPU before Ampere with NVLinks."""
    UNSUPPORTED = "unsupported"
    LOST = "lost"
    """The GPU cannot be reached."""
    HANG = "hang"
    """Ignores SIGTERM and returns only when the state says something else."""
    SLOW = "slow"
    """Waits until the state says something else, and then does that."""
    VANISH = "vanish"
    """Says done, and the GPU is gone afterwards."""


@dataclass(frozen=True)
class Part:
    """A part of a GPU or of a GPU instance, by the driver's id of its profile, and where it lies."""

    profile: int
    start: int
    size: int

    def __str__(self) -> str:
        return f"{self.profile}:{self.start}:{self.size}"


@dataclass(frozen=True)
class GpuInstance:
    """A GPU instance of MIG, with its compute instances."""

    part: Part
    compute: tuple[Part, ...] = ()

    def __str__(self) -> str:
        return "/".join(filter(None, [str(self.part), "+".join(map(str, self.compute))]))


@dataclass(frozen=True)
class GpuState:
    """One GPU. Defaults are those of a healthy H100."""

    uuid: str
    pci_address: str
    presence: Presence = Presence.PRESENT
    recovery_action: int | Refuses = 0
    ecc_uncorrected: int | Refuses = 0
    remap_pending: int | Refuses = 0
    remap_failed: int | Refuses = 0
    retirement_pending: int | Refuses = 0
    """1 for pages that wait for a reset. Asked before Ampere only, as the remaps are from Ampere on."""
    retired_single: int | Refuses = 0
    """Pages retired for single-bit errors."""
    retired_double: int | Refuses = 0
    """Pages retired for a double-bit error."""
    nvlinks_active: int | Refuses = NVLINKS
    nvlinks: int | Refuses = NVLINKS
    pids: tuple[int, ...] | Refuses = ()
    """Compute processes. `gpu_processes.hold` adds one together with its cgroup."""
    graphics_pids: tuple[int, ...] | Refuses = ()
    serial: str | Refuses = ""
    board: str | Refuses = Refuses(3)
    """Serial number of the chassis, up to 16 characters. H100 drivers do not tell it."""
    minor: int | Refuses = 0
    architecture: int | Refuses = 9
    """NVML's number: 5 Volta, 7 Ampere, 9 Hopper."""
    nvlink_remote: int | Refuses = 2
    """What the NVLinks lead to: 0 another GPU, 2 a switch."""
    fabric: int | Refuses = 3
    """0 not supported, 1 not started, 2 in progress, 3 completed."""
    virtualization: int | Refuses = 1
    """1 passed through whole, 2 a vGPU."""
    persistence: int | Refuses = 1
    mig: int | Refuses = 0
    instances: tuple[GpuInstance, ...] | Refuses = ()
    create_instance: int | Refuses = 0
    """`Refuses` makes the creation of instances fail."""


@dataclass(frozen=True)
class NodeGpus:
    """All that a state file says."""

    gpus: tuple[GpuState, ...]
    driver: str = "570.148.08"
    init: int = 0
    """What initialisation of NVML returns: 9 for a driver that is not loaded."""
    hang: tuple[str, ...] = ()
    """Names of the NVML functions that do not return."""
    reset: ResetAnswer = ResetAnswer.DONE
    resets: int = 0
    """How often nvidia-smi was asked for a reset: a second one is what a test must be able to see."""


def healthy_gpus(count: int = 8, node: str = "") -> tuple[GpuState, ...]:
    """GPUs of a p5 node. UUIDs and serials follow from the node's name: stable, and different by node."""
    return tuple(
        GpuState(
            uuid=f"GPU-{(unique := uuid.uuid5(uuid.NAMESPACE_DNS, f'{address}.{node}'))}",
            pci_address=address,
            serial=f"165{unique.int % 10**10:010}",
            minor=minor,
        )
        for minor, address in enumerate(P5_PCI_ADDRESSES[:count])
    )


def write_state(path: Path, gpus: Sequence[GpuState] | NodeGpus) -> None:
    """Replace the state file in one step: a reader sees the old state or the new one, never half of it."""
    state = gpus if isinstance(gpus, NodeGpus) else NodeGpus(tuple(gpus))
    lines = [
        f"driver {state.driver}",
        f"init {state.init}",
        *(f"hang {function}" for function in state.hang),
        f"reset {state.reset}",
        f"resets {state.resets}",
        *("gpu " + " ".join(f"{key}={value}" for key, value in _fields(gpu).items()) for gpu in state.gpus),
    ]
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=path.name, delete=False) as file:
        file.write("\n".join(lines) + "\n")
    Path(file.name).replace(path)


def read_state(path: Path) -> NodeGpus:
    state = NodeGpus(gpus=())
    for line in path.read_text().splitlines():
        word, _, value = line.partition(" ")
        match word:
            case "driver":
                state = replace(state, driver=value)
            case "init":
                state = replace(state, init=int(value))
            case "hang":
                state = replace(state, hang=(*state.hang, value))
            case "reset":
                state = replace(state, reset=ResetAnswer(value))
            case "resets":
                state = replace(state, resets=int(value))
            case "gpu":
                state = replace(state, gpus=(*state.gpus, _gpu(value)))
            case _:
                raise ValueError(f"{path}: unknown word {word!r}; nvml/state.h lists the words")
    return state


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep others from changing the file on the basis of what it says: tests, nvidia-smi and the library."""
    with path.with_name(path.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def change_gpu(path: Path, index: int, **changes: object) -> None:
    """Change one GPU of a state file, for example `change_gpu(path, 3, recovery_action=1)`."""
    with locked(path):
        state = read_state(path)
        gpus = list(state.gpus)
        gpus[index] = replace(gpus[index], **changes)  # type: ignore[arg-type]
        write_state(path, replace(state, gpus=tuple(gpus)))


def change_node(path: Path, **changes: object) -> None:
    """Change what is not of one GPU, for example `change_node(path, reset=ResetAnswer.HANG)`."""
    with locked(path):
        write_state(path, replace(read_state(path), **changes))  # type: ignore[arg-type]


def write_efa_interfaces(sysfs: Path, count: int = 32) -> None:
    """Make a sysfs tree in which a node agent finds this many EFA devices. Calls do not add up."""
    devices = sysfs / "class" / "infiniband"
    shutil.rmtree(devices, ignore_errors=True)
    for number in range(count):
        device = devices / f"rdmap{number}s0" / "device"
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x1d0f\n")


def environment(state: Path) -> dict[str, str]:
    """Variables under which a process finds the stand-ins, and this state file behind them."""
    libraries = [str(library().parent), os.environ.get("LD_LIBRARY_PATH", "")]
    return {
        STATE_VARIABLE: str(state),
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries)),
        "PATH": os.pathsep.join([str(SOURCES), os.environ.get("PATH", os.defpath)]),
    }


@functools.cache
def library() -> Path:
    """Build the stand-in for libnvidia-ml.so.1 with `cc` unless the cache has it.

    Raises `subprocess.CalledProcessError` where it does not compile, and `CompilerMissingError`.
    """
    sources = sorted(SOURCES.glob("*.c"))
    content = b"".join(file.read_bytes() for file in [*sources, *SOURCES.glob("*.h"), Path(__file__)])
    cache = Path(os.environ.get("GPU_RUNBOOKS_CACHE") or Path.home() / ".cache" / "gpu-runbooks")
    folder = cache / "testbed" / f"nvml-{hashlib.sha256(content).hexdigest()[:12]}"
    built = folder / "libnvidia-ml.so.1"
    if not built.exists():
        folder.mkdir(parents=True, exist_ok=True)
        # Built aside and moved: two that build at once do not see half a library of each other.
        with tempfile.TemporaryDirectory(dir=folder) as workplace:
            fresh = Path(workplace) / built.name
            compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
            if compiler is None:
                raise CompilerMissingError(
                    "no C compiler for the stand-in of NVML: install one (Debian: apt-get install gcc "
                    "libc6-dev) or name it in CC"
                )
            # With the name inside, a process that loaded it by its path finds it by its name from then on.
            named = f"-Wl,-soname,{built.name}"
            subprocess.run([compiler, "-shared", "-fPIC", "-O2", named, "-o", fresh, *sources], check=True)
            fresh.replace(built)
    return built


def _text(value: int | Refuses) -> str:
    return f"!{value.code}" if isinstance(value, Refuses) else str(value)


def _value(text: str) -> int | Refuses:
    return Refuses(int(text[1:])) if text.startswith("!") else int(text)


def _pids_text(pids: tuple[int, ...] | Refuses) -> str:
    return _text(pids) if isinstance(pids, Refuses) else ",".join(map(str, pids))


def _pids(text: str) -> tuple[int, ...] | Refuses:
    return Refuses(int(text[1:])) if text.startswith("!") else tuple(map(int, filter(None, text.split(","))))


def _instances_text(instances: tuple[GpuInstance, ...] | Refuses) -> str:
    return _text(instances) if isinstance(instances, Refuses) else ",".join(map(str, instances))


def _instances(text: str) -> tuple[GpuInstance, ...] | Refuses:
    if text.startswith("!"):
        return Refuses(int(text[1:]))
    items = (item.partition("/") for item in filter(None, text.split(",")))
    return tuple(
        GpuInstance(_part(part), tuple(map(_part, filter(None, compute.split("+")))))
        for part, _, compute in items
    )


def _part(text: str) -> Part:
    profile, start, size = map(int, text.split(":"))
    return Part(profile, start, size)


def _word(name: str | Refuses) -> str:
    return f"!{name.code}" if isinstance(name, Refuses) else name


def _name(text: str) -> str | Refuses:
    return Refuses(int(text[1:])) if text.startswith("!") else text


def _fields(gpu: GpuState) -> dict[str, str]:
    return {
        "uuid": gpu.uuid,
        "pci": gpu.pci_address,
        "presence": gpu.presence,
        "recovery": _text(gpu.recovery_action),
        "ecc": _text(gpu.ecc_uncorrected),
        "pending": _text(gpu.remap_pending),
        "failed": _text(gpu.remap_failed),
        "retiring": _text(gpu.retirement_pending),
        "retired1": _text(gpu.retired_single),
        "retired2": _text(gpu.retired_double),
        "active": _text(gpu.nvlinks_active),
        "links": _text(gpu.nvlinks),
        "pids": _pids_text(gpu.pids),
        "graphics": _pids_text(gpu.graphics_pids),
        "serial": _word(gpu.serial),
        "board": _word(gpu.board),
        "minor": _text(gpu.minor),
        "arch": _text(gpu.architecture),
        "remote": _text(gpu.nvlink_remote),
        "fabric": _text(gpu.fabric),
        "virtual": _text(gpu.virtualization),
        "persistence": _text(gpu.persistence),
        "mig": _text(gpu.mig),
        "instances": _instances_text(gpu.instances),
        "create": _text(gpu.create_instance),
    }


def _gpu(line: str) -> GpuState:
    fields = dict(pair.split("=", 1) for pair in line.split())
    return GpuState(
        uuid=fields["uuid"],
        pci_address=fields["pci"],
        presence=Presence(fields["presence"]),
        recovery_action=_value(fields["recovery"]),
        ecc_uncorrected=_value(fields["ecc"]),
        remap_pending=_value(fields["pending"]),
        remap_failed=_value(fields["failed"]),
        retirement_pending=_value(fields["retiring"]),
        retired_single=_value(fields["retired1"]),
        retired_double=_value(fields["retired2"]),
        nvlinks_active=_value(fields["active"]),
        nvlinks=_value(fields["links"]),
        pids=_pids(fields["pids"]),
        graphics_pids=_pids(fields["graphics"]),
        serial=_name(fields["serial"]),
        board=_name(fields["board"]),
        minor=_value(fields["minor"]),
        architecture=_value(fields["arch"]),
        nvlink_remote=_value(fields["remote"]),
        fabric=_value(fields["fabric"]),
        virtualization=_value(fields["virtual"]),
        persistence=_value(fields["persistence"]),
        mig=_value(fields["mig"]),
        instances=_instances(fields["instances"]),
        create_instance=_value(fields["create"]),
    )
