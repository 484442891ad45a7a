//! The files of a new project.

use crate::Language;
use crate::embedded::{SDK, TEMPLATES, WIT};

/// The longest name of a plugin in bytes: a limit of the contract.
const NAME_BYTES_MAX: usize = 64;

/// A file of a new project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProjectFile {
    /// The path in the project, separated by `/`.
    pub path: String,
    /// The text of the file.
    pub contents: String,
}

/// An invalid plugin name.
#[derive(Debug, thiserror::Error)]
#[error(
    "{name:?} is no plugin name: use 1 to {NAME_BYTES_MAX} bytes of a-z, 0-9 and -, starting with a letter"
)]
pub struct NameError {
    name: String,
}

/// Returns the files of a project that builds and passes its test. `c_bindings` are the files of the contract
/// in C: name and text.
///
/// # Errors
/// If the name is invalid.
pub fn project(
    language: Language,
    name: &str,
    c_bindings: &[(&str, &str)],
) -> Result<Vec<ProjectFile>, NameError> {
    let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let starts_well = name.starts_with(|c: char| c.is_ascii_lowercase());
    if !starts_well || name.ends_with('-') || !name.chars().all(is_allowed) || name.len() > NAME_BYTES_MAX {
        return Err(NameError { name: name.to_owned() });
    }
    let mut files = Vec::new();
    for (path, contents) in TEMPLATES {
        let (folder, path) = path.split_once('/').unwrap_or_default();
        if folder == language.name() || folder == "every" {
            // These files have other names as templates, because cargo and git would treat them as their own.
            let path = path.replace("gitignore", ".gitignore").replace(".template", "");
            files.push(ProjectFile {
                path: fill_in(&path, language, name),
                contents: fill_in(contents, language, name),
            });
        }
    }
    if let Some(lock) = files.iter_mut().find(|file| file.path == "Cargo.lock") {
        lock.contents = sorted(&lock.contents);
    }
    let mut add = |dir: &str, sources: &[(&str, &str)]| {
        files.extend(sources.iter().map(|(path, contents)| ProjectFile {
            path: format!("{dir}/{path}"),
            contents: (*contents).to_owned(),
        }));
    };
    match language {
        Language::Rust => {
            add("wit", &[("transform.wit", WIT)]);
            add("vendor/afterbay-plugin", SDK);
        }
        Language::C => {
            add("wit", &[("transform.wit", WIT)]);
            add("bindings", c_bindings);
        }
        Language::JavaScript | Language::Python => add("wit/deps/afterbay-plugin", &[("transform.wit", WIT)]),
    }
    Ok(files)
}

/// A lock file with its packages in the order in which cargo writes them.
fn sorted(lock: &str) -> String {
    let mut packages = lock.trim_end().split("\n\n[[package]]\n");
    let head = packages.next().unwrap_or_default();
    let mut packages: Vec<&str> = packages.collect();
    packages.sort_by_key(|package| package.lines().take(2).map(str::to_owned).collect::<Vec<_>>());
    let packages: Vec<String> = packages.iter().map(|it| format!("\n\n[[package]]\n{it}")).collect();
    format!("{head}{}\n", packages.concat())
}

fn fill_in(text: &str, language: Language, name: &str) -> String {
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
    fn every_project_is_complete_and_has_no_placeholder_left() {
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
    fn a_rust_project_uses_no_identifier_made_of_its_name() {
        for name in ["plugin", "batch", "settings", "verdicts"] {
            let files = project(Language::Rust, name, &[]).unwrap();
            let source = files.iter().find(|file| file.path == "src/lib.rs").unwrap();
            assert!(source.contents.contains("pub struct StopEarly {"), "{name}: {}", source.contents);
        }
    }

    #[test]
    fn the_vendored_sdk_is_in_no_workspace() {
        let files = project(Language::Rust, "a", &[]).unwrap();
        let manifest = files.iter().find(|file| file.path == "vendor/afterbay-plugin/Cargo.toml").unwrap();
        assert!(!manifest.contents.contains("workspace"), "{}", manifest.contents);
        assert!(manifest.contents.contains("wit-bindgen = {"), "{}", manifest.contents);
        assert!(files.iter().any(|file| file.path == "vendor/afterbay-plugin/src/lib.rs"));
    }

    #[test]
    fn an_invalid_name_is_refused_with_the_rule() {
        let long = "a".repeat(NAME_BYTES_MAX + 1);
        for wrong in ["", "Stop", "a b", "a/b", "../a", "a_b", "1a", "-a", "a-", "ä", &long] {
            let error = project(Language::C, wrong, &[]).unwrap_err().to_string();
            assert!(error.contains("1 to 64 bytes of a-z, 0-9 and -"), "{error}");
        }
        assert!(project(Language::C, &long[1..], &[]).is_ok());
    }
}
