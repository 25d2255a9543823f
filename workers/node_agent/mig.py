"""The MIG geometry of a GPU, read and made anew through NVML. A reset ends all GPU instances.

Every call here can block for ever in a sick driver, so none is made from the event loop: see `probe.py`.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pynvml
from pydantic import Field

from gpu_runbooks.activities.model.node_task import Facts

MOST_INSTANCES = 16
"""Limit of the CRD. No GPU has more than 8 slices."""


class MigPart(Facts):
    """A part of a GPU or of a GPU instance: the driver's id of its profile, and where it lies."""

    profile: int
    start: int
    size: int


class MigInstance(MigPart):
    """A GPU instance."""

    compute: tuple[MigPart, ...] = Field(default=(), max_length=MOST_INSTANCES)


Geometry = tuple[MigInstance, ...] | None
"""GPU instances in the order of their ids; None where MIG is off, or the GPU has none."""


class MigError(Exception):
    """The geometry is not what it was."""


def mig_enabled(handle: Any) -> bool:
    """Whether MIG is on now. Raises `pynvml.NVMLError` where the driver does not tell."""
    return _mode(handle)[0]


def read_geometry(handle: Any) -> Geometry:
    """The geometry after the next reset: a mode that is pending becomes the mode then.

    Raises `pynvml.NVMLError` where the driver does not tell.
    """
    current, pending = _mode(handle)
    if not pending:
        return None
    return _instances(handle) if current else ()


def restore_geometry(handle: Any, wanted: Geometry) -> None:
    """Make what is missing, with the same profiles in the same places and the same order.

    Raises `MigError` where it is then not as wanted, and `pynvml.NVMLError`.
    """
    current, _ = _mode(handle)
    if current != (wanted is not None):
        status = pynvml.nvmlDeviceSetMigMode(handle, int(wanted is not None))
        if status != pynvml.NVML_SUCCESS:
            word = "on" if wanted is not None else "off"
            raise MigError(f"MIG mode could not be switched {word}: {pynvml.nvmlErrorString(status)}")
    if wanted is None:
        return
    present = {(instance.profile, instance.start): instance for instance in _instances(handle)}
    for instance in wanted:
        if (instance.profile, instance.start) not in present:
            _make(handle, instance)
    if (made := _instances(handle)) != wanted and _sorted(made) != _sorted(wanted):
        raise MigError(f"MIG has {_words(made)}, it had {_words(wanted)}")


def _mode(handle: Any) -> tuple[bool, bool]:
    """Whether MIG is on, and whether it will be after a reset."""
    try:
        current, pending = pynvml.nvmlDeviceGetMigMode(handle)
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
        return False, False
    return bool(current), bool(pending)


def _instances(handle: Any) -> tuple[MigInstance, ...]:
    found: dict[int, MigInstance] = {}
    profiles = range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT)
    for profile in _known(lambda index: pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, index), profiles):
        many = (pynvml.c_nvmlGpuInstance_t * profile.instanceCount)()
        for instance in _listed(pynvml.nvmlDeviceGetGpuInstances, handle, profile.id, many):
            info = pynvml.nvmlGpuInstanceGetInfo(instance)
            found[info.id] = MigInstance(**_part(info), compute=_compute_instances(instance))
    return tuple(found[number] for number in sorted(found))


def _compute_instances(instance: Any) -> tuple[MigPart, ...]:
    found: dict[int, MigPart] = {}
    shared = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
    profiles = range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT)
    for profile in _known(
        lambda index: pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, index, shared), profiles
    ):
        many = (pynvml.c_nvmlComputeInstance_t * profile.instanceCount)()
        for compute in _listed(pynvml.nvmlGpuInstanceGetComputeInstances, instance, profile.id, many):
            info = pynvml.nvmlComputeInstanceGetInfo_v2(compute)
            found[info.id] = MigPart(**_part(info))
    return tuple(found[number] for number in sorted(found))


def _make(handle: Any, instance: MigInstance) -> None:
    place = pynvml.c_nvmlGpuInstancePlacement_t(instance.start, instance.size)
    made = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, instance.profile, pynvml.byref(place))
    for compute in instance.compute:
        place = pynvml.c_nvmlComputeInstancePlacement_t(compute.start, compute.size)
        pynvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement(made, compute.profile, pynvml.byref(place))


def _known(ask: Callable[[int], Any], profiles: range) -> Iterator[Any]:
    """Profiles that this GPU has. NVML counts all that any GPU has."""
    for index in profiles:
        try:
            yield ask(index)
        except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument):
            continue


def _listed(ask: Callable[..., Any], parent: Any, profile: int, many: Any) -> list[Any]:
    count = pynvml.c_uint(len(many))
    ask(parent, profile, many, pynvml.byref(count))
    return list(many[: count.value])


def _part(info: Any) -> dict[str, int]:
    return {"profile": info.profileId, "start": info.placement.start, "size": info.placement.size}


def _sorted(instances: tuple[MigInstance, ...]) -> list[Any]:
    return sorted(
        (i.start, i.size, i.profile, sorted((c.start, c.profile) for c in i.compute)) for i in instances
    )


def _words(instances: tuple[MigInstance, ...]) -> str:
    shown = ", ".join(f"profile {i.profile} at {i.start} with {len(i.compute)} parts" for i in instances)
    return shown or "no instances"
