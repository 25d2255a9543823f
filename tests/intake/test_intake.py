"""The webhook between a real API server and a real Temporal server: what is started, and what is answered."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path

import aiohttp
import pytest
from intake.alerts import fresh as alert
from intake.alerts import notification
from intake.conftest import CLUSTER, TOKEN, Webhook, served
from temporalio.worker import Worker

from gpu_runbooks.activities.kubernetes.client import Kubernetes, Object
from gpu_runbooks.activities.names import REMEDIATION_QUEUE, incident_id
from gpu_runbooks.workers.intake import handover, webhook_http
from gpu_runbooks.workers.intake import webhook as source
from gpu_runbooks.workers.intake.reception import Reception
from gpu_runbooks.workers.settings import Settings
from gpu_runbooks.workflows.node_remediation import NodeRemediation
from gpu_runbooks.workflows.search_attributes import RUNBOOK_FAULT, RUNBOOK_NODE, RUNBOOK_PHASE
from testbed.control_plane import ControlPlane
from testbed.kubeconfig import write_kubeconfig
from testbed.nodes import gpu_node
from testbed.ports import free_port
from testbed.temporal import Temporal

MakeNode = Callable[..., Awaitable[str]]


def recently(seconds: float = 60) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait long for workers that are not there."""
    monkeypatch.setattr(handover, "UPDATE_SECONDS", 1.0)


