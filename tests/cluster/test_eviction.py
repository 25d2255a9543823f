"""Answers of the Eviction API, also those that a real server cannot be made to give."""

import pytest

from gpu_runbooks.activities.eviction import ATTEMPTS_AGAINST_TWO_BUDGETS, Answer, Verdict, classify, pause
from gpu_runbooks.activities.kubernetes import KubernetesError

TWO_BUDGETS = (
    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
)
RBAC = (
    'pods "web" is forbidden: User "system:serviceaccount:ops:worker" cannot create resource "pods/eviction" '
    'in API group "" in the namespace "blue"'
)


def error(status, message="", *, cause="", retry_after=None):
    body = {"details": {"causes": [{"reason": cause, "message": f"why: {cause}"}]}} if cause else {}
    return KubernetesError(status, "", message, body, retry_after=retry_after)


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (error(404, "pods not found"), Verdict.GONE),
        (error(409, "Precondition failed: UID in precondition: a, UID in object meta: b"), Verdict.GONE),
        (error(429, "Cannot evict pod", cause="DisruptionBudget"), Verdict.BUDGET),
        (error(429, "would violate the pod's disruption budget."), Verdict.BUDGET),  # a server without causes
        (error(429, "Too many requests, please try again later.", retry_after=1.0), Verdict.THROTTLED),
        (error(429, "no Status object in the answer"), Verdict.THROTTLED),  # a proxy's page
        (error(500, TWO_BUDGETS), Verdict.TWO_BUDGETS),
        (error(500, "etcdserver: request timed out"), Verdict.TRANSIENT),
        (error(502, "no Status object in the answer"), Verdict.TRANSIENT),
        (error(0, "TimeoutError()"), Verdict.TRANSIENT),
        (error(401, "Unauthorized"), Verdict.TRANSIENT),  # between two tokens
        (error(403, "is being terminated", cause="NamespaceTerminating"), Verdict.NAMESPACE_TERMINATING),
        (error(403, RBAC), Verdict.FORBIDDEN),
        (error(403, "forbidden by something unheard of"), Verdict.FORBIDDEN),
        (error(403, 'admission webhook "guard.example" denied the request: frozen'), Verdict.REFUSED),
        (error(400, "Name parameter required."), Verdict.REFUSED),
        (error(422, "invalid"), Verdict.REFUSED),
    ],
)
def test_meaning_of_an_answer(answer, verdict):
    assert classify(answer).verdict is verdict


def test_budget_speaks_through_its_cause():
    assert (
        classify(error(429, "Cannot evict pod", cause="DisruptionBudget")).message == "why: DisruptionBudget"
    )


def test_server_sets_the_pace_when_throttled():
    throttled = classify(error(429, "busy", retry_after=7.0))
    assert pause(throttled, attempts=1) == 7.0


def test_budget_is_asked_slowly_and_for_ever():
    pauses = [pause(Answer(Verdict.BUDGET), attempts) for attempts in range(1, 500)]
    assert all(5 <= each <= 15 for each in pauses)
    assert pauses == sorted(pauses)


def test_two_budgets_are_asked_a_few_times_only():
    answer = Answer(Verdict.TWO_BUDGETS)
    assert pause(answer, ATTEMPTS_AGAINST_TWO_BUDGETS - 1) is not None
    assert pause(answer, ATTEMPTS_AGAINST_TWO_BUDGETS) is None


def test_missing_permission_is_not_asked_again():
    assert pause(Answer(Verdict.FORBIDDEN), attempts=1) is None


@pytest.mark.parametrize("verdict", set(Verdict) - {Verdict.FORBIDDEN})
def test_every_pause_is_bounded(verdict):
    for attempts in range(1, 200):
        seconds = pause(Answer(verdict), attempts)
        assert seconds is None or 1 <= seconds <= 60
