"""The rows of the matrix: how an incident is brought into a step of the ladder, and held there."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gpu_runbooks.activities.names import BLOCK_ANNOTATION, REPLACES_ANNOTATION
from testbed.aws_faults import Moment
from testbed.chaos.gates import AwsGate, CallGate, DownGate, Gate, LateGate, PhaseGate, PodGate, ResetGate
from testbed.chaos.policy import WATCHED, WIDE
from testbed.chaos.subject import Subject
from testbed.control_plane import NAMESPACE, TEST_NAMESPACE
from testbed.ec2_server import TERMINATE


@dataclass(frozen=True)
class Step:
    """A step of the ladder. An incident that nobody disturbs in it returns its node, or replaces it."""

    name: str
    ladder: str
    """Ladder of the incident; none for one that an alert begins."""
    close: Callable[[Subject], Awaitable[Gate]]
    """Makes the gate that holds an incident there, before the incident begins."""
    acts: tuple[str, ...]
    """What an undisturbed incident does."""
    pool: str = WIDE
    waits_behind: bool = False
    """It needs a second node, whose incident has the only slot."""


RESET = ("block", "drain", "reset_gpu", "validate", "return")
REBOOT = ("block", "drain", "reboot", "validate", "return")
REPLACE = ("block", "drain", "replace", "validate", "return")


async def _tolerating(subject: Subject) -> Gate:
    return PhaseGate(subject, "tolerating")


async def _waiting(subject: Subject) -> Gate:
    return PhaseGate(subject, "waiting-for-slot")


async def _blocking(subject: Subject) -> Gate:
    return CallGate(subject, "PATCH", _node(subject), rf'"{BLOCK_ANNOTATION}": ?"')


async def _examining(subject: Subject) -> Gate:
    tasks = rf"/apis/gpu-runbooks.dev/v1alpha1/namespaces/{NAMESPACE}/nodetasks"
    return CallGate(subject, "POST", tasks, rf'"nodeName": ?"{subject.node}"', phase="examining")


async def _resetting(subject: Subject) -> Gate:
    return LateGate(await PodGate.close(subject), ResetGate(subject))


async def _down(subject: Subject) -> Gate:
    return await DownGate.close(subject)


def _aws(moment: Moment, action: str) -> Callable[[Subject], Awaitable[Gate]]:
    async def close(subject: Subject) -> Gate:
        return LateGate(await PodGate.close(subject), AwsGate(subject, moment, action))

    return close


async def _claiming(subject: Subject) -> Gate:
    claim = rf'"{REPLACES_ANNOTATION}": ?"{subject.workflow_id}"'
    return CallGate(subject, "PATCH", r"/api/v1/nodes/[^/]+", claim)


async def _validating(subject: Subject) -> Gate:
    return CallGate(subject, "POST", f"/api/v1/namespaces/{TEST_NAMESPACE}/pods", f'"{subject.node}"')


async def _returning(subject: Subject) -> Gate:
    return CallGate(subject, "PATCH", _node(subject), rf'"{BLOCK_ANNOTATION}": ?null')


async def _probation(subject: Subject) -> Gate:
    return LateGate(
        PhaseGate(subject, "needs-operator", lambda: subject.say("retry")), PhaseGate(subject, "probation")
    )


async def _needs_operator(subject: Subject) -> Gate:
    return PhaseGate(subject, "needs-operator", lambda: subject.say("retry"))


def _node(subject: Subject) -> str:
    return f"/api/v1/nodes/{subject.node}"


STEPS = (
    Step("tolerating", "", _tolerating, RESET),
    Step("waiting-for-slot", "reset", _waiting, RESET, waits_behind=True),
    Step("blocking", "reset", _blocking, RESET),
    Step("examining", "reset", _examining, RESET),
    Step("draining", "reset", PodGate.close, RESET),
    Step("resetting", "reset", _resetting, RESET),
    Step("reboot-call", "reboot", _aws("before", "RebootInstances"), REBOOT),
    Step("reboot-answer", "reboot", _aws("after", "RebootInstances"), REBOOT),
    Step("rebooting", "reboot", _down, REBOOT),
    Step("replace-call", "replace", _aws("before", TERMINATE), REPLACE),
    Step("replace-answer", "replace", _aws("after", TERMINATE), REPLACE),
    Step("replacing", "replace", _claiming, REPLACE),
    Step("validating", "reset", _validating, RESET),
    Step("returning", "reset", _returning, RESET),
    Step("probation", "block", _probation, ("block", "validate", "return"), pool=WATCHED),
    Step("needs-operator", "block", _needs_operator, ("block", "validate", "return")),
)
"""In the order in which a node meets them."""
