"""Application faults through the real intake, workflows, activities, Temporal and API server.

No stand-in for a workflow: a mistake would block a node, and these tests see that none is touched.
"""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
from intake import conftest
from intake.alerts import alert, notification
from intake.conftest import CLUSTER, POLICY, served
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Worker

from gpu_runbooks.activities.cluster import Cluster
from gpu_runbooks.activities.kubernetes.client import Kubernetes
from gpu_runbooks.activities.model.fault import Entity, Fault, FaultSource
from gpu_runbooks.activities.names import CLUSTER_QUEUE, REMEDIATION_QUEUE, TEMPORAL_QUEUE, job_id
from gpu_runbooks.activities.notices.notice import REASON
from gpu_runbooks.activities.temporal import Temporal as TemporalActivities
from gpu_runbooks.workers.controller import WORKFLOWS
from gpu_runbooks.workers.intake import webhook
from gpu_runbooks.workers.intake.alertmanager import read_webhook
from gpu_runbooks.workers.intake.incidents import Incidents
from gpu_runbooks.workers.intake.reception import Reception
from gpu_runbooks.workers.policy.policy_file import PolicyFile
from gpu_runbooks.workers.settings import Settings
from testbed.processes import Processes
from testbed.temporal import Temporal

GPUS = [f"GPU-11111111-2222-3333-4444-{number:012d}" for number in range(8)]
SETTLE = "intake: {settle: 1s}\n"

OBSERVING = POLICY.replace("mode: enforce", "mode: observe")


def ago(minutes: float) -> datetime:
    return datetime.now(UTC) - timedelta(minutes=minutes)


def fault(code: str, *, minutes: float = 1, gpu: int = 0, place: str = "", **changes) -> Fault:
    onset = ago(minutes)
    fields = {
        "source": FaultSource.XID,
        "code": code,
        "entity": Entity(kind="gpu", uuid=GPUS[gpu]),
        "place": place,
        "first_seen": onset,
        "last_seen": datetime.now(UTC),
        "fingerprint": uuid.uuid4().hex,
        "reporter": "test",
    }
    return Fault(**(fields | changes))


def firing(node: str, code: str = "45", gpu: int = 0, **labels: str):
    name = f"{node}-{code}-{gpu}"
    return alert(node=node, xid=code, UUID=GPUS[gpu], fingerprint=name, onset=ago(1).isoformat(), **labels)


@pytest.fixture(scope="module")
async def temporal(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Temporal]:
    """A server of this file's own: its workers run the real workflows."""
    directory = tmp_path_factory.mktemp("application-faults")
    async with Processes(directory / "logs") as processes:
        server = Temporal(directory, processes)
        await server.start()
        yield server


@pytest.fixture(scope="module")
async def as_worker(control_plane, admin) -> AsyncIterator[Kubernetes]:
    """The connection of the cluster worker, by its own token."""
    await control_plane.grant("cluster-worker")
    async with control_plane.client("cluster-worker") as kubernetes:
        yield kubernetes


@pytest.fixture(scope="module")
async def workers(temporal, as_worker) -> AsyncIterator[None]:
    """Controller and cluster worker. Of the activities that act on nodes or pods none is there."""

    def no_plan(*_):
        raise AssertionError

    cluster, asking = Cluster(as_worker, no_plan, "gpu-runbooks"), TemporalActivities(temporal.client)
    async with AsyncExitStack() as stack:
        for worker in (
            Worker(temporal.client, task_queue=REMEDIATION_QUEUE, workflows=WORKFLOWS),
            Worker(
                temporal.client,
                task_queue=CLUSTER_QUEUE,
                activities=[cluster.observe_node, cluster.notify_owner],
            ),
            Worker(
                temporal.client,
                task_queue=TEMPORAL_QUEUE,
                activities=asking.activities(),
            ),
        ):
            await stack.enter_async_context(worker)
        yield


@pytest.fixture(autouse=True)
def quickly_settled(monkeypatch) -> None:
    monkeypatch.setattr(conftest, "POLICY", POLICY + SETTLE)


