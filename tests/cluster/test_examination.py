"""Evidence before a repair, from a real API server with the cluster worker's rights, into a folder."""

import asyncio
import hashlib
import json
from contextlib import aclosing
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from cluster.conftest import soon, until
from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import errors, names
from gpu_runbooks.activities.evidence import bundle as evidence_bundle
from gpu_runbooks.activities.evidence import examination
from gpu_runbooks.activities.evidence.evidence import Evidence
from gpu_runbooks.activities.evidence.examination import examine_node
from gpu_runbooks.activities.kubernetes.client import MERGE_PATCH, KubernetesError
from gpu_runbooks.activities.model.node_task import ExamineNode
from gpu_runbooks.activities.nodes.node import identity_of
from gpu_runbooks.activities.nodes.node_tasks import tasks_path
from testbed.nodes import gpu_node

NAMESPACE = "gpu-runbooks"
TASKS = tasks_path(NAMESPACE)
XID = "NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus."


@pytest.fixture
def request_for(node):
    def make(**changes):
        identity = identity_of(node)
        fields = {
            "identity": identity,
            "incident": f"node/test/{identity.name}",
            "run_id": "run-1",
            "attempt": 1,
            "reason": "before reset: xid-79",
            "start_deadline": soon(60),
            "deadline": soon(180),
        }
        return ExamineNode(**(fields | changes))

    return make


@pytest.fixture
def evidence(tmp_path):
    return Evidence.at(f"file://{tmp_path}/evidence")


@pytest.fixture
def agent(admin):
    """Answers, as the agent of a node does it, the one task that comes."""

    async def answering(request, **status):
        label = f"{names.INCIDENT_LABEL}={names.digest(request.incident)}"
        async with asyncio.timeout(60), aclosing(admin.follow(TASKS, label_selector=label)) as views:
            async for tasks in views:
                if tasks:
                    break
        (task,) = tasks.values()
        assert task["spec"]["kind"] == "Collect"
        path = f"{TASKS}/{task['metadata']['name']}/status"
        await admin.request("PATCH", path, body={"status": status}, content_type=MERGE_PATCH)

    return answering


@pytest.fixture
def examine(kubernetes, evidence, agent):
    """Examines while an agent answers. Gives the examination and the bundle that was kept."""

    async def examining(request, **status):
        answering = asyncio.create_task(
            agent(request, **({"phase": "Succeeded", "message": "fine"} | status))
        )
        examined = await examine_node(kubernetes, NAMESPACE, evidence, request)
        await answering
        return examined, kept(examined.evidence)

    return examining


def kept(reference):
    """The content of a reference, which has its digest and its size."""
    assert reference.problem == ""
    data = Path(unquote(urlsplit(reference.location).path)).read_bytes()
    assert f"sha256:{hashlib.sha256(data).hexdigest()}" == reference.digest
    assert len(data) == reference.size <= evidence_bundle.WHOLE
    return json.loads(data)


async def record_event(admin, node, number=0, message="node is not ready"):
    """An event that is newer than those of the cluster's own controllers."""
    name = node["metadata"]["name"]
    body = {
        "metadata": {"generateName": f"{name}."},
        "involvedObject": {"kind": "Node", "name": name, "uid": name},
        "reason": "NodeNotReady",
        "message": message,
        "type": "Warning",
        "count": 1,
        "lastTimestamp": f"2036-03-01T{number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}Z",
        "source": {"component": "node-controller"},
    }
    await admin.request("POST", "/api/v1/namespaces/default/events", body=body)


