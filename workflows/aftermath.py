"""What the driver logs because of our own reset: it ends the work on the GPU, and says so. Pure.

Source: NVIDIA's Xid catalogue has 43 and 45 for channels that end with their process or with a reset.
"""

from datetime import datetime, timedelta

from gpu_runbooks.activities.model.fault import Entity, Fault, FaultSource

CLEAN_UP = frozenset({"43", "45"})
"""Xids that only say that the work on a GPU was ended."""

QUIET = timedelta(minutes=2)
"""How long after a reset its clean-up may still be logged and reported."""


def is_of_our_reset(
    fault: Fault, gpu: tuple[str | None, str | None], began: datetime | None, ended: datetime | None
) -> bool:
    """Whether a fault is the clean-up of a reset of ours: of the same GPU (None, None: of all), in its time.

    `ended` may be of an earlier reset, or None: then the last one still runs.
    """
    if fault.source is not FaultSource.XID or fault.code.strip() not in CLEAN_UP or began is None:
        return False
    running = ended is None or ended < began
    if fault.first_seen < began or (ended is not None and not running and fault.first_seen > ended + QUIET):
        return False
    return is_reset(fault.entity, gpu)


def is_reset(entity: Entity, gpu: tuple[str | None, str | None]) -> bool:
    """Whether a reset of this GPU (None, None: of all) is one of what a fault names, by UUID or address."""
    return gpu == (None, None) or any(
        one is not None and one == other
        for one, other in zip(gpu, (entity.uuid, entity.pci_address), strict=True)
    )
