"""Whose instance it is by its tags. A node writes its own provider id, but not the tags of an instance."""

from collections.abc import Mapping

CLUSTER_TAG = "kubernetes.io/cluster/"
"""Prefix of the tag of the AWS cloud provider, with the cluster's name after it."""
CLUSTER_TAG_VALUES = frozenset({"owned", "shared"})

NAME_TAGS = ("aws:eks:cluster-name", "eks:cluster-name", "eks:eks-cluster-name")
"""Tags whose value is the name: by EKS for managed node groups, and by Karpenter's AWS provider."""


def why_not_ours(tags: Mapping[str, str], cluster: str) -> str:
    """Why an instance with these tags is not one of the cluster's, in words; empty where it is.

    A tag of another cluster refuses also beside one of ours: then nobody knows whose it is. Only `shared`
    names several clusters.
    """
    named = {key: tags[key] for key in NAME_TAGS if key in tags}
    members = {
        key: value
        for key, value in tags.items()
        if key.startswith(CLUSTER_TAG) and value in CLUSTER_TAG_VALUES
    }
    ours = CLUSTER_TAG + cluster
    foreign = [f"{key}={value}" for key, value in named.items() if value != cluster]
    foreign += [f"{key}={value}" for key, value in members.items() if key != ours and value == "owned"]
    if foreign:
        return f"its tag {foreign[0]} says that it belongs to another cluster than {cluster}"
    if ours in members or named:
        return ""
    return f"it has no tag {ours} (owned or shared) nor {NAME_TAGS[0]}={cluster}"


def is_untagged(tags: Mapping[str, str]) -> bool:
    """Whether no tag names any cluster, as after a termination, when EC2 drops the tags."""
    return not any(key.startswith(CLUSTER_TAG) or key in NAME_TAGS for key in tags)
