"""What is said of a node whose owners want nothing done to it."""

from gpu_runbooks.activities.names import OPT_OUT_LABEL

OWNERS_WORD = f"the node's owners want nothing done to it, by its label {OPT_OUT_LABEL}"

OPTED_OUT = f"{OWNERS_WORD}: take the label off and answer retry, or answer return_anyway or abort"
"""Question of an incident that was under way when the label came."""


def how_to_opt_in(node: str) -> str:
    """The command that takes the label off a node."""
    return f"Take the label off first: kubectl label node {node} {OPT_OUT_LABEL}-"
