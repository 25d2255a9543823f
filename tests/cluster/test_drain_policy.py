"""How pods leave: completion, checkpoint, orders, and only some of them. On a real API server."""

import asyncio
from datetime import timedelta

import pytest
from aiohttp import web
from cluster.conftest import drain_request, pod_names, until

from gpu_runbooks.activities.draining.drain import drain
from gpu_runbooks.activities.draining.state import DrainState
from gpu_runbooks.activities.kubernetes.client import MERGE_PATCH
from gpu_runbooks.activities.model.drain import (
    DrainMethod,
    DrainPolicy,
    OverrideMethod,
    PodOverride,
    PodRule,
    Workload,
)
from gpu_runbooks.activities.nodes.node import identity_of
from testbed.api_faults import respond

TRAINING = {"gpu-runbooks.dev/workload": "training"}
IMAGE = {"image": "registry.example/app:1", "imageID": "", "ready": False, "restartCount": 0}
TERMINATED = {"terminated": {"exitCode": 0, "reason": "Completed"}}
REQUESTED, SAVED = "gpu-runbooks.dev/checkpoint-requested", "gpu-runbooks.dev/checkpointed"


def policy_of(method, seconds, **more):
    rule = PodRule(
        name="training",
        workloads=(Workload.TRAINING,),
        method=method,
        deadline=timedelta(seconds=seconds),
        **more,
    )
    return DrainPolicy(rules=(rule,))


def path_of(namespace, name=""):
    return f"/api/v1/namespaces/{namespace}/pods" + (f"/{name}" if name else "")


async def patch(admin, path, body):
    await admin.request("PATCH", path, body=body, content_type=MERGE_PATCH)


def order(pod, method):
    return PodOverride(uid=pod["metadata"]["uid"], method=method, operator="ana", reason="owner agreed")


def record_of(report, name):
    (record,) = [each for each in report.pods if each.name == name]
    return record


async def test_job_that_may_run_to_its_end_is_not_evicted(faulty, proxy, admin, blocked, namespace, make_pod):
    await make_pod("job", blocked.name, labels=TRAINING)
    await make_pod("web", blocked.name)
    policy = policy_of(DrainMethod.WAIT_FOR_COMPLETION, 600)
    draining = asyncio.create_task(drain(faulty, drain_request(blocked, policy=policy)))
    await until(admin, path_of(namespace), "web", lambda pod: pod is None)
    assert not draining.done()
    ended = {"phase": "Succeeded", "containerStatuses": [{"name": "main", **IMAGE, "state": TERMINATED}]}
    await patch(admin, f"{path_of(namespace, 'job')}/status", {"status": ended})
    report = await draining
    result = report.result
    assert (result.outcome, result.gone, result.evicted, result.completed) == ("drained", 2, 1, 1)
    assert proxy.count("POST", ".*/job/eviction") == 0
    assert record_of(report, "job").rule == "training"


async def test_job_that_does_not_end_in_time_is_evicted(kubernetes, blocked, make_pod):
    await make_pod("job", blocked.name, labels=TRAINING)
    policy = policy_of(DrainMethod.WAIT_FOR_COMPLETION, 2)
    report = await drain(kubernetes, drain_request(blocked, policy=policy))
    assert (report.result.outcome, report.result.evicted) == ("drained", 1)
    assert "did not complete in time" in record_of(report, "job").notes


async def test_checkpoint_by_annotation(faulty, proxy, admin, blocked, namespace, make_pod):
    await make_pod("job", blocked.name, labels=TRAINING)
    policy = policy_of(DrainMethod.CHECKPOINT_THEN_EVICT, 600)
    request = drain_request(blocked, policy=policy)
    draining = asyncio.create_task(drain(faulty, request))
    pod = await until(
        admin,
        path_of(namespace),
        "job",
        lambda pod: pod is not None and REQUESTED in pod["metadata"]["annotations"],
    )
    token = pod["metadata"]["annotations"][REQUESTED]
    assert token == DrainState(request).token
    assert proxy.count("POST", ".*/eviction") == 0
    await patch(admin, path_of(namespace, "job"), {"metadata": {"annotations": {SAVED: token}}})
    report = await draining
    assert (report.result.outcome, report.result.checkpointed) == ("drained", 1)
    record = record_of(report, "job")
    assert record.asked_to_checkpoint <= record.acknowledged <= record.gone


