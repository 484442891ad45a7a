//! The version, the completions and the man pages. Because of this test, `cargo test --workspace` builds the binary with the features of
//! the same build. The black-box tests in `tests` use that binary and cover the rest of the command line.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::process::Command;

fn afterbay(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_afterbay")).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The commands that the help of a command lists.
fn subcommands(path: &[&str]) -> Vec<String> {
    let help = afterbay(&[path, &["--help"]].concat());
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed = listed.take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("   "));
    let names = listed.filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(ToOwned::to_owned).collect()
}

/// Each command that the help shows, as its words.
fn all_commands() -> Vec<Vec<String>> {
    let (mut found, mut open) = (Vec::new(), vec![Vec::new()]);
    while let Some(path) = open.pop() {
        let words: Vec<&str> = path.iter().map(String::as_str).collect();
        open.extend(subcommands(&words).into_iter().map(|name| [path.clone(), vec![name]].concat()));
        found.push(path);
    }
    found
}

#[test]
fn the_version_is_that_of_the_package_and_the_long_version_names_commit_contracts_and_formats() {
    let short = format!("afterbay {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(afterbay(&["-V"]), short);
    let long = afterbay(&["--version"]);
    let fields: Vec<(&str, &str)> =
        long.strip_prefix(&short).unwrap().lines().map(|line| line.split_once(":  ").unwrap()).collect();
    let names: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["commit", "target", "plugins", "formats"], "{long}");
    let value = |name| fields.iter().find(|(it, _)| *it == name).unwrap().1.trim();
    assert_eq!(value("plugins"), "afterbay:plugin@0.2.0");
    let formats: Vec<&str> =
        value("formats").split(", ").map(|format| format.split_once(' ').unwrap().0).collect();
    assert_eq!(formats, ["journal", "store", "hand-over"]);
    assert_eq!(value("commit"), option_env!("AFTERBAY_COMMIT").unwrap_or("unknown"));
}

#[test]
fn every_command_has_a_man_page() {
    let dir = tempfile::tempdir().unwrap();
    afterbay(&["man-pages", &dir.path().join("man1").display().to_string()]);
    let written = std::fs::read_dir(dir.path().join("man1")).unwrap();
    let written: BTreeSet<String> =
        written.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    let commands = all_commands();
    assert!(commands.len() > 20, "only {} commands were found", commands.len());
    let wanted: BTreeSet<String> = commands
        .iter()
        .map(|path| format!("{}.1", [vec!["afterbay".to_owned()], path.clone()].concat().join("-")))
        .collect();
    assert_eq!(written, wanted);
    let run = std::fs::read_to_string(dir.path().join("man1/afterbay-run.1")).unwrap();
    assert!(run.contains(r"\-\-drain\-timeout") && run.starts_with(".ie"), "{run}");
}

#[test]
fn bash_completes_commands_and_options() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("afterbay.bash");
    std::fs::write(&script, afterbay(&["completions", "bash"])).unwrap();
    let complete = |words: &[&str]| {
        let (word, before) = (words[words.len() - 1], words[words.len() - 2]);
        let asks = format!(
            "source {}; COMP_WORDS=({}); COMP_CWORD={}; _afterbay afterbay '{word}' '{before}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            script.display(),
            words.join(" "),
            words.len() - 1,
        );
        let done = Command::new("bash").args(["-uc", &asks]).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        String::from_utf8(done.stdout).unwrap().lines().map(ToOwned::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(complete(&["afterbay", "jour"]), ["journal"]);
    assert_eq!(complete(&["afterbay", "journal", "ver"]), ["verify"]);
    assert_eq!(complete(&["afterbay", "sglang", "--one"]), ["--one-leg"]);
    assert_eq!(complete(&["afterbay", "run-w"]), [""]);
}

#[test]
fn completions_exist_for_every_common_shell() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        assert!(afterbay(&["completions", shell]).contains("drain-timeout"), "{shell}");
    }
}
