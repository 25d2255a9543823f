"""Real boto3 against moto's server, with a fleet of one group, and a record of the calls that went out."""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from botocore.awsrequest import AWSResponse
from botocore.client import BaseClient
from botocore.exceptions import ReadTimeoutError
from botocore.loaders import create_loader
from moto.server import ThreadedMotoServer

from gpu_runbooks.activities.aws import ec2
from gpu_runbooks.activities.aws.connection import Aws
from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.model.repair import RebootInstance, ReplaceInstance
from testbed.ports import free_port

CLUSTER = "test"
OWNED = {f"kubernetes.io/cluster/{CLUSTER}": "owned"}
GROUP = "p5-nodes"
TYPE = "p5.48xlarge"
REGION = "us-west-2"
ZONE = "us-west-2a"
IMAGE = "ami-0123456789abcdef0"

POLICY = Path(__file__).parents[2] / "deploy" / "manifests" / "iam" / "cloud-worker.json"
LAST = "test_each_permitted_action_is_called"

IAM_PREFIXES = {"ec2": "ec2", "auto-scaling": "autoscaling"}
"""Prefix of an IAM action by the service as botocore's events name it."""


def permitted_actions() -> set[str]:
    """What the IAM policy of the cloud worker permits."""
    actions: set[str] = set()
    for statement in json.loads(POLICY.read_text())["Statement"]:
        given = statement["Action"]
        actions |= {given} if isinstance(given, str) else set(given)
    return actions


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ask for the actions that nothing called once all has run."""
    items.sort(key=lambda item: item.name == LAST)


@pytest.fixture(scope="session")
def called_actions() -> set[str]:
    """IAM actions that the product called in all tests so far."""
    return set()


@pytest.fixture(scope="session", autouse=True)
def one_reading_of_the_service_models() -> Iterator[None]:
    """EC2's description of itself takes longer to read than most tests to run."""
    with pytest.MonkeyPatch.context() as patch:
        loader = create_loader()
        patch.setattr("botocore.session.create_loader", lambda *_: loader)
        yield


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries at once: the pauses between them are botocore's affair, and ours are short here."""
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    monkeypatch.setattr("botocore.retries.bucket.TokenBucket.acquire", lambda *_, **__: True)
    monkeypatch.setattr(ec2, "UNSURE_PAUSE", 0.01)
    monkeypatch.setattr(ec2, "UNSURE_SECONDS", 0.1)


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
    """An answer that refuses, as it goes over the wire: EC2's words, or Auto Scaling's."""

    def __init__(self, status: int, code: str, message: str, operation: str) -> None:
        super().__init__("", status, {}, None)
        error = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
        self._content = (
            f"<ErrorResponse>{error}<RequestId>r</RequestId></ErrorResponse>"
            if "AutoScaling" in operation
            else f"<Response><Errors>{error}</Errors><RequestID>r</RequestID></Response>"
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
    actions: set[str] = field(default_factory=set)
    """IAM actions that the product called: it does so from threads, and the tests' own calls do not."""
    several: list[str] = field(default_factory=list)
    """Operations that the product called about more than one instance."""

    def attach(self, aws: Aws) -> None:
        for client in clients_of(aws):
            client.meta.events.register("request-created", self._count)
            client.meta.events.register("provide-client-params", self._remember)

    def refuse(
        self,
        client: Any,
        operation: str,
        *codes: str,
        status: int = 400,
        about: str = "",
        message: str = "injected",
    ) -> None:
        """Answer the next calls (about an instance) with these codes; after them the real answer comes."""
        left = list(codes)

        def answer(request: Any, **_: Any) -> Refusal | None:
            if not left or about not in str(request.body):
                return None
            return Refusal(status, left.pop(0), message, operation)

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
        _, service, operation = event_name.split(".")
        self.sent[operation] += 1
        if is_products_thread():
            self.actions.add(f"{IAM_PREFIXES[service]}:{operation}")

    def _remember(self, event_name: str, params: dict[str, Any], **_: Any) -> None:
        operation = event_name.rsplit(".", 1)[-1]
        self.parameters[operation] = params
        if is_products_thread() and len(params.get("InstanceIds", "1")) != 1:
            self.several.append(operation)


def is_products_thread() -> bool:
    return threading.current_thread() is not threading.main_thread()


def clients_of(aws: Aws) -> list[Any]:
    return [client for client in vars(aws).values() if isinstance(client, BaseClient)]


@pytest.fixture
def wire(moto_url: str) -> Wire:
    return Wire(moto_url)


@pytest.fixture
def aws(wire: Wire, monkeypatch: pytest.MonkeyPatch, called_actions: set[str]) -> Iterator[Aws]:
    """The product's own clients, over an account that is empty. It calls nothing but what IAM permits."""
    for name, value in {
        "AWS_ENDPOINT_URL": wire.url,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ACCESS_KEY_ID": "cloud-worker",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    made = Aws.connect(CLUSTER)
    wire.attach(made)
    yield made
    for client in clients_of(made):
        client.close()
    urlopen(Request(f"{wire.url}/moto-api/reset", method="POST")).close()
    called_actions |= wire.actions
    assert wire.actions <= permitted_actions(), "add it to the IAM policy, or do not call it"
    assert not wire.several, "one instance a call"


@pytest.fixture
def fleet(aws: Aws, wire: Wire) -> list[NodeIdentity]:
    """Four nodes of a group that can neither grow nor shrink."""
    aws.ec2.create_launch_template(
        LaunchTemplateName=GROUP,
        LaunchTemplateData={
            "ImageId": IMAGE,
            "InstanceType": TYPE,
            "TagSpecifications": [{"ResourceType": "instance", "Tags": in_aws(OWNED)}],
        },
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


def launch_alone(
    aws: Aws, tags: dict[str, str] | None = None, *, owner: dict[str, str] = OWNED
) -> NodeIdentity:
    """A node whose instance no group owns."""
    pairs = in_aws(owner | (tags or {}))
    launched = aws.ec2.run_instances(
        ImageId=IMAGE,
        InstanceType=TYPE,
        MinCount=1,
        MaxCount=1,
        Placement={"AvailabilityZone": ZONE},
        TagSpecifications=[{"ResourceType": "instance", "Tags": pairs}] if pairs else [],
    )
    return identity(launched["Instances"][0]["InstanceId"])


def in_aws(tags: dict[str, str]) -> list[Any]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]


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
