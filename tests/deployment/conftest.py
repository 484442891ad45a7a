"""The binary, and the tools from the machine."""

import os
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def afterbay():
    """The binary to test: AFTERBAY_BINARY, or the debug build."""
    binary = Path(os.environ.get("AFTERBAY_BINARY", ROOT / "target/debug/afterbay"))
    if not binary.exists():
        pytest.fail(f"{binary} does not exist: cargo build -p afterbay")
    return binary


def need(tool):
    """Skips the test, with the reason, on a machine without a tool."""
    return pytest.mark.skipif(not shutil.which(tool), reason=f"{tool} is not installed")
