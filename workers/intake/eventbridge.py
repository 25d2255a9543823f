"""Events of EC2 and AWS Health, as EventBridge writes them, as faults of instances. Pure.

Shapes: "AWS Health events Amazon EventBridge schema" (AWS Health User Guide), "Spot Instance interruption
notices" and "Monitor Capacity Blocks using EventBridge" (EC2 User Guide). An event's body may come plain, or
in the envelope of an SNS topic. Nothing is fetched: no address in it, and no content that lies in S3.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Annotated, Any, Literal, TypeVar

import pydantic_core
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gpu_runbooks.activities import names
from gpu_runbooks.activities.aws.scheduled_events import CODE_OF_HEALTH
from gpu_runbooks.activities.model.fault import Fault, FaultSource
from gpu_runbooks.workers.intake.plain_text import one_line

Shape = TypeVar("Shape", bound=BaseModel)

LONGEST_BODY = 1024 * 1024
"""Characters: the most that a message of SQS has in bytes."""

LONGEST_SUMMARY = 300
LONGEST_TIME = 64

INSTANCE = re.compile(r"i-[0-9a-f]{8,17}")
INSTANCE_ARN = re.compile(
    r"arn:aws[a-z-]*:ec2:(?P<region>[a-z0-9-]+):(?P<account>[0-9]{12}):instance/(?P<instance>i-[0-9a-f]{8,17})"
)
HEALTH_CODE = re.compile(r"AWS_[A-Z0-9_]{1,120}")

HEALTH = "AWS Health Event"
HEALTH_CATEGORIES = ("scheduledChange", "issue")
"""Categories that are about the machine. `accountNotification` is for people, and `investigation` is AWS's
own question whether there is an issue."""

NOTICES = {
    "EC2 Spot Instance Interruption Warning": "spot-interruption",
    "EC2 Capacity Reservation Instance Interruption Warning": "capacity-reservation-interruption",
    "EC2 Instance Rebalance Recommendation": "rebalance-recommendation",
}
"""Code by the detail type of EC2's own events: the machine is taken away, in two minutes or, at the end of a
Capacity Block, in some more; or it is likelier than others to be. Changes of an instance's state are not
among them: most are our own doing, and the Node shows what they do to it."""

OFFLOADED = ("software.amazon.payloadoffloading.", "com.amazon.sqs.javamessaging.")
"""How the pointer begins that stands in for a body in S3."""


class EventUnreadable(ValueError):  # noqa: N818  the body is at fault, not a failure of ours
    """The body is no event. The message says what is wrong with it, and quotes little of it."""


class EventIgnored(Exception):  # noqa: N818  a decision, not a failure of ours
    """There is nothing to do about this event."""


@dataclass(frozen=True)
class Event:
    """What an event says of instances. Nobody has looked yet whose instances they are."""

    code: str
    """EC2's code of a scheduled event, one of ours for an interruption, else the code of AWS Health."""
    reporter: Literal["aws-health", "aws-ec2"]
    key: str
    """What is the same in each delivery of this event, and in each update of it."""
    account: str
    region: str
    instances: tuple[str, ...]
    others: int
    """How many things it names beside them: volumes, hosts, what nobody can read."""
    since: datetime
    """When the fault began: an issue at its onset, anything else when it was announced."""
    deadline: datetime | None
    """When the machine may be taken away, at the earliest."""
    words: str


class _Written(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class _Notification(_Written):
    """What SNS puts around a message, unless it delivers it raw. Who may write is the queue policy's affair,
    so the signature is not read.
    """

    message: str = Field(alias="Message")


class _Envelope(_Written):
    """What EventBridge puts around each event."""

    id: Annotated[str, Field(min_length=1, max_length=128)]
    source: str
    detail_type: str = Field(alias="detail-type")
    account: Annotated[str, Field(pattern=r"^[0-9]{12}$")]
    region: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,40}$")]
    time: str
    resources: Any = None
    detail: dict[str, Any]


