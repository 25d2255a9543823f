"""A directory for one run that is gone afterwards, also when its owner was killed."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CLEAN_UP = 'cat; for try in 1 2 3 4 5 6 7 8 9 10; do rm -rf -- "$@" && exit; sleep 0.2; done'
"""Waits for the end of its input, which is the end of the owner, then removes its arguments.

More than one try: processes that die at the same moment may still write their logs.
"""


@contextmanager
def run_directory(*more: Path, keep: bool = False) -> Iterator[Path]:
    """Make a temporary directory and remove it at the end, with `more` files, unless it is to be kept.

    A small shell waits beside us for the case that we cannot: SIGKILL leaves no time to tidy up.
    """
    directory = Path(tempfile.mkdtemp(prefix="gpu-runbooks-"))
    if keep:
        yield directory
        return
    doomed = [directory, *more]
    waiting = subprocess.Popen(
        ["/bin/sh", "-c", CLEAN_UP, "clean-up", *map(str, doomed)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={"PATH": os.environ.get("PATH", os.defpath)},
    )
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        waiting.communicate()
