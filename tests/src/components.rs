//! The components of `tests/guests` and of `examples`, built once per process if their sources have changed.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::binary::target_dir;
use crate::repository;

/// The component of a guest in `tests/guests`.
pub fn guest(name: &str) -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build("tests/guests")).join("examples").join(file_name(name))
}

/// The component of a plugin in `examples`.
pub fn example(name: &str) -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build("examples")).join(file_name(name))
}

/// Writes or replaces a component atomically, like `cargo build`. `version` adds a custom section that nothing reads, so that each
/// version has the same behaviour and another digest.
pub fn install(component: &Path, version: u8, to: &Path) {
    let mut bytes = std::fs::read(component).unwrap();
    if version > 0 {
        let section = [1, b'v', version];
        bytes.extend_from_slice(&[0, section.len() as u8]);
        bytes.extend_from_slice(&section);
    }
    let whole = to.with_extension("new");
    std::fs::write(&whole, bytes).unwrap();
    std::fs::rename(&whole, to).unwrap();
}

fn build(workspace: &str) -> PathBuf {
    // The runtime's own tests use the same directory, so one build serves both.
    let built = target_dir().join("tmp").join("guests");
    afterbay_plugin_build::build(&repository().join(workspace), &built).unwrap()
}

fn file_name(name: &str) -> String {
    format!("{}.wasm", name.replace('-', "_"))
}
