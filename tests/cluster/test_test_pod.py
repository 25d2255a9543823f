"""The test pod on a real scheduler; kwok acts out its end."""

import asyncio
from datetime import UTC, datetime

import pytest
from cluster.conftest import KEEP_OTHERS_OFF, change_taints, pod_names, soon, until
from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import errors
from gpu_runbooks.activities.kubernetes import MERGE_PATCH
from gpu_runbooks.activities.model.node_task import RunTestPod
from gpu_runbooks.activities.model.plan import TestPodTemplate
from gpu_runbooks.activities.test_pod import name_of, pod_of, result_of, run_test_pod, why_waiting
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
