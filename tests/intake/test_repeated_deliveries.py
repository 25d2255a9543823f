"""Repeats, old evidence and real Alertmanagers: what Temporal has afterwards."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from intake.alerts import fresh
from intake.conftest import CLUSTER, TOKEN, Webhook, served

from gpu_runbooks.activities.kubernetes.client import MERGE_PATCH, Kubernetes
from gpu_runbooks.activities.names import incident_id
from testbed.alertmanager import Alertmanager
from testbed.processes import Processes
from testbed.temporal import Temporal

MakeNode = Callable[..., Awaitable[str]]
pytestmark = pytest.mark.usefixtures("controller")


def ago(**span: float) -> str:
    return (datetime.now(UTC) - timedelta(**span)).isoformat()


async def runs(temporal: Temporal, node: str) -> int:
    listed = temporal.client.list_workflows(f"WorkflowId = '{incident_id(CLUSTER, node)}'")
    return len([run async for run in listed])


async def show_fault(admin: Kubernetes, node: str) -> None:
    """Let the node itself show that a GPU is missing."""
    await show_gpus(admin, node, 7)


async def show_all_gpus(admin: Kubernetes, node: str) -> None:
    await show_gpus(admin, node, 8)


async def show_gpus(admin: Kubernetes, node: str, gpus: int) -> None:
    await admin.request(
        "PATCH",
        f"/api/v1/nodes/{node}/status",
        body={"status": {"allocatable": {"nvidia.com/gpu": str(gpus)}}},
        content_type=MERGE_PATCH,
    )


async def only(webhook: Webhook, alert: dict[str, Any]) -> dict[str, Any]:
    status, body = await webhook.post(alert)
    assert status == 200
    return body["alerts"][0]


async def test_repeats_of_many_faults_are_one_incident_and_few_events(
    webhook: Webhook, temporal: Temporal, node: str
) -> None:
    """29 faults of one GPU, each delivered six times, several at the same moment."""
    alerts = [fresh(node=node, fingerprint=f"f{number}", xid=str(number + 1000)) for number in range(29)]
    await webhook.post(*alerts)
    incident = await webhook.incident(node)

    answers = await asyncio.gather(*(webhook.post(*alerts) for _ in range(5)))

    assert {each["status"] for _, body in answers for each in body["alerts"]} == {"duplicate"}
    after = await webhook.incident(node)
    assert incident
    assert after
    assert after.run_id == incident.run_id
    handle = temporal.client.get_workflow_handle(after.id, result_type=list)
    words = await handle.query("repeats")
    assert sum(sum(word["counts"].values()) for word in words) in range(100 - 29, 29 * 5 + 1)
    assert len(words) <= 2
    assert after.history_length - incident.history_length <= 4 * len(words)


async def test_many_alerts_of_one_fault_are_taken_at_once_and_told_a_few_times(
    webhook: Webhook, temporal: Temporal, node: str
) -> None:
    """A rule whose labels differ from alert to alert, and do not say which GPU."""
    alerts = [fresh(node=node, fingerprint=f"s{number}", xid="95") for number in range(150)]

    status, body = await webhook.post(*alerts)
    assert status == 200
    joined = await webhook.fingerprints(node)
    assert len(joined) == 10
    assert Counter(each["status"] for each in body["alerts"]) == {"started": 1, "joined": 9, "duplicate": 140}
    before = await webhook.incident(node)

    again = [await webhook.post(*alerts) for _ in range(3)]

    assert {each["status"] for _, body in again for each in body["alerts"]} == {"duplicate"}
    assert {status for status, _ in again} == {200}
    assert await webhook.fingerprints(node) == joined
    after = await webhook.incident(node)
    assert before
    assert after
    assert after.history_length - before.history_length <= 4
    handle = temporal.client.get_workflow_handle(after.id, result_type=list)
    counted = {each for word in await handle.query("repeats") for each in word["counts"]}
    assert counted <= set(joined), "the incident is told of faults that it has"


async def test_a_later_onset_of_a_fault_that_came_often_is_to_come_again(webhook: Webhook, node: str) -> None:
    """It may refute a repair, so it is not folded; what else the notification has is taken."""
    old = ago(minutes=5)
    await webhook.post(*(fresh(node=node, fingerprint=f"s{n}", xid="95", onset=old) for n in range(10)))
    other = fresh(node=node, fingerprint="other", xid="79")

    status, body = await webhook.post(fresh(node=node, fingerprint="late", xid="95", onset=ago()), other)

    assert [each["status"] for each in body["alerts"]] == ["unavailable", "joined"]
    assert status == 503


async def test_a_repeat_after_a_failure_starts_a_new_incident_at_once(webhook: Webhook, node: str) -> None:
    """What is remembered of an incident counts only as long as it runs."""
    alert = fresh(node=node)
    first = await only(webhook, alert)
    assert (await only(webhook, alert))["status"] == "duplicate"
    await webhook.temporal.get_workflow_handle(incident_id(CLUSTER, node)).terminate()

    again = await only(webhook, alert)

    assert again["status"] == "started"
    assert again["run_id"] != first["run_id"]


class TestMaxAge:
    """A policy that believes no old onset by itself."""

    @pytest.fixture
    async def webhook(self, tmp_path: Path, temporal: Temporal, kubeconfig: Path) -> AsyncIterator[Webhook]:
        async with served(tmp_path, temporal, kubeconfig, intake="{max_age: 1h}") as webhook:
            yield webhook

    async def test_what_no_incident_knows_and_no_node_shows_is_expired(
        self, webhook: Webhook, node: str
    ) -> None:
        answer = await only(webhook, fresh(node=node, onset=ago(days=3)))

        assert (answer["status"], answer["reason"][:8]) == ("ignored", "expired:")
        assert await webhook.incident(node) is None

    async def test_an_incident_that_was_terminated_speaks_for_its_own_faults_alone(
        self, webhook: Webhook, admin: Kubernetes, node: str
    ) -> None:
        first, joined, other = (
            fresh(node=node, fingerprint=each, xid=xid, onset=ago(days=3))
            for each, xid in (("f1", "79"), ("f2", "48"), ("f3", "95"))
        )
        await show_fault(admin, node)
        assert (await only(webhook, first))["status"] == "started"
        assert (await only(webhook, joined))["status"] == "joined"
        await show_all_gpus(admin, node)
        handle = webhook.temporal.get_workflow_handle(incident_id(CLUSTER, node))

        for known in (first, joined):
            await handle.terminate()
            answer = await only(webhook, other)
            assert (answer["status"], answer["reason"][:8]) == ("ignored", "expired:")
            assert (await only(webhook, known))["status"] == "started"


class TestOldEvidence:
    async def test_what_the_node_shows_is_taken_whatever_its_age(
        self, webhook: Webhook, admin: Kubernetes, node: str
    ) -> None:
        await show_fault(admin, node)

        assert (await only(webhook, fresh(node=node, onset=ago(days=3))))["status"] == "started"

    async def test_what_was_seen_before_a_reboot_is_expired(
        self, webhook: Webhook, admin: Kubernetes, node: str
    ) -> None:
        boot = (await admin.request("GET", f"/api/v1/nodes/{node}"))["status"]["nodeInfo"]["bootID"]

        other = await only(webhook, fresh(node=node, boot_id="b0000000-0000-4000-8000-000000000001"))
        same = await only(webhook, fresh(node=node, boot_id=boot, fingerprint="f2"))

        assert (other["status"], "rebooted since" in other["reason"]) == ("ignored", True)
        assert same["status"] == "started"

    async def test_what_was_remediated_opens_one_more_incident_while_the_node_shows_it(
        self, webhook: Webhook, temporal: Temporal, admin: Kubernetes, node: str
    ) -> None:
        """A gauge that sticks never makes a loop."""
        alert = fresh(node=node, onset=ago(hours=7))
        await show_fault(admin, node)
        assert (await only(webhook, alert))["status"] == "started"
        await webhook.end_incident(node)

        again = await only(webhook, alert)
        incident = await webhook.incident(node)
        assert incident
        assert again["status"] == "started"
        assert "Dealt with before" in (await incident.static_details() or "")
        await webhook.end_incident(node)
        for _ in range(3):
            third = await only(webhook, alert)
            assert (third["status"], "A person has to look" in third["reason"]) == ("ignored", True)

        assert await runs(temporal, node) == 2


class TestAlertmanager:
    async def test_two_replicas_groups_repeats_and_resolutions(
        self, webhook: Webhook, temporal: Temporal, make_node: MakeNode, tmp_path: Path
    ) -> None:
        """The real thing, twice: one incident for each node, and the notifications go on being answered."""
        nodes = [await make_node(), await make_node(), await make_node()]
        token = tmp_path / "token"
        token.write_text(TOKEN)
        began = datetime.now(UTC) - timedelta(minutes=1)
        async with Processes(tmp_path / "logs") as processes:
            replicas = [
                Alertmanager(
                    tmp_path, processes, webhook=f"{webhook.url}/alertmanager", token_file=token, name=name
                )
                for name in ("alertmanager-0", "alertmanager-1")
            ]
            for replica in replicas:
                await replica.start(repeat_interval=timedelta(seconds=1), group_by=("alertname",))
                for node in nodes[:2]:
                    await replica.fire({"alertname": "GpuGone", "node": node, "xid": "79"}, starts_at=began)
                await replica.fire(
                    {"alertname": "GpuGone", "node": nodes[2], "xid": "79"}, starts_at=began, ends_at=began
                )
            async with asyncio.timeout(60):
                for node in nodes[:2]:
                    while not await repeats_of(webhook, node):
                        await asyncio.sleep(0.1)

        assert [await runs(temporal, node) for node in nodes] == [1, 1, 0]
        assert [len(await webhook.fingerprints(node)) for node in nodes[:2]] == [1, 1]

    async def test_what_it_cut_off_is_told(
        self, webhook: Webhook, make_node: MakeNode, tmp_path: Path
    ) -> None:
        nodes = [await make_node(), await make_node(), await make_node()]
        token = tmp_path / "token"
        token.write_text(TOKEN)
        async with Processes(tmp_path / "logs") as processes:
            cutting = Alertmanager(
                tmp_path, processes, webhook=f"{webhook.url}/alertmanager", token_file=token
            )
            await cutting.start(group_by=("alertname",), max_alerts=1)
            for node in nodes:
                await cutting.fire({"alertname": "GpuGone", "node": node, "xid": "79"})
            async with asyncio.timeout(60):
                while not (started := [found for node in nodes if (found := await webhook.incident(node))]):
                    await asyncio.sleep(0.1)

        details = [await incident.static_details() or "" for incident in started]
        assert any("more alerts off the notification" in each for each in details)


async def repeats_of(webhook: Webhook, node: str) -> bool:
    """Whether a tenth delivery was told."""
    if await webhook.incident(node) is None:
        return False
    handle = webhook.temporal.get_workflow_handle(incident_id(CLUSTER, node), result_type=list)
    return bool(await handle.query("repeats"))
