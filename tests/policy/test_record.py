"""Recorded faults, read back from the histories of a real server."""

import io
import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from intake.stand_in import StandIn
from policy.factories import P5, SMALLEST, fault, node
from rich.console import Console
from temporalio.client import Client, Interceptor, OutboundInterceptor
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from gpu_runbooks.activities.model.fault import FaultSource
from gpu_runbooks.activities.model.plan import FaultReport
from gpu_runbooks.workers.policy.record import Tally, record, recorded_faults
from gpu_runbooks.workers.policy.recorded_faults import read_lines
from gpu_runbooks.workflows.policy.file import load_policy
from gpu_runbooks.workflows.policy.planning import plan
from gpu_runbooks.workflows.search_attributes import SEARCH_ATTRIBUTES, opening

QUEUE = "recorded"
POLICY = load_policy(SMALLEST)
HOUR = timedelta(hours=1)


def report(source, code, cluster="prod"):
    said = fault(source, code)
    made = plan(POLICY, said, node(), P5, "tests").model_copy(update={"cluster": cluster})
    return FaultReport(fault=said, plan=made)


@pytest.fixture(scope="module")
async def server():
    async with (
        await WorkflowEnvironment.start_local(
            data_converter=pydantic_data_converter,
            dev_server_existing_path=str(Path(sys.executable).parent / "temporal"),
            search_attributes=SEARCH_ATTRIBUTES,
            dev_server_log_level="error",
        ) as environment,
        Worker(environment.client, task_queue=QUEUE, workflows=[StandIn]),
    ):
        yield environment.client


@pytest.fixture(scope="module")
async def incidents(server):
    """One incident with two faults and a repeat, one of another cluster, two by hand, one that goes on."""

    async def start(name, content, queue=QUEUE, first=None):
        attributes = None if first is None else opening(first.plan.cluster, first.plan, first.fault)
        return await server.start_workflow(
            "NodeRemediation", content, id=f"node/{name}", task_queue=queue, search_attributes=attributes
        )

    first = report(FaultSource.XID, "79")
    handle = await start("prod/gpu-a1", {"report": first.model_dump(mode="json")}, first=first)
    await handle.execute_update("report_fault", report(FaultSource.XID, "95"))
    await handle.signal("end")
    await handle.result()
    other = report(FaultSource.CONDITION, "Ready", "lab")
    await start("lab/gpu-b1", {"report": other.model_dump(mode="json")}, first=other)
    await start("prod/gpu-c1", {"node": "gpu-c1", "reason": "why", "operator": "ana"}, queue="nobody")
    await start("prod/gpu-d1", {"incident": {"cluster": "prod"}}, queue="nobody")
    await start("prod/gpu-e1", {"report": {"fault": "of a stranger"}}, queue="nobody")
    await start("prod/gpu-f1", ["nonsense"], queue="nobody")
    order = {"node": "gpu-g1", "reason": "why", "operator": "ana"}
    await server.start_workflow("DrainNode", order, id="node/prod/gpu-g1", task_queue="nobody")
    return handle


async def read(client, cluster="", since=HOUR):
    tally = Tally()
    found = [each async for each in recorded_faults(client, datetime.now(UTC) - since, tally, cluster)]
    return sorted(found, key=lambda each: (each.node, each.fault.code)), tally


@pytest.mark.usefixtures("incidents")
async def test_each_accepted_fault_is_one_line_with_what_policy_said(server, monkeypatch):
    monkeypatch.setenv("TEMPORAL_ADDRESS", server.service_client.config.target_host)
    out, err = io.StringIO(), Console(file=io.StringIO(), width=200)
    await record(HOUR, "", out.write, err)
    lines = list(read_lines(io.BytesIO(out.getvalue().encode())))
    assert len(lines) == len(out.getvalue().splitlines()) == 3
    by_code = {each.fault.code: each for each in lines}
    assert {*by_code} == {"79", "95", "Ready"}
    fell_off = by_code["79"]
    assert fell_off.fault == fault(FaultSource.XID, "79")
    assert (fell_off.node, fell_off.cluster, fell_off.incident) == ("gpu-a1", "prod", "node/prod/gpu-a1")
    assert P5.items() <= fell_off.labels.items()
    assert (fell_off.instance_type, fell_off.policy_digest) == ("p5.48xlarge", POLICY.digest)
    assert fell_off.treatment.rule == "xid-79"
    said = err.file.getvalue()
    assert "3 faults of 7 runs" in said
    assert "2 runs by order of people" in said
    assert "2 reports that this version cannot read" in said
    assert all(json.loads(line)["fault"]["fingerprint"] for line in out.getvalue().splitlines())


@pytest.mark.usefixtures("incidents")
async def test_one_is_said_as_one(server, monkeypatch):
    monkeypatch.setenv("TEMPORAL_ADDRESS", server.service_client.config.target_host)
    err = Console(file=io.StringIO(), width=200)
    await record(HOUR, "lab", io.StringIO().write, err)
    assert "1 fault of 1 run of incidents" in err.file.getvalue()


@pytest.mark.usefixtures("incidents")
async def test_one_cluster_alone(server):
    found, _ = await read(server, "lab")
    assert [each.fault.code for each in found] == ["Ready"]


class WithoutHistory(Interceptor):
    """A server that has lost the history of one run, as after its retention."""

    def __init__(self, run_id):
        self._run_id = run_id

    def intercept_client(self, next):  # noqa: A002 - the SDK's name
        lost = self._run_id

        class Outbound(OutboundInterceptor):
            def fetch_workflow_history_events(self, input):  # noqa: A002
                if input.run_id == lost:
                    raise RPCError("workflow execution not found", RPCStatusCode.NOT_FOUND, b"")
                return super().fetch_workflow_history_events(input)

        return Outbound(next)


async def test_a_history_that_is_gone_is_counted_and_the_others_read(server, incidents):
    lost = WithoutHistory(incidents.first_execution_run_id)
    client = Client(**{**server.config(), "interceptors": [lost]})
    found, tally = await read(client)
    assert [each.fault.code for each in found] == ["Ready"]
    assert (tally.missing, tally.runs) == (1, 7)


async def test_what_does_not_answer_says_where(monkeypatch):
    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:1")
    with pytest.raises(RuntimeError, match=r"127\.0\.0\.1:1.*Is TEMPORAL_ADDRESS right"):
        await record(HOUR, "", io.StringIO().write, Console(file=io.StringIO()))
