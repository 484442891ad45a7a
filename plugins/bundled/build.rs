//! Builds the bundled plugins for wasm32-wasip2, and writes a table of them and a table of the contract in C.

use std::error::Error;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The bundled plugins. Each is the crate of this name in `plugins/`.
const NAMES: [&str; 4] = ["delta-to-cumulative", "floor", "grammar-check", "skip-detokenization"];

fn main() -> Result<(), Box<dyn Error>> {
    // Read at run time, not at compile time: the checkout may have moved in between.
    let here = std::env::var_os("CARGO_MANIFEST_DIR").ok_or("CARGO_MANIFEST_DIR is not set")?;
    let plugins = Path::new(&here).join("..").canonicalize()?;
    for input in ["c-bindings", "Cargo.toml", "Cargo.lock", "sdk/Cargo.toml", "sdk/src", "../wit"] {
        rerun_if_changed(&plugins.join(input));
    }
    for name in NAMES {
        rerun_if_changed(&plugins.join(name).join("Cargo.toml"));
        rerun_if_changed(&plugins.join(name).join("src"));
    }
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    // OUT_DIR is target/PROFILE/build/bundled-HASH/out. All variants of this crate, and the tests' guests, share one build.
    let guests = out.ancestors().nth(4).ok_or("OUT_DIR is not in a target directory")?.join("tmp/guests");
    let c = guests.join("c");
    let variables = [("AFTERBAY_C_BINDINGS", c.as_path())];
    let built = afterbay_plugin_build::build_with(&plugins, &guests, &variables)?;
    let mut table = "&[\n".to_owned();
    for name in NAMES {
        let component = out.join(format!("{name}.wasm"));
        std::fs::copy(built.join(format!("{}.wasm", name.replace('-', "_"))), &component)?;
        writeln!(table, "    ({name:?}, include_bytes!({component:?})),")?;
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

fn rerun_if_changed(path: &Path) {
    println!("cargo::rerun-if-changed={}", path.display());
}