async def test_one_bundle_has_all_that_is_known(admin, node, make_pod, namespace, examine, request_for):
    await record_event(admin, node)
    secret = {"containers": [{"name": "main", "image": "registry.example/app:1"}]}
    secret["containers"][0]["env"] = [{"name": "TOKEN", "value": "s3cr3t"}]
    await make_pod("worker-0", node["metadata"]["name"], spec=secret)
    request = request_for()
    examined, bundle = await examine(
        request,
        facts={"gpus": [{"index": 0, "serial": "1650923012345", "recoveryAction": 1}], "bootId": "b"},
        kernelLog={"text": f"3,1,100,-;{XID}\n", "note": "", "complete": True},
        dcgm={"text": '{"health": "fail"}', "note": "dcgmi ended with exit code 1"},
    )
    assert (examined.missing, examined.other_repairer) == ((), "")
    assert examined.facts.gpus[0].recovery_action == 1
    folder = f"/evidence/node/test/{node['metadata']['name']}/run-1/evidence-before-1-"
    assert folder in examined.evidence.location
    assert bundle["version"] == 1
    assert (bundle["incident"], bundle["reason"]) == (request.incident, "before reset: xid-79")
    assert bundle["identity"]["uid"] == node["metadata"]["uid"]
    assert bundle["node"]["nodeInfo"]["items"]["bootID"] == request.identity.boot_id
    assert {each["type"] for each in bundle["node"]["conditions"]["items"]} >= {"Ready"}
    assert bundle["events"]["items"][0]["message"] == "node is not ready"
    pods = {each["name"]: each for each in bundle["pods"]["items"]}
    assert (pods["worker-0"]["namespace"], pods["worker-0"]["phase"]) == (namespace, "Running")
    assert "s3cr3t" not in json.dumps(bundle)
    agent = bundle["agent"]
    assert agent["facts"]["gpus"] == [{"index": 0, "serial": "1650923012345", "recovery_action": 1}]
    assert XID in agent["kernel_log"]["text"]
    assert [fault["code"] for fault in agent["faults"]["items"]] == ["79"]
    assert agent["faults"]["complete"] is True
    assert agent["dcgm"] == {"text": '{"health": "fail"}', "note": "dcgmi ended with exit code 1"}
    assert await admin.items(TASKS) == []


async def test_an_agent_that_never_answers_is_no_reason_to_keep_nothing(
    admin, kubernetes, evidence, request_for
):
    examined = await examine_node(kubernetes, NAMESPACE, evidence, request_for(start_deadline=soon(2)))
    assert examined.facts is None
    (missing,) = examined.missing
    assert missing.startswith("the agent's part: no agent on node")
    bundle = kept(examined.evidence)
    assert bundle["missing"] == [missing]
    assert bundle["agent"]["facts"] is None
    assert bundle["node"]["conditions"]["items"]
    assert await admin.items(TASKS) == []


async def test_an_agent_that_began_and_hangs_is_given_up_in_time_to_keep_the_rest(
    admin, kubernetes, evidence, agent, request_for
):
    request = request_for(start_deadline=soon(3), deadline=soon(4))
    answering = asyncio.create_task(agent(request, phase="Running"))
    examined = await examine_node(kubernetes, NAMESPACE, evidence, request)
    await answering
    (missing,) = examined.missing
    assert missing.startswith("the agent's part: started and not ended")
    assert kept(examined.evidence)["agent"]["outcome"] == "timed_out"
    assert await admin.items(TASKS) == []


async def test_parts_that_the_agent_could_not_have_are_named(examine, request_for):
    examined, bundle = await examine(
        request_for(),
        message="no answer from the driver within 10 s",
        kernelLog={"text": "", "note": "/dev/kmsg cannot be read: Operation not permitted"},
        dcgm={"text": "", "note": "dcgmi did not end within 20 s"},
    )
    assert examined.facts is None
    assert examined.missing == (
        "what the driver says of the GPUs: no answer from the driver within 10 s",
        "the kernel log: /dev/kmsg cannot be read: Operation not permitted",
        "DCGM's part: dcgmi did not end within 20 s",
    )
    assert bundle["missing"] == list(examined.missing)


async def test_a_refusal_by_the_agent_is_named(examine, request_for):
    examined, _ = await examine(
        request_for(), phase="Failed", message="the task is for boot 1, this is boot 2"
    )
    assert examined.facts is None
    assert all("this is boot 2" in each for each in examined.missing)


async def test_another_repairer_is_told_and_kept(monkeypatch, examine, request_for):
    async def about_to(_kubernetes, seen, _now):
        return f"somebody is about to replace {seen['metadata']['name']}"

    monkeypatch.setattr(examination, "imminent_repair", about_to)
    request = request_for()
    examined, bundle = await examine(request, facts={})
    assert examined.other_repairer == f"somebody is about to replace {request.identity.name}"
    assert bundle["other_repairer"] == examined.other_repairer


async def test_a_machine_that_two_nodes_name_is_told(admin, node, examine, request_for):
    """A kubelet that registers with the provider id of another machine would have that one repaired."""
    name = f"twin-{node['metadata']['name']}"
    body = gpu_node(name, node["spec"]["providerID"].rpartition("/")[2], pool="")
    body["spec"]["providerID"] = node["spec"]["providerID"]
    await admin.request("POST", "/api/v1/nodes", body=body)
    try:
        examined, bundle = await examine(request_for(), facts={})
    finally:
        await admin.request("DELETE", f"/api/v1/nodes/{name}")
    assert f"{node['metadata']['name']} and {name} all name the machine" in examined.other_repairer
    assert bundle["other_repairer"] == examined.other_repairer


