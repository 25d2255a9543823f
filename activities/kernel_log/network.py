"""Lines of Amazon's network drivers, EFA and ENA.

    infiniband rdmap16s27: Admin queue is closed
    ena 0000:00:06.0 ens6: Keep alive watchdog timeout.

Source of the shapes: amzn/amzn-drivers of May 2026. Their words change a little between versions, so that a
line is told by its driver's prefix and then by words.
"""

import re

from gpu_runbooks.activities.kernel_log.address import PATTERN, pci_address
from gpu_runbooks.activities.kernel_log.event import Finding, Kind, printable

ENA_RESET_COMPLETED = "ena-reset-completed"
"""The end of a trouble rather than one."""

_EFA = re.compile(
    rf"(?:infiniband ((?:efa|rdmap)[0-9a-z_]{{0,20}})|efa ({PATTERN})(?: ([0-9a-z_]{{1,20}}))?): ", re.ASCII
)
_ENA = re.compile(rf"ena ({PATTERN})(?: ([0-9A-Za-z_.@-]{{1,20}})| [^:]{{1,60}})?: ", re.ASCII)

_Codes = tuple[tuple[str, re.Pattern[str]], ...]

_EFA_CODES: _Codes = (
    (
        "efa-completion-without-interrupt",
        re.compile(r"sent a completion but\b|completion without (?:an )?(?:MSI-X )?interrupt", re.IGNORECASE),
    ),
    (
        "efa-command-not-completed",
        re.compile(
            r"(?:did(?:n't| not) send any|\bno|did(?:n't| not) get (?:a|any)) completion\b"
            r"|Wait for completion \(polling\) timeout",
            re.IGNORECASE,
        ),
    ),
    ("efa-admin-queue-closed", re.compile(r"admin queue (?:is )?closed", re.IGNORECASE)),
    ("efa-reset-stuck", re.compile(r"reset indication did(?:n't| not) turn (?:on|off)", re.IGNORECASE)),
)
_ENA_CODES: _Codes = (
    ("ena-keep-alive-timeout", re.compile(r"keep[- ]?alive\b.{0,40}\b(?:time-?out|expired)", re.IGNORECASE)),
    ("ena-admin-queue-not-running", re.compile(r"admin queue is not\b.{0,20}\brunning", re.IGNORECASE)),
    (
        "ena-tx-not-completed",
        re.compile(
            r"Tx\b(?:(?!Tx\b).){0,30}\b(?:wasn't|was not|not) completed on time|lost tx completions?\b",
            re.IGNORECASE,
        ),
    ),
    ("ena-reset-triggered", re.compile(r"trigger reset is on", re.IGNORECASE)),
    (ENA_RESET_COMPLETED, re.compile(r"reset completed\b", re.IGNORECASE)),
    (
        "ena-reset-failed",
        re.compile(r"reset (?:attempt )?failed|can ?not reset (?:the )?device", re.IGNORECASE),
    ),
)


def read_network(text: str) -> Finding | None:
    """The finding of a line of EFA or ENA that is a trouble we know; None for any other."""
    if line := _EFA.match(text):
        kind, codes = Kind.EFA, _EFA_CODES
        address, device = line[2], line[1] or line[3]
    elif line := _ENA.match(text):
        kind, codes = Kind.ENA, _ENA_CODES
        address, device = line[1], line[2]
    else:
        return None
    said = text[line.end() :]
    code = next((code for code, words in codes if words.search(said)), None)
    if code is None:
        return None
    return Finding(
        kind=kind,
        code=code,
        text=printable(said),
        pci=pci_address(address) if address else None,
        device=device,
    )
