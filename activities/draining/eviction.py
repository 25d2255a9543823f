"""What the Eviction API's answers mean for one pod, and when to ask again. Pure.

The status code alone does not say: 429 is a budget, a busy server or a webhook, 403 a dying namespace, a
missing permission, a budget or a policy, 500 two budgets, a webhook that is down or a hiccup, 409 another pod
of the name or a mere race (source: kubernetes, pkg/registry/core/pod/storage/eviction.go).
"""

import re
from dataclasses import dataclass
from enum import StrEnum

from gpu_runbooks.activities.kubernetes.client import KubernetesError, Object
from gpu_runbooks.activities.kubernetes.explanation import explained

DENIED_BY = re.compile(
    r"""admission\s+webhook\s+["'](?P<webhook>[^"']+)["']
      | failed\s+(?:calling|to\s+call)\s+webhook\s+["'](?P<broken>[^"']+)["']
      | (?:validating|mutating)\s*admission\s*policy\s+["'](?P<policy>[^"']+)["']
      | policy\s+["'](?P<bound>[^"']+)["']\s+with\s+binding""",
    re.VERBOSE | re.IGNORECASE,
)
BUDGET_TEXT = re.compile(r"disruption\s*budget", re.IGNORECASE)
BUDGET_NAME = re.compile(
    r"the\s+disruption\s*budget\s+(?!is\b|needs\b|does\b)[\"'`]?([a-z0-9][a-z0-9.-]*)[\"'`]?\s",
    re.IGNORECASE,
)
TWO_BUDGETS = re.compile(
    r"\b(?:more\s+than\s+one|multiple|several)\s+pod\s*disruption\s*budgets?\b", re.IGNORECASE
)
NOT_PERMITTED = re.compile(
    r"\bdenied\b|admission\s*policy|exceeded\s+quota|not\s+yet\s+ready\s+to\s+handle\s+request",
    re.IGNORECASE,
)
"""Words of an admission plugin, in a 403 that is not the authorizer's."""
RBAC = re.compile(r'cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)"', re.IGNORECASE)

NO_ANSWER_OF_THE_SERVER = frozenset({0, 401, 408, 410, 425, 499})
"""No answer, a token that is being renewed, or something in between that gave up: says nothing of the pod."""


class Verdict(StrEnum):
    """Meaning of an answer."""

    ACCEPTED = "accepted"
    """The pod's deletion has begun. It is not gone yet."""
    GONE = "gone"
    """No such pod with this UID any more: the watch will tell."""
    CHANGED = "changed"
    """The pod changed meanwhile: worth asking again at once."""
    BUDGET = "budget"
    """A PodDisruptionBudget does not permit it now."""
    BUDGET_NOT_OBSERVED = "budget not observed"
    """The budget changed, and its controller has not counted its pods since."""
    TWO_BUDGETS = "two budgets"
    """More than one budget selects the pod, which the Eviction API never permits."""
    THROTTLED = "throttled"
    """The server is busy; says nothing of the pod."""
    NAMESPACE_TERMINATING = "namespace terminating"
    """The namespace is being deleted, and its pods with it."""
    FORBIDDEN = "forbidden"
    """We lack the permission: no pod can be evicted."""
    DENIED = "denied"
    """An admission policy or webhook said no, or the request is not accepted."""
    API_SERVER = "api server"
    """No answer, or an error of the server."""


@dataclass(frozen=True)
class Answer:
    verdict: Verdict
    message: str = ""
    names: tuple[str, ...] = ()
    """Budget, webhook or policy that the server named."""
    retry_after: float | None = None
    """Seconds that the server asks us to wait."""


FIRST_PAUSE = {
    Verdict.ACCEPTED: 30.0,  # the pod has no deletion timestamp by then: something undid the eviction
    Verdict.GONE: 5.0,
    Verdict.CHANGED: 1.0,
    Verdict.BUDGET: 5.0,
    Verdict.BUDGET_NOT_OBSERVED: 2.0,
    Verdict.TWO_BUDGETS: 60.0,
    Verdict.THROTTLED: 1.0,
    Verdict.NAMESPACE_TERMINATING: 15.0,
    Verdict.DENIED: 15.0,
    Verdict.API_SERVER: 1.0,
}
"""Seconds before the second attempt; each further pause is half as long again."""

GROWTH = 1.5
LONGEST_PAUSE = 60.0
LONGEST_PAUSE_FOR_BUDGET = 15.0
"""A budget frees up when its pods become Ready elsewhere: worth a look four times a minute."""

ATTEMPTS_AGAINST_TWO_BUDGETS = 3
"""Then the drain looks at the budgets instead, and asks again once fewer than two select the pod."""

