"""The activities of queue `cloud`. What each does is in the module of its name."""

from temporalio import activity

from gpu_runbooks.activities.aws import auto_scaling, ec2, launch_first, successor
from gpu_runbooks.activities.aws.connection import Aws
from gpu_runbooks.activities.aws.reboot_command import run_reboot_command
from gpu_runbooks.activities.contracts import CloudActivities
from gpu_runbooks.activities.heartbeat import beating
from gpu_runbooks.activities.model.repair import (
    AwaitSuccessor,
    ConfirmReplacement,
    InspectInstance,
    InstanceReport,
    LaunchSuccessor,
    RebootInstance,
    RebootRequested,
    ReplaceInstance,
    ReplacementConfirmed,
    ReplaceRequested,
    SuccessorComing,
    SuccessorLaunched,
)


class Cloud(CloudActivities):
    """Needs AWS clients with the cloud worker's role; the site's command for a reboot, where it has one."""

    def __init__(self, aws: Aws, reboot_command: str = "") -> None:
        self._aws = aws
        self._reboot_command = reboot_command

    @activity.defn
    async def inspect_instance(self, request: InspectInstance) -> InstanceReport:
        async with beating():
            return await ec2.inspect_instance(self._aws, request)

    @activity.defn
    async def run_reboot_command(self, request: RebootInstance) -> RebootRequested:
        async with beating():
            return await run_reboot_command(self._aws, self._reboot_command, request)

    @activity.defn
    async def launch_successor(self, request: LaunchSuccessor) -> SuccessorLaunched:
        async with beating():
            return await launch_first.launch_successor(self._aws, request)

    @activity.defn
    async def reboot_instance(self, request: RebootInstance) -> RebootRequested:
        async with beating():
            return await ec2.reboot_instance(self._aws, request)

    @activity.defn
    async def replace_instance(self, request: ReplaceInstance) -> ReplaceRequested:
        earlier = _earlier_progress()
        async with beating() as beat:
            return await auto_scaling.replace_instance(self._aws, request, beat, earlier_group=earlier)

    @activity.defn
    async def await_successor(self, request: AwaitSuccessor) -> SuccessorComing:
        async with beating():
            return await successor.await_successor(self._aws, request)

    @activity.defn
    async def confirm_replacement(self, request: ConfirmReplacement) -> ReplacementConfirmed:
        seen_going = request.seen_going or _earlier_progress() == successor.SEEN_GOING
        async with beating() as beat:
            return await successor.confirm_replacement(self._aws, request, beat, seen_going=seen_going)


def _earlier_progress() -> str:
    """What an earlier attempt of this activity told in its last heartbeat; empty for nothing."""
    details = activity.info().heartbeat_details if activity.in_activity() else ()
    return str(details[0]) if details else ""
