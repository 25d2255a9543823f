"""Real boto3 against moto's server, with a fleet of one group, and a record of the calls that went out."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.request import Request, urlopen

import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ReadTimeoutError
from moto.server import ThreadedMotoServer

from gpu_runbooks.activities.aws import Aws
from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.model.repair import RebootInstance, ReplaceInstance
from testbed.ports import free_port

GROUP = "p5-nodes"
TYPE = "p5.48xlarge"
REGION = "us-west-2"
ZONE = "us-west-2a"
IMAGE = "ami-0123456789abcdef0"


@pytest.fixture(scope="session")
def moto_url() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")  # made-up images are good enough
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=free_port(), verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
        server.stop()


class Refusal(AWSResponse):
    """An answer of EC2 that refuses, as it goes over the wire."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__("", status, {}, None)
        self._content = (
            f"<Response><Errors><Error><Code>{code}</Code><Message>injected</Message></Error></Errors>"
            "<RequestID>r</RequestID></Response>"
        ).encode()

    @property
    def content(self) -> bytes:
        return self._content


@dataclass
class Wire:
    """What goes out of the clients: counted, and disturbed where a test asks for it."""

    url: str
    sent: Counter[str] = field(default_factory=Counter)
    """Requests by operation, retries of the client included."""
    parameters: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Parameters of the last call of an operation."""

    def attach(self, aws: Aws) -> None:
        for client in (aws.ec2, aws.ec2_once, aws.autoscaling, aws.autoscaling_once):
            client.meta.events.register("request-created", self._count)
            client.meta.events.register("provide-client-params", self._remember)

    def refuse(self, client: Any, operation: str, *codes: str, status: int = 400, about: str = "") -> None:
        """Answer the next calls (about an instance) with these codes; after them the real answer comes."""
        left = list(codes)

        def answer(request: Any, **_: Any) -> Refusal | None:
            return Refusal(status, left.pop(0)) if left and about in str(request.body) else None

        client.meta.events.register(f"before-send.*.{operation}", answer)

    def lose_answer(self, client: Any, operation: str, *, times: int = 1) -> None:
        """Send the request, and time out while its answer is read."""
        left = [times]

        def send_and_time_out(request: Any, **_: Any) -> None:
            if left[0]:
                left[0] -= 1
                client._endpoint._send(request)
                raise ReadTimeoutError(endpoint_url=request.url)

        client.meta.events.register(f"before-send.*.{operation}", send_and_time_out)

    def change(self, client: Any, operation: str, change: Callable[[dict[str, Any]], None]) -> None:
        """Change what the real answer says."""
        client.meta.events.register(f"after-call.*.{operation}", lambda parsed, **_: change(parsed))

    def _count(self, event_name: str, **_: Any) -> None:
        self.sent[event_name.rsplit(".", 1)[-1]] += 1

    def _remember(self, event_name: str, params: dict[str, Any], **_: Any) -> None:
        self.parameters[event_name.rsplit(".", 1)[-1]] = params


@pytest.fixture
def wire(moto_url: str) -> Wire:
    return Wire(moto_url)


@pytest.fixture
def aws(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> Iterator[Aws]:
    """The product's own clients, over an account that is empty."""
    for name, value in {
        "AWS_ENDPOINT_URL": wire.url,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ACCESS_KEY_ID": "cloud-worker",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    made = Aws.connect()
    wire.attach(made)
    yield made
    for client in (made.ec2, made.ec2_once, made.autoscaling, made.autoscaling_once):
        client.close()
    urlopen(Request(f"{wire.url}/moto-api/reset", method="POST")).close()


@pytest.fixture
def fleet(aws: Aws, wire: Wire) -> list[NodeIdentity]:
    """Four nodes of a group that can neither grow nor shrink."""
    aws.ec2.create_launch_template(
        LaunchTemplateName=GROUP, LaunchTemplateData={"ImageId": IMAGE, "InstanceType": TYPE}
    )
    aws.autoscaling.create_auto_scaling_group(
        AutoScalingGroupName=GROUP,
        LaunchTemplate={"LaunchTemplateName": GROUP},
        MinSize=4,
        DesiredCapacity=4,
        MaxSize=4,
        AvailabilityZones=[ZONE],
    )
    instances = members(aws)
    wire.sent.clear()
    return [identity(instance_id) for instance_id in instances]


def members(aws: Aws) -> list[str]:
    """Instances of the group, in the order of their ids."""
    group = aws.autoscaling_once.describe_auto_scaling_groups(AutoScalingGroupNames=[GROUP])
    return sorted(each["InstanceId"] for each in group["AutoScalingGroups"][0]["Instances"])


def capacity(aws: Aws) -> int:
    group = aws.autoscaling_once.describe_auto_scaling_groups(AutoScalingGroupNames=[GROUP])
    return int(group["AutoScalingGroups"][0]["DesiredCapacity"])


def launch_alone(aws: Aws, tags: dict[str, str] | None = None) -> NodeIdentity:
    """A node whose instance no group owns."""
    pairs = [{"Key": key, "Value": value} for key, value in (tags or {}).items()]
    launched = aws.ec2.run_instances(
        ImageId=IMAGE,
        InstanceType=TYPE,
        MinCount=1,
        MaxCount=1,
        Placement={"AvailabilityZone": ZONE},
        TagSpecifications=[{"ResourceType": "instance", "Tags": pairs}] if pairs else [],
    )
    return identity(launched["Instances"][0]["InstanceId"])


def identity(instance_id: str, **changes: str) -> NodeIdentity:
    fields = {
        "name": "gpu-a1",
        "uid": "3d7e",
        "provider_id": f"aws:///{ZONE}/{instance_id}",
        "instance_id": instance_id,
        "zone": ZONE,
        "instance_type": TYPE,
        "boot_id": "b1",
    }
    return NodeIdentity(**(fields | changes))


def reboot_of(node: NodeIdentity) -> RebootInstance:
    return RebootInstance(identity=node, incident="node/test/gpu-a1", reason="xid 79", not_after=soon())


def replacement_of(node: NodeIdentity) -> ReplaceInstance:
    return ReplaceInstance(identity=node, incident="node/test/gpu-a1", reason="xid 79", not_after=soon())


def soon(seconds: float = 30) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def set_state(instance_id: str, state: str) -> Callable[[dict[str, Any]], None]:
    """Change of an answer of DescribeInstances: the state that moto jumps over."""

    def change(parsed: dict[str, Any]) -> None:
        for reservation in parsed.get("Reservations", ()):
            for each in reservation["Instances"]:
                if each["InstanceId"] == instance_id:
                    each["State"]["Name"] = state

    return change
