"""Tables of codes that are no Xids: SXids, DCGM, recovery actions, the network's drivers, AWS.

sxids.csv             faults of NVSwitches, in the three groups of the Fabric Manager guide as gpud has them
dcgm_codes.csv        DCGM's health codes; the group is DCGM's own class where its public table has one
recovery_actions.csv  what the driver wants done with a GPU, NVML's field 230
kernel_log_codes.csv  names of ours for lines of the kernel log that have no number
aws_events.csv        EC2's scheduled events, AWS Health, and notices of EventBridge
"""

import re
from functools import cache

from gpu_runbooks.activities.model.fault import FaultSource
from gpu_runbooks.workflows.policy.rows import HARMLESS, REPAIRING, Entry, FirstRung, load, outside

ANY = frozenset(FirstRung)
SERIOUS = REPAIRING | {FirstRung.BLOCK}

NONFATAL = "nonfatal"


class Sxid(Entry):
    """A fault of an NVSwitch."""

    def contradiction(self) -> str | None:
        """What is wrong with the row: only a non-fatal one may need nothing."""
        return outside(self, {NONFATAL: HARMLESS, "fatal": SERIOUS, "always-fatal": SERIOUS})


class DcgmCode(Entry):
    """A health code of DCGM."""

    def contradiction(self) -> str | None:
        """What is wrong with the row: no class of DCGM binds us, but each must be one."""
        return outside(self, dict.fromkeys(("", "monitor", "isolate"), ANY))


class RecoveryAction(Entry):
    """What the driver wants. The group is our word for it."""

    def contradiction(self) -> str | None:
        """What is wrong with the row: only action 0 needs nothing."""
        if (self.code == "0") != (self.first_rung is FirstRung.NONE):
            return f"action {self.code}, and first rung {self.first_rung}"
        return None


class KernelLogCode(Entry):
    """A line of the kernel log without a number."""

    @property
    def fault_source(self) -> FaultSource:
        """Source of the faults that it makes."""
        return FaultSource.EFA if self.group == "efa" else FaultSource.KERNEL

    def contradiction(self) -> str | None:
        """What is wrong with the row: its group, or its first rung for it."""
        network = ANY - {FirstRung.DRAIN_THEN_RESET, FirstRung.REPLACE}
        return outside(self, {"efa": network, "ena": network, "driver": ANY})


class AwsEvent(Entry):
    """What AWS says of an instance."""

    def contradiction(self) -> str | None:
        """What is wrong with the row: no GPU is at fault, and a notice needs nothing."""
        hosts = ANY - {FirstRung.DRAIN_THEN_RESET}
        return outside(self, {"scheduled-event": hosts, "health": hosts, "notice": HARMLESS})

    @property
    def rule(self) -> str:
        """Name of its rule: the code in the letters of a taint's value."""
        short = self.code.lower().removeprefix("aws_ec2_")
        return f"aws-{re.sub('[^a-z0-9]+', '-', short).strip('-')}"


@cache
def sxids() -> dict[str, Sxid]:
    """SXids by code."""
    return load("sxids", Sxid, lambda row: row.code)


@cache
def dcgm_codes() -> dict[str, DcgmCode]:
    """DCGM's health codes by number."""
    return load("dcgm_codes", DcgmCode, lambda row: row.code)


@cache
def recovery_actions() -> dict[str, RecoveryAction]:
    """Recovery actions by number."""
    return load("recovery_actions", RecoveryAction, lambda row: row.code)


@cache
def kernel_log_codes() -> dict[str, KernelLogCode]:
    """Our names for lines of the kernel log."""
    return load("kernel_log_codes", KernelLogCode, lambda row: row.code)


@cache
def aws_events() -> dict[str, AwsEvent]:
    """Events of AWS by code."""
    return load("aws_events", AwsEvent, lambda row: row.code)
