"""A manifest says nothing that the product does not know: images, roles, variables, references, order."""

import json

import pytest
from manifests.conftest import MANIFESTS

from gpu_runbooks.activities import names
from gpu_runbooks.activities.evidence.evidence import sink_of
from gpu_runbooks.activities.evidence.sinks import DirectorySink
from gpu_runbooks.workers.settings import Settings
from gpu_runbooks.workflows.policy.file import load_policy

ROLES = {"intake", "controller", "cluster-worker", "cloud-worker", "node-agent"}
OF_LIBRARIES = {"TEMPORAL_ADDRESS", "TEMPORAL_NAMESPACE", "LD_LIBRARY_PATH"}
PREFIX = "GPU_RUNBOOKS_"


@pytest.fixture
def workloads(rendered):
    return {
        each["metadata"]["name"]: each["spec"]["template"]["spec"]
        for each in rendered
        if each["kind"] in {"Deployment", "DaemonSet"}
    }


def named(rendered, kind):
    return {each["metadata"]["name"]: each for each in rendered if each["kind"] == kind}


def containers(pod):
    return [*pod.get("initContainers", ()), *pod["containers"]]


def environment(rendered, container):
    """Variables of a container: value, or None where the cluster fills it in."""
    config_maps = named(rendered, "ConfigMap")
    values = {}
    for source in container.get("envFrom", ()):
        values |= config_maps[source["configMapRef"]["name"]]["data"]
    return values | {each["name"]: each.get("value") for each in container.get("env", ())}


def test_every_role_has_its_workload(workloads):
    assert set(workloads) == ROLES
    for role, pod in workloads.items():
        (container,) = pod["containers"]
        entry_point = ["gpu-runbooks"]  # of the image
        assert [*container.get("command", entry_point), *container.get("args", ())] == [*entry_point, role]
        assert pod["serviceAccountName"] == role
        assert {each["image"] for each in containers(pod)} == {"gpu-runbooks:latest"}


def test_every_variable_is_known(rendered, workloads, monkeypatch):
    ours = {PREFIX + field.upper() for field in Settings.model_fields}
    for pod in workloads.values():
        for container in containers(pod):
            variables = environment(rendered, container)
            assert set(variables) <= ours | OF_LIBRARIES
            with monkeypatch.context() as patched:
                for name, value in variables.items():
                    patched.setenv(name, value or "gpu-runbooks")
                assert Settings().namespace == "gpu-runbooks"