LOOK_AT_BUDGETS = 60.0
"""Seconds from one such look to the next."""

SPREAD = 0.3
"""Share by which a pause after a server's trouble is longer at random: not all come back at once."""

SPREAD_VERDICTS = frozenset({Verdict.THROTTLED, Verdict.API_SERVER, Verdict.BUDGET_NOT_OBSERVED})


def eviction_of(pod: Object) -> Object:
    """Body of the request: for exactly this UID, with the pod's own grace period."""
    metadata = pod["metadata"]
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
        "deleteOptions": {"preconditions": {"uid": metadata["uid"]}},
    }


def deletion_of(pod: Object) -> Object:
    """Body of a deletion that an operator ordered: for exactly this UID, with the pod's own grace period."""
    return {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": pod["metadata"]["uid"]},
    }


def classify(error: KubernetesError) -> Answer:
    """Meaning of a refused eviction, deletion or patch of a pod."""
    # The server's own words, without the path of our call: a pod may be named after what we look for.
    text = str(error.body.get("message") or error.message)
    folded, retry_after = text.casefold(), error.retry_after
    causes = {cause.casefold() for cause in error.causes()}
    if denied := DENIED_BY.search(text):  # first: a webhook answers with any status that it likes
        return Answer(Verdict.DENIED, text, tuple(filter(None, denied.groups())), retry_after)
    if error.status not in {404, 409} and TWO_BUDGETS.search(text):
        return Answer(Verdict.TWO_BUDGETS, text)
    match error.status:
        case 404:
            return Answer(Verdict.GONE, text)
        case 409 if re.search(r"\buid\b", folded):
            return Answer(Verdict.GONE, text)
        case 409:
            return Answer(Verdict.CHANGED, text, (), retry_after)
        case 429 if "disruptionbudget" in causes or BUDGET_TEXT.search(text):
            return _budget("; ".join(error.cause_messages()) or text, retry_after)
        case 429:
            return Answer(Verdict.THROTTLED, text, (), retry_after)
        case 403:
            return _forbidden(error, text)
        case status if status >= 500 or status < 400 or status in NO_ANSWER_OF_THE_SERVER:
            return Answer(Verdict.API_SERVER, text, (), retry_after)
        case _:
            return Answer(Verdict.DENIED, text)


def _budget(text: str, retry_after: float | None) -> Answer:
    verdict = Verdict.BUDGET_NOT_OBSERVED if "still being processed" in text.casefold() else Verdict.BUDGET
    return Answer(verdict, text, tuple(BUDGET_NAME.findall(text)), retry_after)


def _forbidden(error: KubernetesError, text: str) -> Answer:
    folded = text.casefold()
    terminating = any(cause.casefold() == "namespaceterminating" for cause in error.causes())
    if terminating or "is being terminated" in folded:
        return Answer(Verdict.NAMESPACE_TERMINATING, text)
    if right := RBAC.search(text):
        return Answer(Verdict.FORBIDDEN, missing_right(right, text))
    kind = str(error.details.get("kind") or "").casefold()
    if kind.startswith("poddisruptionbudget") or folded.startswith("poddisruptionbudget"):
        # the budget's own state is bad, such as too many evictions that its controller has not seen through
        name = error.details.get("name")
        return Answer(Verdict.BUDGET, text, (str(name),) if name else ())
    if NOT_PERMITTED.search(text):
        return Answer(Verdict.DENIED, text)
    return Answer(Verdict.FORBIDDEN, explained(error))


def missing_right(right: re.Match[str], text: str) -> str:
    """The right that the role lacks, as the server says it."""
    lacks = f"the cluster worker's role lacks verb `{right['verb']}` on `{right['resource']}`"
    return f"{lacks}; add it to its ClusterRole: {text}"


def pause(answer: Answer, attempts: int, chance: float = 0.0) -> float | None:
    """Seconds until the next eviction after so many attempts; None where another one makes no sense.

    `chance`, from 0 to 1, spreads the pauses of many pods.
    """
    if answer.verdict is Verdict.FORBIDDEN:
        return None
    if answer.verdict is Verdict.TWO_BUDGETS and attempts >= ATTEMPTS_AGAINST_TWO_BUDGETS:
        return None
    budget = answer.verdict in {Verdict.BUDGET, Verdict.BUDGET_NOT_OBSERVED}
    longest = LONGEST_PAUSE_FOR_BUDGET if budget else LONGEST_PAUSE
    first = FIRST_PAUSE[answer.verdict]
    grown = min(first * GROWTH ** min(max(attempts, 1) - 1, 20), max(first, longest))
    seconds = max(grown, answer.retry_after or 0.0)
    return seconds * (1 + SPREAD * chance) if answer.verdict in SPREAD_VERDICTS else seconds
