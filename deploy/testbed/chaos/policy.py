"""The policy under which the matrix runs: the testbed's ladders, long enough to be held in every step."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from testbed.product import POLICY

POOL_LABEL = "chaos.gpu-runbooks.dev/pool"
"""Label of a node by which it is in a pool of this policy."""

WIDE = "wide"
"""The pool with slots for everybody."""

WATCHED = "watched"
"""A pool whose nodes are on probation after their return; those of the others are not."""

PROBATION_SECONDS = 30

TIMEOUTS = {"drain": "180s", "reset_gpu": "180s", "reboot": "60s", "replace": "90s", "validate": "120s"}
"""A step is held while the others are brought into theirs. A reboot whose call was lost is waited for to its
end, so that it has less."""

TOLERATED = "ChaosTolerated"
"""Alert that counts only after its toleration."""

TOLERATION_SECONDS = 30


NEVER_A_STORM = {
    "nodes": 200,
    "within": "1m",
    "unhealthy_percent": 100,
    "unhealthy_nodes": 10_000,
    "group_wait": "0s",
}
"""A column of incidents at once is on purpose."""


def write_policy(file: Path, narrow: Iterable[str]) -> Path:
    """Write the policy with the two pools above, and pools of one slot by these names."""
    policy: dict[str, Any] = yaml.safe_load(POLICY.read_text())
    slots = {WIDE: 1000, WATCHED: 1000} | dict.fromkeys(narrow, 1)
    policy["pools"] = [
        {"name": name, "selector": {POOL_LABEL: name}, "budget": {"max_unavailable": count}}
        for name, count in slots.items()
    ]
    policy["pools"][1]["probation"] = f"{PROBATION_SECONDS}s"
    policy["storm"] = NEVER_A_STORM
    for ladder in policy["ladders"].values():
        for rung in ladder:
            rung["timeout"] = TIMEOUTS.get(rung["rung"], rung["timeout"])
    policy["faults"].append(
        {
            "name": "tolerated",
            "match": {"source": "alert", "code": TOLERATED},
            "toleration": f"{TOLERATION_SECONDS}s",
            "ladder": "reset",
        }
    )
    file.write_text(yaml.safe_dump(policy, sort_keys=False))
    return file
