"""What an incident leaves of a fault at a GPU, so that a later one can tell whether the place is the same."""

from datetime import datetime

from gpu_runbooks.activities.model.fault import Fault, FaultSource
from gpu_runbooks.activities.model.wire import Wire


class Seen(Wire):
    """A fault at a place of a GPU, in short."""

    source: FaultSource
    code: str
    uuid: str | None = None
    pci_address: str | None = None
    place: str = ""
    first_seen: datetime
    fingerprint: str


def seen_of(fault: Fault) -> Seen | None:
    """The short form of a fault; None for one that names no GPU."""
    if fault.entity.kind != "gpu":
        return None
    return Seen(
        source=fault.source,
        code=fault.code,
        uuid=fault.entity.uuid,
        pci_address=fault.entity.pci_address,
        place=fault.place,
        first_seen=fault.first_seen,
        fingerprint=fault.fingerprint,
    )
