"""What a user installs: one top-level name, with every package and table in it."""

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from testbed.build import cache

ROOT = Path(__file__).parents[2]
FOLDERS = ("activities", "workflows", "workers")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> zipfile.ZipFile:
    """The wheel, built from a copy, since a build leaves folders beside the sources."""
    uv = shutil.which("uv") or shutil.which("uv", path=cache() / "uv" / "bin")
    assert uv, "no uv on PATH: run `make test`, which installs it"
    directory = tmp_path_factory.mktemp("wheel")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, directory)
    command = [uv, "build", "--quiet", "--wheel", "--python", sys.executable, "--out-dir", "dist"]
    subprocess.run(command, cwd=directory, check=True, timeout=120)
    (built,) = (directory / "dist").glob("*.whl")
    return zipfile.ZipFile(built)


def test_every_folder_with_code_is_a_package():
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    found = {
        "gpu_runbooks." + ".".join(path.parent.relative_to(ROOT).parts)
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("__init__.py")
    }
    assert set(setuptools["packages"]) == found
    with_code = {path.parent for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}
    assert all((folder / "__init__.py").exists() for folder in with_code)


def test_only_one_name_is_installed(wheel):
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"gpu_runbooks"}


def test_nothing_is_left_out(wheel):
    sources = {
        "gpu_runbooks/" + path.relative_to(ROOT).as_posix()
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".csv", ".yaml"} or path.name == "py.typed"
    }
    assert sources <= set(wheel.namelist())
