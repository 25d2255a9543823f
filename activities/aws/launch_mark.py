"""The mark on a group that is larger by a successor: what was done to it, for whom, and from which size.

A desired capacity has no idempotency token, and a heartbeat can be lost with its worker. So the mark is
written first, as a tag of the group. Who comes back reads it, and raises nothing twice; a second incident of
the group finds it, and waits its turn.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from gpu_runbooks.activities import errors, names
from gpu_runbooks.activities.aws.auto_scaling_group import Group, find_group
from gpu_runbooks.activities.aws.connection import Aws, act
from gpu_runbooks.activities.aws.instance_owner import Ownership

if TYPE_CHECKING:
    from mypy_boto3_autoscaling.type_defs import TagTypeDef

MARK = f"{names.PREFIX}/launch-first"
"""Tag of a group; its value is a `Mark`."""


@dataclass(frozen=True)
class Mark:
    """What stands on a group while it is larger by a successor."""

    instance_id: str
    """The old instance."""
    before: int
    """Desired capacity before it was raised."""
    since: datetime

    def __str__(self) -> str:
        return f"{self.instance_id} {self.before} {self.since:%Y-%m-%dT%H:%M:%SZ}"

    @property
    def raised(self) -> int:
        return self.before + 1


def mark_on(group: Group) -> Mark | None:
    """The mark on a group. Raises PROTECTED for one that cannot be read."""
    value = group.tags.get(MARK)
    if value is None:
        return None
    try:
        instance_id, before, since = value.split(" ")
        return Mark(instance_id, int(before), datetime.fromisoformat(since))
    except ValueError:
        raise errors.refusal(
            errors.PROTECTED,
            f"tag {MARK} of group {group.name} cannot be read: {value!r}. See what the group's desired "
            "capacity should be, remove the tag and retry",
        ) from None


async def write_mark(aws: Aws, ownership: Ownership) -> Mark | None:
    """The mark, as it stands on the group; None where another incident wrote at the same time."""
    group = ownership.group
    mark = Mark(
        ownership.instance.instance_id, group.desired_capacity, datetime.now(UTC).replace(microsecond=0)
    )
    tag = {**_tag(group.name), "Value": str(mark), "PropagateAtLaunch": False}
    await act(aws.autoscaling_once.create_or_update_tags, Tags=[tag])
    written = await find_group(aws, group.name)
    return mark if written is not None and mark_on(written) == mark else None


async def remove_mark(aws: Aws, group_name: str) -> None:
    """Take it off. Gone already is success."""
    await act(aws.autoscaling_once.delete_tags, Tags=[_tag(group_name)])


def _tag(group_name: str) -> "TagTypeDef":
    return {"ResourceId": group_name, "ResourceType": "auto-scaling-group", "Key": MARK}
