"""The design's "never" rules, as far as one incident and its node can break them. Each check is exact.

The witness knows the node as it is and what was seen of it. It never asks the incident what it believes,
except what it puts on record.
"""

import json
from typing import Any

from model.running import Activity
from model.world import RANK, Node

ACTS = {
    "drain_pods": "drain",
    "reboot_instance": "reboot",
    "run_reboot_command": "reboot",
    "replace_instance": "replace",
    "delete_node_claim": "replace",
}
"""Activities that end somebody's work, by the rung that they are of."""

TASKS = {"ResetGPU": "reset_gpu", "Reboot": "reboot"}

BACK = frozenset({"returned", "replaced"})
"""Outcomes with which a node is back in service."""


def act_of(activity: Activity) -> str:
    """The rung that an activity disrupts the node for; empty for one that disrupts nothing."""
    if activity.name == "run_node_task":
        return TASKS.get(json.loads(activity.request)["kind"], "")
    rung = ACTS.get(activity.name, "")
    return "restart_workload" if rung == "drain" and json.loads(activity.request)["restart"] else rung


def check_act(activity: Activity, rung: str, node: Node) -> str:
    """What rule 2 says against an act that begins now, its slot aside; empty where nothing does."""
    request = json.loads(activity.request)
    identity, own = request["identity"], node.identity()
    if not node.present or identity["provider_id"] != own["provider_id"]:
        return ""  # the machine is gone, and nothing of it can be disrupted
    if node.stopped:
        return f"rule 10: {rung} begins although the incident was told to stop"
    if node.seen is None:
        return f"rule 2: {rung} begins without a fresh look at the node"
    machine, registered, boot, blocked = node.seen
    seen = node._replace(machine=machine, registered=registered, boot=boot).identity()
    if any(identity[key] != seen[key] for key in ("uid", "instance_id", "boot_id")):
        return f"rule 2: {rung} is for another identity than the last look showed"
    if rung == "restart_workload":
        return ""
    if not blocked:
        return f"rule 2: {rung} begins without our block on the node"
    one_gpu = rung == "reset_gpu" and request.get("gpu_uuid") is not None
    if rung != "drain" and not (node.emptied == "node" or (one_gpu and node.emptied == "gpu")):
        return f"rule 2: {rung} begins without a drain of its scope"
    return ""


def check_unblock(node: Node) -> str:
    """What rule 1 says against a node that goes back now."""
    left = node.seen is not None and not node.seen[3]  # somebody removed our block: what remains of it goes
    if node.valid or node.vouched or left or not node.present:
        return ""
    return "rule 1: the node goes back without a validation since its last repair and its last fault"


def check_record(before: list[dict[str, Any]], after: list[dict[str, Any]], node: Node) -> str:
    """What rule 3 says against the acts that are put on record now."""
    for act in after[len(before) :]:
        if act["proven"] and act["rung"] not in node.proofs:
            return f"rule 3: {act['rung']} is on record as proven, and nothing proved it"
    return ""


def check_end(outcome: str, node: Node) -> str:
    """What rules 1 and 5 say against an end."""
    if outcome == "failed":
        return "the incident failed by an error of its own"
    if outcome not in BACK or node.vouched:
        return ""
    if node.owed:
        rung = next(rung for rung, rank in RANK.items() if rank == node.owed)
        return f"rule 5: the node is back, and a fault that joined calls for {rung}"
    if node.flaps:
        return "rule 5: the node is back, and a fault that is tolerated was not evaluated"
    return ""
