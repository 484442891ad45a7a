//! The bundled plugins, as components.
