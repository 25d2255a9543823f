"""PCI addresses as drivers write them, in the one form in which two of them can be compared."""

import re

PATTERN = r"(?:PCI:)?[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(?:\.[0-7])?"
"""For use within other patterns. NVML has eight digits of domain, the kernel four."""

_PARTS = re.compile(
    r"(?:PCI:)?([0-9A-F]{4,8}):([0-9A-F]{2}):([0-9A-F]{2})(?:\.[0-7])?", re.IGNORECASE | re.ASCII
)


def pci_address(text: str) -> str | None:
    """`0000:4c:00` for `PCI:00000000:4C:00.0`; None for what is no address."""
    parts = _PARTS.fullmatch(text)
    if parts is None:
        return None
    domain, bus, device = parts.groups()
    return f"{int(domain, 16):04x}:{bus}:{device}".lower()
