"""What a repair or a validation comes back with."""

from dataclasses import dataclass

from temporalio import workflow

from gpu_runbooks.activities.model.node import NodeIdentity, NodeObservation
from gpu_runbooks.workflows.incident import Incident
from gpu_runbooks.workflows.ladder import is_still_next
from gpu_runbooks.workflows.ladder_steps import Repair


class NotSentError(Exception):
    """The act was not asked for: the incident looks at the node again before it tries once more."""


class CapacityLostError(Exception):
    """The machine is terminated, and its owner cannot launch another."""


def refuse_overtaken(incident: Incident, step: Repair) -> None:
    """Raise `NotSentError` where what was said or seen since a repair was decided comes first."""
    if not is_still_next(incident, step, workflow.now()):
        raise NotSentError("something came in between")


@dataclass(frozen=True)
class Proof:
    """Outcome of a repair or a validation."""

    proven: bool
    text: str
    target: NodeIdentity | None = None
    """The machine as the act left it, where it changed."""
    tried: bool = True
    """False where nothing was done to the machine: later incidents are not to count it."""
    inconclusive: bool = False
    """Nothing was measured that speaks against the machine: a person is asked, nothing stronger is done."""
    seen: NodeObservation | None = None
    """The look at the node that ended a validation: what is done at once needs no other."""
