"""What is read from an event of EC2 or AWS Health, and what is not."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from intake.aws_messages import ACCOUNT, REGION, envelope, health, in_sns, interruption

from gpu_runbooks.activities.aws.scheduled_events import CODE_OF_HEALTH
from gpu_runbooks.activities.model.fault import Entity, FaultSource
from gpu_runbooks.workers.intake.aws_events import LAST_RECEIPT
from gpu_runbooks.workers.intake.eventbridge import (
    NOTICES,
    Event,
    EventIgnored,
    EventUnreadable,
    fault_of,
    moment,
    read_event,
)
from gpu_runbooks.workflows.policy.known_codes import aws_events

I1, I2 = "i-0123456789abcdef0", "i-0123456789abcdef1"
ANNOUNCED = datetime(2026, 3, 1, 10, tzinfo=UTC)
DEADLINE = datetime(2026, 3, 15, 6, tzinfo=UTC)
RECEIVED = ANNOUNCED + timedelta(seconds=3)


def read(event: Any) -> Event:
    return read_event(json.dumps(event))


class TestHealth:
    def test_a_retirement_is_a_fault_of_each_instance(self) -> None:
        event = read(health(I1, f"arn:aws:ec2:{REGION}:{ACCOUNT}:instance/{I2}"))

        assert (event.code, event.instances, event.others) == ("instance-retirement", (I1, I2), 0)
        fault = fault_of(event, I2, RECEIVED)
        assert (fault.source, fault.code, fault.entity) == (FaultSource.AWS, event.code, Entity())
        assert (fault.first_seen, fault.last_seen, fault.reporter) == (ANNOUNCED, RECEIVED, "aws-health")
        assert fault.summary == (
            "AWS Health AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED: not before 2026-03-15 06:00 UTC, "
            "until 2026-03-15 08:00 UTC: EC2 has detected degradation."
        )

    @pytest.mark.parametrize(("written", "code"), CODE_OF_HEALTH.items())
    def test_a_scheduled_event_has_the_code_that_ec2_gives_it(self, written: str, code: str) -> None:
        assert read(health(I1, code=written)).code == code

    def test_a_code_without_a_twin_keeps_its_name(self) -> None:
        code = "AWS_EC2_INSTANCE_STORE_DRIVE_PERFORMANCE_DEGRADED"
        event = read(health(I1, code=code, eventTypeCategory="issue", statusCode="open"))
        assert (event.code, event.deadline) == (code, None)

    def test_an_issue_began_at_its_start(self) -> None:
        event = read(health(I1, eventTypeCategory="issue", startTime="Sun, 1 Mar 2026 07:00:00 GMT"))
        assert fault_of(event, I1, RECEIVED).first_seen == ANNOUNCED - timedelta(hours=3)

    def test_nothing_began_in_the_future(self) -> None:
        event = read(health(I1) | {"time": "2026-03-02T10:00:00Z"})
        assert fault_of(event, I1, RECEIVED).first_seen == RECEIVED

    def test_the_impacted_region_and_account_count(self) -> None:
        """An organisation's event is sent to its administrator; a backup of it to another region."""
        event = read(health(I1) | {"region": "us-east-1", "account": "444455556666"})
        assert (event.region, event.account) == (REGION, ACCOUNT)

    def test_older_events_name_instances_in_their_resources(self) -> None:
        assert read(health(resources=[I1, I1])).instances == (I1,)

    def test_what_is_no_instance_of_here_is_counted_only(self) -> None:
        others = [
            f"arn:aws:ec2:{REGION}:444455556666:instance/{I1}",
            f"arn:aws:ec2:us-east-1:{ACCOUNT}:instance/{I1}",
            "vol-0123456789abcdef0",
            "i-0123456789ABCDEF0",
            "i-",
            f"{I1}\n",
            f" {I1}",
            "../../nodes",
            "--kubeconfig=x",
            "{{ node }}",
            "i-" + "0" * 100_000,
            7,
            None,
            [I1],
            {"a": 1},
        ]
        event = read(health(*others, I2))
        assert (event.instances, event.others) == ((I2,), len(others))

    def test_one_bad_entity_hides_no_other(self) -> None:
        event = read(health(affectedEntities=["x", 3, None, {"entityValue": I1, "tags": {}}, {"status": 1}]))
        assert (event.instances, event.others) == ((I1,), 4)

    def test_an_entity_that_is_resolved_is_no_fault(self) -> None:
        entities = [{"entityValue": I1, "status": "RESOLVED"}, {"entityValue": I2, "status": "PENDING"}]
        assert read(health(affectedEntities=entities)).instances == (I2,)

    def test_ten_thousand_entities_are_read(self) -> None:
        instances = [f"i-{number:017x}" for number in range(10_000)]
        assert read(health(*instances)).instances == tuple(instances)

    @pytest.mark.parametrize("time", ["0001-01-01T00:00:00Z", "soon", "", None, 5, "x" * 10_000, ["a"]])
    def test_a_deadline_that_cannot_be_read_loses_no_fault(self, time: Any) -> None:
        event = read(health(I1, startTime=time, endTime=time))
        assert (event.instances, event.deadline) == ((I1,), None)

    def test_the_description_has_no_effect(self) -> None:
        text = "a [link](http://x.example) \x1b[31m <img src=x>\n\u202eab" + "y" * 100_000
        summary = read(health(I1, eventDescription=[{"latestDescription": text}])).words
        assert summary.isprintable()
        assert len(summary) <= 300
        assert "](" not in summary
        assert "<img" not in summary


