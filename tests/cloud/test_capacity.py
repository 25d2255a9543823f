"""Capacity first: whether anything would come in an instance's place, before it is terminated."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cloud.conftest import GROUP, Wire, members, replacement_of
from cloud.scaling import (
    NO_P5,
    change_group,
    change_instance,
    failed,
    launched,
    leave_out,
    set_lifecycle,
    show_activities,
    show_reservation,
)
from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import errors
from gpu_runbooks.activities.aws.auto_scaling_group import Group, Launches, Member
from gpu_runbooks.activities.aws.capacity_reservations import Reservation, needs_free_slot, why_no_slot
from gpu_runbooks.activities.aws.capacity_shortages import is_passing, shortage_in
from gpu_runbooks.activities.aws.connection import Aws
from gpu_runbooks.activities.aws.launch_history import cannot_launch, failures_since, launch_from, launches_in
from gpu_runbooks.activities.aws.successor_capacity import why_nothing_would_come
from gpu_runbooks.activities.cloud import Cloud
from gpu_runbooks.activities.model.node import NodeIdentity

TERMINATE = "TerminateInstanceInAutoScalingGroup"
NOW = datetime.now(UTC)
RESERVATION = "cr-0123456789abcdef0"


@pytest.fixture
def node(fleet: list[NodeIdentity]) -> NodeIdentity:
    return fleet[0]


async def refused(aws: Aws, wire: Wire, node: NodeIdentity) -> str:
    """The words with which the replacement is refused for lack of capacity; nothing was terminated."""
    before = members(aws)
    with pytest.raises(ApplicationError) as raised:
        await Cloud(aws).replace_instance(replacement_of(node))
    assert (raised.value.type, raised.value.non_retryable) == (errors.NO_CAPACITY, True)
    assert wire.sent[TERMINATE] == 0
    assert members(aws) == before
    return raised.value.message


class TestWords:
    @pytest.mark.parametrize(
        ("code", "message"),
        [
            ("InsufficientInstanceCapacity", NO_P5),
            ("InsufficientInstanceCapacity", "Insufficient capacity."),
            ("InsufficientInstanceCapacity", "InsufficientHostCapacity: there is none on this host"),
            (
                "MaxSpotInstanceCountExceeded",
                "Max spot instance count exceeded. Launching EC2 instance failed.",
            ),
            (
                "VcpuLimitExceeded",
                (
                    "You have requested more vCPU capacity than your current vCPU limit of 0 allows for the "
                    "instance bucket that the specified instance type belongs to."
                ),
            ),
            (
                "UnfulfillableCapacity",
                (
                    "Could not launch Spot Instances. UnfulfillableCapacity - Unable to fulfill capacity due "
                    "to your request configuration."
                ),
            ),
            ("UnfulfillableCapacity", "There is no Spot capacity available that matches your request."),
            (
                "Unsupported",
                (
                    "Your requested instance type (p5.48xlarge) is not supported in your requested "
                    "Availability Zone (us-west-2d)."
                ),
            ),
            ("Unsupported", "The requested configuration is currently not supported."),
            (
                "InsufficientFreeAddressesInSubnet",
                "There are not enough free addresses in subnet 'subnet-1' to satisfy the request.",
            ),
            (
                "MaxFleetCountExceeded",
                "You've reached your quota for maximum Fleet Requests for this account.",
            ),
            (
                "ReservationCapacityExceeded",
                (
                    "The requested reservation does not have sufficient compatible and available capacity "
                    "for this request."
                ),
            ),
            (
                "InstanceLimitExceeded",
                "You have requested more instances (5) than your current instance limit.",
            ),
        ],
    )
    def test_what_is_short_is_known_by_the_code_and_by_its_sentence(self, code: str, message: str) -> None:
        by_sentence, by_code = shortage_in(message), shortage_in(f"{code}: no")

        assert by_sentence is not None
        assert by_code is not None
        assert by_sentence.code == by_code.code == code
        assert by_sentence.advice

    @pytest.mark.parametrize(
        "message", ["InternalError: an internal error has occurred", "RequestLimitExceeded", "Rate exceeded"]
    )
    def test_a_failure_of_awss_own_says_nothing_about_capacity(self, message: str) -> None:
        assert shortage_in(message) is None
        assert is_passing(message)

    def test_any_other_failure_is_neither(self) -> None:
        assert shortage_in("The image id '[ami-1]' does not exist") is None
        assert not is_passing("The image id '[ami-1]' does not exist")


class TestHistory:
    @pytest.mark.parametrize(
        ("activities", "counts"),
        [
            ([], False),
            ([failed()], True),
            ([failed(StatusCode="Cancelled")], True),
            ([failed(ago=timedelta(minutes=31))], False),
            ([launched(), failed()], False),
            ([failed(), launched(ago=timedelta(minutes=9))], True),
            ([launched(StatusCode="PreInService"), failed()], False),
            ([failed(Description="Terminating EC2 instance: i-0aaaaaaaaaaaaaaa1")], False),
            ([failed(Description="Launching a new EC2 instance into warm pool.")], True),
            ([{"StatusCode": "Failed", "StatusMessage": NO_P5, "Cause": "a difference"}], True),
            ([launched(StatusCode="Failed", StatusMessage=NO_P5)], True),
            (
                [
                    launched(
                        ago=timedelta(0), Description="Launching a new EC2 instance.", StatusCode="InProgress"
                    ),
                    failed(),
                ],
                True,
            ),
        ],
        ids=[
            "nothing",
            "failed",
            "cancelled",
            "long-ago",
            "refuted",
            "success-before-it",
            "refuted-by-one-that-starts",
            "termination-failed",
            "warm-pool",
            "bare",
            "failed-with-an-instance",
            "not-yet-refuted",
        ],
    )
    def test_a_failed_launch_counts_until_a_later_one_refutes_it(
        self, activities: list[dict[str, Any]], counts: bool
    ) -> None:
        assert bool(failures_since(launches_in(activities), NOW - timedelta(minutes=30))) is counts

    @pytest.mark.parametrize(
        ("failures", "zones", "lost"),
        [
            ([NO_P5], 1, True),
            ([NO_P5], 2, False),
            ([NO_P5, NO_P5], 2, True),
            ([NO_P5], 0, True),
            (["Rate exceeded"], 1, False),
            (["The image id '[ami-1]' does not exist"], 1, True),
        ],
    )
    def test_each_zone_gets_its_try(self, failures: list[str], zones: int, lost: bool) -> None:
        launches = launches_in([failed(message) for message in failures])

        assert (cannot_launch(launches, NOW - timedelta(minutes=30), zones) is not None) is lost

    def test_the_words_name_what_is_short_and_what_helps(self) -> None:
        launch = launch_from(failed(), NOW)

        assert launch is not None
        assert "do not have sufficient p5.48xlarge capacity" in launch.in_words()
        assert "InsufficientInstanceCapacity: wait until" in launch.in_words()


def group(*lifecycles: str, desired: int = 2, **changes: Any) -> Group:
    held = {f"i-{number}": Member(lifecycle) for number, lifecycle in enumerate(lifecycles)}
    return Group(**{"name": GROUP, "desired_capacity": desired, "max_size": 4, "members": held} | changes)


class TestGroup:
    @pytest.mark.parametrize(
        ("found", "words"),
        [
            (group("InService", "InService"), ""),
            (group("InService", "Pending"), ""),
            (group("InService", "Pending:Wait"), ""),
            (group("InService"), "wants 2 and has 1"),
            (group("InService", "Terminating"), "wants 2 and has 1"),
            (group("InService", "Terminating:Wait"), "wants 2 and has 1"),
            (group("InService", "InService", "Standby"), ""),
            (group("InService", "InService", "InService"), "it is shrinking"),
            (group("InService", "InService", status="Delete in progress"), "Delete in progress"),
            (group("InService", desired=640, unit="vcpu"), ""),
            (group(members={"i-0": Member("InService", 2), "i-1": Member("InService", 1)}), ""),
            (group(members={"i-0": Member("InService", 1), "i-1": Member("Terminating", 2)}), "and has 1"),
        ],
    )
    def test_a_group_that_is_not_complete_gets_no_second_hole(self, found: Group, words: str) -> None:
        reasons = why_nothing_would_come(found, [], NOW)

        assert len(reasons) == (1 if words else 0)
        assert words in "".join(reasons)


class TestReservations:
    @pytest.mark.parametrize(
        ("changes", "targets", "words"),
        [
            ({}, [], ""),
            ({"ends": NOW + timedelta(hours=3)}, [], ""),
            ({"ends": NOW + timedelta(hours=1, minutes=59)}, [], "a successor would not last"),
            ({"ends": NOW - timedelta(minutes=1)}, [], "a successor would not last"),
            ({"state": "expired"}, [], "is expired"),
            ({"state": "cancelling"}, [], "is cancelling"),
            ({"is_block": True, "ends": NOW + timedelta(hours=3)}, [RESERVATION], ""),
            (
                {"is_block": True, "ends": NOW + timedelta(hours=2, minutes=20)},
                [RESERVATION],
                "Capacity Block",
            ),
            ({"is_block": True, "ends": NOW + timedelta(hours=3)}, [], "no block by its id"),
            ({"is_block": True, "ends": NOW + timedelta(hours=3)}, ["cr-other"], "launches into cr-other"),
        ],
    )
    def test_the_slot_has_to_last_and_to_be_found_again(
        self, changes: dict[str, Any], targets: list[str], words: str
    ) -> None:
        reservation = Reservation(
            **{"reservation_id": RESERVATION, "state": "active", "available": 0} | changes
        )

        reason = why_no_slot(reservation, [Launches(), Launches(reservations=frozenset(targets))], NOW)

        assert bool(reason) is bool(words)
        assert words in reason

    @pytest.mark.parametrize(
        ("block", "launches", "needs"),
        [
            (False, Launches(), False),
            (False, Launches(preference="capacity-reservations-first"), False),
            (False, Launches(preference="capacity-reservations-only"), True),
            (False, Launches(reservations=frozenset({RESERVATION})), True),
            (True, Launches(), True),
        ],
    )
    def test_launch_first_needs_a_free_slot_where_no_other_capacity_is_used(
        self, block: bool, launches: Launches, needs: bool
    ) -> None:
        reservation = Reservation(RESERVATION, "active", 0, is_block=block)

        assert needs_free_slot(reservation, [launches]) is needs


class TestReplace:
    async def test_the_second_node_of_a_pool_without_capacity_is_not_terminated(
        self, aws: Aws, wire: Wire, fleet: list[NodeIdentity]
    ) -> None:
        leave_out(aws, wire, fleet[1].instance_id)
        show_activities(aws, wire, failed(), failed(ago=timedelta(minutes=7)))

        message = await refused(aws, wire, fleet[0])

        for words in ("wants 4 and has 3", "do not have sufficient p5.48xlarge capacity", "2 such failures"):
            assert words in message
        assert fleet[0].instance_id in message

    async def test_while_the_first_node_is_going_the_second_is_not_terminated(
        self, aws: Aws, wire: Wire, fleet: list[NodeIdentity]
    ) -> None:
        set_lifecycle(aws, wire, fleet[1].instance_id, "Terminating:Wait")

        assert "wants 4 and has 3" in await refused(aws, wire, fleet[0])

    async def test_a_failure_that_a_later_launch_refuted_holds_nothing_up(
        self, aws: Aws, wire: Wire, node: NodeIdentity
    ) -> None:
        show_activities(aws, wire, launched(), failed())

        assert (await Cloud(aws).replace_instance(replacement_of(node))).state == "terminated"

    async def test_a_launch_template_that_is_gone_launches_nothing(
        self, aws: Aws, wire: Wire, node: NodeIdentity
    ) -> None:
        aws.ec2_once.delete_launch_template(LaunchTemplateName=GROUP)

        assert "does not exist: give the group another" in await refused(aws, wire, node)

    async def test_a_template_that_cannot_be_read_is_no_answer(
        self, aws: Aws, wire: Wire, node: NodeIdentity
    ) -> None:
        wire.refuse(aws.ec2, "DescribeLaunchTemplateVersions", *["InternalError"] * 9, status=500)

        with pytest.raises(ApplicationError) as raised:
            await Cloud(aws).replace_instance(replacement_of(node))

        assert (raised.value.type, raised.value.non_retryable) == (errors.AWS, False)
        assert wire.sent[TERMINATE] == 0

    async def test_the_slot_of_an_active_reservation_is_used_again(
        self, aws: Aws, wire: Wire, node: NodeIdentity
    ) -> None:
        change_instance(aws, wire, node.instance_id, CapacityReservationId=RESERVATION)
        show_reservation(aws, RESERVATION)

        assert (await Cloud(aws).replace_instance(replacement_of(node))).reservation == RESERVATION

    async def test_near_the_end_of_a_capacity_block_nothing_is_terminated(
        self, aws: Aws, wire: Wire, node: NodeIdentity
    ) -> None:
        change_instance(
            aws, wire, node.instance_id, CapacityReservationId=RESERVATION, InstanceLifecycle="capacity-block"
        )
        target = {"CapacityReservationTarget": {"CapacityReservationIds": [RESERVATION]}}
        change_group(aws, wire, lambda found: found.update(CapacityReservationSpecification=target))
        ends = datetime.now(UTC) + timedelta(hours=2)
        show_reservation(aws, RESERVATION, reservationType="capacity-block", endDate=ends.isoformat())

        assert f"Capacity Block {RESERVATION}" in await refused(aws, wire, node)

    async def test_a_block_that_the_group_does_not_launch_into_is_not_left(
        self, aws: Aws, wire: Wire, node: NodeIdentity
    ) -> None:
        change_instance(
            aws, wire, node.instance_id, CapacityReservationId=RESERVATION, InstanceLifecycle="capacity-block"
        )
        ends = datetime.now(UTC) + timedelta(days=2)
        show_reservation(aws, RESERVATION, reservationType="capacity-block", endDate=ends.isoformat())

        assert "Name the block in the group's launch template" in await refused(aws, wire, node)

    async def test_a_reservation_that_ec2_does_not_show_promises_nothing(
        self, aws: Aws, wire: Wire, node: NodeIdentity
    ) -> None:
        change_instance(aws, wire, node.instance_id, CapacityReservationId=RESERVATION)
        wire.refuse(aws.ec2, "DescribeCapacityReservations", "InvalidCapacityReservationId.NotFound")

        assert f"EC2 does not show capacity reservation {RESERVATION}" in await refused(aws, wire, node)
