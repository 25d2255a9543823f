"""The bundle of evidence before a repair: what it holds of each part, and how much. Pure.

All sizes are in bytes of the JSON that is kept, whatever the content: each part has a budget, and the budgets
together stay below the limit of the whole. What was cut is said beside it.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gpu_runbooks.activities.draining.workloads import owner_of
from gpu_runbooks.activities.kubernetes.error import Object
from gpu_runbooks.activities.kubernetes.listing import objects_in

WHOLE = 512 * 1024
"""Limit of the bundle."""

LABELS = 16 * 1024
ANNOTATIONS = 24 * 1024
CONDITIONS = 16 * 1024
OTHER_OF_NODE = 4 * 1024
EVENTS = 64 * 1024
PODS = 40 * 1024
KERNEL_LOG = 128 * 1024
"""64 KiB of text, in which JSON writes each quotation mark and line end with two bytes."""
DCGM = 36 * 1024
FAULTS = 32 * 1024
FACTS = 48 * 1024

LONGEST_VALUE = 1024
"""Characters of one string within a part."""

LONGEST_NOTE = 500


def size(content: Any) -> int:
    """Bytes of the content as JSON, as it is kept."""
    return len(json.dumps(content, separators=(",", ":")))


def node_part(node: Object) -> Object:
    """The Node without its images and its managed fields."""
    metadata, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
    return {
        "name": metadata["name"],
        "uid": metadata["uid"],
        "created": metadata.get("creationTimestamp"),
        "labels": _fitting_map(metadata.get("labels"), LABELS),
        "annotations": _fitting_map(metadata.get("annotations"), ANNOTATIONS),
        "providerID": _cut(str(spec.get("providerID") or "")),
        "unschedulable": bool(spec.get("unschedulable")),
        "taints": fitting_list(objects_in(spec.get("taints")), OTHER_OF_NODE),
        "conditions": fitting_list(objects_in(status.get("conditions")), CONDITIONS),
        "capacity": _fitting_map(status.get("capacity"), OTHER_OF_NODE),
        "allocatable": _fitting_map(status.get("allocatable"), OTHER_OF_NODE),
        "nodeInfo": _fitting_map(status.get("nodeInfo"), OTHER_OF_NODE),
    }


def events_part(events: Iterable[Object]) -> Object:
    """The newest events of the node."""
    return fitting_list(map(_event, sorted(events, key=_last_seen, reverse=True)), EVENTS)


def pods_part(pods: Iterable[Object]) -> Object:
    """Who was on the node: names, owners, phases. Neither specs nor environment: these may hold secrets."""
    return fitting_list(map(_pod, sorted(pods, key=_full_name)), PODS)


def text_part(part: Any, limit: int, *, newest: bool) -> Object | None:
    """Text and note as an agent wrote them, cut at its beginning or at its end. None where there is none.

    The agent has limits of its own; whoever has its token need not keep them.
    """
    if not isinstance(part, Mapping):
        return None
    text, note = str(part.get("text") or ""), str(part.get("note") or "")[:LONGEST_NOTE]

    def kept(count: int) -> str:
        return text[len(text) - count :] if newest else text[:count]

    count = _fitting(len(text), limit, kept)
    if count < len(text):
        note = "; ".join(filter(None, (note, f"{count} of {len(text)} characters are kept")))
    return {"text": kept(count), "note": note}


def facts_part(facts: Object | None) -> Object | None:
    """What was measured, without the pods of each GPU where these alone would fill the bundle."""
    if facts is None or size(facts) <= FACTS:
        return facts
    gpus = [
        {key: value for key, value in gpu.items() if not key.endswith("pod_uids")} for gpu in facts["gpus"]
    ]
    count = _fitting(len(gpus), FACTS, lambda count: gpus[:count])
    note = f"{count} of {len(gpus)} GPUs are kept, without their pods: they are too many"
    return {**facts, "gpus": gpus[:count], "note": note}


def _event(event: Object) -> Object:
    source = event.get("source") or {}
    return {
        "last": _last_seen(event),
        "first": event.get("firstTimestamp"),
        "count": (event.get("series") or {}).get("count") or event.get("count"),
        "type": event.get("type"),
        "reason": event.get("reason"),
        "message": event.get("message"),
        "from": event.get("reportingComponent") or source.get("component"),
    }


def _last_seen(event: Object) -> str:
    """Moment in RFC 3339, which sorts as text. Each way to record an event has a field of its own for it."""
    series = event.get("series") or {}
    moments = (
        series.get("lastObservedTime"),
        event.get("lastTimestamp"),
        event.get("eventTime"),
        event["metadata"].get("creationTimestamp"),
    )
    return str(next(filter(None, moments), ""))


def _pod(pod: Object) -> Object:
    metadata, owner = pod["metadata"], owner_of(pod)
    return {
        "namespace": metadata.get("namespace"),
        "name": metadata["name"],
        "uid": metadata["uid"],
        "owner": str(owner) if owner else None,
        "phase": (pod.get("status") or {}).get("phase"),
        "deleted": metadata.get("deletionTimestamp"),
    }


def _full_name(pod: Object) -> tuple[str, str]:
    return str(pod["metadata"].get("namespace")), pod["metadata"]["name"]


def fitting_list(items: Iterable[Object], limit: int) -> Object:
    """The first items that fit, with their values cut, and how many there were."""
    cut = [_cut_values(item) for item in items]
    count = _fitting(len(cut), limit, lambda count: cut[:count])
    return {"items": cut[:count], "note": _note(count, len(cut))}


def _fitting_map(values: Any, limit: int) -> Object:
    cut = _cut_values(values) if isinstance(values, Mapping) else {}
    pairs = sorted(cut.items())
    count = _fitting(len(pairs), limit, lambda count: dict(pairs[:count]))
    return {"items": dict(pairs[:count]), "note": _note(count, len(pairs))}


def _fitting(everything: int, limit: int, some: Callable[[int], Any]) -> int:
    """How many fit into the limit, found by bisection: `some` gives so many."""
    fits, too_many = 0, everything + 1
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if size(some(middle)) <= limit:
            fits = middle
        else:
            too_many = middle
    return fits


def _note(kept: int, everything: int) -> str:
    return "" if kept == everything else f"{kept} of {everything} are kept"


def _cut_values(values: Mapping[str, Any]) -> Object:
    """Strings cut; what is neither string, number nor nothing is written as JSON and cut."""
    return {
        _cut(str(key)): value if isinstance(value, int | float | None) else _cut(_text(value))
        for key, value in values.items()
    }


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _cut(text: str) -> str:
    if len(text) <= LONGEST_VALUE:
        return text
    return f"{text[:LONGEST_VALUE]} [cut, {len(text)} characters]"
