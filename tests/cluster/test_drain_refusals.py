"""Refusals, silence and odd answers in a drain, by a proxy before a real API server."""

import asyncio
import json

import pytest
from cluster.conftest import drain_request, pod_names, until
from cluster.drain_obstacles import (
    EVICTION,
    blocked_by,
)

from gpu_runbooks.activities.draining import outlook as drain_outlook
from gpu_runbooks.activities.draining import step as drain_step
from gpu_runbooks.activities.draining.drain import drain
from gpu_runbooks.activities.kubernetes import client
from testbed.api_faults import hang, lose_answer, respond, status


async def test_busy_server_is_no_budget_and_the_pod_leaves(faulty, proxy, blocked, make_pod):
    await make_pod("web-1", blocked.name)
    busy = respond(429, status(429, "TooManyRequests", "busy", retryAfterSeconds=1), {"Retry-After": "1"})
    proxy.inject(busy, method="POST", path=EVICTION.format("web-1"), times=2)
    seen = set()
    report = await drain(
        faulty,
        drain_request(blocked),
        beat=lambda beat: seen.update(each["reason"] for each in beat["blockers"]),
    )
    assert report.result.outcome == "drained"
    assert report.pods[0].evictions == 3
    assert "budget" not in seen


@pytest.mark.parametrize(
    ("fault", "reason", "names"),
    [
        (respond(500, status(500, "InternalError", "etcdserver: request timed out")), "api-server", ()),
        (respond(502, "<html>Bad gateway</html>"), "api-server", ()),
        (
            respond(500, status(500, "InternalError", 'failed calling webhook "guard.example": EOF')),
            "denied",
            ("guard.example",),
        ),
        (
            respond(
                403, status(403, "Forbidden", 'admission webhook "guard.example" denied the request: no')
            ),
            "denied",
            ("guard.example",),
        ),
        (
            respond(
                429,
                status(
                    429,
                    "TooManyRequests",
                    "Cannot evict pod",
                    causes=[
                        {
                            "reason": "DisruptionBudget",
                            "message": "The disruption budget web is still being processed by the server.",
                        }
                    ],
                ),
            ),
            "budget-not-observed",
            ("web",),
        ),
        (
            respond(429, status(429, "TooManyRequests", "it would violate the pod's disruption budget.")),
            "budget",
            (),
        ),
        (respond(429, "<html>429</html>", {"Retry-After": "abc"}), "throttled", ()),
        (
            respond(429, status(429, "TooManyRequests", "busy", retryAfterSeconds=10**400)),
            "throttled",
            (),
        ),
        (respond(408, "<html>Request Timeout</html>"), "api-server", ()),
        (respond(201, ""), "not-deleted", ()),  # a dry run in disguise
    ],
)
async def test_every_refusal_has_its_reason_and_holds_up_no_other_pod(
    faulty, proxy, admin, blocked, namespace, make_pod, monkeypatch, fault, reason, names
):
    for module in (drain_outlook, drain_step):
        monkeypatch.setattr(module, "DELETION_DUE", 2.0)
    await make_pod("web-1", blocked.name)
    await make_pod("free", blocked.name)
    proxy.inject(fault, method="POST", path=EVICTION.format("web-1"), times=None)
    blocker = await blocked_by(faulty, drain_request(blocked, seconds=4))
    assert (blocker.name, blocker.reason, blocker.names) == ("web-1", reason, names)
    assert await pod_names(admin, namespace) == {"web-1"}
    assert proxy.count("DELETE") == 0


async def test_eviction_whose_answer_is_lost_counts_as_what_the_pod_shows(faulty, proxy, blocked, make_pod):
    # It takes its time to end, so that it is seen to.
    await make_pod("web-1", blocked.name, annotations={"gpu-runbooks.dev/stop-seconds": "2"})
    proxy.inject(lose_answer(), method="POST", path=EVICTION.format("web-1"))
    result = (await drain(faulty, drain_request(blocked))).result
    assert (result.outcome, result.evicted) == ("drained", 1)


async def test_calls_that_hang_keep_no_other_pod_waiting(faulty, proxy, admin, blocked, namespace, make_pod):
    for number in range(4):
        await make_pod(f"stuck-{number}", blocked.name)
    await make_pod("free", blocked.name)
    proxy.inject(hang(), method="POST", path=EVICTION.format("stuck-.*"), times=None)
    draining = asyncio.create_task(drain(faulty, drain_request(blocked, seconds=6)))
    await until(admin, f"/api/v1/namespaces/{namespace}/pods", "free", lambda pod: pod is None)
    assert not draining.done()
    assert (await draining).result.blocked_total == 4


