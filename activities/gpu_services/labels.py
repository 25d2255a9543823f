"""What the GPU Operator's labels on a Node say of its GPU services, and what our pause makes of them. No I/O.

The operator runs each service as a DaemonSet whose nodeSelector wants `nvidia.com/gpu.deploy.<service>=true`,
so any other value of the label takes the pod off the node. Values in use: `true`; `false`, a person's; empty,
no such service here; `paused-for-...`, somebody is at work and puts the old value back. The driver manager
appends `_paused-for-driver-upgrade` to values that it does not know. Sources: NVIDIA/gpu-operator,
controllers/state_manager.go; NVIDIA/k8s-driver-manager, cmd/driver-manager/main.go; NVIDIA/mig-parted,
reconfigure; NVIDIA/k8s-operator-libs, pkg/upgrade/consts.go.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpu_runbooks.activities import names
from gpu_runbooks.activities.kubernetes.client import Object
from gpu_runbooks.activities.model.repair import PausedGpuServices, PauseGpuServices, ResumeGpuServices
from gpu_runbooks.activities.model.wire import Wire
from gpu_runbooks.activities.nodes.node import LONGEST_MARKER, annotations_of, marker_of

PREFIX = "nvidia.com/gpu.deploy."

CLIENT = f"{PREFIX}client"
"""Of third parties (operator 26.7 and later). Their pods may also run where a node lacks the label."""

MANAGED = (
    f"{PREFIX}device-plugin",
    f"{PREFIX}gpu-feature-discovery",
    f"{PREFIX}dcgm",
    f"{PREFIX}dcgm-exporter",
    f"{PREFIX}dcgm-dra",
    f"{PREFIX}dcgm-exporter-dra",
    f"{PREFIX}mig-manager",
    f"{PREFIX}node-status-exporter",
    f"{PREFIX}nvsm",
    CLIENT,
)
"""Services that hold a GPU open, or would open one during a reset.

Not the driver, to which nvidia-persistenced belongs: without it there is nothing to reset with. Not the
container toolkit: it restarts the container runtime as it comes and goes. Not the operator's validator, whose
pod sleeps once it has validated. Not the DRA driver: it has to outlive the pods that hold claims of it.
"""

RUNS = "true"
PAUSED = "paused-for-gpu-runbooks"
NORMAL = frozenset({RUNS, "false", "", PAUSED})

DRIVER_UPGRADE = re.compile(r"nvidia\.com/v?gpu-driver-upgrade-state")
NO_UPGRADE = frozenset({"", "upgrade-done"})
"""All other states are an upgrade on its way, or one that failed and left the driver unknown."""

MIG_STATE = "nvidia.com/mig.config.state"
MIG_AT_WORK = frozenset({"pending", "rebooting"})


class PauseMarker(Wire):
    """Content of the annotation `gpu-runbooks.dev/paused-gpu-services`."""

    incident: str
    run_id: str
    labels: dict[str, str | None]
    """What was seen before our pause, by label; None for a label that was not there."""

    def is_of(self, request: PauseGpuServices | ResumeGpuServices) -> bool:
        return (self.incident, self.run_id) == (request.incident, request.run_id)


def labels_of(node: Object) -> dict[str, str]:
    return node["metadata"].get("labels") or {}


def pause_on(node: Object) -> PauseMarker | None:
    """Whoever's pause is on the Node. Raises `ValueError` for one that cannot be read."""
    text = annotations_of(node).get(names.PAUSED_SERVICES_ANNOTATION)
    if text and len(text) > LONGEST_MARKER:
        raise ValueError(f"the annotation has {len(text)} characters")
    return PauseMarker.model_validate_json(text) if text else None


def others_at_work(labels: Mapping[str, str]) -> tuple[str, ...]:
    """Labels that say that somebody else is at work on the driver or its services, as `key=value`."""
    return tuple(f"{key}={value}" for key, value in sorted(labels.items()) if _is_at_work(key, value))


def services(keys: Iterable[str]) -> tuple[str, ...]:
    return tuple(key.removeprefix(PREFIX) for key in keys)


