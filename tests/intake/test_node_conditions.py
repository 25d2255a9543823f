"""The watch of node conditions between a real API server and a real Temporal server."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from intake.conftest import CLUSTER, POLICY, Webhook, served
from temporalio.service import RPCError

from gpu_runbooks.activities.kubernetes import client
from gpu_runbooks.activities.kubernetes.client import MERGE_PATCH, Kubernetes
from gpu_runbooks.activities.names import HEALTHY_CONDITION, incident_id
from gpu_runbooks.activities.nodes.node import readiness
from gpu_runbooks.workers.intake.reception import Answer
from gpu_runbooks.workers.policy import policy_file
from testbed.api_faults import close_connection, hang, respond, status, stream
from testbed.control_plane import ControlPlane
from testbed.temporal import Temporal

MakeNode = Callable[..., Awaitable[str]]
NODES = "/api/v1/nodes"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
GPU = "GPU-11112222-3333-4444-5555-66667777888a"


def ago(minutes: float) -> datetime:
    return datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=minutes)


async def show(
    admin: Kubernetes,
    node: str,
    kind: str,
    state: str,
    reason: str = "Broken",
    *,
    since: datetime | None = None,
    message: str = "",
) -> None:
    """Write a condition as a detector does."""
    condition = {
        "type": kind,
        "status": state,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": ago(0).isoformat(),
        "lastTransitionTime": (since or ago(0)).isoformat(),
    }
    await admin.request(
        "PATCH",
        f"{NODES}/{node}/status",
        body={"status": {"conditions": [condition]}},
        content_type=STRATEGIC_MERGE_PATCH,
    )


async def until(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Wait for an answer that says something."""
    async with asyncio.timeout(60):
        while not (answer := await ask()):
            await asyncio.sleep(0.05)
    return answer


async def asked(temporal: Temporal, node: str, query: str, count: int) -> list[dict[str, Any]]:
    """What the open incident of a node knows, once it is so much."""
    handle = temporal.client.get_workflow_handle(incident_id(CLUSTER, node), result_type=list)

    async def ask() -> list[dict[str, Any]]:
        try:
            known: list[dict[str, Any]] = await handle.query(query)
        except RPCError:
            return []
        return known if len(known) >= count else []

    return await until(ask)


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[str], list[str]]:
    """Answers in the audit that are about a node, oldest first."""
    caplog.set_level(logging.INFO, "gpu_runbooks.workers.intake.reception")

    def answers(node: str) -> list[str]:
        given = [
            record.args[0]
            for record in caplog.records
            if record.name.endswith("intake.reception") and isinstance(record.args, tuple)
        ]
        return [each.status for each in given if isinstance(each, Answer) and each.node == node]

    return answers


@pytest.fixture
async def watching(
    tmp_path: Path, temporal: Temporal, kubeconfig: Path, controller: None
) -> AsyncIterator[Webhook]:
    async with served(tmp_path, temporal, kubeconfig) as intake:
        yield intake


DETECTORS = [
    pytest.param("AcceleratedHardwareReady", "False", "NvidiaXID79Error", id="EKS node monitoring agent"),
    pytest.param("KernelDeadlock", "True", "TaskHung", id="node-problem-detector"),
    pytest.param("XidCriticalError", "True", '{"31":true}', id="GKE device plugin"),
    pytest.param(HEALTHY_CONDITION, "False", "RecoveryActionNeeded", id="our own agent"),
]


@pytest.mark.parametrize(("kind", "state", "reason"), DETECTORS)
async def test_a_bad_condition_opens_the_incident_of_its_node(
    watching: Webhook, temporal: Temporal, admin: Kubernetes, make_node: MakeNode, kind, state, reason
) -> None:
    node, well, since = await make_node(), await make_node(), ago(7)
    await show(admin, well, kind, "True" if state == "False" else "False", "Fine", since=since)

    await show(admin, node, kind, state, reason, since=since, message=f"{GPU}\nis  ill " + "x" * 2000)

    (fault,) = await asked(temporal, node, "faults", 1)
    live = await admin.request("GET", f"{NODES}/{node}")
    assert (fault["source"], fault["code"], fault["status"], fault["reason"]) == (
        "condition",
        kind,
        state,
        reason,
    )
    created = datetime.fromisoformat(live["metadata"]["creationTimestamp"])
    assert since < created <= datetime.fromisoformat(fault["first_seen"]) <= datetime.now(UTC)
    assert fault["entity"] == {"kind": "gpu", "uuid": GPU, "pci_address": None}
    assert fault["summary"].startswith(f"{GPU} is ill x")
    assert len(fault["summary"]) == 300
    assert fault["boot_id"] == live["status"]["nodeInfo"]["bootID"]
    assert await watching.incident(well) is None


