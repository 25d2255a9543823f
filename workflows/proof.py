"""What a repair or a validation comes back with."""

from dataclasses import dataclass

from gpu_runbooks.activities.model.node import NodeIdentity


class NotSentError(Exception):
    """The act was not asked for: the incident looks at the node again before it tries once more."""


class CapacityLostError(Exception):
    """The machine is terminated, and its owner cannot launch another."""


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
