"""Answers of the Eviction API, also those that a real server cannot be made to give."""

import pytest

from gpu_runbooks.activities.draining.budgets import Budget, BudgetsFound
from gpu_runbooks.activities.draining.eviction import (
    ATTEMPTS_AGAINST_TWO_BUDGETS,
    Answer,
    Verdict,
    classify,
    deletion_of,
    eviction_of,
    pause,
)
from gpu_runbooks.activities.draining.obstacles import obstacle_of
from gpu_runbooks.activities.kubernetes.client import KubernetesError

TWO_BUDGETS = (
    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
)
RBAC = (
    'pods "web" is forbidden: User "system:serviceaccount:ops:worker" cannot create resource "pods/eviction" '
    'in API group "" in the namespace "blue"'
)

PROCESSED = "The disruption budget web is still being processed by the server."
POLICY = "pods \"web\" is forbidden: ValidatingAdmissionPolicy 'frozen' with binding 'all' denied request: no"


def error(status, message="", *, cause="", retry_after=None):
    why = PROCESSED if message == PROCESSED else f"why: {cause}"
    body = {"details": {"causes": [{"reason": cause, "message": why}]}} if cause else {}
    return KubernetesError(status, "", message, body, retry_after=retry_after)


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (error(404, "pods not found"), Verdict.GONE),
        (error(409, "Precondition failed: UID in precondition: a, UID in object meta: b"), Verdict.GONE),
        (error(429, "Cannot evict pod", cause="DisruptionBudget"), Verdict.BUDGET),
        (error(429, "would violate the pod's disruption budget."), Verdict.BUDGET),  # a server without causes
        (error(429, PROCESSED, cause="DisruptionBudget"), Verdict.BUDGET_NOT_OBSERVED),
        (error(429, "Too many requests, please try again later.", retry_after=1.0), Verdict.THROTTLED),
        (error(429, "no Status object in the answer"), Verdict.THROTTLED),  # a proxy's page
        (error(500, TWO_BUDGETS), Verdict.TWO_BUDGETS),
        (error(500, "etcdserver: request timed out"), Verdict.API_SERVER),
        (error(502, "no Status object in the answer"), Verdict.API_SERVER),
        (error(0, "TimeoutError()"), Verdict.API_SERVER),
        (error(401, "Unauthorized"), Verdict.API_SERVER),  # between two tokens
        (error(403, "is being terminated", cause="NamespaceTerminating"), Verdict.NAMESPACE_TERMINATING),
        (error(403, RBAC), Verdict.FORBIDDEN),
        (error(403, "forbidden by something unheard of"), Verdict.FORBIDDEN),
        (error(403, 'admission webhook "guard.example" denied the request: frozen'), Verdict.DENIED),
        (error(429, 'admission webhook "guard.example" denied the request: slow down'), Verdict.DENIED),
        (error(409, 'admission webhook "guard.example" denied the request: UID'), Verdict.DENIED),
        (error(500, 'Internal error occurred: failed calling webhook "guard.example": EOF'), Verdict.DENIED),
        (error(422, POLICY), Verdict.DENIED),
        (error(403, POLICY), Verdict.DENIED),
        (error(403, 'pods "web" is forbidden: exceeded quota: q, requested: pods=1'), Verdict.DENIED),
        (error(403, 'pods "web" is forbidden: not yet ready to handle request'), Verdict.DENIED),
        (
            error(403, 'poddisruptionbudget.policy "web" is forbidden: DisruptedPods map too big'),
            Verdict.BUDGET,
        ),
        (error(409, "the ResourceVersion in the precondition (1) does not match: modified"), Verdict.CHANGED),
        (
            error(504, 'Timeout: couldn\'t update PodDisruptionBudget "web" due to conflicts'),
            Verdict.API_SERVER,
        ),
        (error(302, "moved"), Verdict.API_SERVER),
        (error(400, "Name parameter required."), Verdict.DENIED),
        (error(422, "invalid"), Verdict.DENIED),
        (error(409, "precondition failed: uid in precondition: a, uid in object meta: b"), Verdict.GONE),
        (error(409, "the object has fluid limits"), Verdict.CHANGED),
        # other wording, as of other servers and versions
        (error(500, "the pod has More Than One poddisruptionbudget"), Verdict.TWO_BUDGETS),
        (error(400, "multiple PodDisruptionBudgets match the pod"), Verdict.TWO_BUDGETS),
        (error(422, TWO_BUDGETS), Verdict.TWO_BUDGETS),
        (error(429, "Cannot evict: Disruption Budget exhausted"), Verdict.BUDGET),
        (error(429, "Cannot evict pod", cause="disruptionBUDGET"), Verdict.BUDGET),
        (error(429, PROCESSED.upper()), Verdict.BUDGET_NOT_OBSERVED),
        (error(403, "going", cause="namespaceterminating"), Verdict.NAMESPACE_TERMINATING),
        (error(403, "validatingadmissionpolicy 'frozen' with binding 'all' denied request"), Verdict.DENIED),
        (error(403, "MutatingAdmissionPolicy 'frozen' failed"), Verdict.DENIED),
        (error(403, "policy 'frozen' with binding 'all' says no"), Verdict.DENIED),
        (error(403, 'Admission Webhook "guard.example" rejected it'), Verdict.DENIED),
        # something in between, not the API server
        (error(408, "Request Timeout"), Verdict.API_SERVER),
        (error(410, "Gone"), Verdict.API_SERVER),
        (error(425, "Too Early"), Verdict.API_SERVER),
        (error(499, "client closed request"), Verdict.API_SERVER),
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