class _Health(_Written):
    """Detail of AWS Health. Its times are written as in a letter's head, or as ISO 8601."""

    event_arn: Annotated[str, Field(alias="eventArn", min_length=1, max_length=1600)]
    service: str
    code: Annotated[str, Field(alias="eventTypeCode")]
    category: Annotated[str, Field(alias="eventTypeCategory")]
    status: Annotated[Any, Field(alias="statusCode")] = None
    start: Annotated[Any, Field(alias="startTime")] = None
    end: Annotated[Any, Field(alias="endTime")] = None
    region: Annotated[str | None, Field(alias="eventRegion", pattern=r"^[a-z0-9-]{1,40}$")] = None
    account: Annotated[str | None, Field(alias="affectedAccount", pattern=r"^[0-9]{12}$")] = None
    description: Annotated[Any, Field(alias="eventDescription")] = None
    entities: Annotated[Any, Field(alias="affectedEntities")] = None


class _Notice(_Written):
    instance: Annotated[str, Field(alias="instance-id", pattern=r"^i-[0-9a-f]{8,17}$")]
    action: Annotated[Any, Field(alias="instance-action")] = None
    time: Annotated[Any, Field(alias="instance-termination-time")] = None


def read_event(body: str) -> Event:
    """Read the body of a message. Raises `EventUnreadable`, and `EventIgnored` for what is no fault of a
    machine.
    """
    written = _json(body)
    if isinstance(written, dict) and "Message" in written and "detail" not in written:
        if written.get("Type") != "Notification":
            kind = one_line(str(written.get("Type")), 40)
            raise EventUnreadable(
                f"{kind} of SNS is no notification: nothing is confirmed here. Confirm the subscription by "
                "hand, or let the EventBridge rule write to the queue itself"
            )
        written = _json(_checked(_Notification, written, "notification of SNS").message)
    envelope = _checked(_Envelope, written, "event of EventBridge")
    if envelope.source == "aws.health" and envelope.detail_type == HEALTH:
        return _health(envelope)
    if envelope.source == "aws.ec2" and envelope.detail_type in NOTICES:
        return _notice(envelope)
    raise EventIgnored(
        f"{one_line(envelope.source, 40)!r} {one_line(envelope.detail_type, 80)!r} is no fault"
    )


def fault_of(event: Event, instance: str, received: datetime) -> Fault:
    """The fault of one instance. The same event with the same deadline has the same fingerprint, whenever
    and from whichever region AWS says it again; another deadline is news.
    """
    deadline = event.deadline.isoformat() if event.deadline else ""
    return Fault(
        source=FaultSource.AWS,
        code=event.code,
        summary=event.words,
        # A time in the future is another clock's error; as it stands it would outdate every repair.
        first_seen=min(event.since, received),
        last_seen=received,
        fingerprint=names.digest(event.reporter, event.key, instance, deadline),
        reporter=event.reporter,
    )


def _health(envelope: _Envelope) -> Event:
    detail = _checked(_Health, envelope.detail, "detail of AWS Health")
    if not HEALTH_CODE.fullmatch(detail.code):
        raise EventUnreadable(f"eventTypeCode {one_line(detail.code, 60)!r} is no code of AWS Health")
    if detail.service != "EC2":
        raise EventIgnored(f"{detail.code} is about {one_line(detail.service, 40)!r}, not about EC2")
    if detail.category not in HEALTH_CATEGORIES:
        raise EventIgnored(f"{detail.code} is of category {one_line(detail.category, 40)!r}")
    if detail.status == "closed":
        raise EventIgnored(f"{detail.code} is closed: a node returns by our own validation")
    announced, start = _announced(envelope), moment(detail.start)
    scheduled = detail.category == "scheduledChange"
    deadline = start if scheduled else None
    account, region = detail.account or envelope.account, detail.region or envelope.region
    instances, others = _instances(_named(detail.entities, envelope.resources), account, region)
    return Event(
        code=CODE_OF_HEALTH.get(detail.code, detail.code),
        reporter="aws-health",
        key=detail.event_arn,
        account=account,
        region=region,
        instances=instances,
        others=others,
        since=announced if scheduled or start is None else min(start, announced),
        deadline=deadline,
        words=_words(
            f"AWS Health {detail.code}",
            _when(deadline, moment(detail.end) if scheduled else None),
            _description(detail.description),
        ),
    )