async def test_cancelled_drain_takes_its_request_back(admin, kubernetes, blocked, namespace, make_pod):
    await make_pod("job", blocked.name, labels=TRAINING)
    policy = policy_of(DrainMethod.CHECKPOINT_THEN_EVICT, 600)
    draining = asyncio.create_task(drain(kubernetes, drain_request(blocked, policy=policy)))
    await until(
        admin,
        path_of(namespace),
        "job",
        lambda pod: pod is not None and REQUESTED in pod["metadata"]["annotations"],
    )
    await patch(admin, f"/api/v1/nodes/{blocked.name}", {"spec": {"unschedulable": None}})
    assert (await draining).result.outcome == "cancelled"
    pod = await admin.request("GET", path_of(namespace, "job"))
    assert REQUESTED not in pod["metadata"]["annotations"]
    assert "deletionTimestamp" not in pod["metadata"]


@pytest.fixture
async def workload():
    """A pod's own server: it answers what the test wants, and keeps what it was asked."""
    answers, asked = [202, 204], []

    async def checkpoint(request):
        asked.append((request.headers["Idempotency-Key"], await request.json()))
        return web.Response(status=answers.pop(0) if len(answers) > 1 else answers[0])

    application = web.Application()
    application.router.add_post("/save", checkpoint)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield runner.addresses[0][1], answers, asked
    await runner.cleanup()


async def at_loopback(admin, namespace, name):
    """Have the pod live where the test's server is."""
    body = {"status": {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}}
    await patch(admin, f"{path_of(namespace, name)}/status", body)


async def test_checkpoint_by_http(admin, kubernetes, blocked, namespace, make_pod, workload, monkeypatch):
    monkeypatch.setattr("gpu_runbooks.activities.draining.checkpoint.ASK_AGAIN", 0.5)
    port, _, asked = workload
    await make_pod("job", blocked.name, labels=TRAINING)
    await at_loopback(admin, namespace, "job")
    policy = policy_of(DrainMethod.CHECKPOINT_THEN_EVICT, 600, checkpoint_port=port, checkpoint_path="/save")
    request = drain_request(blocked, policy=policy)
    report = await drain(kubernetes, request)
    assert (report.result.outcome, report.result.checkpointed) == ("drained", 1)
    token = DrainState(request).token
    assert [key for key, _ in asked] == [token, token]
    assert asked[0][1] == {
        "incident": request.incident,
        "pod": f"{namespace}/job",
        "deadline": request.deadline.isoformat(),
    }


async def test_pod_that_does_not_save_is_evicted_at_the_deadline(
    admin, kubernetes, blocked, namespace, make_pod, workload, monkeypatch
):
    monkeypatch.setattr("gpu_runbooks.activities.draining.checkpoint.RETRY", 0.5)
    port, answers, asked = workload
    answers[:] = [500]
    await make_pod("job", blocked.name, labels=TRAINING)
    await at_loopback(admin, namespace, "job")
    policy = policy_of(DrainMethod.CHECKPOINT_THEN_EVICT, 4, checkpoint_port=port, checkpoint_path="/save")
    report = await drain(kubernetes, drain_request(blocked, policy=policy))
    assert (report.result.outcome, report.result.evicted, report.result.checkpointed) == ("drained", 1, 0)
    assert "checkpoint not acknowledged" in record_of(report, "job").notes
    assert len(asked) >= 2


