"""Fixtures for the connectors of all engines."""
import sys
import types

import pytest


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
