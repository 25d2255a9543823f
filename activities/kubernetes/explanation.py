"""What a refusal of the API server means and what to do about it, for who reads it at night. Pure.

The server names users, webhooks and policies only in its messages, so these are read by expressions. Source
of the wording: kubernetes, staging/src/k8s.io/apiserver, pkg/endpoints/handlers/responsewriters and
pkg/admission/plugin.
"""

import re

from gpu_runbooks.activities.kubernetes.error import KubernetesError

RBAC = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\S+) '
    r'(?:resource "(?P<resource>[^"]*)" in API group "(?P<group>[^"]*)"|path "(?P<path>[^"]*)")'
    r'(?: in the namespace "(?P<namespace>[^"]*)")?'
)
WEBHOOK = re.compile(r'admission webhook "([^"]+)" denied the request', re.IGNORECASE)
BROKEN_WEBHOOK = re.compile(r'failed calling webhook "([^"]+)"', re.IGNORECASE)
ADMISSION_POLICY = re.compile(
    r"((?:Validating|Mutating)AdmissionPolicy) '([^']+)'(?: with binding '([^']+)')? denied request",
    re.IGNORECASE,
)
QUOTA = re.compile(r"exceeded quota: ([^,\s]+)")
POD_SECURITY = re.compile(r'violates PodSecurity "([^"]+)"')
SERVICE_ACCOUNT = re.compile(r"system:serviceaccount:(?P<namespace>[^:]+):(?P<name>[^:]+)")

LONGEST_QUOTE = 1200
"""Characters of the server's own words: what to do must not be cut off behind them."""


def explained(error: KubernetesError) -> str:
    """What it is, what to do next, and the server's own words."""
    words = error.message
    if len(words) > LONGEST_QUOTE:
        words = words[:LONGEST_QUOTE] + " ..."
    return f"{_meaning(error)}. API server: {error.status} {words}"


def _meaning(error: KubernetesError) -> str:
    if error.status == 0:
        return _no_answer(error)
    if error.status == 401:
        return (
            "The API server refuses our token: it has expired, was revoked with its Pod, Secret or "
            "ServiceAccount, or is of another cluster. Renew it where it comes from; we read it again"
        )
    if error.status >= 400 and (denial := _denial(error)):
        return denial
    if error.status < 500 and not _is_status(error) and error.status not in {401, 429}:
        return "Not the API server but something before it answers: a proxy, firewall or load balancer"
    if error.status == 403:
        return "The API server's authorization or admission forbids the call: see its words"
    if error.status == 404:
        if error.details.get("kind") == "nodes":
            return "There is no such Node: see `kubectl get nodes`"
        return "There is no such object"
    if error.status == 429:
        wish = "" if error.retry_after is None else f" It asks us to wait {error.retry_after:g} s"
        return (
            "The API server is too busy for us and did not do it; it is tried again more slowly. If that "
            "lasts, see the metric `apiserver_flowcontrol_rejected_requests_total` and the FlowSchema of our "
            f"ServiceAccount.{wish}"
        )
    if error.status >= 500:
        return _server_error(error)
    if error.status in {409, 410}:
        return "Someone else changed the object at the same time; it is read and tried again"
    return "The API server calls the request itself wrong, so repeating it is no use: compare the versions"


def _is_status(error: KubernetesError) -> bool:
    return error.body.get("kind") == "Status"


def _no_answer(error: KubernetesError) -> str:
    if error.reason == "Unreadable":
        return "The answer cannot be read, so nothing is concluded from it: is it a proxy that answers?"
    return (
        "The API server gives no answer, and nobody knows whether a write took effect; it is looked up and "
        "tried again. Is the API server down, or the way to it (NetworkPolicy, security group, DNS)? "
        "See `kubectl get --raw '/readyz?verbose'`"
    )


def _server_error(error: KubernetesError) -> str:
    if webhook := BROKEN_WEBHOOK.search(error.message):
        return (
            f'The admission webhook "{webhook[1]}" cannot be reached, and its failurePolicy is Fail. Mend '
            "its Service: `kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations`"
        )
    return (
        "The API server, or a proxy before it, has an error of its own; it is tried again. See "
        "`kubectl get --raw '/readyz?verbose'`, etcd included"
    )


def _denial(error: KubernetesError) -> str:
    """Who denied it, where the words tell. A webhook's may look like all others', so it comes first."""
    words = error.message
    if webhook := WEBHOOK.search(words):
        return (
            f'The admission webhook "{webhook[1]}" denies it, and nothing goes round it. Ask its owner, '
            "or make its rules exempt this ServiceAccount"
        )
    if policy := ADMISSION_POLICY.search(words):
        binding = f", bound by {policy[3]}," if policy[3] else ""
        return f"The {policy[1]} {policy[2]}{binding} denies it: see its expressions"
    if "NamespaceTerminating" in error.causes() or "because it is being terminated" in words:
        return "The namespace is being deleted and takes nothing new; its own deletion has to end first"
    if right := RBAC.search(words):
        return _missing_right(right)
    if quota := QUOTA.search(words):
        return f"The ResourceQuota {quota[1]} is used up: see `kubectl describe resourcequota {quota[1]}`"
    if level := POD_SECURITY.search(words):
        return f"Pod Security admission ({level[1]}) refuses the pod: label its namespace for what it needs"
    return ""


def _missing_right(right: re.Match[str]) -> str:
    user, verb, namespace = right["user"], right["verb"], right["namespace"]
    if user == "system:anonymous":
        return "The call carried no credentials: see whether the kubeconfig or the Pod has a token at all"
    if right["path"]:
        return f"RBAC: add verb `{verb}` on nonResourceURL `{right['path']}` to a ClusterRole of `{user}`"
    resource, _, subresource = right["resource"].partition("/")
    check = f"kubectl auth can-i {verb} {resource}" + (f".{right['group']}" if right["group"] else "")
    check += f" --subresource={subresource}" if subresource else ""
    check += f" --namespace={namespace}" if namespace else ""
    return (
        f"RBAC: add verb `{verb}` on resource `{right['resource']}`, apiGroup `{right['group']}`, to "
        f"{_role_of(user, namespace)}. Check with `{check} --as={user}`"
    )


def _role_of(user: str, namespace: str | None) -> str:
    """The role in our manifests that has to be mended."""
    account = SERVICE_ACCOUNT.fullmatch(user)
    if account is None:
        return f"a {'Role or ' if namespace else ''}ClusterRole that is bound to `{user}`"
    if namespace == account["namespace"]:
        return f"the Role `{account['name']}` in namespace `{namespace}`"
    name = account["name"]
    return f"the ClusterRole of ServiceAccount `{name}` (`gpu-runbooks-{name}` in our manifests)"
