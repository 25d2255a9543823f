"""Faults of a node whose owners opted out, as incidents and the guard of the fleet hear of them."""

import pytest
from intake.alerts import fresh
from intake.conftest import Webhook
from intake.test_telling_guard import told

from gpu_runbooks.activities.kubernetes.client import MERGE_PATCH, Kubernetes
from gpu_runbooks.activities.names import OPT_OUT_LABEL


@pytest.mark.usefixtures("controller")
async def test_nothing_begins_while_the_label_stands_and_the_same_alert_begins_anew_without_it(
    webhook: Webhook, node: str, admin: Kubernetes
) -> None:
    async def label(value: str | None) -> None:
        body = {"metadata": {"labels": {OPT_OUT_LABEL: value}}}
        await admin.request("PATCH", f"/api/v1/nodes/{node}", body=body, content_type=MERGE_PATCH)

    async def answer(xid: str) -> str:
        status, body = await webhook.post(fresh(node=node, xid=xid, fingerprint=xid))
        assert status == 200
        (said,) = body["alerts"]
        assert said["status"] != "ignored" or f"kubectl label node {node} {OPT_OUT_LABEL}-" in said["reason"]
        return str(said["status"])

    await label("true")
    assert [await answer("79"), await answer("79")] == ["ignored", "ignored"]
    assert await webhook.incident(node) is None

    await label(None)
    assert await answer("79") == "started"
    assert len(await told(webhook, node)) == 1, "only now"

    await label("true")
    assert await answer("48") == "joined", "an incident that is under way asks what to do"
    assert len(await told(webhook, node)) == 1
