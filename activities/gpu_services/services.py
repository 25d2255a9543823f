"""GPU services stopped around a reset, by the GPU Operator's labels on the Node, and started again.

Each write names the resource version that it was made from, and carries in an annotation what was there
before: a worker that dies in between leaves all that the next one needs.
"""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import errors
from gpu_runbooks.activities.gpu_services.labels import (
    PauseMarker,
    pause_wanted,
    pausing_patch,
    resumption,
    services,
    stands,
)
from gpu_runbooks.activities.gpu_services.pods import kept_off, name_of, pods_of_services
from gpu_runbooks.activities.kubernetes.client import MERGE_PATCH, Kubernetes, KubernetesError, Object
from gpu_runbooks.activities.kubernetes.waiting import wait_for
from gpu_runbooks.activities.model.repair import (
    PausedGpuServices,
    PauseGpuServices,
    ResumedGpuServices,
    ResumeGpuServices,
)
from gpu_runbooks.activities.nodes.node import NODES, require_same_machine

PODS = "/api/v1/pods"

ATTEMPTS = 20
"""Writes against concurrent writers before the activity fails, and is retried as a whole."""

PAUSE = 0.05
"""Seconds after the first write that does not stand; each further one adds as much."""

HELD_FOR = timedelta(seconds=15)
"""Until we look again whether a driver upgrade has put our value back."""

MOST_NAMES = 5
"""Pods that a message names."""


async def pause_gpu_services(kubernetes: Kubernetes, request: PauseGpuServices) -> PausedGpuServices:
    """Stop the GPU services that hold GPUs, and wait until their pods are gone from the node.

    A pause of this run that stands is adopted. After `paused` and `failed` it stands, and
    `resume_gpu_services` is due; after all other outcomes nothing was written.

    Raises `ApplicationError` NODE_CHANGED for another machine, NOT_VERIFIED when the labels do not stand
    after all attempts; `KubernetesError`.
    """
    wanted = await _paused(kubernetes, request)
    if isinstance(wanted, PausedGpuServices):
        return wanted
    names = services(wanted.labels)
    left = await _await_end(kubernetes, request, wanted)
    if left:
        return PausedGpuServices(outcome="failed", services=names, message=left)
    # Somebody may have begun to work on the driver while we waited, or started the services again.
    node = await kubernetes.request("GET", f"{NODES}/{request.identity.name}")
    require_same_machine(node, request.identity)
    now = pause_wanted(node, request)
    if isinstance(now, PausedGpuServices):
        return now.model_copy(update={"outcome": "failed", "services": names})
    if not stands(node, wanted):
        message = f"somebody changed the labels of the GPU services of node {request.identity.name} meanwhile"
        return PausedGpuServices(outcome="failed", services=names, message=message)
    return PausedGpuServices(outcome="paused", services=names)


async def resume_gpu_services(kubernetes: Kubernetes, request: ResumeGpuServices) -> ResumedGpuServices:
    """Put back the values that were seen before the pause of this run, where our value still stands.

    A Node that is gone, or another machine, has nothing of ours. The pause of another run is left alone.

    Raises `ApplicationError` NOT_VERIFIED when our values are still there after all attempts, SERVICES_HELD
    (worth a retry) while the driver manager has added to one of them: at its end it writes ours back;
    `KubernetesError`.
    """
    path = f"{NODES}/{request.identity.name}"
    restored: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    for attempt in range(ATTEMPTS):
        await asyncio.sleep(PAUSE * attempt)
        node = await kubernetes.find(path)
        if node is None or node["metadata"]["uid"] != request.identity.uid:
            return ResumedGpuServices(restored=restored, kept=kept, node_gone=True)
        rest = resumption(node, request)
        kept = _united(kept, rest.kept)
        if rest.patch is not None:
            if await _written(kubernetes, path, rest.patch) is not None:
                restored = _united(restored, rest.restored)
        elif rest.held:
            raise ApplicationError(
                f"a driver upgrade of node {request.identity.name} holds the pause of GPU services, "
                f"{', '.join(rest.held)}, and writes it back at its end; it is taken away then",
                type=errors.SERVICES_HELD,
                next_retry_delay=HELD_FOR,
            )
        else:
            return ResumedGpuServices(restored=restored, kept=kept)
    raise _not_verified(f"the end of the pause of the GPU services of node {request.identity.name}")


