"""Whole drains on a path that misbehaves: they end `drained` with nobody left, or say what keeps them."""

import asyncio
import json

import pytest
from cluster.conftest import drain_request, pod_names

from gpu_runbooks.activities.draining.drain import drain
from gpu_runbooks.activities.kubernetes import client
from gpu_runbooks.activities.model.drain import BlockerReason
from testbed.api_faults import (
    close_connection,
    drip,
    half_a_chunk,
    hang,
    lose_answer,
    respond,
    status,
    stream,
)

EVICTIONS = ".*/eviction"
PODS = "/api/v1/pods"
BUSY = status(429, "TooManyRequests", "Too many requests, please try again later.", retryAfterSeconds=1)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(client, "CALL_TIMEOUT", 2.0)
    monkeypatch.setattr(client, "WATCH_TIMEOUT", 2.0)
    monkeypatch.setattr(client, "LIST_INTERVAL", 0.3)


async def test_evictions_that_fail_in_every_way_once_are_made_again(
    admin, faulty, proxy, blocked, namespace, make_pod
):
    faults = [
        respond(429, BUSY, {"Retry-After": "1"}),
        respond(429, "<html>429</html>", {"Retry-After": "abc"}),
        respond(500, status(500, "InternalError", "etcdserver: request timed out")),
        respond(502, "<html>Bad gateway</html>"),
        respond(503, "", {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}),
        respond(401, status(401, "Unauthorized", "Unauthorized")),
        close_connection(),
        half_a_chunk(b"{", then="close"),
        lose_answer(),
        hang(),
    ]
    await asyncio.gather(*(make_pod(f"worker-{number}", blocked.name) for number in range(len(faults))))
    rules = [proxy.inject(fault, method="POST", path=EVICTIONS) for fault in faults]
    report = await drain(faulty, drain_request(blocked, 60))
    assert (report.result.outcome, report.result.gone) == ("drained", len(faults))
    assert await pod_names(admin, namespace) == set()
    assert all(rule.met for rule in rules)
    # each for exactly the pod that was seen
    bodies = [json.loads(call.body) for call in proxy.seen("POST", EVICTIONS)]
    assert all(body["deleteOptions"]["preconditions"]["uid"] for body in bodies)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(hang(), id="silence"),
        pytest.param(stream(), id="headers, then silence"),
        pytest.param(half_a_chunk(b'{"type":"DELETED","obj'), id="half a chunk"),
        pytest.param(drip(), id="a drip"),
        pytest.param(respond(410, status(410, "Expired", "too old resource version")), id="410"),
    ],
)
async def test_without_any_watch_the_lists_show_the_end(
    admin, faulty, proxy, blocked, namespace, make_pod, fault
):
    await make_pod("worker", blocked.name)
    proxy.inject(fault, watch=True, times=None)
    report = await drain(faulty, drain_request(blocked, 60))
    assert (report.result.outcome, report.result.gone) == ("drained", 1)
    assert await pod_names(admin, namespace) == set()


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(respond(200, "<html>"), id="a proxy's page"),
        pytest.param(respond(200, {"kind": "PodList", "metadata": {"resourceVersion": "1"}}), id="no items"),
        pytest.param(respond(200, status(200, "", "")), id="a Status"),
        pytest.param(respond(429, BUSY), id="429"),
        pytest.param(respond(500, ""), id="500"),
        pytest.param(hang(), id="silence"),
    ],
)
async def test_a_node_whose_pods_nobody_can_list_is_not_empty(faulty, proxy, blocked, make_pod, answer):
    await make_pod("worker", blocked.name)
    proxy.inject(answer, method="GET", path=PODS, times=None)
    report = await drain(faulty, drain_request(blocked, 4))
    assert report.result.outcome == "blocked"
    assert "could not be listed" in report.result.message
    assert proxy.count("POST", EVICTIONS) == 0


async def test_an_object_that_nobody_can_read_is_not_nothing(faulty, proxy, blocked):
    odd = {"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": [None, {"metadata": {}}]}
    proxy.inject(respond(200, odd), method="GET", path=PODS, watch=False, times=None)
    report = await drain(faulty, drain_request(blocked, 4))
    assert report.result.outcome == "blocked"


@pytest.mark.parametrize(
    ("refusal", "outcome", "reason"),
    [
        pytest.param(
            status(
                403,
                "Forbidden",
                'pods "w" is forbidden: User "u" cannot create resource "pods/eviction" in API group "" '
                'in the namespace "n"',
            ),
            "failed",
            BlockerReason.FORBIDDEN,
            id="RBAC",
        ),
        pytest.param(
            status(403, "Forbidden", 'admission webhook "guard.example" denied the request: frozen'),
            "blocked",
            BlockerReason.DENIED,
            id="a webhook",
        ),
        pytest.param(
            status(
                403,
                "Forbidden",
                "unable to create new content in namespace n because it is being terminated",
                causes=[{"reason": "NamespaceTerminating", "message": "namespace n is being terminated"}],
            ),
            "blocked",
            BlockerReason.NAMESPACE_TERMINATING,
            id="a terminating namespace",
        ),
    ],
)
async def test_each_403_is_told_apart_and_no_pod_is_harmed(
    admin, faulty, proxy, blocked, namespace, make_pod, refusal, outcome, reason
):
    await make_pod("worker", blocked.name)
    proxy.inject(respond(403, refusal), method="POST", path=EVICTIONS, times=None)
    report = await drain(faulty, drain_request(blocked, 5))
    assert report.result.outcome == outcome
    assert [blocker.reason for blocker in report.result.blockers] == [reason]
    assert await pod_names(admin, namespace) == {"worker"}
    assert proxy.count("DELETE") == 0


async def test_an_api_server_that_goes_away_in_the_middle_leaves_the_rest_alone(
    admin, faulty, proxy, blocked, namespace, make_pod
):
    """Nothing is concluded from silence: what had not left by then is still named at the deadline."""
    await make_pod("worker", blocked.name)
    proxy.inject(hang(), skip=1, times=None)  # the Node is read, and then nothing more
    report = await drain(faulty, drain_request(blocked, 5))
    assert report.result.outcome == "blocked"
    assert await pod_names(admin, namespace) == {"worker"}
