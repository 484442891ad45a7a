//! Compiled code on disk: it is used if it is undamaged, and compiled again otherwise.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use afterbay_runtime::limits::CACHE_FILES_MAX;
use afterbay_runtime::{ColumnSet, Digest, Host, HostOptions};

use crate::{guest, limits};

fn host_with(cache: &Path) -> Host {
    Host::new(HostOptions { cache_dir: Some(cache.to_owned()), ..HostOptions::default() }).unwrap()
}

/// Loads a guest and returns the columns it asks for, by which the tests distinguish guests.
fn wants(host: &Host, name: &str) -> ColumnSet {
    host.load(name, &guest(name), limits()).unwrap().description().columns
}

fn files(cache: &Path) -> Vec<PathBuf> {
    fs::read_dir(cache).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// The one file of a cache.
fn the_file(cache: &Path) -> PathBuf {
    let files = files(cache);
    assert_eq!(files.len(), 1, "{files:?}");
    files[0].clone()
}

const IDS: ColumnSet = ColumnSet::OUTPUT_IDS;

#[test]
fn only_its_user_can_write_compiled_code() {
    let directory = tempfile::tempdir().unwrap();
    let cache = directory.path().join("a/b");
    wants(&host_with(&cache), "nothing");
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&cache), mode(&the_file(&cache))), (0o700, 0o600));
}

#[test]
fn a_component_is_compiled_once_for_all_processes() {
    let directory = tempfile::tempdir().unwrap();
    let cache = directory.path().join("a/b");
    assert_eq!(wants(&host_with(&cache), "nothing"), IDS);
    assert_eq!(fs::metadata(&cache).unwrap().permissions().mode() & 0o777, 0o700);
    let kept = the_file(&cache);
    assert!(
        kept.file_name().unwrap().to_str().unwrap().starts_with(&Digest::of(&guest("nothing")).to_string())
    );
    // Another plugin's code under this plugin's name. If it runs, it came from the file.
    let other = directory.path().join("other");
    assert_eq!(wants(&host_with(&other), "amplifies"), ColumnSet::empty());
    fs::copy(the_file(&other), &kept).unwrap();
    assert_eq!(wants(&host_with(&cache), "nothing"), ColumnSet::empty());
}

#[test]
fn damaged_code_is_compiled_again() {
    let directory = tempfile::tempdir().unwrap();
    let cache = directory.path().join("cache");
    assert_eq!(wants(&host_with(&cache), "amplifies"), ColumnSet::empty());
    let kept = the_file(&cache);
    let whole = fs::read(&kept).unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    let mut other_format = whole.clone();
    other_format[7] += 1;
    let nonsense = b"not what a compiler writes";
    let mut well_signed = whole[..8].to_vec();
    well_signed.extend_from_slice(&Digest::of(nonsense).0);
    well_signed.extend_from_slice(nonsense);
    for damaged in [flipped, other_format, well_signed, whole[..whole.len() / 2].to_vec(), vec![]] {
        fs::write(&kept, &damaged).unwrap();
        assert_eq!(wants(&host_with(&cache), "amplifies"), ColumnSet::empty());
        let healed = fs::read(&kept).unwrap();
        assert!(healed != damaged && healed.len() == whole.len(), "the file was not written anew");
    }
}

#[test]
fn a_directory_that_others_may_write_to_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), Permissions::from_mode(0o770)).unwrap();
    let refused = |path: &Path| {
        let options = HostOptions { cache_dir: Some(path.to_owned()), ..HostOptions::default() };
        Host::new(options).err().unwrap().to_string()
    };
    let message = refused(directory.path());
    assert!(message.contains("must be a directory of user"), "{message}");
    assert!(message.contains("with mode 0700"), "{message}");
    assert!(message.ends_with("with mode 0770"), "{message}");
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(directory.path(), &link).unwrap();
    assert!(refused(&link).contains("is no directory"), "{}", refused(&link));
}

#[test]
fn the_longest_unused_are_deleted_and_other_files_stay() {
    let directory = tempfile::tempdir().unwrap();
    let cache = directory.path().join("cache");
    let host = host_with(&cache);
    let long_ago = SystemTime::now() - Duration::from_secs(86_400);
    for age in 0..CACHE_FILES_MAX as u32 + 5 {
        let file = fs::File::create(cache.join(format!("{age}.cwasm"))).unwrap();
        file.set_modified(long_ago - Duration::from_secs(1) * age).unwrap();
    }
    fs::write(cache.join("notes.txt"), "mine").unwrap();
    wants(&host, "nothing");
    let left = files(&cache);
    assert_eq!(left.len(), CACHE_FILES_MAX + 1, "{left:?}");
    assert!(left.contains(&cache.join("notes.txt")) && left.contains(&cache.join("0.cwasm")));
    assert!(!left.contains(&cache.join(format!("{}.cwasm", CACHE_FILES_MAX))));
    assert_eq!(wants(&host_with(&cache), "nothing"), IDS);
}
