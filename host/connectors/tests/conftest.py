"""Fixtures for the connectors of all engines."""
import pathlib
import sys
import types

import pytest

from afterbay_connector import __version__

PACKAGES = pathlib.Path(__file__).resolve().parents[1]


@pytest.fixture
def fake_modules(monkeypatch):
    """Adds a fake module and its parents to sys.modules: fake_modules("a.b", name=value)."""

    def put(name, **content):
        parts = name.split(".")
        for depth in range(1, len(parts) + 1):
            dotted = ".".join(parts[:depth])
            if dotted not in sys.modules:
                module = types.ModuleType(dotted)
                module.__path__ = []
                monkeypatch.setitem(sys.modules, dotted, module)
                if depth > 1:
                    monkeypatch.setattr(sys.modules[".".join(parts[: depth - 1])], parts[depth - 1], module, raising=False)
        for key, value in content.items():
            monkeypatch.setattr(sys.modules[name], key, value, raising=False)
        return sys.modules[name]

    return put


@pytest.fixture
def clients_key(tmp_path):
    """A file with the secret of clients' tokens."""
    file = tmp_path / "clients-key"
    file.write_text("0123456789abcdef0123456789abcdef")
    return str(file)


@pytest.fixture
def lay_out(tmp_path):
    """Lays out a connector and a hand-made dist-info in a directory, like the one of the launcher. Nothing is installed."""

    def lay_out(name, group):
        directory = tmp_path / "on-path"
        directory.mkdir()
        for package in ("afterbay_connector", name):
            (directory / package).symlink_to(PACKAGES / package)
        info = directory / f"afterbay-{__version__}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: afterbay\nVersion: {__version__}\n")
        (info / "entry_points.txt").write_text(f"[{group}]\nafterbay = {name}:register\n")
        return directory

    return lay_out