@pytest.mark.parametrize("verdict", [each for each in Verdict if each is not Verdict.FORBIDDEN])
def test_every_pause_is_bounded(verdict):
    for attempts in range(1, 200):
        seconds = pause(Answer(verdict), attempts, chance=1.0)
        assert seconds is None or 1 <= seconds <= 80


def test_pauses_after_trouble_are_spread():
    assert pause(Answer(Verdict.THROTTLED), 1, chance=0.9) > pause(Answer(Verdict.THROTTLED), 1, chance=0.1)
    slow = Answer(Verdict.THROTTLED, retry_after=7.0)
    assert all(pause(slow, 1, chance / 10) >= 7.0 for chance in range(10))


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        (error(403, 'admission webhook "guard.example" denied the request: frozen'), ("guard.example",)),
        (error(500, 'failed calling webhook "guard.example": EOF'), ("guard.example",)),
        (error(403, POLICY), ("frozen",)),
        (error(429, PROCESSED, cause="DisruptionBudget"), ("web",)),
        (error(429, "The disruption budget web needs 2 healthy pods and has 2 currently"), ("web",)),
        (error(429, "Cannot evict pod as it would violate the pod's disruption budget."), ()),
        (error(429, 'the disruption budget "web" needs 2 healthy pods'), ("web",)),
        (error(429, "The Disruption Budget `web` does not allow it"), ("web",)),
        (error(403, "validatingadmissionpolicy 'frozen' denied request"), ("frozen",)),
        (error(403, "MutatingAdmissionPolicy 'frozen' failed"), ("frozen",)),
        (error(403, "policy 'frozen' with binding 'all' says no"), ("frozen",)),
        (error(403, 'Admission Webhook "guard.example" rejected it'), ("guard.example",)),
    ],
)
def test_who_refuses_is_named(answer, named):
    assert classify(answer).names == named


def test_missing_right_is_named_where_the_server_says_so_and_nowhere_else():
    assert "lacks verb `create` on `pods/eviction`" in classify(error(403, RBAC)).message
    other = classify(error(403, "forbidden by something unheard of")).message
    assert "lacks" not in other
    assert "forbidden by something unheard of" in other
    assert len(other) > len("forbidden by something unheard of")  # with what it means


WEB = {"metadata": {"name": "web", "namespace": "blue", "uid": "u"}, "status": {"conditions": []}}
READY = WEB | {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
WORDS = "The disruption budget web needs 2 healthy pods and has 1 currently"


@pytest.mark.parametrize(
    ("verdict", "subject", "budgets", "reason", "named"),
    [
        (Verdict.BUDGET, READY, (), "budget", ("web",)),
        (Verdict.BUDGET, WEB, (Budget("web", False, 1, 2, True),), "unhealthy-behind-budget", ("web",)),
        (Verdict.BUDGET, WEB, (Budget("web", True, 1, 2, True),), "budget", ("web",)),
        (Verdict.BUDGET, WEB, (), "budget", ("web",)),  # the budgets may not be read
        (Verdict.BUDGET_NOT_OBSERVED, READY, (), "budget-not-observed", ("web",)),
    ],
)
def test_budget_in_words(verdict, subject, budgets, reason, named):
    obstacle = obstacle_of(Answer(verdict, WORDS, ("web",)), subject, BudgetsFound(budgets))
    assert (obstacle.reason, obstacle.names) == (reason, named)
    assert "PodDisruptionBudget web" in obstacle.message


def test_two_budgets_are_both_named():
    both = (Budget("front", False, 1, 1, True), Budget("web", False, 1, 1, True))
    obstacle = obstacle_of(Answer(Verdict.TWO_BUDGETS, "more than one"), READY, BudgetsFound(both))
    assert obstacle.names == ("front", "web")
    assert "front, web" in obstacle.message


@pytest.mark.parametrize("verdict", Verdict)
def test_every_answer_has_words_that_fit(verdict):
    obstacle = obstacle_of(Answer(verdict, "x" * 100_000), READY)
    assert len(obstacle.message) < 400


def test_eviction_and_deletion_are_for_one_uid_with_its_own_grace_period():
    assert eviction_of(WEB)["deleteOptions"] == {"preconditions": {"uid": "u"}}
    assert eviction_of(WEB)["metadata"] == {"name": "web", "namespace": "blue"}
    assert deletion_of(WEB)["preconditions"] == {"uid": "u"}
    assert "gracePeriodSeconds" not in deletion_of(WEB)


UNREADABLE_BUDGETS = BudgetsFound(
    problem="the cluster worker's role lacks verb `list` on `poddisruptionbudgets`"
)


@pytest.mark.parametrize("verdict", [Verdict.BUDGET, Verdict.BUDGET_NOT_OBSERVED, Verdict.TWO_BUDGETS])
def test_budgets_that_may_not_be_listed_are_said_to_be_unknown(verdict):
    obstacle = obstacle_of(Answer(verdict, WORDS), READY, UNREADABLE_BUDGETS)
    assert obstacle.names == ()
    assert "names unknown" in obstacle.message
    assert "lacks verb `list` on `poddisruptionbudgets`" in obstacle.message


def test_terminating_namespace_is_named():
    assert obstacle_of(Answer(Verdict.NAMESPACE_TERMINATING), WEB).names == ("blue",)
