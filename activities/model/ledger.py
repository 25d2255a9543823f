"""The ledger of hardware: what closed incidents did to the same machines and GPUs, and with what success."""

from datetime import datetime

from pydantic import Field

from gpu_runbooks.activities.model.plan import RungName
from gpu_runbooks.activities.model.wire import Wire

MOST_REPAIRS = 60
"""Repairs of one answer, the newest: a payload holds 16 KiB."""


class PastRepair(Wire):
    """One reset, reboot or replacement of an incident, or a return to service."""

    rung: RungName
    proven: bool
    """It took effect. Whether it held, only a later incident of the same hardware tells."""
    ended: datetime
    hardware: tuple[str, ...]
    """What it was done to: the GPU's UUID and serial for a reset of one, else instance id, GPUs and board."""
    signs: tuple[str, ...] = ()
    """Of a return: codes and GPUs of the faults before it, so that the same fault is known again."""
    incident: str
    """Workflow id."""
    run_id: str
    """First run id."""


class RecallHardware(Wire):
    """Ask what was done before to any of this hardware."""

    hardware: tuple[str, ...] = Field(min_length=1, max_length=100)
    since: datetime
    run_id: str
    """First run id of the incident that asks: its own repairs do not count."""


class HardwareHistory(Wire):
    repairs: tuple[PastRepair, ...] = Field(default=(), max_length=MOST_REPAIRS)
    """Newest first."""
    complete_since: datetime | None = None
    """Later than what was asked for, where the namespace does not keep closed incidents that long."""
