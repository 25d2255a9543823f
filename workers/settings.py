"""Settings of every role, from the environment.

Temporal's own (`TEMPORAL_ADDRESS`, ...), Kubernetes' (`KUBECONFIG`) and AWS's (`AWS_ENDPOINT_URL`, ...) are
read by their client libraries under their own names; ours start with `GPU_RUNBOOKS_`.
"""

from datetime import timedelta
from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from gpu_runbooks.workflows.policy.fields import Duration, limits


class Settings(BaseSettings):
    """Each field is the environment variable `GPU_RUNBOOKS_<FIELD>`."""

    model_config = SettingsConfigDict(env_prefix="GPU_RUNBOOKS_", frozen=True)

    cluster: str = "default"
    """Name of the cluster: part of every workflow id."""

    namespace: str = "gpu-runbooks"
    """Kubernetes namespace of the NodeTasks."""

    test_namespace: str = "gpu-runbooks-tests"
    """Kubernetes namespace of the test pods, in which none can be privileged."""

    policy: Path = Path("/etc/gpu-runbooks/policy.yaml")
    """The policy file."""

    pod_uid: str = ""
    """UID of this worker's own Pod, from the downward API: a drain never evicts it (cluster-worker only)."""

    evidence: str = ""
    """Where the cluster-worker keeps what is too long for the history: `file:///folder` or
    `s3://bucket/prefix`. Empty keeps the digests only."""

    alertmanager: str = ""
    """Address of the site's Alertmanager, replicas separated by commas (cluster-worker only): who waits for a
    person raises an alert there. Empty: there is the Event on the Node only."""

    sweep_interval: Annotated[Duration, limits(timedelta(minutes=1))] = timedelta(minutes=10)
    """Time between two sweeps of the cluster (controller only), such as `10m`."""

    reboot_command: str = ""
    """The site's own command that reboots a machine (cloud-worker only), for pools whose policy says
    `reboot: command`. It is split as a shell would and run without one."""

    listen: str = "127.0.0.1:8080"
    """Address and port of the intake's webhook."""

    webhook_token_file: Path | None = None
    """File with the bearer token that Alertmanager sends. Without it the intake listens on loopback only."""

    event_queue: str = ""
    """URL of the SQS queue in which EventBridge lays the events of EC2 and AWS Health (intake only). Empty:
    the intake has no such source."""

    event_account: Annotated[str, Field(pattern="^([0-9]{12})?$")] = ""
    """AWS account of the nodes, twelve digits: events about another one are ignored. Empty: the account is
    not compared."""

    node_name: str = ""
    """Node that this Pod runs on, from the downward API. The agent works for it; the cluster-worker leaves
    acts on it to a worker elsewhere."""

    boot_id_file: Path = Path("/proc/sys/kernel/random/boot_id")
    """Where the agent reads the boot id of its machine."""

    sysfs: Path = Path("/sys")
    """Where the agent counts EFA devices."""

    proc: Path = Path("/proc")
    """Where the agent looks up the pods of processes: the host's, so its pod has the host's PID namespace."""

    kubelet: Path = Path("/var/lib/kubelet")
    """Folder of the machine's kubelet, in whose records the agent finds the pods that were given a GPU."""

    kernel_log: Path = Path("/dev/kmsg")
    """Where the agent reads the kernel log, in the format of `/dev/kmsg`."""

    dcgm_command: str = "dcgmi health --check --json"
    """What the agent asks DCGM for the evidence before a repair; nothing where the node has no such program.
    It is split as a shell would and run without one."""

    init_pid: int = 1
    """Process that the agent asks for a reboot: the machine's init, as the host's PID namespace shows it."""

    agent_lock: Path = Path("/run/gpu-runbooks/agent.lock")
    """File of the machine, not of the container, that an agent locks while it acts: of two on one node, such
    as after a Pod was deleted by force, one acts."""
