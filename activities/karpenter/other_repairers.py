"""Who else is about to repair or remove a node, and cannot be held off while we do.

Karpenter's node repair of v1.15 leaves a node alone that our block is on, by `karpenter.sh/do-not-repair`.
Its older one (before v1.15, or with `--legacy-node-repair`) knows no such annotation: it destroys a node once
one of its conditions has stood for its toleration. Source: kubernetes-sigs/karpenter v1.15.0,
pkg/controllers/node/legacyrepair/controller.go and pkg/operator/options/options.go.

Whether Amazon EKS repairs the nodes of a managed node group, or those of Auto Mode, cannot be seen here.
"""

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpu_runbooks.activities.karpenter.objects import (
    DISRUPTED_TAINT,
    NODE_CLAIMS,
    REBOOTING_TAINT,
    belongs_to_karpenter,
    condition_of,
    is_going,
    labels_of,
)
from gpu_runbooks.activities.karpenter.repair_policies import RepairedCondition, provider_of, repaired_by
from gpu_runbooks.activities.kubernetes.client import Kubernetes, KubernetesError, Object
from gpu_runbooks.activities.kubernetes.listing import objects_in
from gpu_runbooks.activities.nodes.node import taints_of

DEPLOYMENTS = "/apis/apps/v1/deployments"
KARPENTER = "app.kubernetes.io/name=karpenter"
"""Label that Karpenter's charts put on its Deployment."""

HELD_OFF_SINCE = (1, 15)
"""Version whose node repair honours `karpenter.sh/do-not-repair`."""

SOON = timedelta(hours=1)
"""An expiry that is farther away leaves time for a repair."""

UNITS = {"h": 3600, "m": 60, "s": 1}

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LegacyRepair:
    """A Karpenter whose node repair cannot be held off."""

    deployment: str
    why: str


async def imminent_repair(kubernetes: Kubernetes, node: Object, now: datetime) -> str:
    """Who repairs or removes this node soon whatever we do, when, and what to do; empty for nobody.

    What may not be read (403) is passed over: a cluster without Karpenter has nothing to read either.
    Raises `KubernetesError` where the API server does not answer.
    """
    name = node["metadata"]["name"]
    if is_going(node):
        return f"node {name} is being deleted already: wait until it is gone"
    if not belongs_to_karpenter(node):
        return ""
    keys = {taint.get("key") for taint in taints_of(node)}
    if DISRUPTED_TAINT in keys:
        return f"Karpenter has chosen node {name} and replaces it now (taint {DISRUPTED_TAINT}): let it"
    if REBOOTING_TAINT in keys:
        return f"Karpenter reboots node {name} now (taint {REBOOTING_TAINT}): wait until it is back"
    claim = await _claim(kubernetes, node)
    if claim is not None:
        if is_going(claim):
            claim_name = claim["metadata"]["name"]
            return f"NodeClaim {claim_name} of node {name} is being deleted already: let Karpenter replace it"
        if expiry := _expiry(claim, now):
            return expiry
    return await _legacy(kubernetes, node)


async def _claim(kubernetes: Kubernetes, node: Object) -> Object | None:
    provider_id = (node.get("spec") or {}).get("providerID")
    for claim in await _readable(kubernetes, NODE_CLAIMS):
        if provider_id and (claim.get("status") or {}).get("providerID") == provider_id:
            return claim
    return None


def _expiry(claim: Object, now: datetime) -> str:
    """Karpenter's own end of the machine's life: no annotation holds it off."""
    life = duration_of(str((claim.get("spec") or {}).get("expireAfter", "")))
    if life is None:
        return ""
    end = datetime.fromisoformat(claim["metadata"]["creationTimestamp"]) + life
    if end - now > SOON:
        return ""
    return (
        f"Karpenter replaces NodeClaim {claim['metadata']['name']} at {end:%H:%M} UTC, since it expires then "
        "(expireAfter): replace it now, or let it"
    )


def duration_of(text: str) -> timedelta | None:
    """A duration as a NodeClaim writes it, such as `720h` or `1h30m0s`. None for `Never`."""
    if not re.fullmatch(r"(\d+[hms])+", text):
        return None
    return timedelta(seconds=sum(int(n) * UNITS[unit] for n, unit in re.findall(r"(\d+)([hms])", text)))


