"""What the connectors of all engines need: settings, the rendezvous file, the credit page, and hooks on modules that load later.

This package must not know any engine.
"""
__version__ = "0.1.0"
