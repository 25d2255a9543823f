"""Capacity reservations and Capacity Blocks: whether a successor will find a slot.

A reserved instance's own slot is what its successor uses; it is free only some minutes after the old instance
is terminated. A Capacity Block cannot be changed, and EC2 terminates its instances from 30 minutes before its
end (EC2 user guide, "Capacity Blocks for ML").
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from gpu_runbooks.activities.aws.auto_scaling_group import Launches
from gpu_runbooks.activities.aws.connection import Aws, call

LEAST_LEFT = timedelta(hours=2)
"""A machine that is launched for less than this does no work that is worth its launch."""

BLOCK_ENDS_EARLY = timedelta(minutes=30)

SLOT_RETURNS = timedelta(minutes=15)
"""After an instance is terminated its slot is cleaned; until then launches into it fail."""

NO_RESERVATION = "InvalidCapacityReservationId.NotFound"

RESERVATIONS_ONLY = "capacity-reservations-only"


@dataclass(frozen=True)
class Reservation:
    """A capacity reservation as EC2 describes it."""

    reservation_id: str
    state: str
    """`active`, or any other that cannot be launched into."""
    available: int
    """Free slots."""
    ends: datetime | None = None
    is_block: bool = False
    is_ultraserver: bool = False

    @property
    def name(self) -> str:
        return f"{'Capacity Block' if self.is_block else 'capacity reservation'} {self.reservation_id}"


async def find_reservation(aws: Aws, reservation_id: str) -> Reservation | None:
    """The reservation; None for one that EC2 does not name, though it knows the id."""
    answer = await call(aws.ec2.describe_capacity_reservations, CapacityReservationIds=[reservation_id])
    for found in answer["CapacityReservations"]:
        if found["CapacityReservationId"] == reservation_id:
            return Reservation(
                reservation_id=reservation_id,
                state=found["State"],
                available=found.get("AvailableInstanceCount", 0),
                ends=found.get("EndDate"),
                is_block=found.get("ReservationType") == "capacity-block",
                is_ultraserver="LaunchStatus" in found,
            )
    return None


def why_no_slot(reservation: Reservation, launches: list[Launches], now: datetime) -> str:
    """Why the successor would not get the slot of the old instance; empty where it would.

    `launches` is what the group and its launch template say.
    """
    if reservation.state != "active":
        return (
            f"{reservation.name}, in which it runs, is {reservation.state}: its slot is not given again. "
            "Point the group to a reservation that is active"
        )
    if reservation.ends is not None:
        last = reservation.ends - (BLOCK_ENDS_EARLY if reservation.is_block else timedelta(0))
        if last - now < LEAST_LEFT:
            return (
                f"{reservation.name}, in which it runs, serves until {last:%Y-%m-%d %H:%M} UTC, less than "
                f"{LEAST_LEFT.total_seconds() / 3600:.0f} h from now: a successor would not last. Extend it, "
                "or leave the node out until then"
            )
    targets = frozenset[str]().union(*(each.reservations for each in launches))
    if reservation.is_block and reservation.reservation_id not in targets:
        aims = ", ".join(sorted(targets)) or "no block by its id"
        return (
            f"it runs in {reservation.name}, and the group launches into {aims}: the successor would not get "
            "its slot. Name the block in the group's launch template"
        )
    return ""


def needs_free_slot(reservation: Reservation, launches: list[Launches]) -> bool:
    """Whether a successor that is launched first can only come from a free slot of the reservation."""
    targeted = any(each.reservations or each.reservation_groups for each in launches)
    return reservation.is_block or targeted or any(each.preference == RESERVATIONS_ONLY for each in launches)
