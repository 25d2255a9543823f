"""What is wrong with the sections `repair` across the parts of a policy: repairs that can never be done.

Pure, and over the parts that could be read, as `policy_rules`.
"""

from collections.abc import Iterator, Mapping

from gpu_runbooks.activities.model.repair import RepairPolicy
from gpu_runbooks.workflows.ledger import cap_of
from gpu_runbooks.workflows.policy.ladders import Ladder
from gpu_runbooks.workflows.policy.pools import Pool
from gpu_runbooks.workflows.policy.repair import Repair
from gpu_runbooks.workflows.policy.rules import Contradiction
from gpu_runbooks.workflows.policy.yaml_lines import Place

KARPENTER = ("karpenter.sh/", "karpenter.k8s.aws/")
"""Domains of the labels that only Karpenter's nodes have."""


def repair_contradictions(
    repair: Repair, pools: Mapping[int, Pool], ladders: Mapping[str, Ladder]
) -> Iterator[Contradiction]:
    """Yield every contradiction. `repair` is the section of the whole file."""
    for index, pool in pools.items():
        label = next((key for key in pool.selector if key.startswith(KARPENTER)), None)
        # Said for the whole file, it counts where the owner of an instance can do it.
        if pool.repair.launch_first and label is not None:
            yield Contradiction(
                ("pools", index, "repair", "launch_first"),
                f"nodes with the label {label} are Karpenter's, which launches for pending pods only, not "
                "ahead of a termination: drop it",
            )
    everywhere = repair.over(RepairPolicy())
    allowing = {
        f"pool {pool.name}": (("pools", index, "repair", "repeats"), pool.repair.over(everywhere))
        for index, pool in pools.items()
    }
    for name, ladder in ladders.items():
        yield from _attempts(name, ladder, allowing or {"policy": (("repair", "repeats"), everywhere)})


def _attempts(
    name: str, ladder: Ladder, allowing: Mapping[str, tuple[Place, RepairPolicy]]
) -> Iterator[Contradiction]:
    """Yield where a rung has more attempts than its cap."""
    for index, step in enumerate(ladder):
        for who, (place, policy) in allowing.items():
            cap = cap_of(policy.repeats, step.rung)
            if cap is not None and step.attempts > cap:
                yield Contradiction(
                    ("ladders", name, index, "attempts"),
                    f"{step.attempts} attempts at {step.rung}, and {who} allows {cap} for the same hardware "
                    "within its window: lower them, or raise the number in repair.repeats",
                    place,
                )
                break
