"""Kubeconfig files: one per identity, so that each process holds the credentials of its role only."""

from pathlib import Path

import yaml


def write_kubeconfig(path: Path, *, url: str, authority: Path, token: str) -> Path:
    """Write the file that lets whoever reads it act with this token, readable by its owner only."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "testbed", "cluster": {"server": url, "certificate-authority": str(authority)}}
        ],
        "users": [{"name": path.stem, "user": {"token": token}}],
        "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": path.stem}}],
        "current-context": "testbed",
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def write_redirected(path: Path, *, to: Path, url: str) -> Path:
    """Write a copy of a kubeconfig that reaches its cluster at another address."""
    content = yaml.safe_load(path.read_text())
    for cluster in content["clusters"]:
        cluster["cluster"]["server"] = url
    to.touch(mode=0o600)
    to.write_text(yaml.safe_dump(content, sort_keys=False))
    return to