class TestInterruption:
    def test_a_spot_instance_is_taken_away(self) -> None:
        event = read(interruption(I1))
        assert (event.code, event.reporter, event.instances) == ("spot-interruption", "aws-ec2", (I1,))

    def test_a_reservation_ends(self) -> None:
        event = read(
            interruption(I1, reservation=True, **{"instance-termination-time": "2026-03-01T10:40:00Z"})
        )
        assert event.code == "capacity-reservation-interruption"
        assert event.deadline == ANNOUNCED + timedelta(minutes=40)
        assert "not before 2026-03-01 10:40 UTC" in event.words

    def test_a_spot_instance_is_likelier_to_be_taken_away(self) -> None:
        event = envelope("aws.ec2", "EC2 Instance Rebalance Recommendation", {"instance-id": I1})
        assert read(event).code == "rebalance-recommendation"


class TestAnswers:
    """The built-in answers know each code, and have one answer to one thing."""

    @pytest.mark.parametrize(("written", "code"), CODE_OF_HEALTH.items())
    def test_health_and_ec2_get_the_same_answer(self, written: str, code: str) -> None:
        assert aws_events()[written].first_rung == aws_events()[code].first_rung

    @pytest.mark.parametrize("code", NOTICES.values())
    def test_each_notice_has_an_answer(self, code: str) -> None:
        assert code in aws_events()


class TestFingerprint:
    def of(self, event: dict[str, Any], instance: str = I1) -> str:
        return fault_of(read(event), instance, RECEIVED).fingerprint

    def test_an_update_and_a_backup_of_an_event_are_repeats(self) -> None:
        later = health(I1, I2, statusCode="open", lastUpdatedTime="Mon, 2 Mar 2026 10:00:00 GMT")
        backup = health(I1, communicationId="4712-1") | {"region": "us-east-1"}
        first = self.of(health(I1))
        assert [self.of(later | {"time": "2026-03-02T10:00:00Z"}), self.of(backup)] == [first, first]

    def test_another_deadline_is_news(self) -> None:
        assert self.of(health(I1)) != self.of(health(I1, startTime="Mon, 2 Mar 2026 06:00:00 GMT"))

    def test_another_instance_or_event_is_news(self) -> None:
        one = self.of(health(I1, I2))
        assert one != self.of(health(I1, I2), I2)
        assert one != self.of(health(I1, eventArn="arn:aws:health:us-west-2::event/EC2/X/X_2"))


