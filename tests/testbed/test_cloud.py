"""EC2 calls become what happens to the nodes, and are counted."""

import asyncio

import boto3
import pytest

from gpu_runbooks.activities.nodes.node import identity_of
from testbed import gpus
from testbed.fleet import is_ready
from testbed.testbed import Testbed


@pytest.fixture(scope="module")
async def testbed(tmp_path_factory):
    directory = tmp_path_factory.mktemp("testbed")
    async with Testbed.start(directory, nodes=2, workloads=False, roles=()) as started:
        yield started


def client(testbed, service):
    environment = testbed.cloud.environment("cloud-worker")
    return boto3.client(
        service,
        endpoint_url=environment["AWS_ENDPOINT_URL"],
        region_name=environment["AWS_REGION"],
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
    )


async def node_that(testbed, wanted):
    nodes = await testbed.fleet.wait_until(
        "/api/v1/nodes", lambda nodes: any(map(wanted, nodes)), "such a node"
    )
    return next(filter(wanted, nodes))


async def test_a_reboot_of_the_instance_reboots_its_node_once(testbed):
    before = identity_of((await testbed.fleet.nodes())[0])
    machine = testbed.agents.machine(before.name)
    gpus.change_gpu(machine.gpus, 0, recovery_action=2, remap_failed=1)

    ec2 = client(testbed, "ec2")
    await asyncio.to_thread(ec2.reboot_instances, InstanceIds=[before.instance_id])
    after = identity_of(
        await node_that(
            testbed,
            lambda node: (
                node["metadata"]["name"] == before.name
                and identity_of(node).boot_id != before.boot_id
                and is_ready(node)
            ),
        )
    )
    assert after.uid == before.uid
    async with asyncio.timeout(60):
        while machine.boot_id.read_text().strip() != after.boot_id:
            await asyncio.sleep(0.02)
    gpu = gpus.read_state(machine.gpus).gpus[0]
    assert (gpu.recovery_action, gpu.remap_failed) == (0, 1)

    assert [call.instance_ids for call in testbed.cloud.calls("RebootInstances")] == [(before.instance_id,)]
    assert {call.caller for call in testbed.cloud.calls()} == {"cloud-worker"}


async def test_a_terminated_instance_is_replaced_by_a_new_node(testbed):
    before = identity_of((await testbed.fleet.nodes())[1])
    known = {identity_of(node).instance_id for node in await testbed.fleet.nodes()}

    autoscaling = client(testbed, "autoscaling")
    await asyncio.to_thread(
        autoscaling.terminate_instance_in_auto_scaling_group,
        InstanceId=before.instance_id,
        ShouldDecrementDesiredCapacity=False,
    )
    new = await node_that(
        testbed,
        lambda node: identity_of(node).instance_id not in known and "gpu-" in node["metadata"]["name"],
    )
    assert identity_of(new).boot_id not in {"", before.boot_id}
    names = [node["metadata"]["name"] for node in await testbed.fleet.nodes()]
    assert before.name not in names
    assert len(testbed.cloud.calls("TerminateInstanceInAutoScalingGroup")) == 1
    assert testbed.cloud.calls("TerminateInstances") == []


async def test_temporal_keeps_its_state_over_a_restart(testbed):
    handle = await testbed.temporal.client.start_workflow("Anything", id="kept", task_queue="nobody")
    await testbed.temporal.stop()
    await testbed.temporal.resume()
    assert (await handle.describe()).id == "kept"
