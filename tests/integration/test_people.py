"""What people do on the whole testbed: take a node out, order something for a pod, give a node back."""

import asyncio
import hashlib
import json
from pathlib import Path

from integration.driving import (
    begun,
    ended,
    holders,
    is_in_service,
    marker_of,
    run_pod,
    start_by_hand,
    status_when,
    temporal,
)

from gpu_runbooks.workflows.audit import Status
from testbed.scenarios import SCENARIOS, fire
from testbed.testbed import CLUSTER

PROTECTED = {"karpenter.sh/do-not-disrupt": "true"}
STOPS_AT_ONCE = {"gpu-runbooks.dev/stop-seconds": "0"}
WORD = {"operator": "ana", "reason": "swap a riser"}


async def run(testbed, verb: str, runbook: str, node: str) -> tuple[int, str]:
    return await temporal(
        testbed,
        *("workflow", verb, "--type", runbook, "--task-queue", "remediation"),
        *("--workflow-id", f"node/{CLUSTER}/{node}", "--input", json.dumps({"node": node, **WORD})),
    )


async def test_a_node_is_taken_out_and_given_back_from_the_command_line(testbed, node):
    await testbed.agents.start(node)
    await run_pod(testbed, node, "keep-me", annotations=PROTECTED | STOPS_AT_ONCE)
    await run_pod(testbed, node, "serve", annotations=STOPS_AT_ONCE)

    assert (await run(testbed, "start", "DrainNode", node))[0] == 0
    handle = await begun(testbed, node)
    seen = await status_when(handle, lambda status: bool(status.blockers))
    assert seen.phase == "draining"
    assert [(pod.name, pod.reason, pod.names) for pod in seen.blockers] == [
        ("keep-me", "do-not-disrupt", ("karpenter.sh/do-not-disrupt",))
    ]
    order = {**WORD, "method": "evict", "pods": ["research/keep-me"]}
    status, output = await temporal(
        testbed,
        *("workflow", "update", "execute", "--workflow-id", f"node/{CLUSTER}/{node}"),
        *("--name", "override_drain", "--input", json.dumps(order)),
    )
    assert status == 0, output
    result, acts = await ended(handle)
    assert (result.outcome, acts) == ("drained", ["block", "!drain", "drain"])
    assert node not in await holders(testbed)
    assert [pod["metadata"]["name"] for pod in await testbed.fleet.pods_on(node) if is_of_research(pod)] == []
    marker = await marker_of(testbed, node)
    assert marker["held"] is True

    drained_run = (await handle.describe()).run_id
    (broken,) = (scenario for scenario in SCENARIOS if scenario.outcome == "replaced")
    await fire(testbed, broken, node)
    async with asyncio.timeout(60):
        while (await handle.describe()).run_id == drained_run:
            await asyncio.sleep(0.1)
    result, acts = await ended(handle)
    assert (result.outcome, acts) == ("held", [])
    assert await marker_of(testbed, node) == marker

    status, output = await run(testbed, "execute", "ReturnNode", node)
    assert status == 0, output
    assert "returned" in output
    assert await is_in_service(testbed, node)


async def test_an_uncordon_ends_a_drain_and_nothing_of_ours_is_left(testbed, node):
    await testbed.agents.start(node)
    await run_pod(testbed, node, "keep-me-too", annotations=PROTECTED)
    handle = await start_by_hand(testbed, node)
    await status_when(handle, lambda status: bool(status.blockers))
    await testbed.plane.kubectl("uncordon", node)
    result, _ = await ended(handle)
    assert result.outcome == "released"
    assert await is_in_service(testbed, node)
    names = [pod["metadata"]["name"] for pod in await testbed.fleet.pods_on(node)]
    assert "keep-me-too" in names


async def test_a_return_of_a_node_that_nobody_blocked_is_refused(testbed, node):
    status, output = await run(testbed, "execute", "ReturnNode", node)
    assert status != 0
    assert "no block of ours" in output
    assert await is_in_service(testbed, node)


async def test_the_list_of_a_drain_lies_in_the_sink_and_its_digest_in_the_history(testbed, node):
    await run_pod(testbed, node, "gone", annotations=STOPS_AT_ONCE)
    assert (await run(testbed, "start", "DrainNode", node))[0] == 0
    handle = await begun(testbed, node)
    await ended(handle)
    (drained,) = ((await handle.query("status", result_type=Status)).acts)[1:]
    digest, location = drained.evidence.split()[0], drained.evidence.split()[-1]
    content = await asyncio.to_thread(Path(location.removeprefix("file://")).read_bytes)
    assert digest == f"sha256:{hashlib.sha256(content).hexdigest()}"
    (record,) = (pod for pod in json.loads(content)["pods"] if pod["name"] == "gone")
    assert (record["namespace"], record["end"]) == ("research", "evicted")


def is_of_research(pod) -> bool:
    """Of a workload, and not of the DaemonSet that runs on every node."""
    owners = pod["metadata"].get("ownerReferences") or ()
    return pod["metadata"]["namespace"] == "research" and not any(o["kind"] == "DaemonSet" for o in owners)
