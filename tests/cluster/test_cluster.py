"""The activities as Temporal calls them: registered names, errors that mean something, heartbeats."""

import asyncio
import hashlib
import json
from dataclasses import replace
from datetime import timedelta

import pytest
from cluster.conftest import block_request, drain_request
from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from gpu_runbooks.activities import errors
from gpu_runbooks.activities.cluster import Cluster, translated
from gpu_runbooks.activities.contracts import ClusterActivities
from gpu_runbooks.activities.evidence.evidence import Evidence
from gpu_runbooks.activities.heartbeat import beating
from gpu_runbooks.activities.kubernetes.client import KubernetesError
from gpu_runbooks.activities.model.node import ObserveNode, UnblockNode
from gpu_runbooks.activities.nodes.node import identity_of

NAMESPACE = "gpu-runbooks"


def refuse_to_plan(*_):
    raise errors.refusal(errors.POLICY_REFUSED, "no policy in this test")


@pytest.fixture
def cluster(kubernetes):
    return Cluster(kubernetes, refuse_to_plan, NAMESPACE)


def registered_name(method):
    return activity._Definition.must_from_callable(method).name


def test_every_activity_of_the_contract_is_registered_under_its_name(cluster):
    contract = sorted(ClusterActivities.__abstractmethods__)
    assert [registered_name(getattr(cluster, name)) for name in contract] == contract


async def test_block_observe_drain_unblock(cluster, node):
    identity = identity_of(node)
    incident = f"node/test/{identity.name}"
    environment = ActivityEnvironment()
    assert not (await environment.run(cluster.block_node, block_request(identity))).adopted
    seen = await environment.run(cluster.observe_node, ObserveNode(name=identity.name, incident=incident))
    assert (seen.identity, seen.ready, seen.blocked) == (identity, "True", True)
    assert (seen.gpus, seen.efa_interfaces) == (8, 32)
    request = drain_request(identity)
    assert (await environment.run(cluster.drain_pods, request)).outcome == "drained"
    await environment.run(
        cluster.unblock_node, UnblockNode(identity=identity, incident=incident, run_id="run-1")
    )
    seen = await environment.run(cluster.observe_node, ObserveNode(name=identity.name, incident=incident))
    assert (seen.blocked, seen.marker) == (False, None)


async def test_the_fate_of_every_pod_is_kept_and_found_again(kubernetes, blocked, make_pod, tmp_path):
    pod = await make_pod("worker", blocked.name)
    evidence = Evidence.at(tmp_path.as_uri())
    cluster = Cluster(kubernetes, refuse_to_plan, NAMESPACE, evidence=evidence)
    result = await ActivityEnvironment().run(cluster.drain_pods, drain_request(blocked))
    assert (result.outcome, result.evidence.problem) == ("drained", "")
    (file,) = tmp_path.rglob("drain-*.json")
    assert result.evidence.location == file.as_uri()
    data = file.read_bytes()
    assert result.evidence.digest == f"sha256:{hashlib.sha256(data).hexdigest()}"
    ends = {each["uid"]: each["end"] for each in json.loads(data)["pods"]}
    assert ends[pod["metadata"]["uid"]] == "evicted"


async def test_a_drain_goes_on_from_what_the_attempt_before_it_said(kubernetes, blocked, make_pod):
    await make_pod("worker", blocked.name)
    cluster = Cluster(kubernetes, refuse_to_plan, NAMESPACE)
    environment, beats = ActivityEnvironment(), []
    earlier = {"memory": {"ends": {"evicted": 2, "removed": 1}}}
    environment.info = replace(
        environment.info, heartbeat_details=[earlier], heartbeat_timeout=timedelta(seconds=10)
    )
    environment.on_heartbeat = lambda *details: beats.append(details)
    result = await environment.run(cluster.drain_pods, drain_request(blocked))
    assert (result.outcome, result.gone, result.evicted) == ("drained", 4, 3)
    assert beats[0] == (earlier,)  # none without it: it would be lost with this worker
    assert all(details[0]["memory"]["ends"]["removed"] == 1 for details in beats)


async def test_a_drain_does_not_fail_for_its_evidence(kubernetes, blocked, make_pod, tmp_path):
    await make_pod("worker", blocked.name)
    (tmp_path / "file").touch()
    evidence = Evidence.at((tmp_path / "file").as_uri())
    cluster = Cluster(kubernetes, refuse_to_plan, NAMESPACE, evidence=evidence)
    result = await ActivityEnvironment().run(cluster.drain_pods, drain_request(blocked))
    assert (result.outcome, result.evicted, result.evidence.location) == ("drained", 1, "")
    assert "Not a directory" in result.evidence.problem


async def test_missing_node(cluster, node, admin):
    identity = identity_of(node)
    await admin.request("DELETE", f"/api/v1/nodes/{identity.name}")
    environment = ActivityEnvironment()
    seen = await environment.run(cluster.observe_node, ObserveNode(name=identity.name, incident="i"))
    assert seen.identity is None
    with pytest.raises(ApplicationError) as refused:
        await environment.run(cluster.block_node, block_request(identity))
    assert (refused.value.type, refused.value.non_retryable) == (errors.NODE_NOT_FOUND, True)


async def test_missing_verb_is_named(installed, node):
    await installed.grant("intake")  # may read nodes and nothing more
    async with installed.client("intake") as reader:
        cluster = Cluster(reader, refuse_to_plan, NAMESPACE)
        with pytest.raises(ApplicationError, match='cannot patch resource "nodes"') as refused:
            await ActivityEnvironment().run(cluster.block_node, block_request(identity_of(node)))
    assert (refused.value.type, refused.value.non_retryable) == (errors.FORBIDDEN, True)


@pytest.mark.parametrize("status", [0, 401, 404, 409, 429, 500, 503])
def test_what_may_pass_is_tried_again(status):
    error = translated(KubernetesError(status, "", "x" * 10_000, retry_after=7.0))
    assert not error.non_retryable
    assert error.next_retry_delay == timedelta(seconds=7)
    assert len(error.message) <= errors.LONGEST_MESSAGE


async def test_heartbeats_go_on_with_the_last_details():
    beats: asyncio.Queue[tuple[object, ...]] = asyncio.Queue()
    environment = ActivityEnvironment()
    environment.info = replace(environment.info, heartbeat_timeout=timedelta(milliseconds=30))
    environment.on_heartbeat = lambda *details: beats.put_nowait(details)

    @activity.defn
    async def work():
        async with beating() as beat:
            assert await beats.get() == ()
            beat("half done")
            assert await beats.get() == ("half done",)
            assert await beats.get() == ("half done",)

    await environment.run(work)


async def test_no_heartbeats_outside_an_activity():
    async with beating() as beat:
        beat("nobody listens")
