"""Which PodDisruptionBudgets stand before a pod: the Eviction API does not always name them."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from gpu_runbooks.activities.kubernetes import Kubernetes, KubernetesError, Object

VALID_SECONDS = 30.0
"""How long a list of a namespace's budgets is used again."""


@dataclass(frozen=True)
class Budget:
    """What a budget demands and has."""

    name: str
    spares_unhealthy: bool
    """Pods that are not Ready may always be evicted (`unhealthyPodEvictionPolicy: AlwaysAllow`)."""
    healthy: int
    needed: int
    observed: bool
    """Its controller has counted its pods since it was changed."""


def selects(selector: Object | None, labels: Mapping[str, str]) -> bool:
    """Whether a policy/v1 label selector selects a pod with these labels.

    A null selector selects nothing, an empty one everything in its namespace. An unknown operator selects:
    a budget that we do not understand is better named than hidden.
    """
    if selector is None:
        return False
    equal = all(labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items())
    return equal and all(_holds(expression, labels) for expression in selector.get("matchExpressions") or ())


def _holds(expression: Object, labels: Mapping[str, str]) -> bool:
    key, values = expression.get("key", ""), expression.get("values") or ()
    match expression.get("operator"):
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case _:
            return True


def budget_of(item: Object) -> Budget:
    """A PodDisruptionBudget of the API. What its status lacks counts as zero."""
    metadata, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    return Budget(
        name=metadata["name"],
        spares_unhealthy=spec.get("unhealthyPodEvictionPolicy") == "AlwaysAllow",
        healthy=int(status.get("currentHealthy") or 0),
        needed=int(status.get("desiredHealthy") or 0),
        observed=int(status.get("observedGeneration") or 0) >= int(metadata.get("generation") or 0),
    )


class Budgets:
    """Budgets of the namespaces that one drain meets: one list for all pods that ask at a time."""

    def __init__(self, kubernetes: Kubernetes) -> None:
        self._kubernetes = kubernetes
        self._listed: dict[str, tuple[float, list[Object]]] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def of(self, pod: Object) -> tuple[Budget, ...]:
        """The budgets that select the pod; none when they may not be read."""
        namespace, labels = pod["metadata"]["namespace"], pod["metadata"].get("labels") or {}
        async with self._locks.setdefault(namespace, asyncio.Lock()):
            items = await self._list(namespace)
        found = [item for item in items if selects((item.get("spec") or {}).get("selector"), labels)]
        return tuple(sorted(map(budget_of, found), key=lambda budget: budget.name))

    async def _list(self, namespace: str) -> list[Object]:
        now = asyncio.get_running_loop().time()
        since, items = self._listed.get(namespace, (-VALID_SECONDS, []))
        if now - since < VALID_SECONDS and namespace in self._listed:
            return items
        try:
            items = await self._kubernetes.items(
                f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
            )
        except KubernetesError:
            items = []  # only words are lost
        self._listed[namespace] = (now, items)
        return items
