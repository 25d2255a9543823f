"""Application faults of one job, as an intake hands them over together."""

from datetime import timedelta

from gpu_runbooks.activities.model.fault import Fault
from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.model.notify import KubernetesObject
from gpu_runbooks.activities.model.plan import Treatment
from gpu_runbooks.activities.model.wire import Span, Wire

MOST_FAULTS = 10
"""Faults in one report: it is a payload."""

QUIET = timedelta(minutes=3)
"""Time after the last fault of a burst; NVSentinel takes events within it for one burst."""


class JobFault(Wire):
    """A fault, and the node that has it."""

    fault: Fault
    node: NodeIdentity


class JobReport(Wire):
    """Faults of one job. Argument of the update `report_fault` of `JobRecovery`, and part of its start."""

    cluster: str
    job: KubernetesObject
    faults: tuple[JobFault, ...]
    treatment: Treatment
    """What policy prescribes for the first of them."""
    enforce: bool
    policy_digest: str
    quiet: Span = QUIET
    """How long the record stays open after the last fault."""
