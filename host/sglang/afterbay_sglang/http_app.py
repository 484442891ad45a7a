"""What an HTTP worker of SGLang serves under Afterbay: SGLang's own application, in a process that has loaded plugins.

Owns the order: the application first, so that what is hooked is there; it makes its tokenizer later, when it is started.
"""
import pkgutil

from sglang.srt.plugins import load_plugins

from .workers import served_app

app = pkgutil.resolve_name(served_app())
load_plugins()