@pytest.mark.usefixtures("controller")
class TestTaken:
    async def test_an_alert_starts_the_incident_of_its_node(self, webhook: Webhook, node: str) -> None:
        status, body = await webhook.post(alert(node=node, xid="79"))

        incident = await webhook.incident(node)
        assert incident is not None
        assert status == 200
        assert body["alerts"] == [
            {
                "signal": "GpuXidCritical",
                "status": "started",
                "node": node,
                "reason": "",
                "workflow_id": f"node/{CLUSTER}/{node}",
                "run_id": incident.run_id,
            }
        ]
        attributes = incident.typed_search_attributes
        assert attributes[RUNBOOK_NODE] == node
        assert attributes[RUNBOOK_FAULT] == "xid:79"
        assert attributes[RUNBOOK_PHASE] == "waiting-for-slot"
        assert "xid 79" in (await incident.static_summary() or "")
        details = await incident.static_details() or ""
        for part in ("alertmanager", "xid 79", "gpu fault", "`xid-79`", "drain → replace"):
            assert part in details

    async def test_each_alert_is_decided_by_itself(self, webhook: Webhook, make_node: MakeNode) -> None:
        """The group fires; the resolved member starts nothing."""
        firing, resolved = await make_node(), await make_node()

        status, body = await webhook.post(
            alert(node=firing, fingerprint="f1"), alert("resolved", node=resolved, fingerprint="f2")
        )

        assert status == 200
        assert [each["status"] for each in body["alerts"]] == ["started", "ignored"]
        assert await webhook.incident(firing)
        assert await webhook.incident(resolved) is None

    async def test_replicas_and_repeats_start_one_incident(self, webhook: Webhook, node: str) -> None:
        """Two replicas at once, then a repeat."""
        replicas = await asyncio.gather(
            *(webhook.post(alert(node=node), externalURL=f"http://alertmanager-{each}") for each in range(2))
        )
        _, repeat = await webhook.post(alert(node=node))

        answers = [body["alerts"][0] for _, body in replicas]
        assert [status for status, _ in replicas] == [200, 200]
        assert sorted(answer["status"] for answer in answers) == ["duplicate", "started"]
        assert repeat["alerts"][0]["status"] == "duplicate"
        assert {*(answer["run_id"] for answer in answers), repeat["alerts"][0]["run_id"]} == {
            answers[0]["run_id"]
        }
        assert len(await webhook.fingerprints(node)) == 1

    async def test_another_fault_joins_and_its_repeat_changes_nothing(
        self, webhook: Webhook, node: str
    ) -> None:
        await webhook.post(alert(node=node, fingerprint="f1"))
        _, joined = await webhook.post(alert(node=node, fingerprint="f2"))
        status, _ = await webhook.post(alert(node=node, fingerprint="f2"))

        assert joined["alerts"][0]["status"] == "joined"
        assert status == 200
        assert len(await webhook.fingerprints(node)) == 2

    async def test_many_alerts_of_one_node_make_one_incident(self, webhook: Webhook, node: str) -> None:
        alerts = [alert(node=node, fingerprint=f"f{code}", xid=str(code)) for code in range(100, 125)]

        status, body = await webhook.post(*alerts)

        assert status == 200
        assert sorted(each["status"] for each in body["alerts"]) == ["joined"] * 24 + ["started"]
        assert len(await webhook.fingerprints(node)) == 25

    async def test_a_repeat_after_the_end_starts_nothing_and_a_new_onset_does(
        self, webhook: Webhook, node: str
    ) -> None:
        """What still fires from before is explained by the incident that ended."""
        onset = recently()
        _, first = await webhook.post(alert(node=node, onset=onset))
        await webhook.end_incident(node)

        _, repeat = await webhook.post(alert(node=node, onset=onset))
        _, news = await webhook.post(alert(node=node, onset=recently(0)))

        assert repeat["alerts"][0]["status"] == "ignored"
        assert "same episode, already remediated" in repeat["alerts"][0]["reason"]
        assert repeat["alerts"][0]["run_id"] == first["alerts"][0]["run_id"]
        assert news["alerts"][0]["status"] == "started"
        assert news["alerts"][0]["run_id"] != first["alerts"][0]["run_id"]

    async def test_a_repeat_is_recognised_also_after_a_later_incident(
        self, webhook: Webhook, node: str
    ) -> None:
        onset = recently()
        for fingerprint in ("f1", "f2"):
            await webhook.post(alert(node=node, fingerprint=fingerprint, onset=onset))
            await webhook.end_incident(node)
        listed = f"WorkflowId = '{incident_id(CLUSTER, node)}' AND ExecutionStatus = 'Completed'"
        async with asyncio.timeout(60):
            while (await webhook.temporal.count_workflows(listed)).count < 2:
                await asyncio.sleep(0.05)

        _, repeat = await webhook.post(alert(node=node, fingerprint="f1", onset=onset))

        assert repeat["alerts"][0]["status"] == "ignored"
        assert "same episode" in repeat["alerts"][0]["reason"]

    async def test_a_fault_of_another_machine_waits_until_this_incident_is_over(
        self, webhook: Webhook, admin: Kubernetes, node: str
    ) -> None:
        await webhook.post(alert(node=node, fingerprint="f1"))
        await admin.request("DELETE", f"/api/v1/nodes/{node}")
        await admin.request(
            "POST", "/api/v1/nodes", body=gpu_node(node, "i-0aaaaaaaaaaaaaaa1", pool="intake-tests")
        )

        status, body = await webhook.post(alert(node=node, fingerprint="f2"))

        assert status == 503  # Alertmanager sends it again, and nothing is lost
        assert body["alerts"][0]["status"] == "unavailable"
        assert "another machine" in body["alerts"][0]["reason"]

    async def test_what_was_cut_off_is_in_answer_and_audit(self, webhook: Webhook, node: str) -> None:
        _, body = await webhook.post(alert(node=node), truncatedAlerts=38)

        incident = await webhook.incident(node)
        assert incident is not None
        assert body["truncated"] == 38
        assert "cut 38 more alerts" in (await incident.static_details() or "")

    async def test_addresses_in_the_notification_are_not_fetched(self, webhook: Webhook, node: str) -> None:
        """B125"""
        connections = []
        server = await asyncio.start_server(lambda *peer: connections.append(peer), "127.0.0.1", 0)
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/latest/meta-data/"
        tempting = alert(node=node) | {
            "annotations": {"runbook_url": address, "summary": address, "dashboard": "file:///etc/passwd"},
            "generatorURL": address,
        }

        async with server:
            status, _ = await webhook.post(tempting, externalURL=address)

        assert status == 200
        assert connections == []


