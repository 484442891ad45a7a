"""Runs the sources that were saved last. `afterbay run --dev` puts this file and the project into one component.

The component's environment holds the sources that were saved after that build: a name is a path in the project, and the value
is the text. Without them, the sources of the build run. An import of another module finds what the build imported.
"""

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec

import plugin
from wit_world import exports
from wit_world.imports import environment


class Sources:
    """Finds and loads the project's own modules."""

    def __init__(self, sources):
        self.sources = sources

    def path(self, module):
        place = module.replace(".", "/")
        return next((it for it in (f"{place}.py", f"{place}/__init__.py") if it in self.sources), None)

    def find_spec(self, module, path=None, target=None):
        found = self.path(module)
        if found is None:
            return None
        return ModuleSpec(module, self, origin=found, is_package=found.endswith("/__init__.py"))

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        path = module.__spec__.origin
        module.__file__ = path
        exec(compile(self.sources[path], path, "exec"), module.__dict__)


current = None


def loaded():
    global current
    if current is None:
        sources = Sources(dict(environment.get_environment()))
        for module in [it for it in sys.modules if sources.path(it)]:
            del sys.modules[module]
        sys.meta_path.insert(0, sources)
        current = import_module("plugin")
    return current


def delegate(name):
    return lambda self, *args: getattr(loaded().Plugin(), name)(*args)


Plugin = type("Plugin", (exports.Plugin,), {name: delegate(name) for name in exports.Plugin.__abstractmethods__})
