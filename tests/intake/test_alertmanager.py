"""Notifications to faults: tables. B numbers name failures that operators of such systems reported."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from intake.alerts import RECEIVED, alert, notification

from gpu_runbooks.activities.model.fault import Entity, Fault, FaultSource
from gpu_runbooks.workers.intake.alert_faults import LONGEST_SUMMARY, AlertIgnored, fault_of, pci_address
from gpu_runbooks.workers.intake.alertmanager import (
    MOST_ALERTS,
    Alert,
    AlertRefused,
    MalformedError,
    TooManyAlertsError,
    Unreadable,
    is_node_name,
    read_webhook,
    target_of,
)
from gpu_runbooks.workflows.policy.intake import Intake

LABELS = Intake().node_labels
NODES = {"gpu-a1", "gpu-a2"}
UUID = "GPU-00000000-0000-4000-8000-000000000003"


def parsed(**changes: Any) -> Alert:
    return Alert.model_validate_json(json.dumps(alert(**changes)))


def fault(**changes: Any) -> Fault:
    return fault_of(parsed(**changes), RECEIVED)


class TestReading:
    def test_a_notification_is_its_alerts_and_how_many_were_cut_off(self) -> None:
        """The tail is cut for good, and only the counter tells."""
        body = notification(alert(node="gpu-a1"), alert(node="gpu-a2"), truncatedAlerts=38)

        webhook = read_webhook(json.dumps(body).encode())

        assert [each.labels["node"] for each in webhook.alerts] == ["gpu-a1", "gpu-a2"]
        assert webhook.truncated_alerts == 38

    @pytest.mark.parametrize(
        ("body", "complaint"),
        [
            (b"", "body: Invalid JSON"),
            (b"not json", "body: Invalid JSON"),
            (b"[]", "body: Input should be an object"),
            (b"[" * 100_000, "body: Invalid JSON"),
            (b"{}", "version: Field required"),
            (json.dumps(notification(alerts=None)).encode(), "alerts: Input should be"),
            (json.dumps(notification(version="3")).encode(), "version: Input should be '4'"),
            (json.dumps(notification({"status": "firing"})).encode(), "alerts.0.labels: Field required"),
            (
                json.dumps(notification(alert(status="suppressed"))).encode(),
                "alerts.0.status: Input should be",
            ),
            (json.dumps(notification(alert(onset="0001-01-01T00:00:00Z"))).encode(), "alerts.0.startsAt"),
            (
                json.dumps(notification(alert(onset="2026-03-01T10:00:00"))).encode(),
                "RFC 3339 with its timezone",
            ),
            (json.dumps(notification(alert() | {"startsAt": 0})).encode(), "alerts.0.startsAt"),
            (json.dumps(notification(alert(fingerprint=""))).encode(), "alerts.0.fingerprint"),
            (json.dumps(notification(alert() | {"labels": {"xid": 79}})).encode(), "alerts.0.labels.xid"),
            (json.dumps(notification(alert() | {"startsAt": "1772359200"})).encode(), "alerts.0.startsAt"),
            (json.dumps(notification(alert() | {"labels": None})).encode(), "alerts.0.labels"),
            (json.dumps(notification(alert() | {"labels": {"a": None}})).encode(), "alerts.0.labels.a"),
            (json.dumps(notification(alert() | {"annotations": []})).encode(), "alerts.0.annotations"),
            (json.dumps(notification("firing")).encode(), "alerts.0: Input should be"),
            (json.dumps(notification(alert(**{f"l{n}": "" for n in range(300)}))).encode(), "at most 256"),
            (json.dumps(notification(alert(), truncatedAlerts=-1)).encode(), "truncatedAlerts"),
            (json.dumps(notification(alert(), truncatedAlerts="38")).encode(), "truncatedAlerts"),
            (json.dumps(notification(alert(), truncatedAlerts=10**40)).encode(), "truncatedAlerts"),
            (json.dumps(notification(alert(), alerts={})).encode(), "alerts: Input should be"),
            (json.dumps(notification(alert())).encode() + b"{}", "body: Invalid JSON"),
            (b'{"version": "4", "alerts": ' + b"[" * 100_000, "body: Invalid JSON"),
            (b"\xff\xfe", "body: Invalid JSON"),
        ],
    )
    def test_what_is_no_notification_names_the_wrong_field(self, body: bytes, complaint: str) -> None:
        """Malformed is 400, whatever is wrong with it."""
        with pytest.raises(MalformedError) as raised:
            read_webhook(body)

        assert complaint in str(raised.value)
        assert len(str(raised.value)) < 1100
        assert str(raised.value).isprintable()

    @pytest.mark.parametrize(
        "broken",
        [
            {"status": "firing"},
            alert(onset="0001-01-01T00:00:00Z"),
            alert(status="suppressed"),
            alert() | {"labels": {"node": ["gpu-a1"]}},
            alert() | {"fingerprint": 7},
            None,
            [],
        ],
    )
    def test_one_broken_alert_loses_no_other(self, broken: Any) -> None:
        """It is told which one it was; its neighbours are read."""
        body = notification(alert(node="gpu-a1"), broken, alert(node="gpu-a2", fingerprint="f2"))

        first, second, third = read_webhook(json.dumps(body).encode()).alerts

        assert isinstance(first, Alert)
        assert isinstance(second, Unreadable)
        assert isinstance(third, Alert)
        assert second.reason.startswith("alerts.1")

    def test_the_names_of_wrong_fields_are_the_senders_and_are_cut(self) -> None:
        body = notification(alert() | {"labels": {"\n\x1b[31mINFO started" + "x" * 100_000: 1}}, alert())

        broken, _ = read_webhook(json.dumps(body).encode()).alerts

        assert isinstance(broken, Unreadable)
        assert broken.reason.isprintable()
        assert len(broken.reason) < 200

    def test_what_cannot_matter_is_not_kept(self) -> None:
        """Memory holds what is used of a notification, whatever was sent."""
        labels = {f"label{number}": "x" * 100 for number in range(200)} | {"node": "gpu-a1", "xid": "79"}
        sent = alert(**labels) | {"annotations": {"summary": "s" * 1_000_000, "dashboard": "d" * 1_000_000}}

        (kept,) = read_webhook(json.dumps(notification(sent)).encode(), {"node", "xid"}).alerts

        assert isinstance(kept, Alert)
        assert kept.labels == {"node": "gpu-a1", "xid": "79"}
        assert kept.annotations == {"summary": "s" * 2000}

    def test_more_alerts_than_anyone_groups_are_refused(self) -> None:
        with pytest.raises(TooManyAlertsError, match="max_alerts"):
            read_webhook(json.dumps(notification(*[{}] * (MOST_ALERTS + 1))).encode())

    def test_a_firing_group_does_not_make_a_resolved_alert_fire(self) -> None:
        """The group fires as long as one member does; a label named status means nothing."""
        resolved = alert(status="resolved", node="gpu-a2") | {
            "labels": {"status": "firing", "node": "gpu-a2"}
        }
        first, second = read_webhook(json.dumps(notification(alert(node="gpu-a1"), resolved)).encode()).alerts

        assert fault_of(first, RECEIVED).source is FaultSource.ALERT
        with pytest.raises(AlertIgnored, match="hint only"):
            fault_of(second, RECEIVED)


class TestTarget:
    @pytest.mark.parametrize(
        ("labels", "node"),
        [
            ({"node": "gpu-a1"}, "gpu-a1"),
            ({"Hostname": "gpu-a1", "instance": "10.4.7.22:9400"}, "gpu-a1"),
            ({"kubernetes_node": "gpu-a2"}, "gpu-a2"),
            ({"node": "gpu-a1", "Hostname": "nvidia-dcgm-exporter-k7x2q"}, "gpu-a1"),
            ({"node": "gpu-a1", "Hostname": "gpu-a1"}, "gpu-a1"),
        ],
    )
    def test_one_live_node_is_named(self, labels: dict[str, str], node: str) -> None:
        """By a label of the policy's list, verified against the nodes that exist."""
        assert target_of(parsed(**labels), LABELS, NODES) == node

    @pytest.mark.parametrize(
        ("labels", "reason"),
        [
            ({"Hostname": "nvidia-dcgm-exporter-k7x2q", "instance": "10.4.7.21:9400"}, "no Node has exactly"),
            ({"node": "gpu-a1.eu-north-1.compute.internal"}, "no Node has exactly"),
            ({"instance": "10.4.7.23:9400"}, "an address with a port is no name"),
            ({"instance": "gpu-a1:9400"}, "an address with a port is no name"),
            ({"kubernetes_node": "gpu-a9-deleted"}, "no Node has exactly"),
            ({"node": "gpu-a9-deleted", "Hostname": "gpu-a1"}, "label node says 'gpu-a9-deleted'"),
            (
                {"node": "gpu-a1", "Hostname": "gpu-a2"},
                "node says node gpu-a1, label Hostname says node gpu-a2",
            ),
            ({"node": "GPU-A1"}, "no Node has exactly"),
            ({"node": " gpu-a1"}, "no Node has exactly"),
            ({"node": "gpu-a1:9400"}, "no Node has exactly"),
            ({"node": "gpu-a1."}, "no Node has exactly"),
            ({"node": "gpu-\u0430" + "1"}, "'gpu-\\u04301'"),
            ({"node": "gpu\u2010a1"}, "no Node has exactly"),
            ({"node": "\uff47pu-a1"}, "no Node has exactly"),
            ({"node": "../gpu-a1"}, "no Node has exactly"),
            ({"node": "gpu-a1/status"}, "no Node has exactly"),
            ({"node": "gpu-a1%2Fstatus"}, "no Node has exactly"),
            ({"node": "--all"}, "no Node has exactly"),
            ({"node": "{{ $labels.node }}"}, "no Node has exactly"),
            ({"node": "${NODE}"}, "no Node has exactly"),
            ({"node": "$(reboot)"}, "no Node has exactly"),
            ({"node": "gpu-a1\x00"}, "no Node has exactly"),
            ({"node": "gpu-a1\nINFO gpu-a2 started"}, "'gpu-a1\\nINFO"),
            ({"node": "*"}, "no Node has exactly"),
            ({"node": "a" * 300}, "no Node has exactly"),
            ({"job": "dcgm-exporter"}, "no label names a node"),
            ({}, "no label names a node"),
        ],
    )
    def test_nothing_is_guessed(self, labels: dict[str, str], reason: str) -> None:
        """An alert of absent() names nobody."""
        with pytest.raises(AlertRefused) as raised:
            target_of(parsed(**labels), LABELS, NODES)

        assert reason in str(raised.value)
        assert str(raised.value).isprintable()
        assert len(str(raised.value)) < 400

    @pytest.mark.parametrize(
        ("name", "valid"),
        [
            ("gpu-a1", True),
            ("ip-10-0-0-1.ec2.internal", True),
            ("10.4.7.22", True),
            ("", False),
            ("gpu-a1/status", False),
            ("../secrets", False),
            ("gpu-a1?watch=1", False),
            ("gpu a1", False),
            ("-gpu", False),
            ("gpu..a1", False),
            ("gpu-a1\n", False),
            ("a" * 254, False),
        ],
    )
    def test_only_a_node_name_is_asked_for(self, name: str, valid: bool) -> None:
        assert is_node_name(name) is valid