async def _legacy(kubernetes: Kubernetes, node: Object) -> str:
    """The first of the node's conditions that the legacy repair acts on, where one is switched on."""
    due = first_due(node, repaired_by(provider_of((node.get("spec") or {}).get("providerID") or "")))
    if due is None:
        return ""
    when, condition = due
    for deployment in await _readable(kubernetes, DEPLOYMENTS, label_selector=KARPENTER):
        legacy = legacy_repair(deployment)
        if legacy is not None:
            return (
                f"Karpenter (Deployment {legacy.deployment}) destroys node {node['metadata']['name']} at "
                f"{when:%Y-%m-%d %H:%M:%S} UTC for {condition.condition}={condition.status}: {legacy.why}, "
                "and nothing holds that off. Switch its feature gate NodeRepair off, or let it do so"
            )
    return ""


def first_due(
    node: Object, repaired: Iterable[RepairedCondition]
) -> tuple[datetime, RepairedCondition] | None:
    """When the first toleration of a condition that stands runs out, and which condition that is."""
    due = [
        (datetime.fromisoformat(standing["lastTransitionTime"]) + policy.toleration, policy)
        for policy in repaired
        if (standing := condition_of(node, policy.condition)).get("status") == policy.status
        and standing.get("lastTransitionTime")
    ]
    return min(due, key=lambda each: each[0], default=None)


def legacy_repair(deployment: Object) -> LegacyRepair | None:
    """Whether this Karpenter repairs nodes and cannot be held off; None where it does not.

    What it takes from a ConfigMap or Secret cannot be seen and counts as not set. A version that cannot be
    read counts as an old one.
    """
    spec = deployment.get("spec") or {}
    if spec.get("replicas", 1) == 0:
        return None
    metadata = deployment["metadata"]
    name = f"{metadata.get('namespace', '')}/{metadata['name']}"
    for container in objects_in(((spec.get("template") or {}).get("spec") or {}).get("containers")):
        gates = _setting(container, "feature-gates", "FEATURE_GATES")
        if not _is_on(gates):
            continue
        if _setting(container, "legacy-node-repair", "LEGACY_NODE_REPAIR").lower() in {"true", "t", "1"}:
            return LegacyRepair(name, "its flag legacy-node-repair is on")
        version = _version(labels_of(deployment).get("app.kubernetes.io/version", "")) or _version(
            _tag(container.get("image") or "")
        )
        if version is None or version < HELD_OFF_SINCE:
            told = f"v{version[0]}.{version[1]}" if version else "unknown"
            return LegacyRepair(name, f"its node repair is on, and its version is {told} (before v1.15)")
    return None


def _is_on(gates: str) -> bool:
    """Whether the gate NodeRepair is on. The last word counts, as in Karpenter."""
    named = dict(gate.strip().partition("=")[::2] for gate in gates.split(","))
    return named.get("NodeRepair", "").strip().lower() in {"true", "t", "1"}


def _setting(container: Object, flag: str, variable: str) -> str:
    """Value of a setting: of the flag, in any of its spellings, else of the environment variable."""
    arguments = [str(each) for each in (*(container.get("command") or ()), *(container.get("args") or ()))]
    value = ""
    for entry in objects_in(container.get("env")):
        if entry.get("name") == variable:
            value = str(entry.get("value") or "")
    for number, argument in enumerate(arguments):
        found = re.fullmatch(rf"--?{re.escape(flag)}(?:=(.*))?", argument)
        if not found:
            continue
        following = arguments[number + 1] if number + 1 < len(arguments) else ""
        value = found[1] if found[1] is not None else "true" if following.startswith("-") else following
    return value or ""


def _tag(image: str) -> str:
    """`registry:5000/karpenter:1.8.1@sha256:...` gives `1.8.1`."""
    return image.partition("@")[0].rpartition("/")[2].partition(":")[2]


def _version(text: str) -> tuple[int, int] | None:
    found = re.match(r"v?(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


async def _readable(kubernetes: Kubernetes, path: str, *, label_selector: str = "") -> list[Object]:
    """The collection, or nothing where it is not served, or the role may not read it."""
    try:
        return await kubernetes.items(path, label_selector=label_selector)
    except KubernetesError as error:
        if error.status not in {403, 404}:
            raise
        if error.status == 403:
            logger.warning("other repairers of a node are not looked for: %s", error)
        return []
