//! Problems of the file itself, and of the disk around it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use afterbay_config::{Builtin, Config, Env, bounds};

fn problems_of(path: &Path) -> String {
    Config::load(path, &Env::EMPTY).unwrap_err().to_string()
}

#[test]
fn a_missing_file_or_a_directory_is_reported_without_a_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("afterbay.toml");
    assert_eq!(
        problems_of(&path),
        format!("{}: cannot be read: No such file or directory (os error 2)", path.display())
    );
    assert_eq!(problems_of(dir.path()), format!("{}: is not a file", dir.path().display()));
}

#[test]
fn a_file_past_its_bound_is_refused_and_one_at_it_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("afterbay.toml");
    let most = bounds::FILE_BYTES_MAX as usize;
    fs::write(&path, "#".repeat(most)).unwrap();
    assert!(problems_of(&path).contains("stream: missing"), "{}", problems_of(&path));
    fs::write(&path, "#".repeat(most + 1)).unwrap();
    assert!(
        problems_of(&path).ends_with("config file has 1048577B, the limit is 1MiB"),
        "{}",
        problems_of(&path)
    );
}

#[test]
fn a_file_that_is_not_utf8_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("afterbay.toml");
    fs::write(&path, b"a = \"\xff\"").unwrap();
    assert!(problems_of(&path).contains("did not contain valid UTF-8"), "{}", problems_of(&path));
}

#[test]
fn problems_past_their_bound_are_counted() {
    let lines: String = (0..bounds::PROBLEMS_MAX + 7).map(|at| format!("key-{at} = 1\n")).collect();
    let problems = Config::parse(&lines, Path::new("afterbay.toml"), &Env::EMPTY).unwrap_err();
    // The keys `stream` and `journal` are missing, too.
    assert_eq!(problems.iter().count(), bounds::PROBLEMS_MAX);
    assert_eq!(problems.left_out(), 9);
    assert!(problems.to_string().ends_with("\nand 9 more"));
}

#[test]
fn streams_and_plugins_past_their_bounds_are_reported_once_each() {
    let stream = |at: usize| format!("[[stream]]\nname = \"s{at}\"\nlisten = \"tcp://*:{}\"\n", at + 1);
    let sink = "sink = [{ name = \"s\", connect = \"ipc:///s\" }]\n";
    let plugin = |at: usize| format!("[[stream.plugin]]\nname = \"p{at}\"\ncomponent = \"builtin:p\"\n");
    let problems_of = |streams: usize, plugins: usize| {
        let plugins: String = (0..plugins).map(plugin).collect();
        let streams: String = (0..streams).map(|at| format!("{}{sink}{plugins}", stream(at))).collect();
        let text = format!(
            "{streams}[journal]\ndir = \"/tmp/afterbay-bounds\"\nretain = {{ bytes = \"unlimited\" }}\n"
        );
        let env = Env { builtins: &[Builtin { name: "p", defaults: "" }], ..Env::EMPTY };
        let problems = Config::parse(&text, Path::new("afterbay.toml"), &env).err();
        problems
            .map_or(Vec::new(), |problems| problems.iter().map(|problem| problem.message.clone()).collect())
    };
    assert_eq!(problems_of(bounds::STREAMS_MAX, 1), [""; 0]);
    assert_eq!(problems_of(bounds::STREAMS_MAX + 1, 0), ["257 streams, must be at most 256"]);
    assert_eq!(problems_of(1, bounds::PLUGINS_MAX), [""; 0]);
    assert_eq!(problems_of(1, bounds::PLUGINS_MAX + 1), ["17 plugins, must be at most 16"]);
    assert_eq!(problems_of(17, 16), ["272 plugins of all streams, must be at most 256"]);
}

#[test]
fn deeply_nested_tables_are_an_error_and_no_overflow() {
    for (open, close) in [("[", "]"), ("{ a = ", "}")] {
        let text = format!("a = {}1{}", open.repeat(50_000), close.repeat(50_000));
        assert!(Config::parse(&text, Path::new("afterbay.toml"), &Env::EMPTY).is_err());
    }
}

#[test]
fn a_journal_directory_that_cannot_be_written_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let closed = dir.path().join("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o500)).unwrap();
    if fs::write(closed.join("probe"), "").is_ok() {
        eprintln!("skipped: this user may write everywhere");
        return;
    }
    let text = format!("[journal]\ndir = {:?}\n", closed.join("journal"));
    let problems = Config::parse(&text, Path::new("afterbay.toml"), &Env::EMPTY).unwrap_err();
    assert!(problems.to_string().contains("cannot be written: Permission denied"), "{problems}");
}

#[test]
fn missing_directories_are_no_problem_if_they_can_be_created() {
    let dir = tempfile::tempdir().unwrap();
    let (listen, journal) = (dir.path().join("a/b/in"), dir.path().join("c/d/journal"));
    let text = format!(
        "[[stream]]\nname = \"a\"\nlisten = \"ipc://{}\"\nsink = [{{ name = \"s\", connect = \"ipc:///tmp/s\" }}]\n\
         [journal]\ndir = {journal:?}\n",
        listen.display()
    );
    assert_eq!(Config::parse(&text, Path::new("afterbay.toml"), &Env::EMPTY).unwrap().journal.dir, journal);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "a check makes nothing");
}
