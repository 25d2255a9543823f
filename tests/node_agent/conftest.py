"""GPUs from the stand-in library inside the test's own process, and the API server with our manifests."""

import ctypes

import pytest
from node_agent.cluster import MANIFESTS

from gpu_runbooks.workers.node_agent.nvml import Nvml
from testbed import gpu_allocations
from testbed.gpu_processes import start_fabric_manager
from testbed.gpus import (
    ResetAnswer,
    change_node,
    environment,
    healthy_gpus,
    library,
    write_efa_interfaces,
    write_state,
)


@pytest.fixture(scope="session")
async def admin(control_plane):
    """An administrator's connection to a control plane that has the manifests."""
    await control_plane.apply_kustomization(MANIFESTS)
    async with control_plane.client() as kubernetes:
        yield kubernetes


@pytest.fixture
def state(tmp_path, monkeypatch):
    """State file of a healthy p5 node; NVML and nvidia-smi of this process answer from it."""
    # Loaded by path, the library answers to its name: no LD_LIBRARY_PATH before the start of the process.
    ctypes.CDLL(str(library()))
    path = tmp_path / "nvml.state"
    write_state(path, healthy_gpus())
    for name, value in environment(path).items():
        monkeypatch.setenv(name, value)
    yield path
    change_node(path, hang=(), reset=ResetAnswer.DONE)  # lets go whatever still hangs


@pytest.fixture
def sysfs(tmp_path):
    path = tmp_path / "sys"
    write_efa_interfaces(path)
    return path


@pytest.fixture
def proc(tmp_path):
    """The host's processes: the Fabric Manager, and none that holds a GPU at first."""
    path = tmp_path / "proc"
    path.mkdir()
    start_fabric_manager(path)
    return path


@pytest.fixture
def kernel_log(tmp_path):
    path = tmp_path / "kmsg"
    path.touch()
    return path


@pytest.fixture
def boot_id_file(tmp_path):
    path = tmp_path / "boot_id"
    path.write_text("boot-1\n")
    return path


@pytest.fixture
def kubelet(tmp_path):
    """The kubelet's folder: no GPU is given to a pod at first."""
    path = tmp_path / "kubelet"
    gpu_allocations.assemble(path)
    return path


@pytest.fixture
def nvml(state, sysfs, proc, boot_id_file, kubelet):
    assert state.exists()
    session = Nvml(sysfs, proc, boot_id_file, kubelet)
    yield session
    session.close()
