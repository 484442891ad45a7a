//! Modes of the journal's files, and files that the journal refuses.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use crate::support::*;
use afterbay_journal::reader::{JournalReader, ReadFrom};
use afterbay_journal::*;

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// The umask is per process, so this test runs itself again for each.
#[test]
fn files_are_private_to_their_owner_under_any_umask() {
    const IN: &str = "AFTERBAY_TEST_UMASK_DIR";
    if let Ok(dir) = std::env::var(IN) {
        let root = Path::new(&dir).join("journal");
        let (directory, mut writer, _) = open(&root, options());
        step(&mut writer, &[], b"frame", 1);
        directory.set_after("s", &["first".to_owned()]).unwrap();
        writer.finish().unwrap();
        return;
    }
    for umask in ["000", "022", "277"] {
        let dir = tempfile::tempdir().unwrap();
        let test = std::env::current_exe().unwrap();
        let script = format!(
            "umask {umask} && exec \"$0\" --exact modes::files_are_private_to_their_owner_under_any_umask"
        );
        let status = Command::new("sh").args(["-c", &script]).arg(test).env(IN, dir.path()).status();
        assert!(status.unwrap().success());
        let root = dir.path().join("journal");
        assert_eq!((mode(&root), mode(&root.join("s"))), (0o700, 0o700), "umask {umask}");
        assert_eq!(mode(&root.join("LOCK")), 0o600);
        let files: Vec<_> =
            std::fs::read_dir(root.join("s")).unwrap().map(|file| file.unwrap().path()).collect();
        assert!(files.len() >= 3, "{files:?}");
        for file in files {
            assert_eq!(mode(&file), 0o600, "{} under umask {umask}", file.display());
        }
    }
}

#[test]
fn a_lock_that_is_a_link_is_refused_and_its_target_is_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let named = dir.path().join("named");
    std::fs::write(&named, "precious").unwrap();
    let root = dir.path().join("journal");
    std::fs::create_dir(&root).unwrap();
    symlink(&named, root.join("LOCK")).unwrap();
    let error = JournalDirectory::open(&root, options()).err().unwrap().to_string();
    assert!(error.ends_with("journal: lock: is a symbolic link"), "{error}");
    assert_eq!(std::fs::read(&named).unwrap(), b"precious");
}

#[test]
fn every_reader_refuses_irregular_files_without_blocking() {
    let dir = tempfile::tempdir().unwrap();
    let (directory, mut writer, _) = open(dir.path(), options());
    step(&mut writer, &[], b"frame", 1);
    writer.finish().unwrap();
    drop(directory);
    let second = dir.path().join("s").join("00000000000000000002-0000000001.seg");
    let file_of = [("a FIFO", true), ("a device", false)];
    for (what, is_fifo) in file_of {
        match is_fifo {
            true => fifo(&second),
            false => symlink("/dev/zero", &second).unwrap(),
        }
        let stream = JournalReader::open(dir.path()).unwrap().stream("s").unwrap();
        let refused = "00000000000000000002-0000000001.seg: open: is not a regular file";
        let error = stream.verify().unwrap_err().to_string();
        assert!(error.ends_with(refused), "{what}: {error}");
        let read = stream.frames(ReadFrom::Start).and_then(|frames| frames.collect::<Result<Vec<_>, _>>());
        assert!(read.unwrap_err().to_string().ends_with(refused));
        assert!(stream.last_frame().is_err());
        let directory = unlocked(|| JournalDirectory::open(dir.path(), options())).unwrap();
        let started = directory.stream("s").err().unwrap();
        assert!(started.to_string().ends_with(refused), "{what}: {started}");
        std::fs::remove_file(&second).unwrap();
    }
    fifo(&dir.path().join("s/AFTER"));
    let stream = JournalReader::open(dir.path()).unwrap().stream("s").unwrap();
    assert!(stream.after().unwrap_err().to_string().ends_with("AFTER: open: is not a regular file"));
    let root = tempfile::tempdir().unwrap();
    fifo(&root.path().join("LOCK"));
    let error = JournalDirectory::open(root.path(), options()).err().unwrap().to_string();
    assert!(error.ends_with("lock: is not a regular file"), "{error}");
}
