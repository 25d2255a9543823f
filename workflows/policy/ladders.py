"""Ladders: the rungs that a site writes, and the ladders that are built in."""

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field

from gpu_runbooks.activities.model.plan import RungName
from gpu_runbooks.workflows.policy.approval import Approval
from gpu_runbooks.workflows.policy.fields import Duration, Written, limits

OF_WORKLOADS = frozenset({RungName.NOTIFY_OWNER, RungName.RESTART_WORKLOAD})
"""Rungs that leave the node alone."""

REPAIRS = frozenset({RungName.RESET_GPU, RungName.REBOOT, RungName.REPLACE})
"""Rungs that change the machine."""

DISRUPTING = frozenset({RungName.RESTART_WORKLOAD, RungName.DRAIN, *REPAIRS})
"""Rungs that end somebody's work: what a person may be asked about, and what may be only observed."""

DEFAULT_TIMEOUTS = {
    RungName.BLOCK: timedelta(minutes=2),
    RungName.NOTIFY_OWNER: timedelta(minutes=2),
    RungName.RESTART_WORKLOAD: timedelta(minutes=15),
    RungName.DRAIN: timedelta(minutes=30),
    RungName.RESET_GPU: timedelta(minutes=10),
    RungName.REBOOT: timedelta(minutes=20),
    # A termination of a GPU instance can take 45 minutes, and its successor boots after it.
    RungName.REPLACE: timedelta(minutes=90),
    RungName.VALIDATE: timedelta(minutes=15),
    RungName.RETURN: timedelta(minutes=2),
}


class LadderRung(Written):
    """A rung of a ladder."""

    rung: RungName
    """Name of the rung: block, drain, reset_gpu, reboot, replace, validate, return; or, for workloads,
    notify_owner and restart_workload."""
    wait: Duration = timedelta(0)
    """Of a repair (reset_gpu, reboot, replace): time to wait before it."""
    attempts: Annotated[int, Field(ge=1, le=10, strict=True)] = 1
    """How often the rung is tried: of restart_workload, drain, a repair, or validate."""
    timeout: Annotated[Duration, limits(timedelta(seconds=1))] = Field(
        default_factory=lambda written: DEFAULT_TIMEOUTS[written["rung"]]
    )
    """Time for one attempt, its wait for proof included."""
    approval: Approval = None
    """Whether a person is asked before each attempt: true, or {lasts: 1h, by_other: true}."""
    mode: Literal["observe"] | None = None
    """`observe`: the rung is decided and recorded, and a person is told instead of doing it."""


Ladder = tuple[LadderRung, ...]


def _ladder(*rungs: RungName) -> Ladder:
    return tuple(LadderRung(rung=rung) for rung in rungs)


def _repair_ladder(*repairs: RungName) -> Ladder:
    return _ladder(RungName.BLOCK, RungName.DRAIN, *repairs, RungName.VALIDATE, RungName.RETURN)


NO_TOUCH = "none"
BLOCK_ONLY = "block"
NOTIFY = "notify"
RESTART = "restart"
BUILT_IN_LADDERS: dict[str, Ladder] = {
    NO_TOUCH: (),
    BLOCK_ONLY: _ladder(RungName.BLOCK, RungName.VALIDATE, RungName.RETURN),
    NOTIFY: _ladder(RungName.NOTIFY_OWNER),
    RESTART: _ladder(RungName.RESTART_WORKLOAD),
    "drain": _repair_ladder(),
    "reset": _repair_ladder(RungName.RESET_GPU, RungName.REBOOT, RungName.REPLACE),
    "reboot": _repair_ladder(RungName.REBOOT, RungName.REPLACE),
    "replace": _repair_ladder(RungName.REPLACE),
}
"""A site that names one of these in its `ladders` replaces it."""


def leaves_node(ladder: Ladder) -> bool:
    """Whether a ladder does nothing to the node: at most, a workload on it is restarted."""
    return all(step.rung in OF_WORKLOADS for step in ladder)
