"""Events of the kernel log as faults of the product."""

from datetime import datetime

from gpu_runbooks.activities.kernel_log.event import Event, Kind
from gpu_runbooks.activities.kernel_log.network import ENA_RESET_COMPLETED
from gpu_runbooks.activities.model.fault import Entity, Fault, FaultSource

LONGEST_SUMMARY = 300
"""Characters."""

_SOURCES = {Kind.XID: FaultSource.XID, Kind.SXID: FaultSource.SXID, Kind.EFA: FaultSource.EFA}
"""All others are of the source `kernel`, and their codes say what they are."""

_ENTITIES = {Kind.XID: "gpu", Kind.INIT: "gpu", Kind.SXID: "nvswitch", Kind.EFA: "nic", Kind.ENA: "nic"}


def fault_of(event: Event, *, seen: datetime, reporter: str) -> Fault | None:
    """The fault that an event tells; None for a mark of ours, and for what tells of an end.

    An Xid 45 that names the Xid it comes from is a fault of that one. `seen` is the time for an event that
    has none of its own.
    """
    finding = event.finding
    if finding.kind is Kind.MARKER or finding.code == ENA_RESET_COMPLETED:
        return None
    time = event.time or seen
    return Fault(
        source=_SOURCES.get(finding.kind, FaultSource.KERNEL),
        code=finding.code if finding.caused_by is None else str(finding.caused_by),
        entity=Entity.model_validate(
            {
                "kind": _ENTITIES.get(finding.kind, "node"),
                "uuid": event.uuid if finding.kind in {Kind.XID, Kind.INIT} else None,
                "pci_address": finding.pci,
            }
        ),
        grade=finding.grade,
        recovery_action=finding.recovery_action,
        place=finding.place,
        boot_id=event.boot_id,
        summary=summary_of(event),
        first_seen=time,
        last_seen=time,
        fingerprint=f"kernel:{event.identity}",
        reporter=reporter,
    )


def summary_of(event: Event) -> str:
    """One line for a person: what, where, and the driver's own words."""
    finding = event.finding
    what = {Kind.XID: f"Xid {finding.code}", Kind.SXID: f"SXid {finding.code}"}.get(
        finding.kind, finding.code
    )
    where = [part for part in (finding.device, finding.pci) if part]
    if finding.gi is not None:
        where.append(f"GPU instance {finding.gi}")
    if finding.ci is not None:
        where.append(f"compute instance {finding.ci}")
    if finding.process:
        where.append(f"process {finding.process}")
    place = f" ({', '.join(where)})" if where else ""
    return f"{what}{place}: {finding.text}"[:LONGEST_SUMMARY]