async def _paused(kubernetes: Kubernetes, request: PauseGpuServices) -> PauseMarker | PausedGpuServices:
    """The pause as it stands on the Node, read back; or the outcome where there is to be none."""
    path = f"{NODES}/{request.identity.name}"
    pods: list[Object] | None = None
    for attempt in range(ATTEMPTS):
        await asyncio.sleep(PAUSE * attempt)
        node = await kubernetes.request("GET", path)
        require_same_machine(node, request.identity)
        wanted = pause_wanted(node, request)
        if isinstance(wanted, PausedGpuServices) or stands(node, wanted):
            return wanted
        if pods is None:
            # Once, and then the node again: a write right after the look at the node meets fewer others.
            pods = await kubernetes.items(PODS, field_selector=f"spec.nodeName={request.identity.name}")
            continue
        if lost := _lost(node, pods, wanted):
            return PausedGpuServices(outcome="impossible", message=lost)
        await _written(kubernetes, path, pausing_patch(node, wanted))
    raise _not_verified(f"the pause of the GPU services of node {request.identity.name}")


def _lost(node: Object, pods: Iterable[Object], pause: PauseMarker) -> str:
    """In words, the services that would not come back while the node is blocked; empty where all would."""
    name = node["metadata"]["name"]
    lost = kept_off(pods_of_services(pods, pause.labels), node)
    if not lost:
        return ""
    taints = ", ".join(sorted(set(lost.values())))
    return (
        f"GPU services of node {name} would not come back while it is blocked, as their pods do not "
        f"tolerate {taints}: {_listed(sorted(lost))}. No label was written. Let the DaemonSets of the GPU "
        "services tolerate it (the GPU Operator's `daemonsets.tolerations`)"
    )


async def _await_end(kubernetes: Kubernetes, request: PauseGpuServices, pause: PauseMarker) -> str:
    """Wait for the end of the services' pods; empty once they are gone, else what is left, in words."""
    left: tuple[str, ...] = ()

    def gone(pods: dict[str, Object]) -> bool | None:
        nonlocal left
        left = tuple(sorted(name_of(pod) for pod in pods_of_services(pods.values(), pause.labels)))
        return None if left else True

    selector = f"spec.nodeName={request.identity.name}"
    if not await wait_for(kubernetes, PODS, gone, request.deadline, field_selector=selector):
        return (
            f"GPU services of node {request.identity.name} did not stop by the deadline: "
            f"{_listed(left) or 'their pods could not be listed'}"
        )
    # A watch leaves out what it cannot read, and that may be the very pod.
    listing = await kubernetes.list_objects(PODS, field_selector=selector)
    if listing.unreadable:
        return (
            f"{listing.unreadable} pods of node {request.identity.name} cannot be read: "
            "what they hold is unknown"
        )
    return ""


async def _written(kubernetes: Kubernetes, path: str, patch: dict[str, Any]) -> Object | None:
    """The Node as stored; None when somebody else wrote first, or the Node has gone."""
    try:
        return await kubernetes.request("PATCH", path, body=patch, content_type=MERGE_PATCH)
    except KubernetesError as error:
        if error.status in {404, 409}:
            return None
        raise


def _listed(pods: Sequence[str]) -> str:
    more = f" and {len(pods) - MOST_NAMES} more" if len(pods) > MOST_NAMES else ""
    return f"{', '.join(pods[:MOST_NAMES])}{more}"


def _united(some: Iterable[str], more: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*some, *more)))


def _not_verified(what: str) -> ApplicationError:
    return ApplicationError(
        f"{what} does not stand after {ATTEMPTS} attempts. Look for a controller or an admission webhook "
        "that writes to this node: `kubectl get node NAME -o yaml --show-managed-fields` names the writers",
        type=errors.NOT_VERIFIED,
    )
