//! The book's page of all keys is generated from them, and every configuration in the documents is accepted.
//! `AFTERBAY_BLESS=1` writes the page again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fmt::Write;
use std::path::{Path, PathBuf};

use afterbay_config::{Builtin, Config, Env, Key, Names, Need, PluginDefaults, sections};

const OPENING: &str = "\
<!-- Generated from host/operation/config/src/reference.toml. After a change there, run:
     AFTERBAY_BLESS=1 cargo test -p afterbay-config the_configuration_page -->

# Configuration reference

Print all keys as a commented file, and check a file:

```sh
afterbay check --reference > afterbay.toml
afterbay check --config afterbay.toml
```

- The file is TOML. An unknown key is an error that names the nearest known key.
- A size is a number of bytes or has a unit: `\"64MiB\"`, `\"20GB\"`.
- A duration has a unit: `\"50ms\"`, `\"1h30m\"`.
- `${NAME}` in a string is the environment variable `NAME`. It is an error where the variable is unset. `$${` is a plain `${`.
- A relative path is relative to the file.
";

fn section(out: &mut String, header: &str, table: &Key) {
    // Writing to a String cannot fail.
    let _ = write!(
        out,
        "\n## `{header}`\n\n{}\n\n| key | default | meaning |\n|---|---|---|\n",
        cell(&table.doc)
    );
    let keys = table.inner.iter().flat_map(|table| &table.keys);
    for key in keys.filter(|key| !key.example.is_empty()) {
        row(out, "", key);
        for inner in key.inner.iter().flat_map(|inner| &inner.keys) {
            row(out, &format!("{}.", key.name), inner);
        }
    }
}

fn row(out: &mut String, parent: &str, key: &Key) {
    let default = match key.need {
        Need::Required => format!("required, like `{}`", key.example),
        Need::Name => format!("required without `--rendezvous`, like `{}`", key.example),
        Need::Default => format!("`{}`", key.example),
        Need::Optional => format!("none; an example is `{}`", key.example),
    };
    let _ =
        writeln!(out, "| `{parent}{}` | {} | {} |", key.name, default.replace('|', "\\|"), cell(&key.doc));
}

/// The text on one line, without characters that Markdown takes for markup.
fn cell(doc: &str) -> String {
    let line = doc.split_whitespace().collect::<Vec<_>>().join(" ");
    line.replace('|', "\\|").replace('<', "&lt;").replace('_', "\\_").replace('*', "\\*").replace('[', "\\[")
}

