"""A program that hangs on one GPU: its pod is restarted, the node and the other pods are left alone."""

from integration.driving import begun, ended, holders, is_in_service, status_when

from testbed import gpus
from testbed.fleet import WORKLOAD_NAMESPACE
from testbed.scenarios import FAULTY_GPU, Scenario, fire

WORD = {"operator": "ana", "reason": "looked at it"}


async def no_preparation(_testbed, _node) -> None:
    """The tests prepare what they need."""


HANGS = Scenario("a program hangs", 43, no_preparation, "restarted", ("restart_workload",))


async def run_two_servers(testbed, node: str) -> list[str]:
    """UIDs of two pods of one Deployment on the node, whose successors come there as well."""
    path = f"/apis/apps/v1/namespaces/{WORKLOAD_NAMESPACE}/deployments"
    labels = {"app": f"server-{node}"}
    template = {
        "metadata": {"labels": labels, "annotations": {"gpu-runbooks.dev/stop-seconds": "1"}},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "containers": [{"name": "main", "image": "server"}],
        },
    }
    spec = {"replicas": 2, "selector": {"matchLabels": labels}, "template": template}
    body = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": f"server-{node}"},
        "spec": spec,
    }
    await testbed.kubernetes.request("POST", path, body=body)
    return await running(testbed, labels["app"], lambda uids: len(uids) == 2)


async def running(testbed, app: str, holds) -> list[str]:
    def pods_run(pods) -> bool:
        up = [pod["metadata"]["uid"] for pod in pods if is_up(pod)]
        return holds(up)

    pods = await testbed.fleet.wait_until(
        f"/api/v1/namespaces/{WORKLOAD_NAMESPACE}/pods", pods_run, "servers", label_selector=f"app={app}"
    )
    return sorted(pod["metadata"]["uid"] for pod in pods if is_up(pod))


def is_up(pod) -> bool:
    return pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]


async def test_only_the_pod_on_the_gpu_is_restarted(testbed, node):
    await testbed.agents.start(node)
    hung, other = await run_two_servers(testbed, node)
    machine = testbed.agents.machine(node)
    state = gpus.read_state(machine.gpus)
    machine.hold(state.gpus[FAULTY_GPU].uuid, hung)
    machine.hold(state.gpus[FAULTY_GPU + 1].uuid, other)
    before = await testbed.fleet.node(node)

    await fire(testbed, HANGS, node)
    result, acts = await ended(await begun(testbed, node))

    assert (result.outcome, tuple(acts)) == (HANGS.outcome, HANGS.acts)
    left = await running(testbed, f"server-{node}", lambda uids: len(uids) == 2 and hung not in uids)
    assert other in left
    after = await testbed.fleet.node(node)
    assert after["spec"] == before["spec"]
    assert after["metadata"].get("annotations") == before["metadata"].get("annotations")
    assert await is_in_service(testbed, node)
    assert node not in await holders(testbed)


async def test_without_an_agent_nobody_is_restarted_and_a_person_is_asked(testbed, node):
    await testbed.agents.start(node)
    hung, other = await run_two_servers(testbed, node)
    machine = testbed.agents.machine(node)
    machine.hold(gpus.read_state(machine.gpus).gpus[FAULTY_GPU].uuid, hung)
    await testbed.agents.kill(node)

    await fire(testbed, HANGS, node)
    handle = await begun(testbed, node)
    seen = await status_when(handle, lambda status: status.phase == "needs-operator")

    assert "agent" in seen.question
    assert await running(testbed, f"server-{node}", lambda uids: len(uids) == 2) == sorted([hung, other])
    await handle.execute_update("abort", WORD)
    assert (await ended(handle))[0].outcome == "aborted"
    assert await is_in_service(testbed, node)
