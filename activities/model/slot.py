"""Slots of a disruption budget."""

from pydantic import Field

from gpu_runbooks.activities.model.wire import Wire


class SlotRequest(Wire):
    """Signal `request_slot` of a budget, and `return_slot`. Idempotent: keyed by incident and run."""

    incident: str
    run_id: str
    """First run id, stable over continue-as-new."""
    node: str
    severity: int = 0
    limit: int = Field(default=1, ge=1)
    """Slots of the pool, by the policy that the incident was opened with."""


class EnsureBudget(Wire):
    """Start the budget of a pool where it does not run, and hand it this request."""

    cluster: str
    pool: str
    request: SlotRequest


class FindHolders(Wire):
    """Ask for the incidents of a pool that hold a slot, whatever budget gave it to them."""

    cluster: str
    pool: str


class Holders(Wire):
    holders: tuple[SlotRequest, ...] = ()


class FindClosedIncidents(Wire):
    incidents: tuple[SlotRequest, ...] = Field(max_length=200)


class ClosedIncidents(Wire):
    closed: tuple[SlotRequest, ...] = ()
