"""What an Auto Scaling group's latest launches say: whether it can launch at all."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from gpu_runbooks.activities.aws.capacity_shortages import is_passing, shortage_in
from gpu_runbooks.activities.aws.connection import Aws, call

WINDOW = timedelta(minutes=30)
"""How long a failed launch counts. A group that stays short tries again, and fails again, within it."""

CLOCK_SKEW = timedelta(seconds=5)

MOST_ACTIVITIES = 100
"""Of one answer, the newest first: what AWS gives at most."""

GIVEN_UP = frozenset({"Failed", "Cancelled"})
"""Status codes of an activity that came to nothing."""

INSTANCE_ID = re.compile(r"\bi-[0-9a-f]{8,17}\b")

LONGEST_QUOTE = 300


@dataclass(frozen=True)
class Launch:
    """One try of a group to launch an instance."""

    at: datetime
    """When it began."""
    failed: bool
    launched: bool
    """EC2 gave an instance, whatever becomes of it."""
    message: str = ""
    """Why it failed, in AWS's words."""

    def in_words(self) -> str:
        """A failed launch with AWS's words, what is short, and what helps."""
        shortage = shortage_in(self.message)
        kind = f" ({shortage.code}: {shortage.advice})" if shortage else ""
        return f"launch failed at {self.at:%H:%M:%S} UTC: {self.message[:LONGEST_QUOTE]}{kind}"


async def recent_activities(aws: Aws, group: str) -> Sequence[Mapping[str, Any]]:
    """The group's newest scaling activities, newest first."""
    answer = await call(
        aws.autoscaling.describe_scaling_activities, AutoScalingGroupName=group, MaxRecords=MOST_ACTIVITIES
    )
    return answer["Activities"]


async def recent_launches(aws: Aws, group: str) -> list[Launch]:
    """The group's launches among its newest scaling activities."""
    return launches_in(await recent_activities(aws, group))


def launches_in(activities: Sequence[Mapping[str, Any]]) -> list[Launch]:
    now = datetime.now(UTC)
    return [launch for each in activities if (launch := launch_from(each, now)) is not None]


def is_terminating(activities: Sequence[Mapping[str, Any]], instance_id: str) -> bool:
    """Whether the group has begun to terminate the instance, which may show nowhere else yet."""
    return any(
        each.get("Description", "").lower().startswith("terminating")
        and instance_id in INSTANCE_ID.findall(each["Description"])
        and each.get("StatusCode") not in GIVEN_UP
        for each in activities
    )


def launch_from(activity: Mapping[str, Any], now: datetime) -> Launch | None:
    """The launch that a scaling activity is about; None for a termination and all else.

    A failure that does not say when it began counts as of now.
    """
    description = activity.get("Description", "")
    message = activity.get("StatusMessage", "")
    status = activity.get("StatusCode", "")
    if description and not description.lower().startswith("launching"):
        return None
    if not description and "launch" not in f"{message} {activity.get('Cause', '')}".lower():
        return None
    failed = status in GIVEN_UP
    return Launch(
        at=activity.get("StartTime") or now,
        failed=failed,
        launched=not failed and (status == "Successful" or INSTANCE_ID.search(description) is not None),
        message=message or f"{status} without a reason",
    )


def failures_since(launches: Sequence[Launch], since: datetime) -> list[Launch]:
    """Failed launches since then that no later launch refutes, newest first."""
    successes = [each.at for each in launches if each.launched]
    last = max(successes, default=since)
    failed = [each for each in launches if each.failed and each.at >= since and not each.at < last]
    return sorted(failed, key=lambda each: each.at, reverse=True)


def cannot_launch(launches: Sequence[Launch], since: datetime, zones: int) -> Launch | None:
    """The failure that shows that the group cannot launch now; None while it may still do.

    A group with several zones tries another one after a failure, so each zone gets its try. A failure of
    AWS's own says nothing.
    """
    failed = [each for each in failures_since(launches, since) if not is_passing(each.message)]
    return failed[0] if len(failed) >= max(1, zones) else None