async def test_a_dead_kubelet_is_a_fault_of_the_node(
    watching: Webhook, temporal: Temporal, admin: Kubernetes, node: str
) -> None:
    """The testbed's kubelet goes down and stays so; then the node controller gives it up."""
    down = {
        "gpu-runbooks.dev/reboot": "3600",
        "gpu-runbooks.dev/reboot-outcome": "never",
        "gpu-runbooks.dev/reboot-to": "another-boot",
    }
    await admin.request(
        "PATCH", f"{NODES}/{node}", body={"metadata": {"annotations": down}}, content_type=MERGE_PATCH
    )
    await asked(temporal, node, "faults", 1)

    await show(admin, node, "Ready", "Unknown", "NodeStatusUnknown", message="Kubelet stopped posting.")

    first, second = await asked(temporal, node, "faults", 2)
    assert (first["code"], first["status"], first["reason"]) == ("Ready", "False", "KubeletNotReady")
    assert (second["code"], second["status"], second["reason"]) == ("Ready", "Unknown", "NodeStatusUnknown")
    assert second["entity"]["kind"] == "node"


async def test_overlapping_reasons_join_and_the_end_is_told(
    watching: Webhook, temporal: Temporal, admin: Kubernetes, node: str
) -> None:
    since = ago(7)
    kind = "AcceleratedHardwareReady"
    await show(admin, node, kind, "False", "NvidiaXID79Error", since=since)
    await asked(temporal, node, "faults", 1)
    await show(admin, node, kind, "False", "NvidiaNVLinkError", since=ago(1))
    await asked(temporal, node, "faults", 2)
    await show(admin, node, kind, "False", "NvidiaXID79Error", since=ago(0))  # back: the first clock goes on
    await show(admin, node, "KernelDeadlock", "True", "TaskHung", since=since)
    first, second, third = await asked(temporal, node, "faults", 3)
    await show(admin, node, kind, "True", "Fine")

    (cleared,) = await asked(temporal, node, "cleared", 1)
    await show(admin, node, kind, "False", "NvidiaXID79Error", since=ago(-0.1))
    *_, anew = await asked(temporal, node, "faults", 4)

    live = await admin.request("GET", f"{NODES}/{node}")
    assert [each["reason"] for each in (first, second, third, anew)] == [
        "NvidiaXID79Error",
        "NvidiaNVLinkError",
        "TaskHung",
        "NvidiaXID79Error",
    ]
    assert (cleared["type"], cleared["uid"]) == (kind, live["metadata"]["uid"])
    assert anew["fingerprint"] != first["fingerprint"]


async def test_a_restart_neither_repeats_nor_loses(
    tmp_path: Path,
    temporal: Temporal,
    kubeconfig: Path,
    controller: None,
    admin: Kubernetes,
    make_node: MakeNode,
    told: Callable[[str], list[str]],
) -> None:
    """A condition that is permanent outlives its incident; another begins while nobody watches."""
    permanent, joined, later = [await make_node() for _ in range(3)]
    async with served(tmp_path, temporal, kubeconfig) as intake:
        for node in (permanent, joined):
            await show(admin, node, "KernelDeadlock", "True", "TaskHung", since=ago(7))
            await asked(temporal, node, "faults", 1)
        await until(lambda: _are(told(permanent), ["started"]))
        await intake.end_incident(permanent)
        ended = await intake.incident(permanent)
    await show(admin, later, "KernelDeadlock", "True", "TaskHung", since=ago(1))

    async with served(tmp_path, temporal, kubeconfig) as intake:
        await asked(temporal, later, "faults", 1)
        for node in (permanent, joined):
            await until(lambda node=node: _are(told(node)[1:2], ["ignored"], ["duplicate"]))
        after = await intake.incident(permanent)
        faults = await asked(temporal, joined, "faults", 1)
        await show(admin, permanent, "KernelDeadlock", "False", "Fine")
        await show(admin, permanent, "KernelDeadlock", "True", "TaskHung", since=ago(-0.1))
        (news,) = await asked_of_another_run(intake, temporal, permanent, ended.run_id)

    assert after.run_id == ended.run_id, "the same transition is handled once"
    assert len(faults) == 1
    assert news["code"] == "KernelDeadlock"


