"""A worker leaves acts on its own node to one elsewhere, before anything is written."""

import asyncio
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from cluster.blocks import read
from cluster.conftest import block_request, drain_request, pod_names
from temporalio import workflow
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment, WorkflowEnvironment
from temporalio.worker import Worker

from gpu_runbooks.activities import errors
from gpu_runbooks.activities.cluster import Cluster
from gpu_runbooks.activities.contracts import ClusterActivities
from gpu_runbooks.activities.model.node import BlockNode, BlockResult
from gpu_runbooks.activities.names import CLUSTER_QUEUE
from gpu_runbooks.activities.nodes.node import identity_of, observe
from gpu_runbooks.activities.nodes.own_node import HAND_OVERS
from gpu_runbooks.workflows.options import CLUSTER


def worker_on(node, kubernetes, own_pod_uid=""):
    return Cluster(
        kubernetes,
        lambda *_: None,
        "gpu-runbooks",
        own_node=node["metadata"]["name"],
        own_pod_uid=own_pod_uid,
    )


async def run(activity, request, attempt):
    environment = ActivityEnvironment()
    environment.info = replace(environment.info, attempt=attempt)
    return await environment.run(activity, request)


@pytest.mark.parametrize("activity", ["block_node", "drain_pods"])
@pytest.mark.parametrize("attempt", [1, HAND_OVERS])
async def test_the_first_attempts_are_for_other_workers(faulty, proxy, node, activity, attempt):
    identity = identity_of(node)
    request = block_request(identity) if activity == "block_node" else drain_request(identity)
    with pytest.raises(ApplicationError, match="left to a worker on another node") as handed:
        await run(getattr(worker_on(node, faulty), activity), request, attempt)
    assert (handed.value.type, handed.value.non_retryable) == (errors.OWN_NODE, False)
    assert timedelta(seconds=1) <= handed.value.next_retry_delay <= timedelta(seconds=2)
    assert proxy.calls == []


async def test_a_block_that_nobody_else_takes_up_is_refused(admin, faulty, proxy, node, monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "cluster-worker-5d4f-x2x")
    identity = identity_of(node)
    with pytest.raises(ApplicationError) as refused:
        await run(worker_on(node, faulty).block_node, block_request(identity), HAND_OVERS + 1)
    assert (refused.value.type, refused.value.non_retryable) == (errors.OWN_NODE, True)
    for part in (identity.name, "cluster-worker-5d4f-x2x", "on another node"):
        assert part in refused.value.message
    assert proxy.calls == []


async def test_a_drain_that_nobody_else_takes_up_spares_the_worker(
    admin, kubernetes, node, blocked, namespace, make_pod
):
    worker = await make_pod("cluster-worker", blocked.name)
    await make_pod("training", blocked.name)
    cluster = worker_on(node, kubernetes, worker["metadata"]["uid"])
    result = await run(cluster.drain_pods, drain_request(blocked, seconds=5), HAND_OVERS + 1)
    assert result.outcome == "blocked"
    assert [blocker.name for blocker in result.blockers] == ["cluster-worker"]
    assert await pod_names(admin, namespace) == {"cluster-worker"}


async def test_a_worker_elsewhere_takes_it_at_once(kubernetes, make_node):
    home, target = await make_node(), identity_of(await make_node())
    assert not (await run(worker_on(home, kubernetes).block_node, block_request(target), 1)).adopted


@workflow.defn(sandboxed=False)
class BlockOne:
    """The activity as the product's workflows call it."""

    @workflow.run
    async def run(self, request: BlockNode) -> BlockResult:
        return await workflow.execute_activity_method(ClusterActivities.block_node, request, **CLUSTER)


async def test_temporal_hands_it_to_the_worker_elsewhere(admin, faulty, proxy, kubernetes, make_node):
    """The worker of the node is alone at first, and takes the first attempts."""
    home, other = await make_node(), await make_node()
    target = identity_of(home)
    async with await WorkflowEnvironment.start_local(
        data_converter=pydantic_data_converter,
        dev_server_existing_path=str(Path(sys.executable).parent / "temporal"),
        dev_server_log_level="error",
    ) as environment:
        client = environment.client

        async def worker(cluster):
            """With a connection of its own: one takes no second worker of a queue."""
            address = client.service_client.config.target_host
            own = await Client.connect(address, data_converter=pydantic_data_converter)
            return Worker(own, task_queue=CLUSTER_QUEUE, activities=[cluster.block_node])

        async with Worker(client, task_queue="here", workflows=[BlockOne]), asyncio.timeout(60):
            incident = await client.start_workflow(
                BlockOne.run, block_request(target), id=f"node/test/{target.name}", task_queue="here"
            )
            async with await worker(worker_on(home, faulty)):
                await until_handed_over(incident)
            async with await worker(worker_on(other, kubernetes)):
                result = await incident.result()
    assert not result.adopted
    assert proxy.calls == []
    assert observe(await read(admin, target.name), result.marker.incident).blocked


async def until_handed_over(incident):
    while True:
        pending = (await incident.describe()).raw_description.pending_activities
        if pending and pending[0].last_failure.application_failure_info.type == errors.OWN_NODE:
            return
        await asyncio.sleep(0.05)


async def test_a_worker_outside_of_the_cluster_has_no_own_node(kubernetes, node):
    cluster = Cluster(kubernetes, lambda *_: None, "gpu-runbooks")
    assert not (await run(cluster.block_node, block_request(identity_of(node)), 1)).adopted