@pytest.fixture
async def namespace(admin) -> AsyncIterator[str]:
    name = f"team-{uuid.uuid4().hex[:8]}"
    await admin.request("POST", "/api/v1/namespaces", body={"metadata": {"name": name}})
    async with asyncio.timeout(60):
        while not await admin.find(f"/api/v1/namespaces/{name}/serviceaccounts/default"):
            await asyncio.sleep(0.05)
    yield name
    await admin.request("DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture
def make_pod(admin, namespace):
    async def make(node: str, job: str | None = "train") -> str:
        owner = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": job, "uid": "u-1"}
        name = f"{job or 'bare'}-{uuid.uuid4().hex[:6]}"
        limits = {"nvidia.com/gpu": "1"}
        container = {"name": "main", "image": "registry.example/app:1", "resources": {"limits": limits}}
        references = [owner | {"controller": True}] if job else []
        body = {
            "metadata": {"name": name, "ownerReferences": references},
            "spec": {"nodeName": node, "containers": [container]},
        }
        await admin.request("POST", f"/api/v1/namespaces/{namespace}/pods", body=body)
        return f"{namespace}/{name}"

    return make


@pytest.fixture
async def reception(tmp_path, temporal, kubeconfig):
    """Receptions as intakes have them, each with nothing in its memory."""

    @asynccontextmanager
    async def begin(policy: str = POLICY + SETTLE):
        file = tmp_path / f"{uuid.uuid4().hex}.yaml"
        file.write_text(policy)
        async with Kubernetes.connect(str(kubeconfig)) as kubernetes:
            settings = Settings(cluster=CLUSTER, policy=file)
            yield Reception(kubernetes, Incidents(temporal.client, CLUSTER), PolicyFile(settings))

    return begin


async def take(reception, node, *faults):
    """Hand over faults of one node, one after the other; the last answer."""
    for each in faults:
        answer = await reception.take("test", each, await reception.find_node(node))
    return answer


async def ended(temporal, node):
    """Outcome of the latest incident of a node, once it is over."""
    handle = temporal.client.get_workflow_handle(f"node/{CLUSTER}/{node}", result_type=dict)
    return (await handle.result())["outcome"]


async def exists(handle):
    try:
        return await handle.describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise


async def told(admin, namespace):
    """Objects that have a notice, with how many."""
    found = await admin.items(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")
    named = [f"{e['regarding']['kind']}/{e['regarding']['name']}" for e in found if e["reason"] == REASON]
    return sorted(named)


async def told_at_least(admin, namespace, number):
    async with asyncio.timeout(60):
        while len(await told(admin, namespace)) < number:
            await asyncio.sleep(0.1)
    return await told(admin, namespace)


async def untouched(admin, *nodes):
    """That the nodes have no block and all pods that they had."""
    for name in nodes:
        node = await admin.find(f"/api/v1/nodes/{name}")
        assert [taint["key"] for taint in node["spec"].get("taints", ())] == ["example.com/tests-only"]
        assert "unschedulable" not in node["spec"]
        pods = await admin.items("/api/v1/pods", field_selector=f"spec.nodeName={name}")
        assert pods, "the pods of these tests stay"
        assert not any("deletionTimestamp" in pod["metadata"] for pod in pods)


pytestmark = pytest.mark.usefixtures("workers")


class TestJob:
    async def test_a_job_that_fails_on_many_nodes_is_one_record(
        self, tmp_path, temporal, kubeconfig, admin, make_node, make_pod, namespace
    ):
        """Five groups within a second, each from two replicas of Alertmanager."""
        nodes = [await make_node() for _ in range(5)]
        pods = [await make_pod(node) for node in nodes]
        notices = [firing(node) for node in nodes]
        async with served(tmp_path, temporal, kubeconfig) as posting:
            answers = await asyncio.gather(*(posting.post(each) for each in notices * 2))
            assert {status for status, _ in answers} == {200}
            said = [body["alerts"][0] for _, body in answers]
            assert {each["workflow_id"] for each in said} == {job_id(CLUSTER, namespace, "train")}
            assert len({each["run_id"] for each in said}) == 1
            assert [await posting.incident(node) for node in nodes] == [None] * 5
            late, joined = await make_node(), "45"
            pods.append(await make_pod(late))
            status, body = await posting.post(firing(late, joined))
            assert (status, body["alerts"][0]["status"]) == (200, "joined")
            status, body = await posting.post(*notices)
            assert {each["status"] for each in body["alerts"]} == {"duplicate"}
        found = await told_at_least(admin, namespace, 6)
        assert found == sorted(["PyTorchJob/train", *(f"Pod/{pod.split('/')[1]}" for pod in pods[:5])])
        record = temporal.client.get_workflow_handle(job_id(CLUSTER, namespace, "train"))
        described = await record.describe()
        assert described.status is WorkflowExecutionStatus.RUNNING
        attributes = {pair.key.name: pair.value for pair in described.typed_search_attributes}
        assert attributes["RunbookFault"] == "xid:45"
        await untouched(admin, *nodes, late)

    async def test_two_jobs_on_two_nodes_are_two_nodes(
        self, reception, temporal, admin, make_node, make_pod, namespace
    ):
        one, other = await make_node(), await make_node()
        await make_pod(one, "a")
        await make_pod(other, "b")
        async with reception() as intake:
            answers = await asyncio.gather(*(take(intake, node, fault("45")) for node in (one, other)))
        assert {each.workflow_id for each in answers} == {f"node/{CLUSTER}/{name}" for name in (one, other)}
        assert [await ended(temporal, node) for node in (one, other)] == ["notified", "notified"]
        assert await told(admin, namespace) == sorted(await told_at_least(admin, namespace, 4))

    async def test_another_code_on_the_other_node_is_not_the_same(
        self, reception, admin, make_node, make_pod
    ):
        one, other = await make_node(), await make_node()
        for node in (one, other):
            await make_pod(node)
        async with reception() as intake:
            answers = await asyncio.gather(take(intake, one, fault("31")), take(intake, other, fault("45")))
        assert {each.workflow_id for each in answers} == {f"node/{CLUSTER}/{name}" for name in (one, other)}
        await untouched(admin, one, other)

    async def test_many_gpus_of_one_node_are_one_node(self, reception, temporal, make_node, make_pod):
        node = await make_node()
        await make_pod(node)
        async with reception() as intake:
            answers = await asyncio.gather(*(take(intake, node, fault("45", gpu=gpu)) for gpu in range(4)))
        assert {each.workflow_id for each in answers} == {f"node/{CLUSTER}/{node}"}
        assert await ended(temporal, node) == "notified"

    async def test_nodes_of_unknown_jobs_go_their_own_way(
        self, reception, temporal, admin, make_node, make_pod, namespace
    ):
        """Two jobs share each node, and the faults name no pod: whose it was is not guessed."""
        nodes = [await make_node() for _ in range(2)]
        for node in nodes:
            await make_pod(node, "a")
            await make_pod(node, "b")
        async with reception() as intake:
            answers = await asyncio.gather(*(take(intake, node, fault("45")) for node in nodes))
        assert {each.workflow_id for each in answers} == {f"node/{CLUSTER}/{name}" for name in nodes}
        assert [await ended(temporal, node) for node in nodes] == ["notified", "notified"]
        assert {"PyTorchJob/a", "PyTorchJob/b"} <= set(await told(admin, namespace))
        await untouched(admin, *nodes)

    async def test_the_pod_that_a_fault_names_tells_the_job(
        self, reception, admin, make_node, make_pod, namespace
    ):
        nodes = [await make_node() for _ in range(2)]
        pods = [await make_pod(node, "a") for node in nodes]
        for node in nodes:
            await make_pod(node, "b")
        async with reception() as intake:
            answers = await asyncio.gather(
                *(take(intake, node, fault("45", pod=pod)) for node, pod in zip(nodes, pods, strict=True))
            )
        assert {each.workflow_id for each in answers} == {job_id(CLUSTER, namespace, "a")}
        await untouched(admin, *nodes)

    async def test_a_hardware_fault_is_never_the_jobs(self, reception, temporal, make_node, make_pod):
        nodes = [await make_node() for _ in range(3)]
        for node in nodes:
            await make_pod(node)
        async with reception() as intake:
            answers = await asyncio.gather(
                *(take(intake, node, fault("45")) for node in nodes),
                *(take(intake, node, fault("79", gpu=1)) for node in nodes[:2]),
            )
        assert {each.workflow_id for each in answers[3:]} == {f"node/{CLUSTER}/{name}" for name in nodes[:2]}
        for node in nodes[:2]:
            handle = temporal.client.get_workflow_handle(f"node/{CLUSTER}/{node}")
            assert (await handle.query("status"))["ladder"] != "notify"
            await handle.terminate()

    async def test_one_that_is_held_holds_up_no_hardware_of_its_notification(
        self, reception, temporal, make_node, make_pod, monkeypatch
    ):
        monkeypatch.setattr(webhook, "AT_ONCE", 1)
        held, broken = await make_node(), await make_node()
        await make_pod(held)
        notices = notification(firing(held), firing(broken, "79"))
        async with reception(POLICY + "intake: {settle: 10s}\n") as intake:
            taking = asyncio.create_task(webhook.take(intake, read_webhook(json.dumps(notices).encode())))
            handle = temporal.client.get_workflow_handle(f"node/{CLUSTER}/{broken}")
            async with asyncio.timeout(60):
                while not (intake._jobs._holds and await exists(handle)):
                    await asyncio.sleep(0.02)
            assert not await exists(temporal.client.get_workflow_handle(f"node/{CLUSTER}/{held}"))
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)
        await handle.terminate()

    async def test_nothing_is_written_in_mode_observe(
        self, reception, temporal, admin, make_node, make_pod, namespace
    ):
        nodes = [await make_node() for _ in range(3)]
        for node in nodes:
            await make_pod(node)
        async with reception(OBSERVING + SETTLE) as intake:
            alone = await take(intake, nodes[0], fault("31"))
            answers = await asyncio.gather(*(take(intake, node, fault("45")) for node in nodes[1:]))
        assert alone.workflow_id == f"node/{CLUSTER}/{nodes[0]}"
        assert await ended(temporal, nodes[0]) == "observed"
        assert {each.workflow_id for each in answers} == {job_id(CLUSTER, namespace, "train")}
        assert await told(admin, namespace) == []

    async def test_nothing_is_lost_when_the_intake_ends_during_the_hold(
        self, reception, make_node, make_pod, namespace
    ):
        nodes = [await make_node() for _ in range(2)]
        for node in nodes:
            await make_pod(node)
        faults = [fault("45") for _ in nodes]
        async with reception(POLICY + "intake: {settle: 10s}\n") as intake:
            unanswered = [
                asyncio.create_task(take(intake, node, each))
                for node, each in zip(nodes, faults, strict=True)
            ]
            async with asyncio.timeout(60):
                while sum(len(hold.nodes) for hold in intake._jobs._holds.values()) < 2:
                    await asyncio.sleep(0.02)
            for task in unanswered:
                task.cancel()
            ends = await asyncio.gather(*unanswered, return_exceptions=True)
            assert all(isinstance(end, asyncio.CancelledError) for end in ends)
        async with reception() as intake:
            answers = await asyncio.gather(
                *(take(intake, node, each) for node, each in zip(nodes, faults, strict=True))
            )
        assert [each.status for each in answers] == ["started", "started"]
        assert {each.workflow_id for each in answers} == {job_id(CLUSTER, namespace, "train")}


class TestNode:
    async def test_one_node_alone_is_told(self, reception, temporal, admin, make_node, make_pod, namespace):
        node = await make_node()
        pod = await make_pod(node)
        once = fault("45")
        async with reception() as intake:
            assert (await take(intake, node, once)).status == "started"
            assert await ended(temporal, node) == "notified"
            again = await take(intake, node, once)
        assert (again.status, "already answered" in again.reason) == ("ignored", True)
        assert await told(admin, namespace) == sorted(["PyTorchJob/train", f"Pod/{pod.split('/')[1]}"])
        await untouched(admin, node)


class TestRepeats:
    """Which ladder a fault gets, by what the same node had before."""

    @pytest.mark.parametrize(
        ("first", "second", "hardware"),
        [
            ({"code": "13", "place": "GPC 2 TPC 1"}, {"code": "13", "place": "GPC 2 TPC 1"}, True),
            ({"code": "13", "place": "GPC 2 TPC 1"}, {"code": "13", "place": "GPC 2 TPC 3"}, False),
            ({"code": "31"}, {"code": "31"}, True),
            ({"code": "31"}, {"code": "31", "gpu": 1}, False),
            ({"code": "31", "minutes": 12}, {"code": "31", "minutes": 10}, False),
        ],
        ids=[
            "13 at the same place",
            "13 at another TPC",
            "31 on the same GPU",
            "31 on two GPUs",
            "one burst",
        ],
    )
    async def test_the_second_decides(self, reception, temporal, make_node, first, second, hardware):
        node = await make_node()
        policy = POLICY + "intake: {settle: 0s, max_age: 30d}\n"
        async with reception(policy) as intake:
            await take(intake, node, fault(**({"minutes": 30} | first)))
            assert await ended(temporal, node) == "left-alone"
        async with reception(policy) as restarted:
            answer = await take(restarted, node, fault(**({"minutes": 10} | second)))
        handle = temporal.client.get_workflow_handle(f"node/{CLUSTER}/{node}", run_id=answer.run_id)
        status = await handle.query("status")
        assert (status["ladder"] == "reset") is hardware
        if hardware:
            await handle.terminate()

    async def test_the_same_fault_again_is_one(self, reception, temporal, make_node):
        node = await make_node()
        once = fault("31", minutes=30)
        async with reception() as intake:
            await take(intake, node, once)
            assert await ended(temporal, node) == "left-alone"
            answer = await take(intake, node, once, once)
        assert answer.status == "ignored"
        assert await ended(temporal, node) == "left-alone"
