"""The notation of a fault on the command line: read, shown, and refused with advice."""

from datetime import UTC, datetime

import pytest

from gpu_runbooks.activities.model.fault import FaultSource
from gpu_runbooks.workers.policy.fault_notation import NotationError, in_notation, read_fault, read_node_name

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("written", "fields"),
    [
        ("xid:79", {"source": FaultSource.XID, "code": "79", "grade": ""}),
        ("xid:145/nonfatal", {"code": "145", "grade": "nonfatal"}),
        ("sxid:20034/fatal", {"source": FaultSource.SXID, "code": "20034", "grade": "fatal"}),
        (
            "condition:AcceleratedHardwareReady=False/NvidiaXID79Error",
            {"code": "AcceleratedHardwareReady", "status": "False", "reason": "NvidiaXID79Error"},
        ),
        ("condition:gpu-runbooks.dev/GPUHealthy=False", {"code": "gpu-runbooks.dev/GPUHealthy"}),
        ("condition:Ready", {"source": FaultSource.CONDITION, "code": "Ready", "status": ""}),
        ('condition:XidCriticalError=True/{"31":true}', {"reason": '{"31":true}'}),
        ("dcgm:80", {"source": FaultSource.DCGM, "code": "80"}),
        ("alert:GpuFellOff", {"source": FaultSource.ALERT, "code": "GpuFellOff"}),
        ("aws:instance-retirement", {"source": FaultSource.AWS, "code": "instance-retirement"}),
        ("recovery:2", {"source": FaultSource.NVML, "recovery_action": 2}),
        ("manual", {"source": FaultSource.MANUAL, "code": "manual"}),
    ],
)
def test_a_notation_is_a_fault_and_back(written, fields):
    fault = read_fault(written, NOW)
    assert {name: getattr(fault, name) for name in fields} == fields
    assert in_notation(fault) == written


def test_fields_beside_the_notation_count():
    said = {"status": "Unknown", "reason": "NodeStatusUnknown"}
    assert (
        in_notation(read_fault("condition:Ready", NOW, said)) == "condition:Ready=Unknown/NodeStatusUnknown"
    )
    fault = read_fault("xid:13", NOW, {"place": "GPC 2 TPC 1", "before": 1, "recovery_action": 1})
    assert (fault.place, fault.before, fault.recovery_action) == ("GPC 2 TPC 1", 1, 1)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("", {}),
        ("79", {}),
        ("xid", {}),
        ("xid:", {}),
        ("xid:79,95", {}),
        ("sxid:SXid20034", {}),
        ("dcgm:80.5", {}),
        ("xid:../../etc/passwd", {}),
        ("xid:79/../x", {}),
        ("alert:../x", {}),
        ("alert:--help", {}),
        ("alert:{{ 7*7 }}", {}),
        ("alert:${HOME}", {}),
        ("alert:$(id)", {}),
        ("alert:%s", {}),
        ("alert:[red]x", {}),
        ("alert:x\x1b[2J", {}),
        ("alert:x\u202ey", {}),
        ("alert:x\ny", {}),
        ("alert:" + "x" * 5000, {}),
        ("--fault:79", {}),
        ("dcgm:80/fatal", {}),
        ("condition:Ready=Bad", {}),
        ("condition:Ready=False/", {}),
        ("condition:../Ready=False", {}),
        ("condition:Ready=False/{{x}}", {}),
        ("condition:Ready=False/a/b", {}),
        ("recovery:-1", {}),
        ("recovery:two", {}),
        ("xid:79", {"status": "False"}),
        ("xid:79", {"reason": "Because"}),
        ("xid:79", {"place": "../x"}),
        ("condition:Ready", {"status": "\x1b[2J"}),
        ("condition:Ready", {"status": "False", "reason": "-x\x07"}),
        ("condition:Ready=False", {"status": "True"}),
    ],
)
def test_what_names_no_fault_is_refused_with_advice_and_shown_inert(written, said):
    with pytest.raises(NotationError) as error:
        read_fault(written, NOW, said)
    told = str(error.value)
    assert told.isascii()
    assert told.isprintable()
    assert len(told) < 400
    assert any(word in told for word in ("write", "only"))


@pytest.mark.parametrize("written", ["xid:-1", "xid:NaN", "sxid:n/a", "dcgm:<no value>"])
def test_a_code_that_an_exporter_writes_without_a_value_is_refused_as_the_intake_does(written):
    with pytest.raises(NotationError, match="is no code: the exporter had no value, see its rule or its log"):
        read_fault(written, NOW)


@pytest.mark.parametrize(
    "name", ["", "../x", "a/b", "-x", "--help", "{{x}}", "a\x1b[2J", "A", "a..b", "a b", "a" * 254, "a\n"]
)
def test_what_no_node_can_be_named_is_refused(name):
    with pytest.raises(NotationError, match="kubectl get nodes") as error:
        read_node_name(name)
    assert str(error.value).isprintable()
