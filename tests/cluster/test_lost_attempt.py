"""An attempt that the server has given up: its worker notices, and begins nothing any more."""

import asyncio

import pytest
from cluster.conftest import drain_request, pod_names
from temporalio.activity import ActivityCancellationDetails
from temporalio.testing import ActivityEnvironment

from gpu_runbooks.activities import errors
from gpu_runbooks.activities.cluster import Cluster

GIVEN_UP = {
    "its heartbeats did not arrive": ActivityCancellationDetails(timed_out=True),
    "the server knows it no more": ActivityCancellationDetails(not_found=True),
    "its worker ends": ActivityCancellationDetails(worker_shutdown=True),
}


def refuse_to_plan(*_):
    raise errors.refusal(errors.POLICY_REFUSED, "no policy in this test")


@pytest.mark.parametrize("why", GIVEN_UP)
async def test_a_drain_that_is_given_up_evicts_nobody_any_more(
    admin, kubernetes, blocked, namespace, make_pod, why
):
    """Between its evictions, and with one to come that has become possible just then."""
    await make_pod("leaves", blocked.name)
    await make_pod("held", blocked.name, labels={"app": "held"})
    path = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
    budget = {"minAvailable": 1, "selector": {"matchLabels": {"app": "held"}}}
    await admin.request("POST", path, body={"metadata": {"name": "one"}, "spec": budget})
    environment = ActivityEnvironment()
    cluster = Cluster(kubernetes, refuse_to_plan, "gpu-runbooks")
    attempt = asyncio.create_task(environment.run(cluster.drain_pods, drain_request(blocked)))
    async with asyncio.timeout(60):
        while await pod_names(admin, namespace) != {"held"}:
            await asyncio.sleep(0.05)
    environment.cancel(GIVEN_UP[why])
    with pytest.raises(asyncio.CancelledError):
        await attempt
    await admin.request("DELETE", f"{path}/one")
    held = await admin.request("GET", f"/api/v1/namespaces/{namespace}/pods/held")
    assert "deletionTimestamp" not in held["metadata"]
    # The attempt that follows does what is left, and meets nobody.
    result = await ActivityEnvironment().run(cluster.drain_pods, drain_request(blocked))
    assert (result.outcome, result.evicted) == ("drained", 1)
