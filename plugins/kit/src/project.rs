//! A new project's files.

use crate::Language;
use crate::embedded::{SDK, TEMPLATES, WIT};

/// A plugin's name is at most so long: the contract's bound.
const NAME_BYTES_MAX: usize = 64;

/// A file of a project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Where it is in the project, with `/`.
    pub path: String,
    /// What stands in it.
    pub contents: String,
}

/// A name that no plugin can have.
#[derive(Debug, thiserror::Error)]
#[error(
    "{name:?}: a plugin's name has 1 to {NAME_BYTES_MAX} bytes of a-z, 0-9 and -, and begins with a letter"
)]
pub struct NameError {
    name: String,
}

/// The files of a project that builds, and whose test passes. `c_bindings`: the contract as C, by file.
///
/// # Errors
/// If no plugin can have the name.
pub fn project(language: Language, name: &str, c_bindings: &[(&str, &str)]) -> Result<Vec<File>, NameError> {
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let begins = name.starts_with(|c: char| c.is_ascii_lowercase());
    if !begins || name.ends_with('-') || !name.chars().all(is_name) || name.len() > NAME_BYTES_MAX {
        return Err(NameError { name: name.to_owned() });
    }
    let mut files = Vec::new();
    for (path, contents) in TEMPLATES {
        let (of, path) = path.split_once('/').unwrap_or_default();
        if of == language.name() || of == "every" {
            // Tools pass over what is a project of theirs, or git's own, so those lie there under other names.
            let path = path.replace("gitignore", ".gitignore").replace(".template", "");
            files.push(File {
                path: filled(&path, language, name),
                contents: filled(contents, language, name),
            });
        }
    }
    let mut put = |dir: &str, of: &[(&str, &str)]| {
        files.extend(of.iter().map(|(path, contents)| File {
            path: format!("{dir}/{path}"),
            contents: (*contents).to_owned(),
        }));
    };
    match language {
        Language::Rust => {
            put("wit", &[("transform.wit", WIT)]);
            put("vendor/afterbay-plugin", SDK);
        }
        Language::C => {
            put("wit", &[("transform.wit", WIT)]);
            put("bindings", c_bindings);
        }
        Language::JavaScript | Language::Python => put("wit/deps/afterbay-plugin", &[("transform.wit", WIT)]),
    }
    Ok(files)
}

fn filled(text: &str, language: Language, name: &str) -> String {
    let component = match language {
        Language::Rust => format!("target/wasm32-wasip2/release/{}.wasm", name.replace('-', "_")),
        _ => format!("build/{name}.wasm"),
    };
    text.replace("{{name}}", name)
        .replace("{{component}}", &component)
        .replace("{{deadline}}", language.deadline())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_language_has_a_plugin_a_test_a_config_and_the_contract_and_nothing_is_left_to_be_filled_in() {
        for language in Language::ALL {
            let files = project(language, "my-own-plugin", &[]).unwrap();
            let has = |path: &str| files.iter().any(|file| file.path == path);
            for path in ["README.md", ".gitignore", "afterbay.toml", "scenarios/stop.toml"] {
                assert!(has(path), "{language:?} has no {path}");
            }
            assert!(files.iter().any(|file| file.path.ends_with("transform.wit") && file.contents == WIT));
            let deadline = format!("deadline = {:?}", language.deadline());
            for path in ["afterbay.toml", "scenarios/stop.toml"] {
                let file = files.iter().find(|file| file.path == path).unwrap();
                assert!(file.contents.contains(&deadline), "{language:?}: {path} has no {deadline}");
            }
            for file in &files {
                assert!(!file.contents.contains("{{") || file.path.starts_with("vendor"), "{}", file.path);
                let outside = file.path.split('/').any(|part| part == "..") || file.path.starts_with('/');
                assert!(!outside && !file.contents.is_empty(), "{}", file.path);
            }
        }
    }

    #[test]
    fn nothing_in_a_project_in_rust_is_called_as_the_project_is() {
        for name in ["plugin", "batch", "settings", "verdicts"] {
            let files = project(Language::Rust, name, &[]).unwrap();
            let source = files.iter().find(|file| file.path == "src/lib.rs").unwrap();
            assert!(source.contents.contains("pub struct StopEarly {"), "{name}: {}", source.contents);
        }
    }

    #[test]
    fn the_sdk_that_is_written_is_of_no_workspace() {
        let files = project(Language::Rust, "a", &[]).unwrap();
        let manifest = files.iter().find(|file| file.path == "vendor/afterbay-plugin/Cargo.toml").unwrap();
        assert!(!manifest.contents.contains("workspace"), "{}", manifest.contents);
        assert!(manifest.contents.contains("wit-bindgen = {"), "{}", manifest.contents);
        assert!(files.iter().any(|file| file.path == "vendor/afterbay-plugin/src/lib.rs"));
    }

    #[test]
    fn a_name_that_no_plugin_can_have_is_refused_with_what_one_is() {
        let long = "a".repeat(NAME_BYTES_MAX + 1);
        for wrong in ["", "Stop", "a b", "a/b", "../a", "a_b", "1a", "-a", "a-", "ä", &long] {
            let error = project(Language::C, wrong, &[]).unwrap_err().to_string();
            assert!(error.contains("1 to 64 bytes of a-z, 0-9 and -"), "{error}");
        }
        assert!(project(Language::C, &long[1..], &[]).is_ok());
    }
}
