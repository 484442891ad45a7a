//! Checks that everything that carries the contract's version carries the same one.

use super::{files, none, read, repository};

#[test]
fn the_wit_the_host_the_sdk_and_the_templates_have_the_version_of_the_contract() {
    let wit = read(&repository().join("wit/transform.wit"));
    let contract = wit.lines().find_map(|line| line.strip_prefix("package afterbay:plugin@")).unwrap();
    let contract = contract.trim_end_matches(';');
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
    if !read(&repository().join("host/plugins/runtime/src/world.rs"))
        .contains(&format!("CONTRACT: &str = \"{contract}\""))
    {
        wrong.push("host/plugins/runtime/src/world.rs has another version".to_owned());
    }
    let mut checked = 0;
    // `package afterbay:plugin@0.2.0`, `import afterbay:plugin/log@0.2.0`.
    for (name, path) in ["wit", "js"].into_iter().flat_map(files) {
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
