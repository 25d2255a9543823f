"""Who took the cordon of our block away, as far as the Node tells."""

from gpu_runbooks.activities.kubernetes.client import Object

LONGEST_MANAGER = 128
"""Characters, as the API server has it."""


def given_back_by(node: Object) -> str:
    """Who wrote `spec.unschedulable` last and when, from the Node's managed fields.

    `kubectl uncordon` removes the field, and the API server keeps no manager for what is removed. Then the
    moment is that of the last write of the taints: the node controller takes the cordon's own taint away
    within seconds.
    """
    entries = [
        (entry, (entry.get("fieldsV1") or {}).get("f:spec") or {})
        for entry in node["metadata"].get("managedFields") or ()
    ]
    named = [entry for entry, fields in entries if "f:unschedulable" in fields]
    if named:
        last = max(named, key=_time)
        return f"by {str(last.get('manager'))[:LONGEST_MANAGER]} at {_time(last)}"
    taints = [_time(entry) for entry, fields in entries if "f:taints" in fields]
    return f"by about {max(taints)}; the Node does not tell by whom" if taints else ""


def _time(entry: Object) -> str:
    return str(entry.get("time", ""))[:LONGEST_MANAGER]