#[test]
fn the_configuration_page_is_generated_from_the_keys() {
    let mut page = OPENING.to_owned();
    sections().for_each(|(header, table)| section(&mut page, header, table));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/src/operate/configuration.md");
    if std::env::var("AFTERBAY_BLESS").is_ok_and(|bless| bless == "1") {
        std::fs::write(&path, &page).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap();
    assert_eq!(page, committed, "AFTERBAY_BLESS=1 writes the page again");
}

/// A problem that a configuration has because its files are not on this machine. The system words it.
const NOT_ON_THIS_MACHINE: &str = "No such file or directory";

fn documents() -> Vec<PathBuf> {
    fn collect(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_symlink() || name == "target" || name == "node_modules" || name.starts_with('.') {
                continue;
            }
            if path.is_dir() {
                collect(&path, found);
            } else if path.extension().is_some_and(|it| it == "md") {
                found.push(path);
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().unwrap();
    let mut found = vec![root.join("README.md")];
    for dir in ["docs", "plugins", "examples"] {
        collect(&root.join(dir), &mut found);
    }
    found
}

/// The TOML blocks of a document, with the line that each begins at.
fn blocks(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (line, text) in (1..).zip(text.lines()) {
        match &mut open {
            None if text.trim() == "```toml" => open = Some((line, String::new())),
            None => {}
            Some(_) if text.trim() == "```" => found.extend(open.take()),
            Some((_, block)) => {
                block.push_str(text);
                block.push('\n');
            }
        }
    }
    found
}

/// The fragment with the tables around it that every configuration has.
fn completed(block: &str) -> String {
    const SINK: &str = "[[stream.sink]]\nname = \"reader-of-the-test\"\n";
    let lines =
        |beginning: &str| block.lines().filter(|line| line.trim_start().starts_with(beginning)).count();
    let has_reader = lines("[[stream.sink]]") > lines("kind ");
    let mut text = String::new();
    if lines("[[stream]]") == 0 {
        text.push_str("[[stream]]\nname = \"s\"\nlisten = \"ipc:///tmp/s\"\n");
        if !has_reader {
            text.push_str(SINK);
        }
    }
    text.push_str(block);
    if lines("[[stream]]") > 0 && !has_reader {
        text.push_str(SINK);
    }
    if lines("[journal]") == 0 {
        text.push_str("\n[journal]\ndir = \"/tmp/journal\"\n");
    }
    text
}

/// The plugins that the binary has, each with its own defaults, by the manifests of the plugins.
fn bundled() -> Vec<(String, String)> {
    let plugins = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../plugins");
    let dirs = std::fs::read_dir(plugins).unwrap().map(|entry| entry.unwrap());
    let bundled = dirs.filter_map(|dir| {
        let text = std::fs::read_to_string(dir.path().join("Cargo.toml")).ok()?;
        let manifest: toml::Table = text.parse().unwrap();
        let mut metadata = manifest.get("package")?.get("metadata")?.get("afterbay")?.as_table()?.clone();
        metadata.remove("listed");
        Some((dir.file_name().into_string().unwrap(), toml::to_string(&metadata).unwrap()))
    });
    bundled.collect()
}

#[test]
fn the_defaults_of_every_bundled_plugin_are_valid() {
    for (name, defaults) in bundled() {
        PluginDefaults::parse(&defaults).unwrap_or_else(|problems| panic!("{name}: {problems}"));
    }
}

#[test]
fn invalid_defaults_of_a_bundled_plugin_are_a_problem_of_its_component() {
    let wrong =
        PluginDefaults::parse("grant = [\"logs\"]\nlimits = { memory = \"1KiB\" }\nx = 1").unwrap_err();
    assert_eq!(wrong.iter().count(), 3, "{wrong}");
    assert!(PluginDefaults::parse("grant =").is_err());
}

#[test]
fn every_configuration_of_a_document_is_accepted() {
    let bundled = bundled();
    let builtins: Vec<Builtin<'_>> =
        bundled.iter().map(|(name, defaults)| Builtin { name, defaults }).collect();
    let env = Env {
        var: &|_| Some("/tmp".to_owned()),
        names: Names::FromRendezvous,
        builtins: &builtins,
        ..Env::EMPTY
    };
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for path in documents() {
        for (line, block) in blocks(&std::fs::read_to_string(&path).unwrap()) {
            let is_config = ["[[stream", "[stream.", "[journal]", "[admin]"]
                .iter()
                .any(|heading| block.lines().any(|line| line.starts_with(heading)));
            if !is_config {
                continue;
            }
            seen += 1;
            let Err(problems) = Config::parse(&completed(&block), Path::new("/tmp/fragment.toml"), &env)
            else {
                continue;
            };
            let problems = problems.to_string();
            let real = problems.lines().filter(|line| !line.contains(NOT_ON_THIS_MACHINE));
            wrong.extend(real.map(|problem| format!("{}:{line}: {problem}", path.display())));
        }
    }
    assert!(seen >= 20, "only {seen} configurations were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Names with a dot that begin as a table does, and are no keys.
const NO_KEYS: [&str; 3] = ["usage.completion_tokens", "call.send", "plugin.py"];

#[test]
fn every_key_that_a_document_names_exists() {
    let mut paths: Vec<String> = Vec::new();
    for (header, table) in sections() {
        let (keys, table) =
            (table.inner.iter().flat_map(|table| &table.keys), header.trim_matches(['[', ']']));
        paths.push(table.to_owned());
        for key in keys {
            paths.push(format!("{table}.{}", key.name));
            let inner = key.inner.iter().flat_map(|inner| &inner.keys);
            paths.extend(inner.map(|inner| format!("{table}.{}.{}", key.name, inner.name)));
        }
    }
    let is_key = |name: &str| paths.iter().any(|path| *path == name || path.ends_with(&format!(".{name}")));
    let is_table =
        |word: &str| paths.iter().any(|path| path.split('.').rev().skip(1).any(|part| part == word));
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for path in documents() {
        for code in std::fs::read_to_string(&path).unwrap().split('`').skip(1).step_by(2) {
            let is_name =
                code.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_' || letter == '.');
            let Some((table, _)) = code.split_once('.').filter(|(table, _)| is_name && !table.is_empty())
            else {
                continue;
            };
            if !is_table(table) || NO_KEYS.contains(&code) {
                continue;
            }
            seen += 1;
            if !is_key(code) {
                wrong.push(format!("{}: {code}", path.display()));
            }
        }
    }
    assert!(seen > 50, "only {seen} keys were found");
    assert!(wrong.is_empty(), "no such keys:\n{}", wrong.join("\n"));
}