def _notice(envelope: _Envelope) -> Event:
    detail = _checked(_Notice, envelope.detail, f"detail of {envelope.detail_type!r}")
    deadline = moment(detail.time)
    action = detail.action if isinstance(detail.action, str) else ""
    return Event(
        code=NOTICES[envelope.detail_type],
        reporter="aws-ec2",
        key=envelope.id,
        account=envelope.account,
        region=envelope.region,
        instances=(detail.instance,),
        others=0,
        since=_announced(envelope),
        deadline=deadline,
        words=_words(envelope.detail_type, _when(deadline, None), one_line(action, 40)),
    )


def _json(text: str) -> Any:
    if len(text) > LONGEST_BODY:
        raise EventUnreadable(f"it has {len(text)} characters, more than the {LONGEST_BODY} of any message")
    try:
        written = pydantic_core.from_json(text, cache_strings="none")
    except ValueError as error:
        raise EventUnreadable(f"no JSON: {one_line(str(error), 120)}") from None
    if isinstance(written, list) and written and str(written[0]).startswith(OFFLOADED):
        raise EventUnreadable("the body lies in S3, from where nothing is fetched: send it in the message")
    return written


def _checked(shape: type[Shape], written: Any, what: str) -> Shape:
    try:
        return shape.model_validate(written)
    except ValidationError as error:
        wrong = [
            f"{'.'.join(map(str, detail['loc'])) or 'body'}: {detail['msg']}"
            for detail in error.errors(include_input=False, include_url=False)
        ]
        raise EventUnreadable(one_line(f"no {what}: {'; '.join(wrong[:5])}", 400)) from None


def _announced(envelope: _Envelope) -> datetime:
    time = moment(envelope.time)
    if time is None:
        raise EventUnreadable(f"time {one_line(envelope.time, 40)!r} is no time of an event")
    return time


def moment(written: Any) -> datetime | None:
    """A time of AWS; None for what is none, such as the year 1 of an unset time."""
    if not isinstance(written, str) or len(written) > LONGEST_TIME:
        return None
    try:
        time = datetime.fromisoformat(written)
    except ValueError:
        try:
            time = parsedate_to_datetime(written)
        except (ValueError, TypeError, IndexError, OverflowError):
            return None
    if not 2000 <= time.year < 9999:
        return None
    return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)


def _named(entities: Any, resources: Any) -> Iterable[Any]:
    """What an event names, each once. One entity that cannot be read hides no other."""
    for entity in entities if isinstance(entities, list) else ():
        if not isinstance(entity, Mapping):
            yield entity
        elif entity.get("status") != "RESOLVED":
            yield entity.get("entityValue")
    if not entities:  # older events name the instances here only
        yield from resources if isinstance(resources, list) else ()


def _instances(named: Iterable[Any], account: str, region: str) -> tuple[tuple[str, ...], int]:
    """Instances of this account and region, in their order; and how many other things are named."""
    found: dict[str, None] = {}
    others = 0
    for value in named:
        text = value if isinstance(value, str) else ""
        arn = INSTANCE_ARN.fullmatch(text)
        if arn and (arn["account"], arn["region"]) == (account, region):
            found[arn["instance"]] = None
        elif INSTANCE.fullmatch(text):
            found[text] = None
        else:
            others += 1
    return tuple(found), others


def _description(written: Any) -> str:
    """AWS's own words. English comes first in the list."""
    first = written[0] if isinstance(written, list) and written else None
    text = first.get("latestDescription") if isinstance(first, Mapping) else None
    return one_line(text, LONGEST_SUMMARY) if isinstance(text, str) else ""


def _when(deadline: datetime | None, end: datetime | None) -> str:
    if deadline is None:
        return ""
    until = f", until {end:%Y-%m-%d %H:%M} UTC" if end and end > deadline else ""
    return f"not before {deadline:%Y-%m-%d %H:%M} UTC{until}"


def _words(*parts: str) -> str:
    return one_line(": ".join(part for part in parts if part), LONGEST_SUMMARY)