async def test_not_to_know_of_another_repairer_is_named(monkeypatch, examine, request_for):
    async def refused(_kubernetes, _node, _now):
        raise KubernetesError(403, "Forbidden", "GET /apis/apps/v1/deployments: forbidden")

    monkeypatch.setattr(examination, "imminent_repair", refused)
    examined, _ = await examine(request_for(), facts={}, kernelLog={"text": XID, "note": ""})
    (missing,) = examined.missing
    assert missing.startswith("whether somebody else is about to repair the node: 403 Forbidden")
    assert examined.other_repairer == ""


async def test_the_largest_answer_that_the_server_takes_fits(admin, node, examine, request_for):
    await asyncio.gather(*(record_event(admin, node, number, message="x" * 1000) for number in range(120)))
    gpus = [
        {"index": n, "uuid": "u" * 96, "podUids": ["p" * 64] * 64, "allocatedPodUids": ["p" * 64] * 64}
        for n in range(32)
    ]
    text = "old" + '"' * 65_530 + "new"
    examined, bundle = await examine(
        request_for(),
        facts={"gpus": gpus},
        kernelLog={"text": "é" * 65_533 + "new", "note": ""},
        dcgm={"text": text, "note": ""},
    )
    assert examined.facts is None  # no payload holds them: nothing is chosen by what no real node has
    assert examined.missing == ()
    agent = bundle["agent"]
    assert agent["kernel_log"]["text"].endswith("new")
    assert "of 65536 characters are kept" in agent["kernel_log"]["note"]
    assert agent["dcgm"]["text"].startswith("old")
    assert "characters are kept" in agent["dcgm"]["note"]
    assert "32 of 32 GPUs are kept, without their pods" in agent["facts"]["note"]
    assert bundle["events"]["items"][0]["last"] == "2036-03-01T00:01:59Z"
    events = bundle["events"]
    assert evidence_bundle.size(events["items"]) <= evidence_bundle.EVENTS
    assert events["note"].startswith(f"{len(events['items'])} of ")


async def test_without_the_right_to_read_events_and_pods_the_rest_is_kept(
    installed, examine, kubernetes, evidence, agent, request_for
):
    """The agents' own role has none of these rights, and none over tasks."""
    await installed.grant("node-agent")
    async with installed.client("node-agent") as powerless:
        examined = await examine_node(powerless, NAMESPACE, evidence, request_for())
    parts = ("the agent's part", "the node's events", "the node's pods", "whether another Node")
    assert len(examined.missing) == len(parts)
    for part in parts:
        (missing,) = [each for each in examined.missing if each.startswith(part)]
        assert "forbidden" in missing.lower()
    bundle = kept(examined.evidence)
    assert bundle["events"] is bundle["pods"] is bundle["agent"] is None
    assert bundle["node"]["conditions"]["items"]


async def test_a_sink_that_takes_nothing_leaves_the_digest(kubernetes, tmp_path, agent, request_for):
    (tmp_path / "file").touch()
    request = request_for()
    answering = asyncio.create_task(agent(request, phase="Succeeded", message="fine", facts={"gpus": []}))
    broken = Evidence.at(f"file://{tmp_path}/file")
    examined = await examine_node(kubernetes, NAMESPACE, broken, request)
    await answering
    assert examined.facts is not None
    assert examined.evidence.location == ""
    assert examined.evidence.digest.startswith("sha256:")
    assert "cannot be written" in examined.evidence.problem


async def test_no_two_examinations_have_the_same_bundle(examine, request_for):
    places = {(await examine(request_for(attempt=attempt)))[0].evidence.location for attempt in (1, 2)}
    assert len(places) == 2


async def test_a_node_that_is_gone_has_nothing_to_examine(admin, kubernetes, evidence, node, request_for):
    request = request_for()
    await admin.request("DELETE", f"/api/v1/nodes/{request.identity.name}")
    await until(admin, "/api/v1/nodes", request.identity.name, lambda found: found is None)
    with pytest.raises(ApplicationError, match="does not exist") as refused:
        await examine_node(kubernetes, NAMESPACE, evidence, request)
    assert (refused.value.type, refused.value.non_retryable) == (errors.NODE_NOT_FOUND, True)
    assert await admin.items(TASKS) == []


async def test_another_machine_is_not_examined(admin, kubernetes, evidence, request_for):
    request = request_for()
    other = request.identity.model_copy(update={"uid": "00000000-0000-4000-8000-000000000000"})
    with pytest.raises(ApplicationError) as refused:
        await examine_node(kubernetes, NAMESPACE, evidence, request.model_copy(update={"identity": other}))
    assert refused.value.type == errors.NODE_CHANGED
    assert await admin.items(TASKS) == []
