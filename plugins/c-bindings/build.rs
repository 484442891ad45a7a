//! Writes the contract in C into the directory that `AFTERBAY_C_BINDINGS` names, or into `OUT_DIR`.

use std::error::Error;
use std::path::{Path, PathBuf};

use wit_bindgen_core::Files;
use wit_bindgen_core::wit_parser::Resolve;

fn main() -> Result<(), Box<dyn Error>> {
    let wit = Path::new(&std::env::var("CARGO_MANIFEST_DIR")?).join("../../wit/transform.wit");
    println!("cargo::rerun-if-changed={}", wit.display());
    println!("cargo::rerun-if-env-changed=AFTERBAY_C_BINDINGS");
    let mut resolve = Resolve::default();
    let package = resolve.push_str("transform.wit", &std::fs::read_to_string(wit)?)?;
    let world = resolve.select_world(&[package], Some("transform"))?;
    // `wasm-tools` adds the world's type when it makes a component of the module.
    let options = wit_bindgen_c::Opts { no_object_file: true, ..Default::default() };
    let mut files = Files::default();
    options.build().generate(&mut resolve, world, &mut files)?;
    let version = resolve.packages[package].name.version.as_ref().ok_or("the contract has no version")?;
    let version = format!("// The version of the contract.\n#define AFTERBAY_PLUGIN_VERSION \"{version}\"\n");
    let dir =
        std::env::var("AFTERBAY_C_BINDINGS").or_else(|_| std::env::var("OUT_DIR")).map(PathBuf::from)?;
    std::fs::create_dir_all(&dir)?;
    for (name, contents) in files.iter() {
        let contents = std::str::from_utf8(contents)?;
        // The generated code ends with a reference to an object file with the world's type, which does not
        // exist here.
        let end = contents.find("// Ensure that the *_component_type.o").unwrap_or(contents.len());
        let mut contents = format!("{}\n", contents[..end].trim_end());
        if name == "transform.h" {
            // Behind the guard against a second inclusion.
            let guard = contents.find("#define __BINDINGS_TRANSFORM_H").ok_or("transform.h has no guard")?;
            let line_end = contents[guard..].find('\n').ok_or("transform.h ends in its guard")?;
            contents.insert_str(guard + line_end + 1, &version);
        }
        std::fs::write(dir.join(name), contents)?;
    }
    Ok(())
}
