//! Builds guests (WebAssembly components) by running cargo from a build script or a test.
//!
//! This crate isolates the inner cargo from the outer one. It knows no particular plugin.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

use std::path::{Path, PathBuf};
use std::process::Command;

/// The target of guests.
pub const TARGET: &str = "wasm32-wasip2";

/// Variables of the outer cargo that would change the inner build: flags, wrappers (of clippy or coverage
/// tools), the job server and the variables of build scripts.
const CLEARED: [&str; 8] = [
    "RUSTFLAGS",
    "RUSTDOCFLAGS",
    "RUSTC_WRAPPER",
    "RUSTC_WORKSPACE_WRAPPER",
    "MAKEFLAGS",
    "OUT_DIR",
    "TARGET",
    "HOST",
];
/// The only `CARGO_*` variables that reach the inner cargo: its home and its access to registries.
const PASSED_ON: [&str; 5] = ["CARGO_HOME", "CARGO_NET_", "CARGO_HTTP_", "CARGO_REGISTR", "CARGO_TERM_"];

/// The reason why a build failed.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// cargo or rustc could not be started.
    #[error("{program}: {error}")]
    NotStarted {
        /// The name of the program.
        program: String,
        /// The error of the operating system.
        error: std::io::Error,
    },
    /// The target's standard library is not installed.
    #[error("guests are built for {TARGET}, which is not installed: run `rustup target add {TARGET}`")]
    NoTarget,
    /// cargo reported an error.
    #[error("guests in {workspace} do not build:\n{output}")]
    Failed {
        /// The workspace that was built.
        workspace: PathBuf,
        /// The output of cargo.
        output: String,
    },
}

/// Builds every guest of a workspace in the release profile, with its `Cargo.lock` unchanged. Returns the
/// directory that has `NAME.wasm` for each library and `examples/NAME.wasm` for each example.
///
/// Several processes may call this at once with one `target_dir`, because cargo locks the directory.
///
/// # Errors
/// If a guest does not build, with cargo's output; if the target is missing, with the command to install it.
pub fn build(workspace: &Path, target_dir: &Path) -> Result<PathBuf, BuildError> {
    build_with(workspace, target_dir, &[])
}

/// Builds like [`build`] and passes environment variables to the guests' build scripts.
///
/// # Errors
/// As [`build`].
pub fn build_with(
    workspace: &Path,
    target_dir: &Path,
    variables: &[(&str, &Path)],
) -> Result<PathBuf, BuildError> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = clean(Command::new(&cargo))
        .args([
            "build",
            "--quiet",
            "--release",
            "--locked",
            "--workspace",
            "--lib",
            "--examples",
            "--target",
            TARGET,
        ])
        .arg("--manifest-path")
        .arg(workspace.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(target_dir)
        .envs(variables.iter().copied())
        .output()
        .map_err(|error| BuildError::NotStarted { program: cargo, error })?;
    if output.status.success() {
        return Ok(target_dir.join(TARGET).join("release"));
    }
    if !has_target()? {
        return Err(BuildError::NoTarget);
    }
    let output = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(BuildError::Failed { workspace: workspace.to_owned(), output })
}

fn has_target() -> Result<bool, BuildError> {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let output = clean(Command::new(&rustc))
        .args(["--print", "target-libdir", "--target", TARGET])
        .output()
        .map_err(|error| BuildError::NotStarted { program: rustc, error })?;
    Ok(output.status.success() && Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir())
}

fn clean(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        let Some(name) = name.to_str() else { continue };
        if is_cleared(name) {
            command.env_remove(name);
        }
    }
    command
}

fn is_cleared(name: &str) -> bool {
    let is_cargos = name.starts_with("CARGO") && !PASSED_ON.iter().any(|prefix| name.starts_with(prefix));
    is_cargos || CLEARED.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outer_cargos_flags_do_not_reach_the_inner_one() {
        for name in [
            "CARGO_ENCODED_RUSTFLAGS",
            "CARGO_TARGET_DIR",
            "CARGO_BUILD_TARGET",
            "CARGO_MAKEFLAGS",
            "RUSTFLAGS",
        ] {
            assert!(is_cleared(name), "{name}");
        }
        assert!(
            is_cleared("RUSTC_WORKSPACE_WRAPPER"),
            "clippy would check the guests instead of building them"
        );
    }

    #[test]
    fn cargos_home_and_registries_reach_the_inner_one() {
        for name in [
            "CARGO_HOME",
            "CARGO_NET_OFFLINE",
            "CARGO_HTTP_PROXY",
            "CARGO_REGISTRIES_X_INDEX",
            "PATH",
            "RUSTC",
        ] {
            assert!(!is_cleared(name), "{name}");
        }
    }

    #[test]
    fn a_failed_build_reports_cargos_output() {
        let here = std::env::temp_dir().join(format!("afterbay-plugin-build-{}", std::process::id()));
        let error = build(&here, &here.join("target")).unwrap_err();
        assert!(
            matches!(&error, BuildError::Failed { output, .. } if output.contains("Cargo.toml")),
            "{error}"
        );
    }
}
