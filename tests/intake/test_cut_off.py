"""Alerts that Alertmanager cut off a notification, as the guard of the fleet hears of them."""

import json
from typing import Any

import pytest
from intake.alerts import RECEIVED, alert, fresh, notification
from intake.conftest import CLUSTER, Webhook, served
from temporalio.api.enums.v1 import EventType
from temporalio.contrib.pydantic import pydantic_data_converter

from gpu_runbooks.activities.model.fleet import AlertsTruncated, FaultSeen, StormRule
from gpu_runbooks.activities.names import fleet_id
from gpu_runbooks.workers.intake.alert_faults import fault_of
from gpu_runbooks.workers.intake.alertmanager import Alert, read_webhook
from gpu_runbooks.workers.intake.cut_off import cut_off
from gpu_runbooks.workflows.storms import Fleet
from gpu_runbooks.workflows.traits import signature


def hidden(*alerts: Any, **fields: Any) -> AlertsTruncated | None:
    body = json.dumps(notification(*alerts, **{"truncatedAlerts": 38, **fields})).encode()
    return cut_off(read_webhook(body), StormRule(), RECEIVED)


def test_two_delivered_and_thirty_eight_cut_off_are_a_storm_of_forty():
    two = [alert(node="gpu-a1", fingerprint="x1"), alert(node="gpu-a2", fingerprint="x2")]
    word = hidden(*two)
    assert word is not None
    guard = Fleet(cluster="test")
    guard.see_truncated(word, RECEIVED)
    for number, raw in enumerate(two):
        kind = signature(fault_of(Alert.model_validate(raw), RECEIVED))
        seen = FaultSeen(node=f"gpu-a{number}", pool="p", signature=kind)
        guard.see(seen, StormRule(), RECEIVED)
    (storm,) = guard.storms
    assert storm.nodes + storm.hidden == 40
    assert guard.brake("p").mode == "stop"


@pytest.mark.parametrize(
    ("alerts", "kind"),
    [
        ([alert(xid="79")], "xid 79"),
        ([alert(xid="48"), alert(xid="79"), alert(xid="79")], "xid 79"),
        ([alert("resolved", xid="79")], "xid 79"),
        ([alert()], "alert GpuXidCritical"),
        ([alert(xid="0")], "alert of a kind that nobody knows"),
        ([], "alert of a kind that nobody knows"),
        ([alert(), {"status": 7}], "alert GpuXidCritical"),
    ],
)
def test_what_is_there_says_of_what_kind_the_rest_is(alerts, kind):
    word = hidden(*alerts)
    assert word is not None
    assert word.signature == kind


def test_nothing_is_told_where_nothing_was_cut_off():
    assert hidden(alert(), truncatedAlerts=0) is None


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ([alert(node="a")], True),
        ([alert("resolved", node="a")], True),
        ([alert(node="a", fingerprint="f2")], False),
        ([alert(node="a", onset="2026-03-01T11:00:00Z")], False),
    ],
    ids=["sent again", "resolved meanwhile", "another alert", "another onset"],
)
def test_a_delivery_is_known_by_its_alerts(other, same):
    first, second = hidden(alert(node="a")), hidden(*other)
    assert first is not None
    assert second is not None
    assert (first.delivery == second.delivery) is same


def test_another_group_is_another_delivery_and_a_key_that_is_none_is_no_error():
    first, second, third = hidden(alert()), hidden(alert(), groupKey="{}:{}"), hidden(alert(), groupKey=7)
    assert len({word.delivery for word in (first, second, third) if word}) == 3


async def test_the_guard_is_told_and_started_and_knows_a_delivery_that_comes_again(
    webhook: Webhook, controller: None, node: str
) -> None:
    body = notification(fresh(node=node), truncatedAlerts=38)
    for _ in range(2):
        status, _ = await webhook.post_body(body)
        assert status == 200
    guard = webhook.temporal.get_workflow_handle(fleet_id(CLUSTER))
    history = await guard.fetch_history()
    kind = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
    signalled = [
        event.workflow_execution_signaled_event_attributes
        for event in history.events
        if event.event_type == kind
    ]
    payloads = [each.input.payloads for each in signalled if each.signal_name == "alerts_truncated"]
    words = [
        (await pydantic_data_converter.decode(payload, [AlertsTruncated]))[0] for payload in payloads[-2:]
    ]
    assert (words[0].count, words[0].signature, words[0].rule) == (38, "alert GpuXidCritical", StormRule())
    assert words[0] == words[1]
    known = await guard.query("state", result_type=Fleet)
    assert known.deliveries[words[0].delivery] == 38


async def test_without_temporal_it_is_to_be_sent_again(tmp_path, temporal, kubeconfig) -> None:
    async with served(tmp_path, temporal, kubeconfig, address="127.0.0.1:1") as webhook:
        status, body = await webhook.post_body(notification(truncatedAlerts=38))
    assert status == 503
    (answer,) = body["alerts"]
    assert (answer["signal"], answer["status"]) == ("truncatedAlerts", "unavailable")
    assert "38 alerts" in answer["reason"]
