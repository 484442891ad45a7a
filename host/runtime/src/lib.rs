//! The plugin host: wasmtime components, limits, faults, reload.
