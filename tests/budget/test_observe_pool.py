"""What a pool shows of itself, on a real API server and with the rights of the cluster worker."""

import json

import pytest
from cluster.conftest import KEEP_OTHERS_OFF, block_request, change_taints
from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities.cluster import Cluster
from gpu_runbooks.activities.kubernetes.client import MERGE_PATCH
from gpu_runbooks.activities.kubernetes.listing import Listing
from gpu_runbooks.activities.model.slot import ObservePool, UnavailableNode
from gpu_runbooks.activities.nodes import pool
from gpu_runbooks.activities.nodes.block import block
from gpu_runbooks.activities.nodes.node import identity_of
from testbed.api_faults import close_connection
from testbed.nodes import POOL_LABEL


async def seen(kubernetes, name: str, *asked: str):
    cluster = Cluster(kubernetes, plan=None, namespace="gpu-runbooks")
    return await cluster.observe_pool(ObservePool(pool=name, selector={POOL_LABEL: name}, asked=asked))


async def test_a_pool_shows_whoever_took_its_nodes_out(kubernetes, admin, make_node, monkeypatch):
    monkeypatch.setattr(pool, "PAGE", 2)  # several pages
    made = [await make_node(pool="seen") for _ in range(5)]
    await make_node(pool="other", spec={"unschedulable": True})
    free, cordoned, ours, marked, leaving = (node["metadata"]["name"] for node in made)
    path = "/api/v1/nodes/{}".format
    spec = {"spec": {"unschedulable": True}}
    await admin.request("PATCH", path(cordoned), body=spec, content_type=MERGE_PATCH)
    await block(kubernetes, block_request(identity_of(made[2])))
    await block(kubernetes, block_request(identity_of(made[3]), incident="node/test/replaced"))
    going = {"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}
    await change_taints(admin, leaving, lambda taints: [*taints, going])
    answer = await seen(kubernetes, "seen")
    assert (answer.nodes, answer.unlisted, answer.absent) == (5, 0, ())
    assert {node.name: node for node in answer.unavailable} == {
        cordoned: UnavailableNode(name=cordoned, ready=True, cordoned=True, ours=False),
        ours: UnavailableNode(name=ours, ready=True, cordoned=True, ours=True),
        marked: UnavailableNode(
            name=marked, ready=True, cordoned=True, ours=True, incident="node/test/replaced", run_id="run-1"
        ),
        leaving: UnavailableNode(name=leaving, ready=True, cordoned=True, ours=False),
    }
    answer = await seen(kubernetes, "seen", ours, free, "gone")
    assert {node.name for node in answer.unavailable} == {cordoned, marked, leaving}
    assert answer.absent == ("gone",)


async def test_a_pool_without_nodes_is_empty(kubernetes):
    answer = await seen(kubernetes, "nothing", "gone")
    assert (answer.nodes, answer.unavailable, answer.absent) == (0, (), ("gone",))


async def test_an_api_server_that_is_away_is_no_empty_pool(faulty, proxy):
    with proxy.outage(close_connection()), pytest.raises(ApplicationError) as away:
        await seen(faulty, "seen")
    assert away.value.type == "Unavailable"
    assert not away.value.non_retryable


def node(number: int, **spec):
    return {
        "metadata": {
            "name": f"ip-10-0-{number // 256}-{number % 256}.us-west-2.compute.internal",
            "uid": "u",
        },
        "spec": {"taints": [KEEP_OTHERS_OFF], **spec},
        "status": {"conditions": [{"type": "Ready", "status": spec.pop("ready", "True")}]},
    }


@pytest.mark.parametrize("ready", ["Unknown", "False", "", None])
def test_what_is_not_known_to_be_ready_is_not(ready):
    name, facts = pool._facts(node(1, ready=ready))
    assert facts == UnavailableNode(name=name, ready=False, cordoned=False, ours=False)


def test_the_answer_fits_into_a_payload_and_counts_what_it_leaves_out():
    items = [pool._facts(node(number, unschedulable=True)) for number in range(2000)]
    items += [pool._facts(node(number, ready="Unknown")) for number in range(2000, 3000)]
    answer = pool.pool_seen(Listing("1", items, 2), asked=[f"n{number}" for number in range(50)])
    assert len(answer.model_dump_json()) < 16 * 1024
    assert answer.nodes == 3002
    assert len(answer.unavailable) + answer.unlisted == 3002
    assert sum(not each.ready for each in answer.unavailable) + answer.unlisted_not_ready == 1002


def test_a_marker_that_cannot_be_read_is_ours_and_nobodys():
    odd = node(1, unschedulable=True)
    for text in ("{", json.dumps({"incident": 1}), "x" * 20_000):
        odd["metadata"]["annotations"] = {"gpu-runbooks.dev/block": text}
        _, facts = pool._facts(odd)
        assert (facts.ours, facts.incident) == (True, "")
