//! Builds the bundled plugins for wasm32-wasip2, and writes a table of them and a table of the contract in C.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use toml::Table;

fn main() -> Result<()> {
    // Read at run time, not at compile time: the checkout may have moved in between.
    let here = std::env::var_os("CARGO_MANIFEST_DIR").context("CARGO_MANIFEST_DIR is not set")?;
    let plugins = Path::new(&here).join("..").canonicalize()?;
    for input in ["c-bindings", "Cargo.toml", "Cargo.lock", "sdk/Cargo.toml", "sdk/src", "../wit"] {
        rerun_if_changed(&plugins.join(input));
    }
    let bundled = bundled(&plugins)?;
    for plugin in &bundled {
        rerun_if_changed(&plugins.join(&plugin.name).join("Cargo.toml"));
        rerun_if_changed(&plugins.join(&plugin.name).join("src"));
    }
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    // OUT_DIR is target/PROFILE/build/bundled-HASH/out. All variants of this crate, and the tests' guests, share one build.
    let guests = out.ancestors().nth(4).context("OUT_DIR is not in a target directory")?.join("tmp/guests");
    let c = guests.join("c");
    let variables = [("AFTERBAY_C_BINDINGS", c.as_path())];
    let built = afterbay_plugin_build::build_with(&plugins, &guests, &variables)?;
    let mut table = "&[\n".to_owned();
    for Plugin { name, description, is_listed, defaults } in bundled {
        let component = out.join(format!("{name}.wasm"));
        std::fs::copy(built.join(format!("{}.wasm", name.replace('-', "_"))), &component)?;
        writeln!(
            table,
            "    Bundled {{ name: {name:?}, description: {description:?}, is_listed: {is_listed}, \
             defaults: {defaults:?}, component: include_bytes!({component:?}) }},"
        )?;
    }
    table.push_str("]\n");
    std::fs::write(out.join("bundled.rs"), table)?;
    let mut table = "&[\n".to_owned();
    for name in ["transform.h", "transform.c"] {
        writeln!(table, "    ({name:?}, include_str!({:?})),", c.join(name))?;
    }
    table.push_str("]\n");
    std::fs::write(out.join("c_bindings.rs"), table)?;
    Ok(())
}

/// A bundled plugin, by its manifest.
struct Plugin {
    name: String,
    description: String,
    is_listed: bool,
    /// The key `engines`, and the keys `grant` and `limits` of a configuration, in TOML.
    defaults: String,
}

/// Returns the members of the plugins' workspace whose manifest has `[package.metadata.afterbay]`, by name.
fn bundled(plugins: &Path) -> Result<Vec<Plugin>> {
    let workspace = manifest(&plugins.join("Cargo.toml"))?;
    let members = workspace["workspace"]["members"].as_array().context("workspace.members is no array")?;
    let mut found = Vec::new();
    for member in members {
        let name = member.as_str().context("a workspace member is no string")?;
        let manifest = manifest(&plugins.join(name).join("Cargo.toml"))?;
        let package = manifest["package"].as_table().context("package is no table")?;
        let metadata = package.get("metadata").and_then(|metadata| metadata.get("afterbay")?.as_table());
        let Some(mut defaults) = metadata.cloned() else { continue };
        let description = package.get("description").and_then(|text| text.as_str());
        let description = description.with_context(|| format!("plugins/{name} has no description"))?;
        let is_listed = defaults.remove("listed").is_none_or(|listed| listed.as_bool() != Some(false));
        found.push(Plugin {
            name: name.to_owned(),
            description: description.to_owned(),
            is_listed,
            defaults: toml::to_string(&defaults)?,
        });
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(found)
}

fn manifest(path: &Path) -> Result<Table> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    text.parse().with_context(|| path.display().to_string())
}

fn rerun_if_changed(path: &Path) {
    println!("cargo::rerun-if-changed={}", path.display());
}
