//! The frames of the real SGLang, and CPython for comparison.

use std::path::{Path, PathBuf};
use std::process::Command;

use bytes::Bytes;

pub fn frame(name: &str) -> Bytes {
    read(&root().join("frames").join(format!("{name}.pickle")))
}

pub fn read(path: &Path) -> Bytes {
    std::fs::read(path).unwrap().into()
}

/// Every pickled frame of every version, and this crate's pickles of numpy and torch.
pub fn pickles() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders =
        vec![root().join("frames"), root().join("real/pickle_skip"), here().join("tests/pickles")];
    folders.extend(entries(&root().join("versions")));
    for folder in folders {
        let kept = folder.ends_with("pickles") || folder.ends_with("pickle_skip");
        found.extend(entries(&folder).into_iter().filter(|path| {
            let extension = path.extension().unwrap_or_default();
            extension == "pickle" || (kept && extension != "json")
        }));
    }
    assert!(found.len() > 220, "{} pickles found", found.len());
    found
}

/// The JSON of every frame. Bytes have the form `{"__bytes__": base64}`.
pub fn jsons() -> Vec<PathBuf> {
    entries(&root().join("frames"))
        .into_iter()
        .filter(|path| path.extension().is_some_and(|it| it == "json"))
        .collect()
}

/// Runs `record.py` and returns its output.
pub fn python(command: &str, folder: &Path) -> String {
    let script = here().join("tests/pickle/record.py");
    let output = Command::new("python3").arg(script).arg(command).arg(folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

pub fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

fn root() -> PathBuf {
    here().join("../../../tests/fixtures")
}

fn here() -> PathBuf {
    env!("CARGO_MANIFEST_DIR").into()
}