async def _are(answers: list[str], *wanted: list[str]) -> bool:
    return answers in wanted


async def asked_of_another_run(
    intake: Webhook, temporal: Temporal, node: str, run_id: str | None
) -> list[dict[str, Any]]:
    async def begun() -> bool:
        incident = await intake.incident(node)
        return incident is not None and incident.run_id != run_id

    await until(begun)
    return await asked(temporal, node, "faults", 1)


async def test_what_no_pool_covers_is_refused_once(
    watching: Webhook,
    temporal: Temporal,
    admin: Kubernetes,
    make_node: MakeNode,
    told: Callable[[str], list[str]],
) -> None:
    outside, inside = await make_node("no-pool-of-the-policy"), await make_node()
    await show(admin, outside, "KernelDeadlock", "True", since=ago(7))
    await until(lambda: _are(told(outside), ["refused"]))
    for minutes in (6, 5, 4):
        await show(admin, outside, "KernelDeadlock", "True", since=ago(minutes), message="still")
    await show(admin, inside, "KernelDeadlock", "True", since=ago(7))
    await asked(temporal, inside, "faults", 1)

    assert told(outside) == ["refused"]
    assert await watching.incident(outside) is None


@pytest.mark.parametrize("label", ["node.kubernetes.io/instance-type", "gpu-runbooks.dev/pool"])
async def test_what_was_refused_is_taken_once_the_label_is_there(
    watching: Webhook,
    temporal: Temporal,
    admin: Kubernetes,
    make_node: MakeNode,
    told: Callable[[str], list[str]],
    label: str,
) -> None:
    node = await make_node()
    value = (await admin.request("GET", f"{NODES}/{node}"))["metadata"]["labels"][label]

    async def mark(labels: dict[str, str | None]) -> None:
        body = {"metadata": {"labels": labels}}
        await admin.request("PATCH", f"{NODES}/{node}", body=body, content_type=MERGE_PATCH)

    await mark({label: None})
    await show(admin, node, "KernelDeadlock", "True", since=ago(7))
    await until(lambda: _are(told(node), ["refused"]))
    await mark({"example.com/other": "yes"})
    await mark({label: value})
    await asked(temporal, node, "faults", 1)
    await until(lambda: _are(told(node), ["refused", "started"]))


async def test_a_return_to_bad_that_nobody_saw_is_taken_once_the_incident_is_over(
    watching: Webhook,
    temporal: Temporal,
    admin: Kubernetes,
    node: str,
    told: Callable[[str], list[str]],
) -> None:
    """The detector was good and bad again between two of its writes; one that always writes is no news."""
    await show(admin, node, "KernelDeadlock", "True", "TaskHung", since=ago(9))
    await asked(temporal, node, "faults", 1)
    await until(lambda: _are(told(node), ["started"]))
    await watching.end_incident(node)
    ended = await watching.incident(node)
    assert ended is not None

    await show(admin, node, "KernelDeadlock", "True", "TaskHung", since=ago(1))
    await asked_of_another_run(watching, temporal, node, ended.run_id)
    await until(lambda: _are(told(node), ["started", "ignored", "started"]))
    await watching.end_incident(node)
    last = await watching.incident(node)
    await show(admin, node, "KernelDeadlock", "True", "TaskHung", since=ago(0))
    await show(admin, node, "XidCriticalError", "True", "{}", since=ago(0))
    (other,) = await asked_of_another_run(watching, temporal, node, last.run_id if last else None)
    assert other["code"] == "XidCriticalError"
    assert told(node) == ["started", "ignored", "started", "started"]


