"""Memory of the real `gpu-runbooks intake` that watches 5,000 nodes of a real API server.

The nodes are as large as those of production: 50 images and 20 conditions each, and annotations of 250 kB on
one in a hundred. Temporal is away the whole time, so that what is bad also waits in the intake's memory.
"""

import asyncio
import random
import tempfile
from collections.abc import Awaitable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpu_runbooks.activities.kubernetes.client import Kubernetes, Object
from testbed.control_plane import ControlPlane
from testbed.nodes import gpu_node
from testbed.ports import free_port
from testbed.processes import Part, Processes
from testbed.product import MANIFESTS, POLICY, PROGRAM, SOURCES

NODES = 5_000
PATCHES = 2_000
BAD_ONE_IN = 50
LONG_ANNOTATION_ONE_IN = 100
LONG_ANNOTATION = 250_000
"""Bytes, near the 256 KiB that the API server permits for all annotations of an object."""

IMAGES = 50
"""As many as the kubelet reports (`nodeStatusMaxImages`)."""

AT_ONCE = 32
SECONDS = 400.0
"""Limit for each stage, which only a failure reaches."""

SEED = 20260301
KIND = "KernelDeadlock"
PATH = "/api/v1/nodes"
MIB = 1024


async def measure() -> dict[str, float]:
    """Peak and present memory in MiB, after the first list and all patches."""
    with tempfile.TemporaryDirectory(prefix="gpu-runbooks-watch-") as directory:
        folder = Path(directory)
        async with Processes(folder / "logs") as processes:
            plane = ControlPlane(folder, processes)
            await plane.serve()
            await plane.apply_kustomization(MANIFESTS)
            async with plane.client() as kubernetes:
                await _all(_create(kubernetes, number) for number in range(NODES))
                intake = await _start(plane, processes)
                await _told(intake, _name(0))
                chance = random.Random(SEED)  # noqa: S311 - which nodes change is no secret
                await _all(_patch(kubernetes, chance.randrange(1, NODES)) for _ in range(PATCHES))
                await _show_bad(kubernetes, NODES - 1)
                await _told(intake, _name(NODES - 1))
                status = Path(f"/proc/{intake.pid}/status").read_text()
    return {
        "watch_5000_nodes_rss_mib": _kib(status, "VmHWM") / MIB,
        "watch_5000_nodes_rss_in_the_end_mib": _kib(status, "VmRSS") / MIB,
    }


async def _start(plane: ControlPlane, processes: Processes) -> Part:
    environment = {
        "PYTHONPATH": str(SOURCES),
        "KUBECONFIG": str(await plane.grant("intake")),
        "TEMPORAL_ADDRESS": f"127.0.0.1:{free_port()}",
        "GPU_RUNBOOKS_POLICY": str(POLICY),
        "GPU_RUNBOOKS_LISTEN": f"127.0.0.1:{free_port()}",
    }
    return await processes.start("intake", [str(PROGRAM), "intake"], environment)


async def _told(intake: Part, node: str) -> None:
    """Wait until the audit shows that a node's condition was handed on, and all before it was seen."""

    async def answered() -> bool:
        return f"node='{node}'" in intake.log.read_text(errors="replace")

    await intake.ready(answered, SECONDS)


async def _all(work: Iterable[Awaitable[Any]]) -> None:
    limit = asyncio.Semaphore(AT_ONCE)

    async def limited(one: Awaitable[Any]) -> None:
        async with limit:
            await one

    async with asyncio.timeout(SECONDS):
        await asyncio.gather(*map(limited, work))


async def _create(kubernetes: Kubernetes, number: int) -> None:
    await kubernetes.request("POST", PATH, body=_node(number))


async def _patch(kubernetes: Kubernetes, number: int) -> None:
    """A heartbeat: nothing new but its time."""
    await _write(kubernetes, number, _condition("Ready", "True", "KubeletReady"))


async def _show_bad(kubernetes: Kubernetes, number: int) -> None:
    await _write(kubernetes, number, _condition(KIND, "True", "TaskHung"))


async def _write(kubernetes: Kubernetes, number: int, condition: Object) -> None:
    await kubernetes.request(
        "PATCH",
        f"{PATH}/{_name(number)}/status",
        body={"status": {"conditions": [condition]}},
        content_type="application/strategic-merge-patch+json",
    )


def _name(number: int) -> str:
    return f"ip-10-{number // 65536}-{number // 256 % 256}-{number % 256}.us-west-2.compute.internal"


def _node(number: int) -> Object:
    node = gpu_node(_name(number), f"i-{number:017x}")
    labels = {f"feature.node.kubernetes.io/cpu-feature-{each}.supported": "true" for each in range(60)}
    node["metadata"]["labels"] |= labels
    node["metadata"]["annotations"] = {
        f"example.com/annotation-{each}": f"value {each} " * 8 for each in range(20)
    }
    if number % LONG_ANNOTATION_ONE_IN == 0:
        node["metadata"]["annotations"]["example.com/long"] = "x" * LONG_ANNOTATION
    bad = number % BAD_ONE_IN == 0
    others = [_condition(f"example.com/Detector{each}", "False", "NoProblemIsFound") for each in range(18)]
    node["status"]["conditions"] = [
        _condition("Ready", "True", "KubeletReady"),
        _condition(KIND, "True" if bad else "False", "TaskHung" if bad else "KernelHasNoDeadlock"),
        *others,
    ]
    node["status"]["images"] = [_image(each) for each in range(IMAGES)]
    return node


def _image(number: int) -> Object:
    repository = f"registry.example.com/a-team-with-a-name/an-image-of-many-{number}"
    return {
        "names": [f"{repository}@sha256:{number:064x}", f"{repository}:2026.3.1-ubuntu22.04-{number}"],
        "sizeBytes": 2_000_000_000 + number,
    }


def _condition(kind: str, status: str, reason: str) -> Object:
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": f"{kind} as its detector describes it, in a sentence of usual length",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }


def _kib(status: str, name: str) -> float:
    (line,) = [line for line in status.splitlines() if line.startswith(f"{name}:")]
    return float(line.split()[1])
