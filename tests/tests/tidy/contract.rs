//! Checks that everything that carries the contract's version carries the same one.

use super::{files, none, read, repository};

/// Directories with the contract of earlier versions, which keep theirs.
const EARLIER: [&str; 2] = ["host/runtime/wit/", "tests/fixtures/"];

#[test]
fn the_wit_the_sdk_and_the_templates_have_the_version_of_the_contract() {
    let contract = contract("wit/transform.wit");
    let [major, minor, _] = contract.split('.').collect::<Vec<_>>()[..] else { panic!("{contract}") };
    let mut wrong = Vec::new();
    let sdk = read(&repository().join("plugins/sdk/Cargo.toml"));
    let sdk_version = sdk.lines().find_map(|line| line.strip_prefix("version = \"")).unwrap();
    if !sdk_version.starts_with(&format!("{major}.{minor}.")) {
        wrong.push(format!("plugins/sdk/Cargo.toml has version {sdk_version}"));
    }
    if !read(&repository().join("plugins/sdk/src/lib.rs"))
        .contains(&format!("afterbay-plugin = \"{major}.{minor}\""))
    {
        wrong.push("plugins/sdk/src/lib.rs depends on another version in its example".to_owned());
    }
    let mut checked = 0;
    // `package afterbay:plugin@1.0.0`, `import afterbay:plugin/log@1.0.0`.
    for (name, path) in ["wit", "js"].into_iter().flat_map(files) {
        if EARLIER.iter().any(|dir| name.starts_with(dir)) {
            continue;
        }
        let text = read(&path);
        let named = text.lines().filter(|line| line.contains("import ") || line.contains("export "));
        for line in named.filter(|line| line.contains("afterbay:plugin/")) {
            checked += 1;
            if !line.contains(&format!("@{contract}")) {
                wrong.push(format!("{name}: {line}"));
            }
        }
    }
    assert!(checked >= 8, "{checked} lines name the contract");
    none("versions of the contract", wrong);
}

#[test]
fn each_earlier_version_is_frozen_with_fixtures() {
    let mut wrong = Vec::new();
    let versions = read(&repository().join("host/runtime/src/version.rs"));
    let present = contract("wit/transform.wit");
    for entry in std::fs::read_dir(repository().join("host/runtime/wit")).unwrap() {
        let version = entry.unwrap().file_name().into_string().unwrap();
        if contract(&format!("host/runtime/wit/{version}/transform.wit")) != version {
            wrong.push(format!("host/runtime/wit/{version} has another version of the contract"));
        }
        if !repository().join("tests/fixtures/plugins").join(&version).is_dir() {
            wrong.push(format!("tests/fixtures/plugins has no components of {version}"));
        }
    }
    if !versions.contains(&format!("V1_0 => \"{present}\"")) {
        wrong.push(format!("host/runtime/src/version.rs has another present version than {present}"));
    }
    none("earlier versions", wrong);
}

/// The version of the contract in this file.
fn contract(file: &str) -> String {
    let text = read(&repository().join(file));
    let package = text.lines().find_map(|line| line.strip_prefix("package afterbay:plugin@"));
    package.unwrap().trim_end_matches(';').to_owned()
}