@pytest.mark.usefixtures("controller")
async def test_a_node_that_boots_is_no_fault_until_it_takes_too_long(
    tmp_path: Path,
    temporal: Temporal,
    kubeconfig: Path,
    admin: Kubernetes,
    make_node: MakeNode,
    told: Callable[[str], list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(policy_file, "INTERVAL", 0.1)
    boots, other = await make_node(), await make_node()
    down = {"gpu-runbooks.dev/reboot": "3600", "gpu-runbooks.dev/reboot-outcome": "never"}
    down["gpu-runbooks.dev/reboot-to"] = "another-boot"
    await admin.request(
        "PATCH", f"{NODES}/{boots}", body={"metadata": {"annotations": down}}, content_type=MERGE_PATCH
    )

    async def is_down() -> bool:
        return readiness(await admin.request("GET", f"{NODES}/{boots}")) == "False"

    await until(is_down)  # before anybody watches: since its creation, for all that the Node says
    async with served(tmp_path, temporal, kubeconfig) as intake:
        await show(admin, other, "KernelDeadlock", "True", since=ago(7))
        await asked(temporal, other, "faults", 1)
        assert told(boots) == []
        assert await intake.incident(boots) is None

        rule = """
faults:
- name: not-ready
  match: {source: condition, code: Ready}
  toleration: 1s
  ladder: drain
"""
        (tmp_path / "policy.yaml").write_text(POLICY + rule)

        async def another_look() -> bool:
            await show(admin, other, "KernelDeadlock", "True", since=ago(7))
            return await intake.incident(boots) is not None

        await until(another_look)
        (fault,) = await asked(temporal, boots, "faults", 1)
    assert (fault["code"], fault["status"]) == ("Ready", "False")


async def test_while_temporal_is_away_nothing_is_lost(
    watching: Webhook, temporal: Temporal, admin: Kubernetes, make_node: MakeNode, told
) -> None:
    bad, cured = await make_node(), await make_node()
    await watching.temporal.count_workflows("")
    await temporal.stop()
    for node in (bad, cured):
        await show(admin, node, "KernelDeadlock", "True", since=ago(7))
        await until(lambda node=node: _are(told(node)[:1], ["unavailable"]))
    await show(admin, cured, "KernelDeadlock", "False", "Fine")
    await temporal.resume()

    (fault,) = await asked(temporal, bad, "faults", 1)
    assert fault["code"] == "KernelDeadlock"
    assert await watching.incident(cured) is None
    assert told(bad).count("started") == 1


EXPIRED = status(410, "Expired", "too old resource version: 100 (900)")
CUTS = [
    pytest.param(respond(410, EXPIRED), id="410"),
    pytest.param(
        stream([b'{"type":"ERROR","object":{"kind":"Status","code":410,"metadata":{}}}\n'], then="close"),
        id="410 as an event",
    ),
    pytest.param(close_connection(), id="closed"),
    pytest.param(respond(503, "<html>"), id="a load balancer's page"),
    pytest.param(hang(), id="silence"),
]


@pytest.mark.parametrize("cut", CUTS)
async def test_what_happens_while_the_watch_is_broken_is_seen_later(
    tmp_path: Path,
    temporal: Temporal,
    control_plane: ControlPlane,
    kubeconfig: Path,
    controller: None,
    admin: Kubernetes,
    node: str,
    cut,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "LIST_INTERVAL", 0.2)
    monkeypatch.setattr(client, "WATCH_TIMEOUT", 1.0)
    async with control_plane.proxy() as proxy:
        rule = proxy.inject(cut, path=NODES, watch=True, times=2)
        through = control_plane.kubeconfig_through(proxy, "intake")
        async with served(tmp_path, temporal, through):
            await until(lambda: _are([str(len(rule.met))], ["2"]))
            await show(admin, node, "KernelDeadlock", "True", "TaskHung", since=ago(7))
            (fault,) = await asked(temporal, node, "faults", 1)
    assert fault["reason"] == "TaskHung"


@pytest.mark.usefixtures("controller")
async def test_another_policy_watches_other_conditions(
    tmp_path: Path,
    temporal: Temporal,
    kubeconfig: Path,
    admin: Kubernetes,
    make_node: MakeNode,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The condition was there before the rule for it."""
    monkeypatch.setattr(policy_file, "INTERVAL", 0.1)
    fans, other = await make_node(), await make_node()
    await show(admin, fans, "example.com/FanFailed", "True", "FanStopped", since=ago(7))
    rule = """
faults:
- name: fan
  match: {source: condition, code: example.com/FanFailed, status: "True"}
  ladder: drain
"""
    async with served(tmp_path, temporal, kubeconfig) as intake:
        await show(admin, other, "KernelDeadlock", "True", since=ago(7))
        await asked(temporal, other, "faults", 1)
        assert await intake.incident(fans) is None
        (tmp_path / "policy.yaml").write_text(POLICY + rule)

        async def another_look() -> bool:
            await show(admin, other, "KernelDeadlock", "True", since=ago(7))
            return await intake.incident(fans) is not None

        await until(another_look)
        (fault,) = await asked(temporal, fans, "faults", 1)
    assert (fault["code"], fault["reason"]) == ("example.com/FanFailed", "FanStopped")
