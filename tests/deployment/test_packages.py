"""The packages that `make dist` writes. The wheel has tests of its own, in host/connectors."""

import tomllib
from pathlib import Path

from conftest import ROOT

BINARIES = {"afterbay", "afterbay-follow"}


def test_the_debian_package_and_the_image_have_both_binaries_in_one_directory():
    manifest = tomllib.loads((ROOT / "host/tools/afterbay/Cargo.toml").read_text())
    assets = manifest["package"]["metadata"]["deb"]["assets"]
    assert {Path(source).name for source, to, mode in assets if (to, mode) == ("usr/bin/", "755")} == BINARIES
    lines = (ROOT / "host/tools/afterbay/dist/Containerfile").read_text().splitlines()
    [copied] = [line for line in lines if line.endswith(" /usr/bin/")]
    assert {Path(source).name for source in copied.split()[2:-1]} == BINARIES
