"""What forbids that an instance is terminated by its Auto Scaling group, by name.

`TerminateInstanceInAutoScalingGroup` passes over scale-in protection (Auto Scaling user guide, "Use instance
scale-in protection") and over EC2's termination protection, which holds off EC2's own call only ("Change
instance termination protection"). Neither would stop us, so both are looked for here.
"""

import re

from gpu_runbooks.activities import errors
from gpu_runbooks.activities.aws.auto_scaling_group import RETAINED
from gpu_runbooks.activities.aws.connection import Aws, call
from gpu_runbooks.activities.aws.instance_owner import Ownership

ULTRASERVER = re.compile(r"^(p6e-gb\d+|trn\d+u)\.")
"""Instance types that come as UltraServers: one instance is part of an NVLink domain of several."""

NOT_IN_SERVICE = (
    ("Standby", "a person took it out of service: move it back into service, or replace it by hand"),
    ("EnteringStandby", "a person takes it out of service: move it back, or replace it by hand"),
    ("Warmed", "it is in the warm pool, whose instances the group does not replace: delete it from there"),
    ("Detach", "it leaves the group, which launches nothing in its place: attach it, or replace it by hand"),
    ("Pending", "the group is launching it still: wait until it is in service, or finish its lifecycle hook"),
    (
        RETAINED,
        "a lifecycle hook failed and the group keeps it for a person: look at it, then terminate it by hand",
    ),
    ("ReplacingRootVolume", "an instance refresh is at work on it: wait until that has ended"),
    ("RootVolumeReplaced", "an instance refresh is at work on it: wait until that has ended"),
)
"""Lifecycle states, by their beginning, in which an instance is not replaced, and what to do."""


def protections(ownership: Ownership, *, termination_protected: bool, shrinks: bool) -> list[str]:
    """All that forbids it, each with what to do. `shrinks`: the group gets smaller, and launches nothing."""
    instance, group = ownership.instance, ownership.group
    found = []
    if ULTRASERVER.match(instance.instance_type):
        found.append(
            f"{instance.instance_type} is part of an UltraServer, and its replacement breaks the NVLink "
            "domain of the other instances: drain the whole UltraServer and replace it by hand"
        )
    if termination_protected:
        found.append("EC2 termination protection is on: turn it off (disableApiTermination) and retry")
    if ownership.lifecycle != "InService":
        found.append(_not_in_service(ownership.lifecycle))
    member = group.members.get(instance.instance_id)
    if member is not None and member.protected and not group.protects_new:
        found.append(
            "scale-in protection was set on this instance alone (the group does not give it to all): "
            "somebody wants to keep it. Remove that protection and retry"
        )
    needed = ("Terminate",) if shrinks else ("Terminate", "Launch")
    return found + [
        f"process {process} of {group.name} is suspended ({group.suspended[process] or 'no reason given'}): "
        "resume it and retry"
        for process in needed
        if process in group.suspended
    ]


async def require_unprotected(aws: Aws, ownership: Ownership, *, shrinks: bool = False) -> None:
    """Raise PROTECTED with all that forbids the termination."""
    answer = await call(
        aws.ec2.describe_instance_attribute,
        InstanceId=ownership.instance.instance_id,
        Attribute="disableApiTermination",
    )
    found = protections(
        ownership,
        termination_protected=answer.get("DisableApiTermination", {}).get("Value", False),
        shrinks=shrinks,
    )
    if found:
        raise errors.refusal(
            errors.PROTECTED,
            f"instance {ownership.instance.instance_id} of {ownership.owner} is not terminated: "
            f"{'; '.join(found)}",
        )


def _not_in_service(lifecycle: str) -> str:
    for beginning, advice in NOT_IN_SERVICE:
        if lifecycle.startswith(beginning):
            return f"it is {lifecycle} in its group: {advice}"
    state = lifecycle or "in no known state"
    return f"it is {state} in its group, not InService: look at it there, then retry"
