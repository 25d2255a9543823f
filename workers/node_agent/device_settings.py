"""What a reset takes from a GPU, or what has to be off for it: persistence mode and MIG geometry.

Read before the reset, written down, and put back on every way out of it. The functions here call NVML: never
from the event loop, see `probe.py`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pynvml
from pydantic import Field

from gpu_runbooks.activities.model.node_task import Facts
from gpu_runbooks.workers.node_agent.mig import (
    MOST_INSTANCES,
    Geometry,
    MigError,
    MigInstance,
    read_geometry,
    restore_geometry,
)


class DeviceSettings(Facts):
    """Of one GPU."""

    uuid: str
    persistence: bool | None = None
    """None where the GPU has no such mode."""
    mig: tuple[MigInstance, ...] | None = Field(default=None, max_length=MOST_INSTANCES)
    """GPU instances; None where MIG is off."""


class SettingsUnreadableError(Exception):
    """The driver does not tell a setting, so that it could not be restored."""


def read_settings(uuids: Sequence[str]) -> tuple[DeviceSettings, ...]:
    """Settings of these GPUs. Raises `SettingsUnreadableError`."""
    handles = dict(_handles())
    settings = []
    for uuid in uuids:
        if uuid not in handles:
            raise SettingsUnreadableError(f"NVML does not see {uuid} any more")
        geometry: Geometry
        try:
            geometry = read_geometry(handles[uuid])
        except pynvml.NVMLError as error:
            raise SettingsUnreadableError(f"the MIG geometry of {uuid} cannot be read: {error}") from error
        try:
            persistence = _persistence(handles[uuid])
        except pynvml.NVMLError as error:
            raise SettingsUnreadableError(
                f"the persistence mode of {uuid} cannot be read: {error}"
            ) from error
        settings.append(DeviceSettings(uuid=uuid, persistence=persistence, mig=geometry))
    return tuple(settings)


def switch_persistence_off(settings: Sequence[DeviceSettings]) -> list[str]:
    """Persistence mode is a user of the GPU too. Returns what did not work."""
    handles, complaints = dict(_handles()), []
    for setting in settings:
        if not setting.persistence or setting.uuid not in handles:
            continue
        try:
            pynvml.nvmlDeviceSetPersistenceMode(handles[setting.uuid], 0)
        except pynvml.NVMLError as error:
            complaints.append(f"persistence mode of {setting.uuid} cannot be switched off: {error}")
    return complaints


def restore_settings(settings: Sequence[DeviceSettings]) -> list[str]:
    """Put back what is different, persistence first: without it instances may go with their last user.

    Returns what is not as it was, in words.
    """
    handles, complaints = dict(_handles()), []
    for setting in settings:
        if (handle := handles.get(setting.uuid)) is None:
            if setting.persistence or setting.mig:
                complaints.append(f"settings of {setting.uuid} are not restored: NVML does not see it")
            continue
        try:
            if setting.persistence is not None and _persistence(handle) != setting.persistence:
                pynvml.nvmlDeviceSetPersistenceMode(handle, int(setting.persistence))
        except pynvml.NVMLError as error:
            complaints.append(f"persistence mode of {setting.uuid} is not restored: {error}")
        try:
            restore_geometry(handle, setting.mig)
        except (MigError, pynvml.NVMLError) as error:
            complaints.append(f"MIG geometry of {setting.uuid} is not restored: {error}")
    return complaints


def _persistence(handle: Any) -> bool | None:
    try:
        return bool(pynvml.nvmlDeviceGetPersistenceMode(handle))
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
        return None


def _handles() -> Iterator[tuple[str, Any]]:
    """GPUs that answer, by UUID."""
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            yield pynvml.nvmlDeviceGetUUID(handle), handle
        except pynvml.NVMLError:
            continue
