"""Events of EC2 and AWS Health as EventBridge writes them, in short."""

import json
import uuid
from typing import Any

ACCOUNT, REGION = "111122223333", "us-west-2"
ANNOUNCED = "2026-03-01T10:00:00Z"
RETIREMENT = "AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED"


def envelope(source: str, detail_type: str, detail: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "version": "0",
        "id": str(uuid.uuid4()),
        "detail-type": detail_type,
        "source": source,
        "account": ACCOUNT,
        "time": ANNOUNCED,
        "region": REGION,
        "resources": [],
        "detail": detail,
    } | fields


def health(*instances: Any, code: str = RETIREMENT, resources: Any = (), **detail: Any) -> dict[str, Any]:
    """An event of AWS Health about these instances. Keywords that are no fields of the detail by Python's
    rules come as `**{"eventArn": ...}`."""
    written = {
        "eventArn": f"arn:aws:health:{REGION}::event/EC2/{code}/{code}_4711",
        "service": "EC2",
        "eventTypeCode": code,
        "eventTypeCategory": "scheduledChange",
        "eventScopeCode": "ACCOUNT_SPECIFIC",
        "communicationId": "4711-1",
        "startTime": "Sun, 15 Mar 2026 06:00:00 GMT",
        "endTime": "Sun, 15 Mar 2026 08:00:00 GMT",
        "lastUpdatedTime": "Sun, 1 Mar 2026 10:00:00 GMT",
        "statusCode": "upcoming",
        "eventRegion": REGION,
        "eventDescription": [{"language": "en_US", "latestDescription": "EC2 has detected degradation."}],
        "affectedEntities": [{"entityValue": each, "status": "PENDING"} for each in instances],
        "affectedAccount": ACCOUNT,
        "page": "1",
        "totalPages": "1",
    }
    return envelope("aws.health", "AWS Health Event", written | detail, resources=list(resources))


def interruption(instance: str, *, reservation: bool = False, **detail: Any) -> dict[str, Any]:
    kind = "Capacity Reservation" if reservation else "Spot"
    written = {"instance-id": instance, "instance-action": "terminate"} | detail
    return envelope("aws.ec2", f"EC2 {kind} Instance Interruption Warning", written)


def in_sns(event: dict[str, Any], kind: str = "Notification") -> str:
    """The event as a topic of SNS sends it that does not deliver it raw."""
    return json.dumps(
        {
            "Type": kind,
            "MessageId": str(uuid.uuid4()),
            "TopicArn": f"arn:aws:sns:{REGION}:{ACCOUNT}:events",
            "Message": json.dumps(event),
            "SubscribeURL": "http://sns.example/?Action=ConfirmSubscription",
            "Signature": "EXAMPLE",
        }
    )
