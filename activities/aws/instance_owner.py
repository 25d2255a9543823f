"""Who owns an EC2 instance, and so launches another in its place."""

from dataclasses import dataclass

from gpu_runbooks.activities import errors
from gpu_runbooks.activities.aws.auto_scaling_group import Group, find_group
from gpu_runbooks.activities.aws.connection import Aws, call
from gpu_runbooks.activities.aws.ec2 import Instance
from gpu_runbooks.activities.aws.instance_state import GOING

GROUP_TAG = "aws:autoscaling:groupName"
"""Set by Auto Scaling alone (the prefix `aws:` is reserved); a terminated instance keeps it for a while."""

NODE_GROUP_TAG = "eks:nodegroup-name"
"""On the instances of an EKS managed node group, which keeps them in an Auto Scaling group of its own."""

KARPENTER_TAGS = ("karpenter.sh/nodepool", "karpenter.sh/nodeclaim")
"""Karpenter's AWS provider sets them; a NodeClaim that stands alone has no NodePool."""


@dataclass(frozen=True)
class Ownership:
    """An instance and the group that owns it."""

    instance: Instance
    group: Group
    lifecycle: str
    """In the group, or in its warm pool (`Warmed:Stopped`); empty for one that has left."""

    @property
    def is_going(self) -> bool:
        """Whether it is on its way out by whatever cause: a group, a Spot interruption, a person."""
        letting_go = self.group.is_letting_go(self.instance.instance_id)
        return self.instance.state in GOING or letting_go

    @property
    def owner(self) -> str:
        """In words."""
        node_group = self.instance.tags.get(NODE_GROUP_TAG)
        return f"managed node group {node_group} (group {self.group.name})" if node_group else self.group.name


async def owner_of(aws: Aws, node: str, instance: Instance, earlier_group: str = "") -> Ownership:
    """The Auto Scaling group that will launch the successor; that of a managed node group is one.

    `earlier_group` is where an earlier attempt found it. Raises NO_OWNER where Karpenter or nobody would.
    """
    for tag in KARPENTER_TAGS:
        if owner := instance.tags.get(tag):
            raise errors.refusal(
                errors.NO_OWNER,
                f"instance {instance.instance_id} of node {node} belongs to Karpenter ({tag} {owner}) and is "
                "not terminated behind its back: delete the node's NodeClaim, and Karpenter terminates it "
                "and launches another",
            )
    name, lifecycle = await _membership(aws, instance, earlier_group)
    group = await find_group(aws, name) if name else None
    if group is None:
        which = f"group {name} does not exist" if name else "it is in no Auto Scaling group"
        raise errors.refusal(
            errors.NO_OWNER,
            f"instance {instance.instance_id} of node {node} is not replaced, since nothing would launch "
            f"another: {which}. Replace it by hand, or attach it to a group and retry",
        )
    return Ownership(instance, group, lifecycle)


async def _membership(aws: Aws, instance: Instance, earlier_group: str) -> tuple[str, str]:
    """Name of the group that an instance is in, or was in before it went, and its lifecycle state there.

    The group's own word counts for an instance that is there. Of one that is gone the tag may be left.
    """
    answer = await call(aws.autoscaling.describe_auto_scaling_instances, InstanceIds=[instance.instance_id])
    for member in answer["AutoScalingInstances"]:
        if member["InstanceId"] == instance.instance_id:
            return member["AutoScalingGroupName"], member["LifecycleState"]
    gone = instance.tags.get(GROUP_TAG, earlier_group) if instance.state in GOING else ""
    return gone, ""
