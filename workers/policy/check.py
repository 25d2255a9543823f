"""`gpu-runbooks check-policy`: whether a policy file can be used, and what it comes to."""

from pathlib import Path

from gpu_runbooks.activities.model.repair import RepairPolicy
from gpu_runbooks.workflows.ledger import window_in_words
from gpu_runbooks.workflows.policy.file import load_policy


def check_policy(file: Path) -> str:
    """Pools, ladders and repairs of the file. Raises `PolicyError` and `OSError`."""
    policy = load_policy(file.read_text(encoding="utf-8"))
    pools = ", ".join(f"{pool.name} (at most {pool.budget.max_unavailable})" for pool in policy.pools)
    return "\n".join(
        [
            f"{file}: valid, mode {policy.mode}, digest {policy.digest}",
            f"pools: {pools}",
            f"ladders: {', '.join(policy.ladder_names())}",
            *(f"repairs in {pool.name}: {_in_words(policy.repair_of(pool))}" for pool in policy.pools),
        ]
    )


def _in_words(repair: RepairPolicy) -> str:
    fields = repair.model_dump(mode="json", exclude={"repeats"})
    said = ", ".join(f"{name} {str(value).lower()}" for name, value in fields.items())
    repeats = repair.repeats
    return (
        f"{said}; at most, of the same hardware within {window_in_words(repeats.window)}: resets "
        f"{repeats.resets}, reboots {repeats.reboots}, replacements {repeats.replacements}"
    )
