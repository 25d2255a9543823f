"""Persistence mode and MIG geometry: read, switched off, made anew, over the stand-in library."""

import pytest

from gpu_runbooks.workers.node_agent.device_settings import (
    SettingsUnreadableError,
    read_settings,
    restore_settings,
    switch_persistence_off,
)
from gpu_runbooks.workers.node_agent.mig import MigInstance, MigPart
from testbed.gpus import GpuInstance, Part, Presence, Refuses, change_gpu, healthy_gpus, read_state

UUID, OTHER = healthy_gpus()[3].uuid, healthy_gpus()[4].uuid
NOT_SUPPORTED, IN_USE, UNKNOWN = Refuses(3), Refuses(19), Refuses(999)
GEOMETRY = (
    GpuInstance(Part(9, 0, 4), (Part(0, 0, 1), Part(1, 1, 2))),
    GpuInstance(Part(19, 4, 1), (Part(0, 0, 1),)),
    GpuInstance(Part(14, 6, 2)),
)


@pytest.fixture
def session(nvml):
    """NVML, opened as the agent opens it."""
    nvml.measure()
    return nvml


def read(*uuids):
    return read_settings(uuids)


@pytest.mark.usefixtures("session")
def test_profiles_and_places_are_read(state):
    change_gpu(state, 3, mig=1, instances=GEOMETRY)
    (settings,) = read(UUID)
    assert settings.persistence is True
    assert settings.mig == (
        MigInstance(
            profile=9,
            start=0,
            size=4,
            compute=(MigPart(profile=0, start=0, size=1), MigPart(profile=1, start=1, size=2)),
        ),
        MigInstance(profile=19, start=4, size=1, compute=(MigPart(profile=0, start=0, size=1),)),
        MigInstance(profile=14, start=6, size=2),
    )


@pytest.mark.usefixtures("session")
def test_a_gpu_without_such_settings_has_nothing_to_restore(state):
    change_gpu(state, 3, persistence=NOT_SUPPORTED, mig=NOT_SUPPORTED)
    (settings,) = read(UUID)
    assert (settings.persistence, settings.mig) == (None, None)
    assert switch_persistence_off([settings]) == []
    assert restore_settings([settings]) == []


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize(
    "changes", [{"mig": UNKNOWN}, {"mig": 1, "instances": UNKNOWN}, {"persistence": UNKNOWN}]
)
def test_a_setting_that_is_not_told_is_an_error(state, changes):
    change_gpu(state, 3, **changes)
    with pytest.raises(SettingsUnreadableError, match=UUID):
        read(UUID)
    assert len(read(OTHER)) == 1


@pytest.mark.usefixtures("session")
def test_all_comes_back_as_it_was(state):
    change_gpu(state, 3, mig=1, instances=GEOMETRY)
    change_gpu(state, 4, persistence=0)
    before = read_state(state)
    settings = read(UUID, OTHER)
    assert switch_persistence_off(settings) == []
    assert [gpu.persistence for gpu in read_state(state).gpus[3:5]] == [0, 0]
    change_gpu(state, 3, instances=(), mig=0)  # as later generations lose the mode too
    assert restore_settings(settings) == []
    assert read_state(state) == before
    assert restore_settings(settings) == []
    assert read_state(state) == before


@pytest.mark.usefixtures("session")
def test_only_what_is_missing_is_made(state):
    change_gpu(state, 3, mig=1, instances=GEOMETRY)
    settings = read(UUID)
    change_gpu(state, 3, instances=GEOMETRY[:1])
    assert restore_settings(settings) == []
    assert read_state(state).gpus[3].instances == GEOMETRY


@pytest.mark.usefixtures("session")
def test_a_geometry_that_the_driver_does_not_make_is_told(state):
    change_gpu(state, 3, mig=1, instances=GEOMETRY)
    settings = read(UUID)
    change_gpu(state, 3, instances=(), create_instance=IN_USE)
    (complaint,) = restore_settings(settings)
    assert f"MIG geometry of {UUID} is not restored" in complaint


@pytest.mark.usefixtures("session")
def test_instances_that_somebody_made_meanwhile_are_left_and_told(state):
    change_gpu(state, 3, mig=1, instances=GEOMETRY[:1])
    settings = read(UUID)
    change_gpu(state, 3, instances=GEOMETRY)
    (complaint,) = restore_settings(settings)
    assert "it had profile 9 at 0 with 2 parts" in complaint
    assert read_state(state).gpus[3].instances == GEOMETRY


@pytest.mark.usefixtures("session")
def test_a_gpu_that_is_gone_is_told_and_the_others_are_restored(state):
    settings = read(UUID, OTHER)
    switch_persistence_off(settings)
    change_gpu(state, 3, presence=Presence.MISSING)
    (complaint,) = restore_settings(settings)
    assert UUID in complaint
    assert read_state(state).gpus[4].persistence == 1
