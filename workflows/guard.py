"""The check before every disruptive act: still the same machine, the same boot, and our block on it."""

from dataclasses import dataclass

from gpu_runbooks.activities.model.node import NodeIdentity, NodeObservation


@dataclass(frozen=True)
class Clear:
    """Nothing speaks against the act."""


@dataclass(frozen=True)
class Gone:
    """The machine is not there any more: nothing to act on."""

    reason: str


@dataclass(frozen=True)
class Registered:
    """The same machine under a new Node object, which does not carry our block."""

    identity: NodeIdentity


@dataclass(frozen=True)
class Rebooted:
    """Somebody else rebooted it: the evidence is of an older boot, so validate before any act."""

    identity: NodeIdentity


@dataclass(frozen=True)
class Released:
    """Our block was removed: somebody wants the node back."""

    reason: str


Finding = Clear | Gone | Registered | Rebooted | Released


def inspect(target: NodeIdentity, seen: NodeObservation, *, blocked: bool = True) -> Finding:
    """Compare what is there with what the incident pinned; without `blocked` it needs no block of ours."""
    identity = seen.identity
    if identity is None:
        return Gone(f"node {target.name} does not exist any more")
    if identity.provider_id != target.provider_id:
        return Gone(
            f"node {target.name} is another machine now: {identity.provider_id or 'no provider id'} "
            f"instead of {target.provider_id or 'no provider id'}"
        )
    if identity.uid != target.uid:
        return Registered(identity)
    if blocked and not seen.blocked:
        by = f" ({seen.given_back_by})" if seen.given_back_by else ""
        return Released(f"our block is not on node {target.name} any more: somebody gave the node back{by}")
    if identity.boot_id != target.boot_id:
        return Rebooted(identity)
    return Clear()
