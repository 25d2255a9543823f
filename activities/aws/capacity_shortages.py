"""What a failed launch of an Auto Scaling group says: which capacity is short, and what helps.

EC2's error codes are those that Karpenter's AWS provider counts as unfulfillable (pkg/errors/errors.go). A
scaling activity mostly has EC2's sentence for the code in place of the code, so both are looked for.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Shortage:
    """A kind of capacity that can be short."""

    code: str
    """EC2's error code."""
    pattern: re.Pattern[str]
    advice: str


def _shortage(code: str, advice: str, *sentences: str) -> Shortage:
    return Shortage(
        code, re.compile("|".join((rf"\b{code}\b", *sentences)), re.IGNORECASE | re.DOTALL), advice
    )


SHORTAGES = (
    _shortage(
        "ReservationCapacityExceeded",
        "free a slot of the reservation, or enlarge it",
        r"reservation.{0,80}(insufficient|not have (sufficient|enough)|exceeded|no available)",
    ),
    _shortage(
        "InsufficientFreeAddressesInSubnet",
        "free addresses in the group's subnets, or give it larger ones",
        r"(not enough|insufficient) free addresses",
    ),
    _shortage(
        "MaxSpotInstanceCountExceeded",
        "raise the account's quota of Spot instances",
        r"max spot instance count",
    ),
    _shortage(
        "VcpuLimitExceeded",
        "raise the account's quota of vCPUs for this family of instances",
        r"more vcpu capacity than",
        r"vcpu limit",
    ),
    _shortage(
        "InstanceLimitExceeded",
        "raise the account's quota of instances",
        r"than your current instance limit",
    ),
    _shortage(
        "MaxFleetCountExceeded",
        "delete fleets that are not used, or raise the account's quota of them",
        r"quota for maximum fleet",
    ),
    _shortage(
        "UnfulfillableCapacity",
        "wait, or let the group use more instance types, zones or On-Demand",
        r"unable to fulfill capacity",
        r"(no|not enough) (spot )?capacity (is )?(available|to fulfill)",
        r"\bSpotMaxPriceTooLow\b",
        r"spot .{0,40}price .{0,40}(lower|too low)",
    ),
    _shortage(
        "Unsupported",
        "change the zones, instance types or launch template of the group: this zone does not offer them",
        r"not (currently )?supported",
    ),
    _shortage(
        "InsufficientInstanceCapacity",
        "wait until AWS has such instances again, or give the group another zone, type or reservation (in a "
        "spread placement group, seven instances a zone are the limit, and waiting does not help)",
        r"\bInsufficient(Host|ReservedInstance)?Capacity\b",
        r"insufficient (instance )?capacity",
        r"not have (sufficient|enough) .{0,200}capacity",
    ),
)
"""The more special ones first: a full reservation has no sufficient capacity either."""

PASSING = re.compile(
    r"internal ?(server ?)?error|RequestLimitExceeded|throttl|rate exceeded|service ?unavailable",
    re.IGNORECASE,
)
"""Failures of AWS's own, after which the group's next try may do."""


def shortage_in(message: str) -> Shortage | None:
    """What is short, by the message of a failed launch; None for any other failure."""
    return next((each for each in SHORTAGES if each.pattern.search(message)), None)


def is_passing(message: str) -> bool:
    """Whether a failed launch says nothing about whether the group can launch."""
    return shortage_in(message) is None and PASSING.search(message) is not None