def pause_wanted(node: Object, request: PauseGpuServices) -> PauseMarker | PausedGpuServices:
    """The pause that should be on this version of the Node, or the outcome where there is to be none.

    A pause that another run has left behind is taken over: its values are those from before any pause, while
    the labels now show only that pause.
    """
    name, labels = node["metadata"]["name"], labels_of(node)
    try:
        standing = pause_on(node)
    except ValueError:
        return PausedGpuServices(
            outcome="deferred",
            message=f"node {name} has an annotation {names.PAUSED_SERVICES_ANNOTATION} that cannot be read: "
            "nobody knows what its GPU services were before. Set their labels by hand and remove it",
        )
    if at_work := others_at_work(labels):
        ours = standing is not None and standing.is_of(request)
        return PausedGpuServices(
            outcome="failed" if ours else "deferred",
            message="somebody else is at work on the GPU driver or services of node "
            f"{name}: {', '.join(at_work)}. "
            + ("Our pause is to be taken back" if ours else "No label was written"),
        )
    if standing is not None and not standing.is_of(request) and _still_blocks(node, standing):
        return PausedGpuServices(
            outcome="deferred",
            message=f"the GPU services of node {name} are paused by incident {standing.incident}, run "
            f"{standing.run_id}, which holds the node. No label was written",
        )
    seen = _before(labels, standing)
    if not seen:
        return PausedGpuServices(
            outcome="nothing", message=f"no label {PREFIX}* has a GPU service run on node {name}"
        )
    return PauseMarker(incident=request.incident, run_id=request.run_id, labels=seen)


def stands(node: Object, marker: PauseMarker) -> bool:
    """Exactly this pause is on the Node."""
    labels = labels_of(node)
    return pause_on(node) == marker and all(labels.get(key) == PAUSED for key in marker.labels)


def pausing_patch(node: Object, marker: PauseMarker) -> dict[str, Any]:
    """Merge patch that pauses exactly this version of the Node, with what was seen beside it."""
    return _patch(node, dict.fromkeys(marker.labels, PAUSED), marker)


@dataclass(frozen=True)
class Resumption:
    """What is left to be put back on a version of a Node."""

    patch: dict[str, Any] | None
    """Merge patch; None where nothing is left to be written."""
    restored: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    """Labels where somebody added to our value, and will put our value back: it cannot be ended yet."""


def resumption(node: Object, request: ResumeGpuServices) -> Resumption:
    """What to put back: the values that were seen, wherever our value still stands.

    Our value without an annotation is ours as well, since nobody else writes it: somebody removed the
    annotation. We pause only what runs, so it goes back to that; as it does where the annotation cannot be
    read, which stays for a person.
    """
    labels = labels_of(node)
    paused = {key: RUNS for key in MANAGED if labels.get(key) == PAUSED}
    try:
        standing = pause_on(node)
    except ValueError:
        return Resumption(
            _labelling_patch(node, paused) if paused else None,
            restored=services(paused),
            kept=(f"an annotation {names.PAUSED_SERVICES_ANNOTATION} that cannot be read",),
        )
    if standing is not None and not standing.is_of(request):
        return Resumption(None, kept=(f"the pause of incident {standing.incident}, run {standing.run_id}",))
    before = paused | (standing.labels if standing else {})
    ours = {key: value for key, value in before.items() if labels.get(key) == PAUSED}
    changed = {key: value for key, value in before.items() if key not in ours}
    held = {key: value for key, value in changed.items() if PAUSED in labels.get(key, "")}
    kept = tuple(
        f"{key}={labels[key]}" if key in labels else f"{key} (removed)" for key in changed if key not in held
    )
    rest = standing.model_copy(update={"labels": held}) if standing and held else None
    done = not ours and rest == standing
    return Resumption(
        None if done else _patch(node, ours, rest),
        restored=services(ours),
        kept=kept,
        held=tuple(f"{key}={labels[key]}" for key in held),
    )


def _is_at_work(key: str, value: str) -> bool:
    if key in MANAGED:
        return value not in NORMAL
    if key.startswith(PREFIX):
        return "paused" in value
    if key == MIG_STATE:
        return value in MIG_AT_WORK
    return DRIVER_UPGRADE.fullmatch(key) is not None and value not in NO_UPGRADE


def _still_blocks(node: Object, standing: PauseMarker) -> bool:
    try:
        block = marker_of(node)
    except ValueError:
        return True
    return block is not None and (block.incident, block.run_id) == (standing.incident, standing.run_id)


def _before(labels: Mapping[str, str], standing: PauseMarker | None) -> dict[str, str | None]:
    """Value before any pause of each label that has a service run, or that is paused by us already."""
    recorded = standing.labels if standing else {}
    seen: dict[str, str | None] = {}
    for key in MANAGED:
        if labels.get(key) == RUNS:
            seen[key] = RUNS
        elif labels.get(key) == PAUSED:
            seen[key] = recorded.get(key, RUNS)
    if seen and CLIENT not in labels:
        seen[CLIENT] = None
    return seen


def _patch(node: Object, labels: Mapping[str, str | None], marker: PauseMarker | None) -> dict[str, Any]:
    patch = _labelling_patch(node, labels)
    text = marker.model_dump_json() if marker else None
    patch["metadata"]["annotations"] = {names.PAUSED_SERVICES_ANNOTATION: text}
    return patch


def _labelling_patch(node: Object, labels: Mapping[str, str | None]) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": node["metadata"]["resourceVersion"], "labels": dict(labels)}}
