"""The test pod on a real scheduler; kwok acts out its end."""

import asyncio
from datetime import UTC, datetime

import pytest
from cluster.conftest import KEEP_OTHERS_OFF, change_taints, pod_names, soon, until
from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import errors
from gpu_runbooks.activities.kubernetes.client import MERGE_PATCH
from gpu_runbooks.activities.model.node_task import RunTestPod, TestPodResult
from gpu_runbooks.activities.model.plan import TestPodTemplate
from gpu_runbooks.activities.nodes.node import identity_of
from gpu_runbooks.activities.nodes.test_pod import (
    gpus_of,
    name_of,
    pod_of,
    result_of,
    run_test_pod,
    verified,
    why_waiting,
)
from testbed.control_plane import TEST_NAMESPACE

PODS = f"/api/v1/namespaces/{TEST_NAMESPACE}/pods"


def request_for(identity, seconds=30, **changes):
    fields = {
        "identity": identity,
        "incident": f"node/test/{identity.name}",
        "run_id": "run-1",
        "attempt": 1,
        "gpus": 8,
        "template": TestPodTemplate(
            namespace=TEST_NAMESPACE, image="registry.example/test:1", command=("test",)
        ),
        "deadline": soon(seconds),
    }
    return RunTestPod(**(fields | changes))


@pytest.fixture
async def untainted(admin, blocked):
    """A blocked node that the test pod may land on: no foreign taint is on it."""
    await change_taints(
        admin, blocked.name, lambda taints: [taint for taint in taints if taint != KEEP_OTHERS_OFF]
    )
    return blocked


async def test_pod_runs_on_the_blocked_node_and_is_removed(admin, kubernetes, untainted):
    request = request_for(untainted)
    running = asyncio.create_task(run_test_pod(kubernetes, request))
    pod = await until(
        admin, PODS, name_of(request), lambda pod: pod is not None and "nodeName" in pod["spec"]
    )
    assert pod["spec"]["nodeName"] == untainted.name
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    assert (await running).outcome == "succeeded"
    await until(admin, PODS, name_of(request), lambda pod: pod is None)


async def test_failing_test_is_reported_and_the_pod_removed(admin, kubernetes, untainted):
    body = {"metadata": {"annotations": {"gpu-runbooks.dev/test-pod": "fail"}}}
    await admin.request("PATCH", f"/api/v1/nodes/{untainted.name}", body=body, content_type=MERGE_PATCH)
    request = request_for(untainted)
    result = await run_test_pod(kubernetes, request)
    assert result.outcome == "failed"
    assert "exit code 1" in result.message
    await until(admin, PODS, name_of(request), lambda pod: pod is None)


async def test_pod_that_the_scheduler_cannot_place_says_why(admin, kubernetes, untainted):
    request = request_for(untainted, seconds=4, gpus=9)
    result = await run_test_pod(kubernetes, request)
    assert result.outcome == "timed_out"
    assert "Insufficient nvidia.com/gpu" in result.message
    await until(admin, PODS, name_of(request), lambda pod: pod is None)


async def test_foreign_taint_keeps_the_pod_off(kubernetes, blocked):
    result = await run_test_pod(kubernetes, request_for(blocked, seconds=4))
    assert result.outcome == "timed_out"
    assert "untolerated taint" in result.message


async def test_standing_pod_is_adopted(admin, kubernetes, untainted):
    request = request_for(untainted)
    await admin.request("POST", PODS, body=pod_of(name_of(request), request, 8))
    ended = await until(
        admin, PODS, name_of(request), lambda pod: bool(pod) and pod["status"]["phase"] == "Succeeded"
    )
    assert result_of(ended) is not None
    result = await run_test_pod(kubernetes, request)
    assert result.outcome == "succeeded"
    await until(admin, PODS, name_of(request), lambda pod: pod is None)


async def test_a_pod_that_ran_on_another_node_proves_nothing(admin, kubernetes, untainted, make_node):
    """As where a webhook puts an affinity of its own in the place of ours."""
    other = identity_of(await make_node())
    await change_taints(admin, other.name, lambda _: [])
    request = request_for(untainted)
    elsewhere = pod_of(name_of(request), request_for(other), 8)
    await admin.request("POST", PODS, body=elsewhere)
    result = await run_test_pod(kubernetes, request)
    assert result.outcome == "failed"
    assert f"it ran on node {other.name} and not on {untainted.name}" in result.message


