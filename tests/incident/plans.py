"""Plans, faults and reports for tests of workflows and decisions."""

from datetime import UTC, datetime, timedelta

from gpu_runbooks.activities.model.fault import Entity, Fault, FaultSource
from gpu_runbooks.activities.model.fleet import StormRule
from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.model.plan import (
    ExpectedHardware,
    FaultReport,
    Plan,
    Rung,
    RungName,
    TestPodTemplate,
    Treatment,
)
from gpu_runbooks.activities.model.repair import RepairPolicy, RepeatPolicy
from gpu_runbooks.activities.model.slot import PoolBudget

FORGETFUL = RepeatPolicy(window=timedelta(0))
"""Tests share a server and their hardware: no incident counts for another, but where a test is about that."""

CLUSTER = "test"
T0 = datetime(2026, 1, 1, tzinfo=UTC)

MINUTES = {
    RungName.BLOCK: 2,
    RungName.NOTIFY_OWNER: 2,
    RungName.DRAIN: 30,
    RungName.RESTART_WORKLOAD: 15,
    RungName.RESET_GPU: 5,
    RungName.REBOOT: 20,
    RungName.REPLACE: 60,
    RungName.VALIDATE: 15,
    RungName.RETURN: 2,
}

LADDERS = {
    "none": (),
    "notify": ("notify_owner",),
    "restart": ("restart_workload",),
    "notify-and-restart": ("notify_owner", "restart_workload"),
    "block": ("block", "validate", "return"),
    "drain": ("block", "drain", "validate", "return"),
    "reset": ("block", "drain", "reset_gpu", "reboot", "replace", "validate", "return"),
    "reboot": ("block", "drain", "reboot", "replace", "validate", "return"),
    "replace": ("block", "drain", "replace", "validate", "return"),
}


def identity(name: str = "n1", **changes: str) -> NodeIdentity:
    values = {
        "uid": f"uid-{name}",
        "provider_id": f"aws:///us-east-1a/i-{name}",
        "instance_id": f"i-{name}",
        "zone": "us-east-1a",
        "instance_type": "p5.48xlarge",
        "boot_id": f"boot-{name}-1",
    }
    return NodeIdentity(name=name, **{**values, **changes})


def rungs(ladder: str, *, attempts: int = 1, wait: timedelta = timedelta(0)) -> tuple[Rung, ...]:
    repairs = {"reset_gpu", "reboot", "replace"}
    return tuple(
        Rung(
            name=RungName(name),
            attempts=attempts if name in repairs else 1,
            wait=wait if name in repairs else timedelta(0),
            timeout=timedelta(minutes=MINUTES[RungName(name)]),
        )
        for name in LADDERS[ladder]
    )


def plan(ladder: str = "reset", **changes) -> Plan:
    treatment = Treatment(
        rule=changes.pop("rule", f"rule-{ladder}"),
        application=ladder in {"none", "notify"},
        toleration=changes.pop("toleration", timedelta(0)),
        ladder=ladder,
        rungs=rungs(ladder, attempts=changes.pop("attempts", 1), wait=changes.pop("wait", timedelta(0))),
    )
    values = {
        "cluster": CLUSTER,
        "identity": identity(),
        "pool": "p5",
        "pool_selector": {"pool": "p5"},
        "budget": PoolBudget(max_unavailable=1),
        "treatment": treatment,
        "expected": ExpectedHardware(instance_type="p5.48xlarge", gpus=8, efa_interfaces=32, nvlink=True),
        "test_pod": TestPodTemplate(namespace="gpu-runbooks", image="load:1", command=("load",)),
        "enforce": True,
        "operator_reminder": timedelta(hours=4),
        "storm": StormRule(group_wait=timedelta(0)),
        "policy_digest": "digest",
        "repair": RepairPolicy(repeats=FORGETFUL),
    }
    return Plan(**{**values, **changes})


def fault(code: str = "95", *, at: datetime = T0, fingerprint: str | None = None, gpu: str | None = "GPU-1"):
    return Fault(
        source=FaultSource.XID,
        code=code,
        entity=Entity(kind="gpu", uuid=gpu) if gpu else Entity(),
        summary=f"Xid {code}",
        first_seen=at,
        last_seen=at,
        fingerprint=fingerprint or f"{code}@{at.isoformat()}",
        reporter="alertmanager",
    )


def report(ladder: str = "reset", *, of: Fault | None = None, **changes) -> FaultReport:
    return FaultReport(fault=of or fault(), plan=plan(ladder, **changes))
