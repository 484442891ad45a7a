"""The application of SGLang's HTTP workers under Afterbay: SGLang's own application, in a process that has loaded plugins.

The order matters: the application's import loads the hooked modules. It makes its tokenizer later, at its start.
"""
import pkgutil

from sglang.srt.plugins import load_plugins

from .workers import served_app

app = pkgutil.resolve_name(served_app())
load_plugins()
