"""`policy explain` against a real API server and a real Temporal server: it sees, and changes nothing."""

import io
import json

import pytest
from intake.conftest import CLUSTER, POLICY, POOL
from intake.stand_in import StandIn
from policy.factories import fault
from rich.console import Console
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.worker import Worker

from gpu_runbooks.activities.kubernetes.client import Kubernetes
from gpu_runbooks.activities.model.fault import FaultSource
from gpu_runbooks.activities.model.plan import FaultReport
from gpu_runbooks.activities.model.slot import SlotRequest
from gpu_runbooks.activities.names import BLOCK_ANNOTATION, REMEDIATION_QUEUE, budget_id, incident_id
from gpu_runbooks.activities.nodes.node import annotations_of, identity_of, is_unschedulable
from gpu_runbooks.workers.policy.explain import Question, answer
from gpu_runbooks.workers.policy.fault_notation import NotationError
from gpu_runbooks.workflows.disruption_budget import DisruptionBudget
from gpu_runbooks.workflows.policy.file import load_policy
from gpu_runbooks.workflows.policy.planning import plan
from gpu_runbooks.workflows.search_attributes import opening
from gpu_runbooks.workflows.slots import Holder, Slots, packed


@pytest.fixture
def ask(tmp_path, monkeypatch, kubeconfig, temporal):
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY)
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    monkeypatch.setenv("TEMPORAL_ADDRESS", temporal.address)

    async def run(node, written="xid:119"):
        out = Console(file=io.StringIO(), width=200)
        question = Question(node, written, file, CLUSTER, {})
        await answer(question, as_json=True, out=out, err=Console(file=io.StringIO()))
        return json.loads(out.file.getvalue())

    return run


async def test_budget_incident_and_node_are_seen(ask, node, make_node, temporal, admin: Kubernetes):
    before = await admin.request("GET", f"/api/v1/nodes/{node}")
    first = fault(FaultSource.XID, "79")
    made = plan(load_policy(POLICY), first, identity_of(before), before["metadata"]["labels"], "tests")
    report = FaultReport(fault=first, plan=made)

    async def begin(name):
        return await temporal.client.start_workflow(
            "NodeRemediation",
            {"report": report.model_dump(mode="json")},
            id=incident_id(CLUSTER, name),
            task_queue=REMEDIATION_QUEUE,
            search_attributes=opening(CLUSTER, made, first),
        )

    async with Worker(temporal.client, task_queue=REMEDIATION_QUEUE, workflows=[StandIn, DisruptionBudget]):
        other = await begin("gpu-holder")
        request = SlotRequest(incident=other.id, run_id=other.first_execution_run_id, node="gpu-holder")
        held = Holder(**request.model_dump(), confirmed=True)
        budget = await temporal.client.start_workflow(
            DisruptionBudget.run,
            packed(Slots(cluster=CLUSTER, pool=POOL, complete=True, holders=[held])),
            id=budget_id(CLUSTER, POOL),
            task_queue=REMEDIATION_QUEUE,
            id_conflict_policy=WorkflowIDConflictPolicy.TERMINATE_EXISTING,  # one that other tests use
        )
        queued = await ask(node)
        assert (queued["verdict"], queued["pool"], queued["unseen"]) == ("queued", POOL, [])
        assert queued["slots"]["holders"][0]["node"] == "gpu-holder"
        assert queued["identity"] == identity_of(before).model_dump()
        await budget.terminate()
        await other.signal("end")
        free = await ask(node)
        assert free["verdict"] == "begins", "a budget that does not run gave nothing away"
        assert f"has no budget workflow in cluster {CLUSTER} yet" in " ".join(free["now"])

        incident = await begin(node)
        joins = await ask(node)
        assert joins["verdict"] == "joins"
        assert joins["incident"]["workflow_id"] == incident.id
        assert (joins["incident"]["fault"], joins["incident"]["phase"]) == ("xid:79", "open")
        await incident.signal("end")
        await incident.result()
        assert (await ask(node))["verdict"] == "begins", "the incident is over"
    after = await admin.request("GET", f"/api/v1/nodes/{node}")
    assert not is_unschedulable(after)
    assert BLOCK_ANNOTATION not in annotations_of(after)
    runs = temporal.client.list_workflows(f"WorkflowId = '{incident.id}'")
    assert [run.run_id async for run in runs] == [incident.first_execution_run_id]
    elsewhere = await ask(await make_node("another-pool"))
    assert elsewhere["verdict"] == "refused"


async def test_a_node_that_is_not_there_is_no_guess(ask, temporal):
    with pytest.raises(NotationError, match=r"no Node is named gpu-nobody.*--offline"):
        await ask("gpu-nobody")
