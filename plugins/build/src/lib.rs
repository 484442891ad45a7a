//! Builds guests: a cargo started within a build script or a test, for a workspace of plugins.
//!
//! Owns how that cargo is kept apart from the one around it. Knows no plugin.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

use std::path::{Path, PathBuf};
use std::process::Command;

/// What guests are built for.
pub const TARGET: &str = "wasm32-wasip2";

/// Variables of the outer cargo that would change the inner one's build: its flags, its wrappers (clippy's, a coverage
/// tool's), its job server, what it tells a build script.
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
/// Of `CARGO_*` only these stay: where its home is and how it reaches its registry.
const KEPT: [&str; 5] = ["CARGO_HOME", "CARGO_NET_", "CARGO_HTTP_", "CARGO_REGISTR", "CARGO_TERM_"];

/// Why there is no guest.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// cargo or rustc could not be started.
    #[error("{program}: {error}")]
    NotStarted {
        /// The program.
        program: String,
        /// What the system says.
        error: std::io::Error,
    },
    /// The standard library for guests is not installed.
    #[error("guests are built for {TARGET}, which is not installed: run `rustup target add {TARGET}`")]
    NoTarget,
    /// The guest does not build.
    #[error("guests in {workspace} do not build:\n{output}")]
    Failed {
        /// The workspace.
        workspace: PathBuf,
        /// What cargo says.
        output: String,
    },
}

/// Builds every guest of a workspace, in its release profile and with its `Cargo.lock` as it is, and returns the
/// directory that holds `NAME.wasm` for each library, and `examples/NAME.wasm` for each example.
///
/// Safe to be called from several processes at once with one `target_dir`: cargo locks it.
///
/// # Errors
/// If a guest does not build, with what cargo says; if the target is missing, with how to get it.
pub fn build(workspace: &Path, target_dir: &Path) -> Result<PathBuf, BuildError> {
    build_with(workspace, target_dir, &[])
}

/// The same, with variables for the guests' build scripts.
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
    let of_cargo = name.starts_with("CARGO") && !KEPT.iter().any(|kept| name.starts_with(kept));
    of_cargo || CLEARED.contains(&name)
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
    fn where_cargo_finds_its_crates_stays() {
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
    fn a_workspace_that_does_not_build_says_why() {
        let here = std::env::temp_dir().join(format!("afterbay-plugin-build-{}", std::process::id()));
        let error = build(&here, &here.join("target")).unwrap_err();
        assert!(
            matches!(&error, BuildError::Failed { output, .. } if output.contains("Cargo.toml")),
            "{error}"
        );
    }
}
