"""How severe a fault is, by what policy prescribes for it. Pure."""

from gpu_runbooks.activities.model.plan import RungName, Treatment

REPAIRS = (RungName.RESET_GPU, RungName.REBOOT, RungName.REPLACE)
"""The rungs that can cure, mildest first."""

BLOCKS = 2
"""Severity of a fault that blocks the node and knows no repair."""


def severity(treatment: Treatment) -> int:
    """0 touches nothing, 1 restarts a workload, 2 only blocks the node, 3 to 5 by the first repair."""
    if all(rung.name is RungName.NOTIFY_OWNER for rung in treatment.rungs):
        return 0
    if restarts_workload(treatment):
        return 1
    first = first_repair(treatment)
    return BLOCKS if first is None else BLOCKS + 1 + REPAIRS.index(first)


def restarts_workload(treatment: Treatment) -> bool:
    """Whether the pods that hold a GPU are restarted, and the node is left alone."""
    return any(rung.name is RungName.RESTART_WORKLOAD for rung in treatment.rungs)


def notifies_owner(treatment: Treatment) -> bool:
    """Whether the owner of the workload is told."""
    return any(rung.name is RungName.NOTIFY_OWNER for rung in treatment.rungs)


def first_repair(treatment: Treatment) -> RungName | None:
    """The mildest repair of a ladder; None where it knows none."""
    return next((rung.name for rung in treatment.rungs if rung.name in REPAIRS), None)
