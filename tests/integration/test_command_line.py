"""Runbooks started with the `temporal` command, as an SRE does it."""

import json

import pytest
from integration.driving import is_in_service, temporal

from testbed.testbed import CLUSTER


async def execute(testbed, workflow_id: str, given: str) -> tuple[int, str]:
    return await temporal(
        testbed,
        *("workflow", "execute", "--type", "NodeRemediation", "--task-queue", "remediation"),
        *("--workflow-id", workflow_id, "--input", given),
    )


async def test_node_reason_and_operator_are_enough(testbed, node):
    await testbed.agents.start(node)
    given = json.dumps({"node": node, "reason": "ECC errors in the log of a job", "operator": "ana"})
    status, output = await execute(testbed, f"node/{CLUSTER}/{node}", given)
    assert status == 0, output
    assert "returned" in output
    assert await is_in_service(testbed, node)


@pytest.mark.parametrize(
    ("workflow_id", "given", "named"),
    [
        ("node/testbed/gpu-01", {"reason": "x", "operator": "ana"}, "'node'"),
        ("node/testbed/gpu-01", {"node": "gpu-01", "operator": "ana"}, "'reason'"),
        ("node/testbed/gpu-01", {"node": "gpu-01", "reason": "x", "operater": "ana"}, "'operater'"),
        ("fix-it", {"node": "gpu-01", "reason": "x", "operator": "ana"}, "node/<cluster>/gpu-01"),
        ("node/prod/gpu-20", {"node": "gpu-20", "reason": "x", "operator": "ana"}, "node/testbed/gpu-20"),
        ("node/testbed/gpu-99", {"node": "gpu-99", "reason": "x", "operator": "ana"}, "gpu-99"),
        ("node/testbed/system-01", {"node": "system-01", "reason": "x", "operator": "ana"}, "in no pool"),
        (
            "node/testbed/gpu-20",
            {"node": "gpu-20", "reason": "x", "operator": "ana", "ladder": "rest"},
            "no ladder is named rest",
        ),
    ],
)
async def test_bad_input_fails_the_workflow_and_names_what_is_wrong(testbed, workflow_id, given, named):
    status, output = await execute(testbed, workflow_id, json.dumps(given))
    assert status != 0
    assert named in output