def test_each_object_has_its_namespace(rendered):
    unconfined = {"Namespace", "CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding"}
    unconfined |= {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
    moved = {("Role", "cluster-worker"), ("RoleBinding", "cluster-worker")}
    of_nodes = {(kind, "gpu-runbooks-cluster-worker") for kind in ("Role", "RoleBinding")}
    in_tests, in_default = set(), set()
    for each in rendered:
        kind, metadata = each["kind"], each["metadata"]
        if kind not in unconfined and metadata["namespace"] == Settings().test_namespace:
            in_tests.add((kind, metadata["name"]))
        elif kind not in unconfined and metadata["namespace"] == "default":
            in_default.add((kind, metadata["name"]))
        elif kind not in unconfined:
            assert metadata["namespace"] == Settings().namespace
    assert in_tests == moved, "nothing but the rights over test pods lies beside them"
    assert in_default == of_nodes, "nothing but the right to the events of Nodes lies with them"
    levels = {
        name: each["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
        for name, each in named(rendered, "Namespace").items()
    }
    assert levels == {Settings().namespace: "privileged", Settings().test_namespace: "baseline"}


def test_every_reference_has_its_object(rendered, workloads):
    config_maps, accounts = named(rendered, "ConfigMap"), named(rendered, "ServiceAccount")
    for role, pod in workloads.items():
        assert role in accounts
        volumes = {volume["name"]: volume for volume in pod.get("volumes", ())}
        for volume in volumes.values():
            if "configMap" in volume:
                assert volume["configMap"]["name"] in config_maps
        for container in containers(pod):
            assert {mount["name"] for mount in container.get("volumeMounts", ())} <= set(volumes)


def test_the_policy_lies_where_the_roles_look_for_it(rendered, workloads):
    for role in ("intake", "cluster-worker"):
        pod = workloads[role]
        mounts = {mount["mountPath"]: mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
        volume = next(
            each for each in pod["volumes"] if each["name"] == mounts[str(Settings().policy.parent)]
        )
        data = named(rendered, "ConfigMap")[volume["configMap"]["name"]]["data"]
        assert load_policy(data[Settings().policy.name]).mode == "observe"


def test_the_service_leads_to_the_webhook(rendered, workloads):
    service = named(rendered, "Service")["intake"]["spec"]
    pod = named(rendered, "Deployment")["intake"]["spec"]["template"]
    assert service["selector"].items() <= pod["metadata"]["labels"].items()
    (port,) = service["ports"]
    (container,) = workloads["intake"]["containers"]
    (listening,) = container["ports"]
    assert port["targetPort"] == listening["name"]
    assert environment(rendered, container)[PREFIX + "LISTEN"] == f"0.0.0.0:{listening['containerPort']}"


def test_the_token_is_in_no_file(rendered, workloads):
    assert not named(rendered, "Secret")
    (volume,) = [each for each in workloads["intake"]["volumes"] if "secret" in each]
    assert not volume["secret"].get("optional", False), "without its token the intake must not start"


@pytest.mark.parametrize("role", sorted(ROLES - {"node-agent"}))
def test_deployments_run_with_the_least(workloads, role):
    pod = workloads[role]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"] == {
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["terminationGracePeriodSeconds"] > 35
    assert container["resources"]["limits"].keys() == {"memory"}
    affinity = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = affinity["nodeSelectorTerms"]
    assert {"key": f"{names.PREFIX}/pool", "operator": "DoesNotExist"} in term["matchExpressions"]


@pytest.mark.parametrize("role", ["controller", "cloud-worker"])
def test_roles_without_kubernetes_get_no_token_for_it(rendered, workloads, role):
    assert workloads[role]["automountServiceAccountToken"] is False
    assert named(rendered, "ServiceAccount")[role]["automountServiceAccountToken"] is False
    subjects = [
        subject["name"]
        for kind in ("RoleBinding", "ClusterRoleBinding")
        for binding in named(rendered, kind).values()
        for subject in binding["subjects"]
    ]
    assert role not in subjects


def test_a_cluster_worker_knows_itself_and_its_node(workloads):
    """It never evicts its own pod, and leaves acts on its own node to a worker elsewhere."""
    (container,) = workloads["cluster-worker"]["containers"]
    fields = {
        each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"]
        for each in container["env"]
        if "valueFrom" in each
    }
    assert fields == {PREFIX + "POD_UID": "metadata.uid", PREFIX + "NODE_NAME": "spec.nodeName"}


def test_there_is_a_cluster_worker_elsewhere(rendered, workloads):
    """Two replicas that the scheduler spreads over nodes, of which no drain takes both."""
    deployment = named(rendered, "Deployment")["cluster-worker"]["spec"]
    assert deployment["replicas"] > 1
    (spread,) = workloads["cluster-worker"]["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["maxSkew"]) == ("kubernetes.io/hostname", 1)
    assert "app.kubernetes.io/component" in spread["matchLabelKeys"]
    budget = named(rendered, "PodDisruptionBudget")["cluster-worker"]["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["selector"]["matchLabels"].items() <= deployment["template"]["metadata"]["labels"].items()


def test_the_agent_is_confined_before_it_has_rights(rendered):
    kinds = [each["kind"] for each in rendered]
    last_confinement = max(
        index for index, kind in enumerate(kinds) if kind == "ValidatingAdmissionPolicyBinding"
    )
    first_right = min(
        index for index, kind in enumerate(kinds) if kind in {"RoleBinding", "ClusterRoleBinding"}
    )
    assert kinds.index("CustomResourceDefinition") < last_confinement < first_right


def test_evidence_goes_to_a_volume_of_the_pod_unless_told_otherwise(rendered, workloads):
    (container,) = workloads["cluster-worker"]["containers"]
    place = environment(rendered, container)[PREFIX + "EVIDENCE"]
    (mount,) = [each for each in container["volumeMounts"] if not each.get("readOnly")]
    assert isinstance(sink_of(place), DirectorySink)
    assert place.startswith(f"file://{mount['mountPath']}/")


def test_the_evidence_writer_may_write_below_its_prefix_and_nothing_else():
    (statement,) = json.loads((MANIFESTS / "iam" / "evidence-writer.json").read_text())["Statement"]
    assert statement["Effect"] == "Allow"
    assert (statement["Action"], statement["Resource"]) == ("s3:PutObject", "arn:aws:s3:::BUCKET/PREFIX/*")


def test_the_intake_may_take_from_its_queue_and_do_nothing_else():
    (statement,) = json.loads((MANIFESTS / "iam" / "intake.json").read_text())["Statement"]
    assert statement["Effect"] == "Allow"
    assert statement["Resource"] == "arn:aws:sqs:REGION:ACCOUNT:gpu-runbooks-events"
    assert all(action.startswith("sqs:") and "*" not in action for action in statement["Action"])


def test_policies_that_ship_can_be_read():
    testbed = load_policy((MANIFESTS.parent / "testbed" / "policy.yaml").read_text())
    assert testbed.mode == "enforce"
    assert {pool.name: pool.budget.max_unavailable for pool in testbed.pools} == {"p5": 3}
