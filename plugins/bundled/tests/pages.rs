//! Every bundled plugin has a page in the same form.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::path::Path;

/// The sections of a page, in this order.
const SECTIONS: [&str; 5] = ["Use", "Settings", "What it does", "Limits", "Cost"];

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn every_page_has_the_same_sections_and_names_the_engines_and_the_default_grants() {
    let list = read("docs/src/plugins/bundled.md");
    for plugin in afterbay_bundled::all().iter().filter(|plugin| plugin.is_listed) {
        let name = plugin.name;
        let page = read(&format!("plugins/{name}/README.md"));
        assert!(page.starts_with(&format!("# {name}\n\n")), "{name}: the page begins with its name");
        let sections: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
        assert_eq!(sections, SECTIONS, "{name}");
        let (_, limits) = page.split_once("\n## Limits\n").unwrap();
        let defaults: toml::Table = plugin.defaults.parse().unwrap();
        let serves_vllm = match defaults.get("engines").and_then(|engines| engines.as_array()) {
            Some(engines) => engines.iter().any(|engine| engine.as_str() == Some("vllm")),
            None => true,
        };
        let (note, cell) = if serves_vllm { ("SGLang and vLLM.", "all") } else { ("SGLang.", "SGLang") };
        assert!(page.contains(&format!("\n\nEngines: {note}")), "{name}: the page does not name its engines");
        let row = format!("[{name}]({name}.md) | {cell} |");
        assert!(list.contains(&row), "{name}: the list of bundled plugins has another engine");
        for grant in defaults.get("grant").and_then(|grant| grant.as_array()).into_iter().flatten() {
            let grant = grant.as_str().unwrap();
            assert!(
                limits.contains(&format!("`{grant}`")),
                "{name}: the limits do not name the grant {grant}"
            );
        }
        assert!(page.contains(&format!("component = \"builtin:{name}\"")), "{name}: no example");
        let include = format!("{{{{#include ../../../plugins/{name}/README.md}}}}");
        assert!(
            read(&format!("docs/src/plugins/{name}.md")).contains(&include),
            "{name}: no page in the book"
        );
        assert!(list.contains(&format!("[{name}]({name}.md)")), "{name}: not in the list of bundled plugins");
    }
}