@pytest.mark.parametrize(
    ("had", "free_only", "outcome"),
    [
        (8, False, "succeeded"),
        (7, False, "failed"),
        (0, False, "failed"),
        (1, True, "succeeded"),
        (0, True, "failed"),
    ],
)
def test_a_success_on_too_few_gpus_is_none(blocked, had, free_only, outcome):
    request = request_for(blocked, free_only=free_only)
    pod = pod_of(name_of(request), request, had)
    result = verified(TestPodResult(outcome="succeeded", pod="test"), pod, request)
    assert (result.outcome, result.gpus) == (outcome, had)


async def test_cancelled_test_leaves_no_pod(admin, kubernetes, blocked):
    request = request_for(blocked)
    running = asyncio.create_task(run_test_pod(kubernetes, request))
    await until(admin, PODS, name_of(request), lambda pod: pod is not None)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until(admin, PODS, name_of(request), lambda pod: pod is None)


async def test_another_machine_gets_no_pod(admin, kubernetes, blocked):
    request = request_for(blocked.model_copy(update={"uid": "another"}))
    with pytest.raises(ApplicationError) as refused:
        await run_test_pod(kubernetes, request)
    assert refused.value.type == errors.NODE_CHANGED
    assert name_of(request) not in await pod_names(admin, TEST_NAMESPACE)


def pod(phase, **status):
    return {"metadata": {"name": "p"}, "status": {"phase": phase} | status}


@pytest.mark.parametrize(
    ("subject", "outcome"),
    [
        (pod("Succeeded"), "succeeded"),
        (pod("Failed", reason="DeadlineExceeded"), "timed_out"),
        (pod("Failed", reason="UnexpectedAdmissionError"), "failed"),
        (pod("Failed"), "failed"),
    ],
)
def test_ends(subject, outcome):
    result = result_of(subject)
    assert result is not None
    assert result.outcome == outcome


@pytest.mark.parametrize("subject", [pod("Pending"), pod("Running"), pod("Unknown"), pod(None)])
def test_no_end_yet(subject):
    assert result_of(subject) is None


def test_waiting_container_is_named():
    waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
    subject = pod("Pending", containerStatuses=[{"state": {"waiting": waiting}}])
    assert "ImagePullBackOff no such image" in why_waiting(subject)


def test_deadline_in_the_past_still_gives_a_valid_pod(blocked):
    request = request_for(blocked, deadline=datetime(2026, 3, 1, tzinfo=UTC))
    assert pod_of("p", request, 8)["spec"]["activeDeadlineSeconds"] == 1


async def test_a_taint_that_policy_names_does_not_keep_the_pod_off(kubernetes, blocked):
    template = TestPodTemplate(
        namespace=TEST_NAMESPACE,
        image="registry.example/test:1",
        command=("test",),
        tolerations=(KEEP_OTHERS_OFF["key"],),
    )
    result = await run_test_pod(kubernetes, request_for(blocked, template=template))
    assert (result.outcome, result.gpus) == ("succeeded", 8)


async def holding(admin, node: str, gpus: int, phase: str = "Running") -> str:
    """A pod that has so many of the node's GPUs; returns its path."""
    name = f"holds-{gpus}-{node}"
    body = {
        "metadata": {"name": name},
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {"name": "main", "image": "app:1", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
            ],
        },
    }
    pods = "/api/v1/namespaces/default/pods"
    await admin.request("POST", pods, body=body)
    await until(admin, pods, name, lambda pod: pod is not None and pod["status"].get("phase") == "Running")
    if phase != "Running":
        await admin.request(
            "PATCH", f"{pods}/{name}/status", body={"status": {"phase": phase}}, content_type=MERGE_PATCH
        )
    return f"{pods}/{name}"


@pytest.mark.parametrize(
    ("held", "phase", "gpus"), [(5, "Running", 3), (5, "Succeeded", 8), (8, "Running", 0)]
)
async def test_only_free_gpus_are_tested_where_others_work(admin, kubernetes, untainted, held, phase, gpus):
    pod = await holding(admin, untainted.name, held, phase)
    try:
        request = request_for(untainted, seconds=30 if gpus else 3, free_only=True)
        result = await run_test_pod(kubernetes, request)
    finally:
        await admin.request("DELETE", pod)
    assert result.gpus == gpus
    assert result.outcome == ("succeeded" if gpus else "timed_out")
    if not gpus:
        assert "not scheduled: other pods have all GPUs" in result.message


def test_gpus_of_init_containers_count_like_the_schedulers_do():
    def container(gpus):
        return {"resources": {"limits": {"nvidia.com/gpu": gpus}}}

    pod = {"spec": {"containers": [container("1"), container("2"), {}], "initContainers": [container("4")]}}
    assert gpus_of(pod) == 4
    assert gpus_of({"spec": {"containers": [{"resources": {}}]}}) == 0
