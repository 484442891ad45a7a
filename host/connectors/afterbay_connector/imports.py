"""Changes a module of an engine as soon as the module is loaded, without loading it."""
from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from dataclasses import dataclass
from typing import Any, Callable


def after_import(name: str, change: Callable[[Any], None]) -> None:
    """Call `change` with the module: at once if it is loaded, otherwise after its first import. The same call twice changes it once."""
    loaded = sys.modules.get(name)
    if loaded is not None:
        change(loaded)
        return
    finder = _Finder(name, change)
    if finder not in sys.meta_path:
        sys.meta_path.insert(0, finder)


@dataclass(frozen=True)
class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module once, through the other finders, and changes it after the module has run."""

    name: str
    change: Callable[[Any], None]

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                self.change(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
