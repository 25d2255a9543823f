"""What must come of each cell of the matrix: the table that `make chaos` holds the product to."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from testbed.chaos.steps import Step


@dataclass(frozen=True)
class Expected:
    """The end of a cell. Where several ends are right, each is written."""

    outcomes: tuple[str, ...]
    """Ends that are right: an `Outcome`, or `terminated`."""
    block: str
    """`none`: the node never had our block, or is back in service; `kept`: the block of this incident stands
    whole; `either`: one of these, never a part."""
    acts: tuple[str, ...] | None = None
    """Acts in order, `!` before one without proof; None where the incident ends before it is through."""
    reboots: int = 0
    terminations: int = 0
    """Calls that took effect: at most so many, and exactly so many where the incident is through."""
    resets: int = 0
    services: str = "run"
    """`run`: no GPU service is left paused; `paused`: the sweep is to find it."""

    def __str__(self) -> str:
        calls = [
            f"{count} {what}"
            for count, what in (
                (self.resets, "reset"),
                (self.reboots, "reboot"),
                (self.terminations, "termination"),
            )
            if count
        ]
        left = {"none": "no block left", "kept": "block kept", "either": "block whole or none"}[self.block]
        paused = ["services paused until the sweep"] if self.services == "paused" else []
        return "; ".join([" or ".join(self.outcomes), left, *calls, *paused])


def through(acts: tuple[str, ...]) -> Expected:
    """The end of an incident that goes on: of these acts, those that were proven took effect."""
    return Expected(
        outcomes=("replaced",) if "replace" in acts else ("returned",),
        block="none",
        acts=acts,
        reboots=acts.count("reboot"),
        terminations=acts.count("replace"),
        resets=acts.count("reset_gpu"),
    )


WITHOUT_BLOCK = ("tolerating", "waiting-for-slot", "probation")

DURING_BLOCK = ("blocking", "returning")
"""The write may be on its way when the incident ends: it takes effect, or it does not."""

ASKED_FOR = {
    "resetting": "reset_gpu",
    "validating": "reset_gpu",
    "returning": "reset_gpu",
    "reboot-call": "reboot",
    "reboot-answer": "reboot",
    "rebooting": "reboot",
    "replace-call": "replace",
    "replace-answer": "replace",
    "replacing": "replace",
}
"""What a step has asked the hardware for, at most once, when the incident ends in it."""


def ended(step: Step, outcome: str) -> Expected:
    """The end of an incident in the middle of a step: the block stays as it was."""
    asked = ASKED_FOR.get(step.name)
    return Expected(
        outcomes=(outcome,),
        block="none" if step.name in WITHOUT_BLOCK else "either" if step.name in DURING_BLOCK else "kept",
        reboots=int(asked == "reboot"),
        terminations=int(asked == "replace"),
        resets=int(asked == "reset_gpu"),
    )


LOST_REBOOT = ("block", "drain", "!reboot", "drain", "replace", "validate", "return")
"""A call of which nobody knows whether it had an effect is never sent again: its proof is waited for, and
where none comes the next rung follows."""

SPECIAL: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("reboot-call", "kill-cloud-worker"): LOST_REBOOT,
    ("reboot-call", "aws-refuses"): LOST_REBOOT,  # 503 does not say that nothing was done
    ("reboot-call", "aws-hangs"): LOST_REBOOT,
}
"""Acts of the cells in which the incident goes another way than its row does."""


def expected(step: Step, disturbance: str) -> Expected:
    """What must come of one cell."""
    if disturbance == "cancel":
        return ended(step, "cancelled")
    if disturbance == "terminate":
        end = ended(step, "terminated")
        return replace(end, services="paused") if step.name == "resetting" else end
    return through(SPECIAL.get((step.name, disturbance), step.acts))