async def test_list_that_fails_or_hides_something_is_not_empty(
    faulty, proxy, admin, blocked, namespace, make_pod
):
    await make_pod("web-1", blocked.name)
    odd = {
        "kind": "PodList",
        "apiVersion": "v1",
        "metadata": {"resourceVersion": "1"},
        "items": [{"metadata": {"name": "half"}}],
    }
    proxy.inject(respond(200, odd), path="/api/v1/pods", watch=False, skip=1, times=None)
    result = (await drain(faulty, drain_request(blocked, seconds=6))).result
    assert (result.outcome, result.gone, result.blocked_total) == ("blocked", 1, 1)
    assert "cannot be read" in result.message


async def test_failed_list_is_asked_again(faulty, proxy, blocked, make_pod):
    await make_pod("web-1", blocked.name)
    proxy.inject(respond(500), path="/api/v1/pods", watch=False, skip=1, times=1)
    assert (await drain(faulty, drain_request(blocked))).result.outcome == "drained"


async def test_one_eviction_for_each_pod_and_few_lists(faulty, proxy, blocked, make_pod):
    for number in range(20):
        await make_pod(f"worker-{number}", blocked.name)
    assert (await drain(faulty, drain_request(blocked))).result.evicted == 20
    assert proxy.count("POST", EVICTION.format(".*")) == 20
    assert proxy.count("GET") <= 8  # the node; list and watch of node and pods; the last list
    assert proxy.count("GET", ".*poddisruptionbudgets") == 0


@pytest.mark.parametrize(
    ("conditions", "outcomes"),
    [
        ([None, {"type": "Ready", "status": "True", "lastTransitionTime": "no date"}], {"drained"}),
        (
            [{"type": "Ready", "status": "True", "lastTransitionTime": "9999-12-31T23:59:59-01:00"}],
            {"drained"},
        ),
        (7, {"drained", "blocked"}),  # by what the watch says of the node in time
    ],
)
async def test_odd_node_ends_no_drain(faulty, proxy, admin, blocked, make_pod, conditions, outcomes):
    await make_pod("web-1", blocked.name)
    node = await admin.request("GET", f"/api/v1/nodes/{blocked.name}")
    node["status"]["conditions"] = conditions
    # the watch goes on from here: an older version would show the node before it was blocked
    version = {"resourceVersion": node["metadata"]["resourceVersion"]}
    listing = {"kind": "NodeList", "metadata": version, "items": [node]}
    proxy.inject(respond(200, node), method="GET", path=f"/api/v1/nodes/{blocked.name}", times=None)
    proxy.inject(respond(200, listing), method="GET", path="/api/v1/nodes", watch=False, times=None)
    assert (await drain(faulty, drain_request(blocked, seconds=10))).result.outcome in outcomes


async def test_odd_pods_end_no_drain_of_the_others(
    faulty, proxy, admin, blocked, namespace, make_pod, monkeypatch
):
    monkeypatch.setattr(client, "WATCH_TIMEOUT", 2.0)
    await make_pod("web-1", blocked.name)
    pods = await admin.request("GET", f"/api/v1/namespaces/{namespace}/pods")
    for number, changes in enumerate(
        [
            {"metadata": {"deletionTimestamp": "9999-12-31T23:59:59Z"}},
            {"spec": {"tolerations": [None], "volumes": [{"emptyDir": {}}]}},
        ]
    ):
        odd = json.loads(json.dumps(pods["items"][0]))
        odd["metadata"] |= {"name": f"odd-{number}", "uid": f"odd-{number}"} | changes.get("metadata", {})
        odd["spec"] |= changes.get("spec", {})
        pods["items"].append(odd)
    pods["kind"] = "PodList"
    proxy.inject(respond(200, pods), method="GET", path="/api/v1/pods", watch=False)
    proxy.inject(hang(), watch=True, path="/api/v1/pods")
    report = await drain(faulty, drain_request(blocked, seconds=60))
    assert (report.result.outcome, report.result.gone) == ("drained", 3)
    assert {pod.name: pod.end for pod in report.pods if pod.gone}["web-1"] == "evicted"
