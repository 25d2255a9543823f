"""How a GPU mends its memory: rows are remapped from Ampere on, before that pages are retired.

Source: NVIDIA, "GPU Memory Error Management" (row remapping) and "Dynamic Page Retirement". Which of the
two a GPU has follows from its architecture. The driver refuses the questions of the other.
"""

from dataclasses import dataclass
from typing import Any

import pynvml

from gpu_runbooks.workers.node_agent.device import Ask

MOST_RETIRED_PAGES = 64
"""Of one GPU, both causes together. One that has so many can retire no other."""

CAUSES = (
    pynvml.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS,
    pynvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR,
)


@dataclass(frozen=True)
class MemoryRepair:
    """None is unknown: the driver did not say, or nobody knows what to ask such a GPU."""

    pending: bool | None = None
    """Memory is to be mended and waits for a reset."""
    failed: bool | None = None
    """Memory cannot be mended any more."""


def measure_memory_repair(ask: Ask, handle: Any) -> MemoryRepair:
    architecture = ask(pynvml.nvmlDeviceGetArchitecture, handle)
    if architecture is None or architecture == pynvml.NVML_DEVICE_ARCH_UNKNOWN:
        return MemoryRepair()
    if architecture < pynvml.NVML_DEVICE_ARCH_AMPERE:
        return _page_retirement(ask, handle)
    remapped = ask(pynvml.nvmlDeviceGetRemappedRows, handle)
    if remapped is None:
        return MemoryRepair()
    return MemoryRepair(pending=bool(remapped[2]), failed=bool(remapped[3]))


def _page_retirement(ask: Ask, handle: Any) -> MemoryRepair:
    pending = ask(pynvml.nvmlDeviceGetRetiredPagesPendingStatus, handle)
    pages = [ask(pynvml.nvmlDeviceGetRetiredPages, handle, cause) for cause in CAUSES]
    full = sum(len(told) for told in pages if told is not None) >= MOST_RETIRED_PAGES
    return MemoryRepair(
        pending=None if pending is None else pending == pynvml.NVML_FEATURE_ENABLED,
        failed=None if None in pages and not full else full,
    )
