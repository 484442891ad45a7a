//! Embeds the contract, the Rust SDK's sources and the templates for new projects.

use std::error::Error;
use std::fmt::Write;
use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    // Read at run time, not at compile time: the checkout may have moved in between.
    let here = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    let root = here.join("../..").canonicalize()?;
    let wit = root.join("wit/transform.wit");
    let mut table = String::new();

    list(&mut table, "TEMPLATES", &files(&here.join("templates"))?)?;
    let mut sdk = files(&root.join("plugins/sdk/src"))?;
    sdk.iter_mut().for_each(|(name, _)| name.insert_str(0, "src/"));
    let manifest = out.join("sdk.toml");
    let read = |path: &str| {
        rerun_if_changed(&root.join(path));
        std::fs::read_to_string(root.join(path))
    };
    std::fs::write(&manifest, standalone(&read("plugins/sdk/Cargo.toml")?, &read("plugins/Cargo.toml")?)?)?;
    sdk.push(("Cargo.toml".into(), manifest));
    list(&mut table, "SDK", &sdk)?;

    rerun_if_changed(&wit);
    writeln!(table, "pub(crate) const WIT: &str = include_str!({wit:?});")?;
    std::fs::write(out.join("embedded.rs"), table)?;
    Ok(())
}

fn rerun_if_changed(path: &Path) {
    println!("cargo::rerun-if-changed={}", path.display());
}

/// All files below a directory, by their relative paths.
fn files(dir: &Path) -> Result<Vec<(String, PathBuf)>, Box<dyn Error>> {
    fn collect(dir: &Path, root: &Path, found: &mut Vec<(String, PathBuf)>) -> Result<(), Box<dyn Error>> {
        for entry in std::fs::read_dir(dir)? {
            let path = entry?.path();
            if path.is_dir() {
                collect(&path, root, found)?;
            } else {
                found.push((path.strip_prefix(root)?.to_string_lossy().into_owned(), path));
            }
        }
        Ok(())
    }
    rerun_if_changed(dir);
    let mut found = Vec::new();
    collect(dir, dir, &mut found)?;
    found.sort();
    Ok(found)
}

fn list(table: &mut String, name: &str, files: &[(String, PathBuf)]) -> std::fmt::Result {
    writeln!(table, "pub(crate) const {name}: &[(&str, &str)] = &[")?;
    for (file, path) in files {
        writeln!(table, "    ({file:?}, include_str!({path:?})),")?;
    }
    writeln!(table, "];")
}

/// Makes a manifest independent of its workspace: inherited values are copied into it.
fn standalone(manifest: &str, workspace: &str) -> Result<String, Box<dyn Error>> {
    let mut made = String::new();
    let without_lints = manifest.replace("[lints]\nworkspace = true\n\n", "");
    for line in without_lints.lines() {
        let Some(key) = line.strip_suffix(".workspace = true") else {
            writeln!(made, "{line}")?;
            continue;
        };
        let found =
            workspace.lines().find(|line| line.strip_prefix(key).is_some_and(|rest| rest.starts_with(" = ")));
        writeln!(made, "{}", found.ok_or_else(|| format!("plugins/Cargo.toml has no {key}"))?)?;
    }
    Ok(made)
}