class TestRefused:
    async def test_without_the_token_nothing_is_started(self, webhook: Webhook, node: str) -> None:
        for token in (None, "", "wrong", f"{TOKEN}x"):
            status, body = await webhook.post(alert(node=node), token=token)
            assert status == 401
            assert TOKEN not in str(body)
        assert await webhook.incident(node) is None

    async def test_two_authorization_headers_are_refused(self, webhook: Webhook, node: str) -> None:
        headers = [("Authorization", f"Bearer {TOKEN}"), ("Authorization", "Bearer wrong")]
        async with (
            aiohttp.ClientSession() as session,
            session.post(
                f"{webhook.url}/alertmanager", json=notification(alert(node=node)), headers=headers
            ) as response,
        ):
            assert response.status == 401
        assert await webhook.incident(node) is None

    async def test_the_body_is_not_read_before_the_token(self, webhook: Webhook) -> None:
        assert (await webhook.post_body(b"not json", token=None))[0] == 401

    @pytest.mark.parametrize("body", [b"not json", notification(alerts=None), [], {}])
    async def test_a_malformed_body_is_400(self, webhook: Webhook, body: object) -> None:
        status, answer = await webhook.post_body(body)

        assert status == 400
        assert "not a webhook of Alertmanager" in answer["error"]

    async def test_a_body_too_large_is_413(self, webhook: Webhook) -> None:
        async with (
            aiohttp.ClientSession() as session,
            session.post(
                f"{webhook.url}/alertmanager",
                data=BytesIO(b" " * 30 * webhook_http.LONGEST_BODY),
                headers={"Authorization": f"Bearer {TOKEN}"},
            ) as response,
        ):
            assert response.status == 413

    async def test_what_names_no_node_of_a_pool_is_refused_with_200(
        self, webhook: Webhook, make_node: MakeNode
    ) -> None:
        """A 4xx would lose the other alerts of the group."""
        elsewhere = await make_node("no-pool-of-the-policy")

        status, body = await webhook.post(
            alert(job="dcgm-exporter", fingerprint="f1"),
            alert(kubernetes_node="gpu-a9-deleted", fingerprint="f2"),
            alert(node=f"{elsewhere}/status", fingerprint="f3"),
            alert(node=elsewhere, fingerprint="f4"),
        )

        assert status == 200
        assert {each["status"] for each in body["alerts"]} == {"refused"}
        for each, reason in zip(
            body["alerts"], ("no label names", "no Node has", "no Node has", "in no pool"), strict=True
        ):
            assert reason in each["reason"]
        assert await webhook.incident(elsewhere) is None

    async def test_health_is_open_and_names_no_node(self, webhook: Webhook, node: str) -> None:
        async with aiohttp.ClientSession() as session, session.get(f"{webhook.url}/healthz") as response:
            assert response.status == 200
            assert node not in await response.text()

    async def test_it_does_not_start_where_anyone_could_post(self) -> None:
        with pytest.raises(ValueError, match="GPU_RUNBOOKS_WEBHOOK_TOKEN_FILE"):
            await source.run(None, Settings(listen=f"0.0.0.0:{free_port()}"), asyncio.Event())


