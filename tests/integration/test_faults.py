"""The five faults of the demo, each through the real Alertmanager to its end."""

import pytest
from integration.driving import begun, ended, holders, instance_of, is_in_service, traces

from gpu_runbooks.workflows.incident import REPAIRS
from testbed.scenarios import SCENARIOS, fire


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[scenario.name for scenario in SCENARIOS])
async def test_a_fault_comes_to_its_right_end(testbed, node, scenario):
    await scenario.prepare(testbed, node)
    instance = await instance_of(testbed, node)
    before = await testbed.fleet.node(node)
    pods = {pod["metadata"]["uid"] for pod in await testbed.fleet.pods_on(node)}

    await fire(testbed, scenario, node)
    result, acts = await ended(await begun(testbed, node))

    assert (result.outcome, tuple(acts)) == (scenario.outcome, scenario.acts)
    assert await is_in_service(testbed, result.target)
    assert node not in await holders(testbed)
    left = traces(testbed, instance, node)
    done = [act.lstrip("!") for act in acts]
    assert left.reboots == done.count("reboot")
    assert left.terminations == done.count("replace")
    if not set(done) & set(REPAIRS):
        after = await testbed.fleet.node(node)
        assert after["spec"] == before["spec"]
        assert after["metadata"]["labels"] == before["metadata"]["labels"]
        assert {pod["metadata"]["uid"] for pod in await testbed.fleet.pods_on(node)} >= pods
    if result.outcome == "replaced":
        assert result.target != node
        names = [other["metadata"]["name"] for other in await testbed.fleet.nodes()]
        assert node not in names
