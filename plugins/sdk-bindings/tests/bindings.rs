//! The SDK's bindings are generated here and checked in, so that an author's project does not compile the generator.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;
use wit_bindgen_core::wit_parser::Resolve;
use wit_bindgen_core::{Files, WorldGenerator};
use wit_bindgen_rust::Opts;

/// The command that writes the file again.
const BLESS: &str = "AFTERBAY_BLESS=1 cargo test --manifest-path plugins/Cargo.toml -p sdk-bindings";

fn bindings(wit: &Path) -> String {
    let mut resolve = Resolve::default();
    let (package, _) = resolve.push_path(wit).unwrap();
    let world = resolve.select_world(&[package], Some("transform")).unwrap();
    let options = Opts {
        format: true,
        pub_export_macro: true,
        export_macro_name: Some("export_transform".into()),
        default_bindings_module: Some("afterbay_plugin::abi".into()),
        additional_derive_attributes: vec!["PartialEq".into()],
        ..Opts::default()
    };
    let mut files = Files::default();
    options.build().generate(&mut resolve, world, &mut files).unwrap();
    let (_, contents) = files.iter().next().unwrap();
    let contents = std::str::from_utf8(contents).unwrap();
    format!("//! Generated from `wit/` by: {BLESS}\n\n{contents}")
}

#[test]
fn the_bindings_of_the_sdk_are_those_of_the_contract() {
    let plugins = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let file = plugins.join("sdk/src/abi/bindings.rs");
    let current = bindings(&plugins.join("../wit"));
    if std::env::var_os("AFTERBAY_BLESS").is_some() {
        return std::fs::write(&file, current).unwrap();
    }
    let is_current = std::fs::read_to_string(&file).unwrap() == current;
    assert!(is_current, "{} is not of the present contract; write it again: {BLESS}", file.display());
}