class TestEnvelopes:
    def test_a_topic_of_sns_may_be_between(self) -> None:
        assert read_event(in_sns(health(I1))).instances == (I1,)

    @pytest.mark.parametrize("kind", ["SubscriptionConfirmation", "UnsubscribeConfirmation"])
    def test_no_subscription_is_confirmed(self, kind: str) -> None:
        with pytest.raises(EventUnreadable, match="nothing is confirmed here"):
            read_event(in_sns(health(I1), kind))

    def test_sns_in_sns_is_refused(self) -> None:
        with pytest.raises(EventUnreadable):
            read_event(in_sns({"Type": "Notification", "Message": json.dumps(health(I1))}))

    def test_nothing_is_fetched_from_s3(self) -> None:
        pointer = {"s3BucketName": "b", "s3Key": "k"}
        with pytest.raises(EventUnreadable, match="nothing is fetched"):
            read(["software.amazon.payloadoffloading.PayloadS3Pointer", pointer])


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (health(I1, statusCode="closed"), "closed"),
        (health(I1, service="RDS"), "not about EC2"),
        (health(I1, eventTypeCategory="accountNotification"), "accountNotification"),
        (health(I1, eventTypeCategory="investigation"), "investigation"),
        (health(I1) | {"detail-type": "AWS Health Abuse Event"}, "is no fault"),
        (health(I1) | {"source": "fake.aws.health"}, "is no fault"),
        (
            envelope(
                "aws.ec2",
                "EC2 Instance State-change Notification",
                {"instance-id": I1, "state": "shutting-down"},
            ),
            "is no fault",
        ),
    ],
)
def test_what_is_no_fault_is_ignored(event: dict[str, Any], reason: str) -> None:
    with pytest.raises(EventIgnored, match=reason):
        read(event)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "AQICAHh0ZXN0",
        "null",
        "[]",
        "{",
        "[" * 200_000,
        '{"detail":' * 100_000,
        "9" * 300_000,
        '"\\ud800"',
        "x" * (1024 * 1024 + 1),
        json.dumps(health(I1) | {"time": "0001-01-01T00:00:00Z"}),
        json.dumps(health(I1) | {"account": "../1"}),
        json.dumps(health(I1) | {"region": "us-west-2/x"}),
        json.dumps(health(I1) | {"detail": "x"}),
        json.dumps(health(I1) | {"id": 7}),
        json.dumps(health(I1, code="AWS_EC2_X; rm")),
        json.dumps(health(I1, code="AWS_" + "X" * 5000)),
        json.dumps(health(I1, eventArn=["x"])),
        json.dumps(health(I1, affectedAccount="1")),
        json.dumps(interruption("../i-0")),
        json.dumps(interruption(f"{I1}\n")),
    ],
    ids=lambda body: body[:20],
)
def test_what_cannot_be_read_is_refused_in_few_words(body: str) -> None:
    with pytest.raises(EventUnreadable) as refused:
        read_event(body)
    assert len(str(refused.value)) < 500
    assert str(refused.value).isprintable()


class TestPage:
    """docs/aws-events.md says what is true."""

    PAGE = (Path(__file__).parents[2] / "docs" / "aws-events.md").read_text()

    def test_it_names_each_code(self) -> None:
        codes = {*CODE_OF_HEALTH.values(), *NOTICES.values()}
        assert {code for code in codes if f"`{code}`" not in self.PAGE} == set()
        assert {notice for notice in NOTICES if notice not in self.PAGE} == set()

    def test_its_message_is_understood(self) -> None:
        (body,) = re.findall(r"--message-body '(.*?)'", self.PAGE, re.DOTALL)
        event = read_event(body.replace("REGION", REGION))
        assert (event.code, event.instances) == ("instance-retirement", (I1,))

    def test_its_settings_of_the_queue_can_be_read(self) -> None:
        queue, pattern = (
            json.loads(block) for block in re.findall(r"```json\n(.*?)```", self.PAGE, re.DOTALL)
        )
        (statement,) = json.loads(queue["Policy"])["Statement"]
        assert statement["Condition"]["ArnEquals"]
        assert json.loads(queue["RedrivePolicy"])["maxReceiveCount"] < LAST_RECEIPT
        assert {"AWS Health Event", *NOTICES} >= set(pattern["detail-type"])


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)


class TestAnything:
    @given(st.text())
    def test_any_text(self, body: str) -> None:
        self.read(body)

    @given(st.sampled_from(sorted(health()["detail"])), ANY)
    def test_any_value_of_a_field_of_the_detail(self, field: str, value: Any) -> None:
        self.read(json.dumps(health(I1, **{field: value})))

    @given(st.sampled_from(sorted(health())), ANY)
    def test_any_value_of_a_field_of_the_envelope(self, field: str, value: Any) -> None:
        self.read(json.dumps(health(I1) | {field: value}))

    @given(st.text(max_size=70))
    def test_any_time(self, text: str) -> None:
        found = moment(text)
        assert found is None or found.tzinfo is not None

    @staticmethod
    def read(body: str) -> None:
        try:
            event = read_event(body)
        except (EventUnreadable, EventIgnored):
            return
        for instance in event.instances:
            fault_of(event, instance, RECEIVED)
