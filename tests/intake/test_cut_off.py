"""Alerts that Alertmanager cut off a notification, as the guard of the fleet hears of them."""

import json
from datetime import timedelta
from typing import Any

import pytest
from intake.alerts import RECEIVED, alert, fresh, notification
from intake.conftest import CLUSTER, Webhook, served
from intake.test_telling_guard import settled
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
    return cut_off(read_webhook(body), StormRule(), ("node",), RECEIVED)


def of_node(*args: str, **labels: str) -> dict[str, Any]:
    return alert(*args, **{"node": "gpu-a1", **labels})


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
        ([of_node(xid="79")], "xid 79"),
        ([of_node(xid="48"), of_node(xid="79"), of_node(xid="79")], "xid 79"),
        ([of_node("resolved", xid="48"), of_node("resolved", xid="48"), of_node(xid="79")], "xid 79"),
        ([of_node()], "alert GpuXidCritical"),
        ([of_node(xid="nan")], "alert of a kind that nobody knows"),
        ([], "alert of a kind that nobody knows"),
        ([of_node(), {"status": 7}], "alert GpuXidCritical"),
        ([of_node(xid="0"), alert(alertname="Watchdog"), of_node()], "alert GpuXidCritical"),
    ],
)
def test_what_is_there_says_of_what_kind_the_rest_is(alerts, kind):
    word = hidden(*alerts)
    assert word is not None
    assert word.signature == kind


@pytest.mark.parametrize(
    "alerts",
    [
        [of_node(alertname="GpuRunbookNeedsOperator")],
        [of_node("resolved", xid="79")],
        [alert(alertname="Watchdog")],
        [alert(xid="79", instance="10.0.0.1:9400")],
        [of_node(xid="0")],
        [of_node("resolved"), of_node(alertname="GpuRunbookSweepFinding"), alert(alertname="Watchdog")],
    ],
    ids=["our own", "resolved", "of no node", "an address", "no code", "each for another reason"],
)
def test_nothing_is_told_where_no_alert_that_is_there_is_a_fault_of_a_node(alerts):
    assert hidden(*alerts) is None


def test_nothing_is_told_where_nothing_was_cut_off():
    assert hidden(of_node(), truncatedAlerts=0) is None


def test_a_group_is_known_whichever_of_its_alerts_are_there_and_only_what_more_is_cut_off_counts():
    guard = Fleet(cluster="test")
    for minute, count in enumerate((38, 38, 40, 39, 40)):
        word = hidden(of_node(node=f"gpu-a{minute}", fingerprint=f"f{minute}"), truncatedAlerts=count)
        assert word is not None
        guard.see_truncated(word, RECEIVED + timedelta(minutes=minute))
    (storm,) = guard.storms
    assert storm.hidden == 40


@pytest.mark.parametrize(("later", "counted"), [(timedelta(hours=24), 0), (timedelta(hours=26), 5)])
def test_a_group_that_was_not_heard_of_for_a_day_begins_anew(later, counted):
    guard, word = Fleet(cluster="test"), hidden(of_node(), truncatedAlerts=5)
    assert word is not None
    word = word.model_copy(update={"rule": StormRule(nodes=100)})
    for moment in (RECEIVED, RECEIVED + later):
        guard.see_truncated(word, moment)
    anew = [each.hidden for seen in guard.seen.values() for each in seen if each.at == RECEIVED + later]
    assert sum(anew) == counted


def test_another_group_is_another_delivery_and_a_key_that_is_none_is_no_error():
    words = [hidden(of_node()), hidden(of_node(), groupKey="{}:{}"), hidden(of_node(), groupKey=7)]
    assert len({word.delivery for word in words if word}) == 3


async def test_the_guard_is_told_and_started_and_knows_a_delivery_that_comes_again(
    webhook: Webhook, controller: None, node: str
) -> None:
    body = notification(fresh(node=node), truncatedAlerts=38)
    for _ in range(2):
        status, _ = await webhook.post_body(body)
        assert status == 200
    await settled(webhook)
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
    rule = StormRule(group_wait=timedelta(seconds=15))
    assert (words[0].count, words[0].signature, words[0].rule) == (38, "alert GpuXidCritical", rule)
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
