"""What the Eviction API's answers mean for one pod, and when to ask again. Pure.

The status code alone does not say: 429 is a budget or a busy server, 403 a dying namespace or a missing
permission, 500 two budgets or a hiccup (source: kubernetes, pkg/registry/core/pod/storage/eviction.go).
"""

from dataclasses import dataclass
from enum import StrEnum

from gpu_runbooks.activities.kubernetes import KubernetesError, Object


class Verdict(StrEnum):
    """Meaning of an answer."""

    ACCEPTED = "accepted"
    """The pod's deletion has begun. It is not gone yet."""
    GONE = "gone"
    """No such pod with this UID any more, or it changed hands: the watch will tell."""
    BUDGET = "budget"
    """A PodDisruptionBudget does not permit it now."""
    TWO_BUDGETS = "two budgets"
    """More than one budget selects the pod, which the Eviction API never permits."""
    THROTTLED = "throttled"
    """The server is busy; says nothing of the pod."""
    NAMESPACE_TERMINATING = "namespace terminating"
    """The namespace is being deleted, and its pods with it."""
    FORBIDDEN = "forbidden"
    """We lack the permission: no pod can be evicted."""
    REFUSED = "refused"
    """An admission policy or webhook said no, or the request is not accepted."""
    TRANSIENT = "transient"
    """No answer, or an error of the server."""


@dataclass(frozen=True)
class Answer:
    verdict: Verdict
    message: str = ""
    retry_after: float | None = None
    """Seconds that the server asks us to wait."""


FIRST_PAUSE = {
    Verdict.ACCEPTED: 30.0,  # the pod has no deletion timestamp by then: something undid the eviction
    Verdict.GONE: 5.0,
    Verdict.BUDGET: 5.0,
    Verdict.TWO_BUDGETS: 60.0,
    Verdict.THROTTLED: 1.0,
    Verdict.NAMESPACE_TERMINATING: 15.0,
    Verdict.REFUSED: 15.0,
    Verdict.TRANSIENT: 1.0,
}
"""Seconds before the second attempt; each further pause is half as long again."""

GROWTH = 1.5
LONGEST_PAUSE = 60.0
LONGEST_PAUSE_FOR_BUDGET = 15.0
"""A budget frees up when its pods become Ready elsewhere: worth a look four times a minute."""

ATTEMPTS_AGAINST_TWO_BUDGETS = 3


def eviction_of(pod: Object) -> Object:
    """Body of the request: for exactly this UID, with the pod's own grace period."""
    metadata = pod["metadata"]
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
        "deleteOptions": {"preconditions": {"uid": metadata["uid"]}},
    }


def classify(error: KubernetesError) -> Answer:
    """Meaning of a refused eviction."""
    # The server's own words, without the path of our call: a pod may be named after what we look for.
    text = str(error.body.get("message") or error.message)
    causes, retry_after = error.causes(), error.retry_after
    match error.status:
        case 404 | 409:
            return Answer(Verdict.GONE, text)
        case 429 if "DisruptionBudget" in causes or "disruption budget" in text:
            return Answer(Verdict.BUDGET, "; ".join(error.cause_messages()) or text, retry_after)
        case 429:
            return Answer(Verdict.THROTTLED, text, retry_after)
        case 500 if "more than one PodDisruptionBudget" in text:
            return Answer(Verdict.TWO_BUDGETS, text)
        case 403 if "NamespaceTerminating" in causes or "is being terminated" in text:
            return Answer(Verdict.NAMESPACE_TERMINATING, text)
        case 403 if "denied" not in text or "cannot create resource" in text:
            return Answer(Verdict.FORBIDDEN, text)
        case 0 | 401:
            return Answer(Verdict.TRANSIENT, text)
        case status if status >= 500:
            return Answer(Verdict.TRANSIENT, text, retry_after)
        case _:
            return Answer(Verdict.REFUSED, text)


def pause(answer: Answer, attempts: int) -> float | None:
    """Seconds until the next attempt after so many attempts; None where another one makes no sense."""
    if answer.verdict is Verdict.FORBIDDEN:
        return None
    if answer.verdict is Verdict.TWO_BUDGETS and attempts >= ATTEMPTS_AGAINST_TWO_BUDGETS:
        return None
    longest = LONGEST_PAUSE_FOR_BUDGET if answer.verdict is Verdict.BUDGET else LONGEST_PAUSE
    first = FIRST_PAUSE[answer.verdict]
    grown = min(first * GROWTH ** min(attempts - 1, 20), max(first, longest))
    return max(grown, answer.retry_after or 0.0)