class TestFault:
    @pytest.mark.parametrize(
        ("xid", "code"),
        [("79", "79"), (" 79", "79"), ("79.0", "79"), ("079", "79"), ("79,94", "79,94"), ("Xid79", "Xid79")],
    )
    def test_an_xid_has_one_spelling(self, xid: str, code: str) -> None:
        found = fault(xid=xid)

        assert (found.source, found.code) == (FaultSource.XID, code)

    @pytest.mark.parametrize("xid", ["", "  "])
    def test_without_an_xid_the_alert_is_the_code(self, xid: str) -> None:
        assert (fault(xid=xid).source, fault(xid=xid).code) == (FaultSource.ALERT, "GpuXidCritical")

    @pytest.mark.parametrize("label", ["xid", "sxid", "dcgm_health_code", "health_error_code"])
    @pytest.mark.parametrize("zero", ["0", "0.0", " 00"])
    def test_code_zero_is_none(self, label: str, zero: str) -> None:
        with pytest.raises(AlertIgnored, match=f"{label} 0 means that there was none"):
            fault(**{label: zero})

    @pytest.mark.parametrize(
        ("labels", "source", "code"),
        [
            ({"sxid": "20034"}, FaultSource.SXID, "20034"),
            ({"sxid": "20034.0"}, FaultSource.SXID, "20034"),
            ({"sxid": "20034,20001"}, FaultSource.SXID, "20034,20001"),
            ({"dcgm_health_code": "81"}, FaultSource.DCGM, "81"),
            ({"dcgm_health_code": "081"}, FaultSource.DCGM, "81"),
            ({"dcgm_health_code": "81.0"}, FaultSource.DCGM, "81"),
            (
                {"health_error_code": "DCGM_FR_UNCONTAINED_ERROR"},
                FaultSource.DCGM,
                "DCGM_FR_UNCONTAINED_ERROR",
            ),
            ({"xid": "79", "dcgm_health_code": "101"}, FaultSource.XID, "79"),
            ({"xid": "", "sxid": "20034"}, FaultSource.SXID, "20034"),
        ],
    )
    def test_other_codes_than_xids(self, labels: dict[str, str], source: FaultSource, code: str) -> None:
        assert (fault(**labels).source, fault(**labels).code) == (source, code)

    @pytest.mark.parametrize(
        ("written", "action"),
        [
            ("2", 2),
            ("0", 0),
            (" 4 ", 4),
            ("17", 17),
            ("", None),
            ("-1", None),
            ("reset", None),
            ("999", None),
        ],
    )
    def test_the_drivers_recovery_action(self, written: str, action: int | None) -> None:
        assert fault(xid="48", recovery_action=written).recovery_action == action

    @pytest.mark.parametrize(
        ("labels", "pod"),
        [
            ({"exported_namespace": "team-a", "exported_pod": "train-0"}, "team-a/train-0"),
            ({"namespace": "team-a", "pod": "train-0"}, "team-a/train-0"),
            (
                {"exported_namespace": "team-a", "exported_pod": "train-0", "namespace": "gpu", "pod": "x"},
                "team-a/train-0",
            ),
            ({"namespace": "gpu-operator", "pod": "nvidia-dcgm-exporter-k7x2q"}, ""),
            ({"namespace": "gpu", "pod": "exporter-k7x2q", "Hostname": "exporter-k7x2q"}, ""),
            ({"pod": "train-0"}, ""),
            ({"namespace": "team-a", "pod": "../train-0"}, ""),
            ({"namespace": "team.a", "pod": "train-0"}, ""),
            ({"namespace": "a" * 64, "pod": "train-0"}, ""),
            ({"exported_namespace": "", "exported_pod": "train-0", "namespace": "a", "pod": "b"}, ""),
            ({"namespace": "{{ $labels.namespace }}", "pod": "train-0"}, ""),
            ({}, ""),
        ],
    )
    def test_the_pod_at_work(self, labels: dict[str, str], pod: str) -> None:
        """Only where both are names; the exporter's own pod is nobody's work."""
        assert fault(**labels).pod == pod

    @pytest.mark.parametrize(
        ("labels", "place"),
        [({"GPU_I_ID": "3"}, "MIG instance 3"), ({"GPU_I_ID": ""}, ""), ({"GPU_I_ID": "3; x"}, ""), ({}, "")],
    )
    def test_the_mig_instance_is_a_place_of_the_gpu(self, labels: dict[str, str], place: str) -> None:
        found = fault(UUID=UUID, **labels)
        assert (found.place, found.entity.uuid) == (place, UUID)

    def test_the_boot_in_which_it_was_seen(self) -> None:
        boot = "b0000000-0000-4000-8000-000000000001"
        assert fault(boot_id=boot.upper()).boot_id == boot
        assert fault(boot_id="the last one").boot_id == ""

    @pytest.mark.parametrize(
        "labels",
        [
            {"alertname": ""},
            {"alertname": "a" * 129},
            {"xid": "é" * 65},
            {"alertname": "Gpu\nINFO all is well"},
            {"alertname": "Gpu\x00"},
            {"alertname": "![x](http://192.0.2.1/)"},
            {"alertname": "<img src=x>"},
            {"xid": "79\x1b[31m"},
            {"sxid": "`x`"},
        ],
    )
    def test_a_fault_without_a_usable_code_is_refused(self, labels: dict[str, str]) -> None:
        with pytest.raises(AlertRefused):
            fault(**labels)

    @pytest.mark.parametrize(
        ("labels", "entity"),
        [
            ({}, Entity()),
            ({"UUID": UUID}, Entity(kind="gpu", uuid=UUID)),
            ({"gpu_uuid": UUID.lower().replace("gpu-", "GPU-")}, Entity(kind="gpu", uuid=UUID)),
            ({"pci_bus_id": "00000000:4C:00.0"}, Entity(kind="gpu", pci_address="0000:4c:00")),
            (
                {"UUID": UUID, "pci_address": "0000:4c:00.0"},
                Entity(kind="gpu", uuid=UUID, pci_address="0000:4c:00"),
            ),
            ({"UUID": "MIG-00000000-0000-4000-8000-000000000003"}, Entity()),
            ({"UUID": "3"}, Entity()),
            ({"UUID": UUID, "gpu_uuid": UUID.replace("3", "4")}, Entity()),
            (
                {"sxid": "20034", "pci_bus_id": "0000:c1:00.0"},
                Entity(kind="nvswitch", pci_address="0000:c1:00"),
            ),
            ({"sxid": "20034", "UUID": UUID}, Entity()),
            ({"pci_bus_id": "00000000:4C:00.0", "pci_address": "00000000:5D:00.0"}, Entity()),
        ],
    )
    def test_the_gpu_that_the_labels_name(self, labels: dict[str, str], entity: Entity) -> None:
        assert fault(**labels).entity == entity

    @pytest.mark.parametrize(
        ("written", "address"),
        [
            ("00000000:4C:00.0", "0000:4c:00"),
            ("0000:4c:00.0", "0000:4c:00"),
            ("PCI:0000:4c:00", "0000:4c:00"),
            ("4c:00.0", "0000:4c:00"),
            ("00010000:4c:00.0", None),
            ("0001:4c:00", "0001:4c:00"),
            ("4c", None),
            ("0000:4c:00.0; rm", None),
        ],
    )
    def test_pci_addresses(self, written: str, address: str | None) -> None:
        assert pci_address(written) == address

    def test_the_same_onset_is_the_same_fault_and_a_new_one_is_another(self) -> None:
        """Identity is alert and onset; when and by which replica it was sent does not count."""
        later = fault_of(parsed(), RECEIVED + timedelta(hours=2))

        assert later.fingerprint == fault().fingerprint
        assert fault(onset="2026-03-01T10:00:00.123456Z").fingerprint == fault().fingerprint
        assert fault(onset="2026-03-01T12:00:00.123456+02:00").fingerprint == fault().fingerprint
        assert fault(onset="2026-03-01T10:00:01Z").fingerprint != fault().fingerprint
        assert fault(fingerprint="f2").fingerprint != fault().fingerprint

    def test_times_are_in_utc_and_never_in_the_future(self) -> None:
        found = fault(onset="2026-03-01T11:59:59+02:00")
        assert found.first_seen == datetime(2026, 3, 1, 9, 59, 59, tzinfo=UTC)
        assert found.first_seen.utcoffset() == timedelta(0)

        assert fault(onset="2027-01-01T00:00:00Z").first_seen == RECEIVED

    def test_the_summary_is_one_short_line_without_links(self) -> None:
        """B125: addresses are data; no page that renders the summary should load one."""
        text = "line one\n\x1b[31m![x](http://192.0.2.1/) <img src=x> " + "y" * 1_000_000
        annotated = Alert.model_validate_json(json.dumps(alert() | {"annotations": {"summary": text}}))

        summary = fault_of(annotated, RECEIVED).summary

        assert summary.startswith("line one [31m![x] (http://192.0.2.1/) < img src=x> yyy")
        assert summary.isprintable()
        assert len(summary) == LONGEST_SUMMARY
