"""Which PodDisruptionBudgets stand before a pod: the Eviction API does not always name them."""

from collections.abc import Mapping

from gpu_runbooks.activities.kubernetes import Kubernetes, KubernetesError, Object


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


class Budgets:
    """Budgets of the namespaces that one drain meets, each read once and again when none fits."""

    def __init__(self, kubernetes: Kubernetes) -> None:
        self._kubernetes = kubernetes
        self._by_namespace: dict[str, list[Object]] = {}

    async def names_for(self, pod: Object) -> tuple[str, ...]:
        """Names of the budgets that select the pod; none when they may not be read."""
        namespace, labels = pod["metadata"]["namespace"], pod["metadata"].get("labels") or {}
        found = _matching(self._by_namespace.get(namespace, []), labels)
        if not found:
            path = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
            try:
                self._by_namespace[namespace] = await self._kubernetes.items(path)
            except KubernetesError:
                return ()
            found = _matching(self._by_namespace[namespace], labels)
        return found


def _matching(budgets: list[Object], labels: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(
        sorted(
            budget["metadata"]["name"]
            for budget in budgets
            if selects((budget.get("spec") or {}).get("selector"), labels)
        )
    )
