"""Which PodDisruptionBudgets stand before a pod: the Eviction API does not always name them."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from gpu_runbooks.activities.draining.eviction import RBAC
from gpu_runbooks.activities.kubernetes.client import Kubernetes, KubernetesError, Object

VALID_SECONDS = 30.0
"""How long a list of a namespace's budgets is used again."""

LONGEST_PROBLEM = 80
"""Characters of a failed list that are quoted."""


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


@dataclass(frozen=True)
class BudgetsFound:
    """The budgets that select a pod, or why nobody knows them."""

    budgets: tuple[Budget, ...] = ()
    problem: str = ""
    """In words; with it `budgets` says nothing."""


def selects(selector: Object | None, labels: Mapping[str, str]) -> bool:
    """Whether a policy/v1 label selector selects a pod with these labels.

    A null selector selects nothing, an empty one everything in its namespace. What cannot be understood
    selects: such a budget is better named than hidden.
    """
    if selector is None:
        return False
    try:
        equal = all(labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items())
        return equal and all(_holds(each, labels) for each in selector.get("matchExpressions") or ())
    except (AttributeError, TypeError):
        return True


def _holds(expression: Object | None, labels: Mapping[str, str]) -> bool:
    if expression is None:
        return True
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
    """A PodDisruptionBudget of the API. What its status lacks, or says oddly, counts as zero."""
    metadata, spec, status = item["metadata"], _mapping(item.get("spec")), _mapping(item.get("status"))
    return Budget(
        name=metadata["name"],
        spares_unhealthy=spec.get("unhealthyPodEvictionPolicy") == "AlwaysAllow",
        healthy=_count(status.get("currentHealthy")),
        needed=_count(status.get("desiredHealthy")),
        observed=_count(status.get("observedGeneration")) >= _count(metadata.get("generation")),
    )


def _mapping(value: object) -> Object:
    return value if isinstance(value, dict) else {}


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0


class Budgets:
    """Budgets of the namespaces that one drain meets: one list for all pods that ask at a time."""

    def __init__(self, kubernetes: Kubernetes) -> None:
        self._kubernetes = kubernetes
        self._listed: dict[str, tuple[float, list[Object], str]] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def of(self, pod: Object, valid: float = VALID_SECONDS) -> BudgetsFound:
        """The budgets that select the pod, by a list that is at most `valid` seconds old."""
        namespace, labels = pod["metadata"]["namespace"], pod["metadata"].get("labels") or {}
        async with self._locks.setdefault(namespace, asyncio.Lock()):
            items, problem = await self._list(namespace, valid)
        found = [item for item in items if selects(_mapping(item.get("spec")).get("selector"), labels)]
        return BudgetsFound(tuple(sorted(map(budget_of, found), key=lambda budget: budget.name)), problem)

    async def _list(self, namespace: str, valid: float) -> tuple[list[Object], str]:
        now = asyncio.get_running_loop().time()
        if (listed := self._listed.get(namespace)) and now - listed[0] < valid:
            return listed[1], listed[2]
        items, problem = [], ""
        path = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
        try:
            listing = await self._kubernetes.list_objects(path)
        except KubernetesError as error:
            problem = _problem(error)
        else:
            items = listing.items
            if listing.unreadable:
                problem = f"{listing.unreadable} of the namespace's budgets cannot be read"
        self._listed[namespace] = (now, items, problem)
        return items, problem


def _problem(error: KubernetesError) -> str:
    if error.status == 403 and RBAC.search(error.message):
        return "the cluster worker's role lacks verb `list` on `poddisruptionbudgets`"
    return f"the budgets cannot be listed: {error}"[:LONGEST_PROBLEM]
