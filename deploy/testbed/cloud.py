"""AWS of the testbed: an address for plain boto3, a look at the calls that were made, a queue of events."""

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3

from testbed.aws_faults import AwsFaults
from testbed.call_log import Call, read_calls
from testbed.ec2_server import FAULTS, TESTBED_CALLER
from testbed.nodes import GPU_INSTANCE_TYPE, POOL, POOL_LABEL, REGION, SYSTEM_INSTANCE_TYPE, ZONE
from testbed.processes import Processes
from testbed.readiness import answers

if TYPE_CHECKING:
    from mypy_boto3_autoscaling import AutoScalingClient
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import TagTypeDef

GROUP = "p5-nodes"
"""Name of the Auto Scaling group of the GPU nodes."""

IMAGE = "ami-0123456789abcdef0"

EVENTS = "gpu-runbooks-events"
"""Name of the queue of EC2's and AWS Health's events."""


class Cloud:
    """A running stand-in for EC2, Auto Scaling and SQS."""

    def __init__(self, directory: Path, processes: Processes, kubeconfig: Path, cluster: str) -> None:
        self._processes = processes
        self._kubeconfig = kubeconfig
        self._cluster = cluster
        self._log = directory / "ec2-calls.jsonl"
        self.faults = AwsFaults(self._log.with_name(FAULTS))
        self.url = ""
        self.events = ""
        """URL of the queue of events."""

    async def start(self) -> None:
        """Start the server. Nodes join when the kubeconfig file is there."""

        def command(port: int) -> list[str]:
            options = [
                f"--port={port}",
                f"--kubeconfig={self._kubeconfig}",
                f"--log={self._log}",
                f"--group={GROUP}",
            ]
            return [sys.executable, "-m", "testbed.ec2_server", *options]

        environment = {
            "PYTHONPATH": str(Path(__file__).parents[1]),
            "AWS_DEFAULT_REGION": REGION,
            # made-up images are good enough: nothing boots
            "MOTO_EC2_LOAD_DEFAULT_AMIS": "false",
        }
        port = await self._processes.serve(
            "ec2",
            command,
            lambda port: answers(f"http://127.0.0.1:{port}/moto-api/"),
            environment=environment,
        )
        self.url = f"http://127.0.0.1:{port}"
        self.events = await asyncio.to_thread(self._create_queue)

    def _create_queue(self) -> str:
        return str(self.sqs().create_queue(QueueName=EVENTS)["QueueUrl"])

    async def announce(self, event: dict[str, Any]) -> None:
        """Lay an event into the queue, as a rule of EventBridge does."""
        await asyncio.to_thread(self.sqs().send_message, QueueUrl=self.events, MessageBody=json.dumps(event))

    async def launch(self, gpu_nodes: int) -> None:
        """Launch the GPU nodes in their Auto Scaling group, and one small machine beside it."""
        await asyncio.to_thread(self._launch, gpu_nodes)

    def _launch(self, gpu_nodes: int) -> None:
        owned: TagTypeDef = {"Key": f"kubernetes.io/cluster/{self._cluster}", "Value": "owned"}
        pool: TagTypeDef = {"Key": POOL_LABEL, "Value": POOL}
        self.ec2().create_launch_template(
            LaunchTemplateName=GROUP,
            LaunchTemplateData={
                "ImageId": IMAGE,
                "InstanceType": GPU_INSTANCE_TYPE,
                "TagSpecifications": [{"ResourceType": "instance", "Tags": [owned, pool]}],
            },
        )
        self.autoscaling().create_auto_scaling_group(
            AutoScalingGroupName=GROUP,
            LaunchTemplate={"LaunchTemplateName": GROUP},
            MinSize=0,
            MaxSize=gpu_nodes,
            DesiredCapacity=gpu_nodes,
            AvailabilityZones=[ZONE],
        )
        self.ec2().run_instances(
            ImageId=IMAGE,
            InstanceType=SYSTEM_INSTANCE_TYPE,
            MinCount=1,
            MaxCount=1,
            Placement={"AvailabilityZone": ZONE},
        )

    async def grow(self, gpu_nodes: int) -> None:
        """Launch so many more GPU nodes in the group."""
        await asyncio.to_thread(self._grow, gpu_nodes)

    def _grow(self, gpu_nodes: int) -> None:
        (group,) = self.autoscaling().describe_auto_scaling_groups(AutoScalingGroupNames=[GROUP])[
            "AutoScalingGroups"
        ]
        wanted = group["DesiredCapacity"] + gpu_nodes
        self.autoscaling().update_auto_scaling_group(
            AutoScalingGroupName=GROUP, MaxSize=wanted, DesiredCapacity=wanted
        )

    async def shrink(self, instances: list[str]) -> None:
        """Terminate instances for good, those of them that are in the group."""
        await asyncio.to_thread(self._shrink, instances)

    def _shrink(self, instances: list[str]) -> None:
        (group,) = self.autoscaling().describe_auto_scaling_groups(AutoScalingGroupNames=[GROUP])[
            "AutoScalingGroups"
        ]
        members = {member["InstanceId"] for member in group["Instances"]}
        for instance in members.intersection(instances):
            self.autoscaling().terminate_instance_in_auto_scaling_group(
                InstanceId=instance, ShouldDecrementDesiredCapacity=True
            )

    def calls(self, action: str = "") -> list[Call]:
        """Calls by others than the testbed, oldest first: all, or those of one action (`RebootInstances`)."""
        return [call for call in read_calls(self._log) if action in {"", call.action}]

    def environment(self, caller: str) -> dict[str, str]:
        """Variables with which plain boto3 comes here. `caller` is what `calls` names it."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ACCESS_KEY_ID": caller,
            "AWS_SECRET_ACCESS_KEY": "testbed",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def ec2(self) -> "EC2Client":
        """A client for the testbed's own calls."""
        return self._session().client("ec2", endpoint_url=self.url)

    def autoscaling(self) -> "AutoScalingClient":
        """A client for the testbed's own calls."""
        return self._session().client("autoscaling", endpoint_url=self.url)

    def sqs(self) -> Any:
        """A client for the testbed's own calls."""
        return self._session().client("sqs", endpoint_url=self.url)

    def _session(self) -> boto3.Session:
        return boto3.Session(
            aws_access_key_id=TESTBED_CALLER, aws_secret_access_key=TESTBED_CALLER, region_name=REGION
        )