@pytest.mark.usefixtures("quick")
class TestAway:
    async def test_it_starts_and_says_503_without_temporal(
        self, tmp_path: Path, temporal: Temporal, kubeconfig: Path, node: str
    ) -> None:
        """503 makes Alertmanager send again."""
        async with served(tmp_path, temporal, kubeconfig, address=f"127.0.0.1:{free_port()}") as webhook:
            status, body = await webhook.post(alert(node=node))

        assert status == 503
        assert body["alerts"][0]["status"] == "unavailable"

    @pytest.mark.usefixtures("controller")
    async def test_a_temporal_that_went_away_is_503_until_it_is_back(
        self, webhook: Webhook, temporal: Temporal, node: str
    ) -> None:
        await webhook.post(alert(job="makes the connection"))
        await temporal.stop()
        status, _ = await webhook.post(alert(node=node))
        await temporal.resume()

        assert status == 503
        async with asyncio.timeout(60):
            while (await webhook.post(alert(node=node)))[0] == 503:
                pass
        assert await webhook.incident(node)

    async def test_without_kubernetes_it_is_503(
        self, tmp_path: Path, temporal: Temporal, control_plane: ControlPlane, node: str
    ) -> None:
        nobody = write_kubeconfig(
            tmp_path / "kubeconfig",
            url=f"https://127.0.0.1:{free_port()}",
            authority=control_plane.directory / "pki" / "apiserver.crt",
            token="unused",
        )
        async with served(tmp_path, temporal, nobody) as webhook:
            status, body = await webhook.post(alert(node=node))

        assert status == 503
        assert body["alerts"][0]["status"] == "unavailable"
        assert "send it again" in body["alerts"][0]["reason"]
        assert await webhook.incident(node) is None

    async def test_without_a_worker_a_new_incident_is_durable(self, webhook: Webhook, node: str) -> None:
        status, body = await webhook.post(alert(node=node))
        _, repeat = await webhook.post(alert(node=node))
        other, _ = await webhook.post(alert(node=node, fingerprint="f2"))

        await webhook.temporal.get_workflow_handle(incident_id(CLUSTER, node)).terminate()
        assert (status, body["alerts"][0]["status"]) == (200, "started"), body
        assert repeat["alerts"][0]["status"] == "duplicate"
        assert other == 503, "an update that no worker accepted can be lost"

    @pytest.mark.usefixtures("controller")
    async def test_an_api_server_too_slow_for_a_whole_notification_gets_it_done_in_several(
        self, webhook: Webhook, make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In the time for a notification it shows two of three Nodes."""
        monkeypatch.setattr(source, "AT_ONCE", 1)
        monkeypatch.setattr(source, "TAKING_SECONDS", 1.0)
        find, asked = Reception.find_node, []

        async def find_slowly(reception: Reception, name: str) -> Object | None:
            asked.append(name)
            if len(asked) > 2:
                await asyncio.Event().wait()
            return await find(reception, name)

        monkeypatch.setattr(Reception, "find_node", find_slowly)
        nodes = [await make_node() for _ in range(3)]
        alerts = [alert(node=name, Hostname=name, fingerprint=name) for name in nodes]

        async with asyncio.timeout(60):
            while not all([await webhook.incident(name) for name in nodes]):
                asked.clear()
                status, body = await webhook.post(*alerts)
                assert status == 503
                assert len(asked) == len(set(asked)), "each Node is asked for once"
                assert [each["signal"] for each in body["alerts"]] == ["GpuXidCritical"] * 3

    @pytest.mark.usefixtures("controller")
    async def test_one_alert_that_cannot_be_taken_makes_all_come_again(
        self, webhook: Webhook, make_node: MakeNode
    ) -> None:
        """The two that were taken are recognised in the second delivery."""
        nodes = [await make_node() for _ in range(3)]
        stuck = await webhook.temporal.start_workflow(
            "Nobody", id=incident_id(CLUSTER, nodes[1]), task_queue="nobody-works-here"
        )
        alerts = [alert(node=name, fingerprint=name) for name in nodes]

        first, before = await webhook.post(*alerts)
        await stuck.terminate()
        second, after = await webhook.post(*alerts)

        assert (first, second) == (503, 200)
        assert [each["status"] for each in before["alerts"]] == ["started", "unavailable", "started"]
        assert [each["status"] for each in after["alerts"]] == ["duplicate", "started", "duplicate"]


async def test_what_needs_nothing_ends_in_the_real_workflow_and_its_repeat_is_known(
    webhook: Webhook, temporal: Temporal, node: str
) -> None:
    onset = recently()
    async with Worker(temporal.client, task_queue=REMEDIATION_QUEUE, workflows=[NodeRemediation]):
        _, first = await webhook.post(alert(node=node, xid="92", onset=onset))
        result = await temporal.client.get_workflow_handle(incident_id(CLUSTER, node)).result()
        _, repeat = await webhook.post(alert(node=node, xid="92", onset=onset))

    assert result["outcome"] == "left-alone"
    assert first["alerts"][0]["status"] == "started"
    assert repeat["alerts"][0]["status"] == "ignored"
    assert "same episode, already answered" in repeat["alerts"][0]["reason"]
