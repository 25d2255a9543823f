"""What the driver says of the GPUs, through NVML. An unanswered question stays None: unknown, not healthy.

Every call here can block for ever in a sick driver, so none is made from the event loop: see `probe.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pynvml

from gpu_runbooks.activities.model.node_task import GpuFacts, HardwareFacts
from gpu_runbooks.workers.node_agent.device import Device, has_nvlinks, leads_to_switch, measure_device
from gpu_runbooks.workers.node_agent.device_allocation import allocated_pods
from gpu_runbooks.workers.node_agent.memory_repair import measure_memory_repair
from gpu_runbooks.workers.node_agent.mig import mig_enabled
from gpu_runbooks.workers.node_agent.pod_cgroups import UNKNOWN, holders
from gpu_runbooks.workers.node_agent.reset_domain import FabricManager, reset_alone

AMAZON_PCI_VENDOR = "0x1d0f"

CLEAR_REFUSALS = frozenset(
    {
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    }
)
"""Answers of a driver in good order. After any other error the session is opened anew."""


Answer = TypeVar("Answer")


class DriverUnavailable(Exception):  # noqa: N818 - a state of the driver, more than an error of ours
    """The driver said nothing about any GPU."""


@dataclass(frozen=True)
class Measurement:
    """Facts, and what they cannot say: which GPUs NVML counts and calls lost (return code 15)."""

    facts: HardwareFacts
    lost: tuple[int, ...] = ()
    devices: tuple[Device, ...] = ()
    """One for each GPU of the facts, in their order."""


class Nvml:
    """One session with the driver, kept open between measurements: to open one costs far more than to ask.

    An open session holds the device files, so it must be closed before a reset. Not safe for two threads.
    """

    def __init__(self, sysfs: Path, proc: Path, boot_id_file: Path, kubelet: Path) -> None:
        self._sysfs = sysfs
        self._proc = proc
        self._boot_id_file = boot_id_file
        self._kubelet = kubelet
        self._open = False
        self._doubtful = False
        self._identities: tuple[tuple[str | None, str | None], ...] = ()
        self._fabric_manager = FabricManager(proc)

    def measure(self) -> Measurement:
        """Ask for everything.

        Raises `DriverUnavailable` where NVML cannot be loaded or initialised, or does not count its GPUs.
        """
        count = self.within(pynvml.nvmlDeviceGetCount)
        gpus, devices, lost = [], [], []
        for index in range(count):
            try:
                gpu, device = self._measure_gpu(index)
            except pynvml.NVMLError_GpuIsLost:
                lost.append(index)
                gpu, device = self._lost_gpu(index, count), Device()
            gpus.append(gpu)
            devices.append(device)
        if not lost:
            self._identities = tuple((gpu.uuid, gpu.pci_address) for gpu in gpus)
        allocated = allocated_pods(self._kubelet)
        driver_version = self._ask(pynvml.nvmlSystemGetDriverVersion)
        if lost or self._doubtful:
            self.close()
        return Measurement(
            HardwareFacts(
                driver_version=driver_version,
                gpus=tuple(_with_allocation(gpu, allocated) for gpu in gpus),
                efa_interfaces=count_efa_interfaces(self._sysfs),
                boot_id=read_boot_id(self._boot_id_file),
            ),
            tuple(lost),
            tuple(devices),
        )

    def within(self, question: Callable[[], Answer]) -> Answer:
        """Ask NVML something in this session.

        Raises `DriverUnavailable` where NVML cannot be loaded or initialised, or does not answer.
        """
        try:
            if not self._open:
                pynvml.nvmlInit()
                self._open, self._doubtful = True, False
            return question()
        except pynvml.NVMLError as error:
            self.close()
            raise DriverUnavailable(str(error)) from error

    def close(self) -> None:
        """Let go of the devices. A driver that refuses even that has nothing left to hold."""
        if self._open:
            self._open = False
            try:
                pynvml.nvmlShutdown()
            except pynvml.NVMLError:
                return

    def _ask(self, question: Callable[..., Any], *arguments: Any) -> Any:
        """Answer, or None for a refusal. Raises only `NVMLError_GpuIsLost`: such a GPU answers no more."""
        try:
            return question(*arguments)
        except pynvml.NVMLError_GpuIsLost:
            raise
        except pynvml.NVMLError as error:
            self._doubtful = self._doubtful or error.value not in CLEAR_REFUSALS
            return None

    def _measure_gpu(self, index: int) -> tuple[GpuFacts, Device]:
        handle = self._ask(pynvml.nvmlDeviceGetHandleByIndex, index)
        if handle is None:
            return GpuFacts(index=index), Device()
        pci = self._ask(pynvml.nvmlDeviceGetPciInfo, handle)
        memory = measure_memory_repair(self._ask, handle)
        pids = self._pids(handle)
        held_by = UNKNOWN if pids is None else holders(self._proc, pids)
        links = self._links(handle)
        facts = GpuFacts(
            index=index,
            uuid=self._ask(pynvml.nvmlDeviceGetUUID, handle),
            pci_address=None if pci is None else f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}",
            recovery_action=self._recovery_action(handle),
            ecc_uncorrected=self._ask(
                pynvml.nvmlDeviceGetTotalEccErrors,
                handle,
                pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                pynvml.NVML_VOLATILE_ECC,
            ),
            remap_pending=memory.pending,
            remap_failed=memory.failed,
            nvlinks_active=sum(links) if links else None,
            nvlinks=len(links) if links else None,
            processes=None if pids is None else len(pids),
            pod_uids=held_by.pod_uids,
            host_processes=held_by.host_processes,
            serial=_printable(self._ask(pynvml.nvmlDeviceGetSerial, handle)),
            board=_printable(self._ask(_chassis_serial, handle)),
            reset_alone=self._reset_alone(handle, len(links)),
            mig_enabled=self._ask(mig_enabled, handle),
        )
        return facts, measure_device(self._ask, handle, pids)

    def _reset_alone(self, handle: Any, links: int) -> bool | None:
        switched = leads_to_switch(self._ask, handle, links)
        return reset_alone(
            architecture=self._ask(pynvml.nvmlDeviceGetArchitecture, handle),
            nvlinks=has_nvlinks(self._ask, handle, links),
            switched=switched,
            fabric_manager=self._fabric_manager.runs() if switched else None,
        )

    def _pids(self, handle: Any) -> set[int] | None:
        """Processes that hold the GPU, those in its MIG instances too: NVML gives root the sum of them.

        None where the driver does not tell.
        """
        compute = self._ask(pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
        graphics = self._ask(_graphics_processes, handle)
        if compute is None or graphics is None:
            return None
        return {process.pid for process in (*compute, *graphics)}

    def _recovery_action(self, handle: Any) -> int | None:
        """Field 230, driver 570 and later. Each field has a return code beside that of the call."""
        values = self._ask(
            pynvml.nvmlDeviceGetFieldValues, handle, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION]
        )
        if values is None or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
            return None
        return int(values[0].value.uiVal)

    def _links(self, handle: Any) -> list[int]:
        """State of each link that the GPU has, 1 for active. Empty where the GPU answers for none."""
        states = []
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
            state = self._ask(pynvml.nvmlDeviceGetNvLinkState, handle, link)
            if state is None:
                break
            states.append(int(state == pynvml.NVML_FEATURE_ENABLED))
        return states

    def _lost_gpu(self, index: int, count: int) -> GpuFacts:
        """A lost GPU cannot say who it is, but NVML counts in the order of the bus: it is who it was."""
        known = len(self._identities) == count
        uuid, pci_address = self._identities[index] if known else (None, None)
        return GpuFacts(index=index, uuid=uuid, pci_address=pci_address)


def _with_allocation(gpu: GpuFacts, allocated: dict[str, tuple[str, ...]] | None) -> GpuFacts:
    """Also of a lost GPU: its pods are as much in the way as any."""
    if gpu.uuid is None or allocated is None:
        return gpu
    return gpu.model_copy(update={"allocated_pod_uids": allocated.get(gpu.uuid, ())})


def _chassis_serial(handle: Any) -> bytes | str:
    """Of the board or chassis. Drivers tell it from Blackwell on, version 2 of the call on."""
    platform = pynvml.c_nvmlPlatformInfo_v2_t()
    pynvml.nvmlDeviceGetPlatformInfo(handle, pynvml.byref(platform))
    return platform.chassisSerialNumber  # type: ignore[no-any-return]


def _printable(serial: bytes | str | None) -> str | None:
    """A serial number, or None for what is none: nothing, zeros, bytes that no label would show."""
    if isinstance(serial, bytes):
        serial = serial.decode("ascii", errors="replace")
    serial = (serial or "").strip()
    return serial if serial.strip("0") and serial.isascii() and serial.isprintable() else None


def _graphics_processes(handle: Any) -> list[Any]:
    """None where the GPU has no graphics at all."""
    try:
        return list(pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle))
    except pynvml.NVMLError_NotSupported:
        return []


def count_efa_interfaces(sysfs: Path) -> int | None:
    """EFA devices under `class/infiniband`, told from other adapters by vendor, else by name.

    None where the folder of device classes cannot be read. Without RDMA drivers there is no folder
    `infiniband` in it: that is a count of 0.
    """
    try:
        if not (sysfs / "class" / "infiniband").is_dir():
            return 0 if (sysfs / "class").is_dir() else None
        return sum(_is_efa(device) for device in (sysfs / "class" / "infiniband").iterdir())
    except OSError:
        return None


def _is_efa(device: Path) -> bool:
    try:
        return (device / "device" / "vendor").read_text().strip() == AMAZON_PCI_VENDOR
    except OSError:
        return device.name.startswith(("efa", "rdmap"))


def read_boot_id(file: Path) -> str | None:
    try:
        return file.read_text().strip() or None
    except OSError:
        return None