async def test_order_to_delete_passes_budgets_with_the_pods_own_grace_period(
    faulty, proxy, admin, blocked, namespace, make_pod
):
    pod = await make_pod("web-1", blocked.name, labels={"app": "web"})
    await make_pod("web-2", blocked.name, labels={"app": "web"})
    budget = {
        "metadata": {"name": "web"},
        "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "web"}}},
    }
    await admin.request("POST", f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets", body=budget)
    report = await drain(
        faulty, drain_request(blocked, seconds=5, overrides=(order(pod, OverrideMethod.DELETE),))
    )
    result = report.result
    assert (result.outcome, result.deleted, result.blocked_total) == ("blocked", 1, 1)
    assert await pod_names(admin, namespace) == {"web-2"}
    (call,) = proxy.seen("DELETE")
    assert b"gracePeriodSeconds" not in call.body
    assert pod["metadata"]["uid"].encode() in call.body
    signed = record_of(report, "web-1").deleted_by
    assert (signed.operator, signed.reason) == ("ana", "owner agreed")


async def test_order_to_evict_passes_protection_and_order_to_abandon_leaves_the_pod(
    admin, kubernetes, blocked, namespace, make_pod
):
    protected = {"karpenter.sh/do-not-disrupt": "true"}
    taken = await make_pod("taken", blocked.name, annotations=protected)
    left = await make_pod("left", blocked.name, annotations=protected)
    orders = (order(taken, OverrideMethod.EVICT), order(left, OverrideMethod.ABANDON))
    result = (await drain(kubernetes, drain_request(blocked, overrides=orders))).result
    assert (result.outcome, result.evicted, result.abandoned) == ("drained", 1, 1)
    assert f"{namespace}/left by order of ana" in result.message
    assert await pod_names(admin, namespace) == {"left"}


async def test_only_the_named_pods_are_restarted_and_the_node_needs_no_block(
    admin, kubernetes, node, namespace, make_pod
):
    identity = identity_of(node)
    named = await make_pod("hung", identity.name)
    await make_pod("healthy", identity.name)
    request = drain_request(
        identity,
        only=(named["metadata"]["uid"], "gone-before"),
        restart=True,
        overrides=(order(named, OverrideMethod.EVICT),),
    )
    result = (await drain(kubernetes, request)).result
    assert (result.outcome, result.gone, result.evicted) == ("drained", 2, 1)
    assert await pod_names(admin, namespace) == {"healthy"}


async def test_the_pods_of_one_gpu_leave_only_under_our_block(
    admin, kubernetes, make_node, blocked, namespace, make_pod
):
    taken = await make_pod("taken", blocked.name)
    await make_pod("stays", blocked.name)
    result = (await drain(kubernetes, drain_request(blocked, only=(taken["metadata"]["uid"],)))).result
    assert (result.outcome, result.evicted) == ("drained", 1)
    assert await pod_names(admin, namespace) == {"stays"}
    free = identity_of(await make_node())
    other = await make_pod("other", free.name)
    result = (await drain(kubernetes, drain_request(free, only=(other["metadata"]["uid"],)))).result
    assert result.outcome == "cancelled"
    assert await pod_names(admin, namespace) == {"stays", "other"}


async def test_bare_pod_is_not_restarted_without_an_order(admin, kubernetes, node, namespace, make_pod):
    identity = identity_of(node)
    pod = await make_pod("hung", identity.name)
    request = drain_request(identity, seconds=3, only=(pod["metadata"]["uid"],), restart=True)
    result = (await drain(kubernetes, request)).result
    assert result.outcome == "blocked"
    assert result.blockers[0].reason == "bare-pod"
    now = await admin.request("GET", path_of(namespace, "hung"))
    assert "deletionTimestamp" not in now["metadata"]


async def test_missing_right_to_ask_for_a_checkpoint_fails_before_any_eviction(
    faulty, proxy, blocked, make_pod
):
    await make_pod("job", blocked.name, labels=TRAINING)
    refusal = {
        "kind": "Status",
        "message": 'pods "job" is forbidden: User "w" cannot patch resource "pods" in API group ""',
    }
    proxy.inject(respond(403, refusal), method="PATCH", path=".*/pods/job", times=None)
    policy = policy_of(DrainMethod.CHECKPOINT_THEN_EVICT, 600)
    result = (await drain(faulty, drain_request(blocked, policy=policy))).result
    assert result.outcome == "failed"
    assert "verb `patch` on `pods`" in result.message
    assert proxy.count("POST", ".*/eviction") == 0
