//! The bytes of a segment for a copy elsewhere: no start changes what was given.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::*;
use afterbay_journal::reader::SegmentBytes;
use afterbay_journal::*;

/// A journal with one segment, sealed, and the bytes of the segment.
fn sealed() -> (tempfile::TempDir, SegmentId, Vec<u8>) {
    let dir = tempfile::tempdir().unwrap();
    let (directory, mut writer, _) = open_alone(dir.path(), options());
    for number in 0..8 {
        let request = writer.open(format!("r-{number}"));
        let frame = writer.append(&[number; 100], 1_000 + u64::from(number)).unwrap().frame;
        writer.outcome(&plain_outcome(frame, &[request], &[1]));
        if number % 2 == 0 {
            writer.close(request);
        }
    }
    writer.finish().unwrap();
    drop(directory);
    let id = reader(dir.path()).segments().unwrap()[0];
    let bytes = fs::read(path(dir.path(), id)).unwrap();
    (dir, id, bytes)
}

fn path(dir: &Path, id: SegmentId) -> PathBuf {
    dir.join("s").join(id.to_string())
}

fn open_bytes(dir: &Path, id: SegmentId) -> SegmentBytes {
    reader(dir).segment_bytes(id).unwrap().unwrap()
}

/// Everything that is final now.
fn drain(bytes: &mut SegmentBytes, most: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(more) = bytes.next(most).unwrap() {
        assert!(more.len() <= most);
        all.extend(more);
    }
    all
}

#[test]
fn a_start_after_a_kill_at_any_byte_keeps_the_bytes_that_were_given() {
    let (dir, id, whole) = sealed();
    let path = path(dir.path(), id);
    for length in (150..whole.len()).step_by(11).chain([whole.len()]) {
        fs::write(&path, &whole[..length]).unwrap();
        let mut bytes = open_bytes(dir.path(), id);
        let mut given = drain(&mut bytes, 1 << 20);
        assert_eq!(bytes.size().is_some(), length == whole.len(), "{length}");
        let (directory, writer, _) = open_alone(dir.path(), options());
        drop((writer, directory));
        let after = fs::read(&path).unwrap();
        assert!(after.starts_with(&given), "{} of {length} bytes were given", given.len());
        // The next process continues behind them, and gets the rest.
        let mut next = open_bytes(dir.path(), id);
        assert!(next.has(0, &given).unwrap() && !next.has(1, &given).unwrap());
        next.continue_at(given.len() as u64);
        given.extend(drain(&mut next, 1 << 20));
        assert_eq!((given.len(), next.size()), (after.len(), Some(after.len() as u64)), "{length}");
        assert!(given == after);
    }
}

#[test]
fn bytes_end_with_a_whole_record_where_it_fits_and_a_longer_record_comes_in_parts() {
    let (dir, id, whole) = sealed();
    for most in [60, 300, 1000] {
        let mut bytes = open_bytes(dir.path(), id);
        assert_eq!(drain(&mut bytes, most), whole);
    }
    // The summary begins behind the records.
    let records = fs::read(path(dir.path(), id)).unwrap();
    let mut bytes = open_bytes(dir.path(), id);
    let first = bytes.next(1000).unwrap().unwrap();
    fs::write(path(dir.path(), id), &records[..first.len()]).unwrap();
    let (directory, writer, recovered) = open_alone(dir.path(), options());
    assert!(recovered.cut.is_empty(), "{:?}", recovered.cut);
    drop((writer, directory));
}

#[test]
fn a_segment_that_ended_without_a_summary_is_given_whole_and_an_erasure_changes_nothing_of_an_open_one() {
    let (dir, id, whole) = sealed();
    let path = path(dir.path(), id);
    // The seal failed, and the next segment is written.
    fs::write(&path, &whole[..whole.len() - 20]).unwrap();
    let mut bytes = open_bytes(dir.path(), id);
    let given = drain(&mut bytes, 1 << 20);
    bytes.finish().unwrap();
    let rest = drain(&mut bytes, 1 << 20);
    assert_eq!([given, rest].concat(), whole[..whole.len() - 20]);
    assert_eq!(bytes.size(), Some(whole.len() as u64 - 20));
    // An erasure gives the name to another file.
    fs::write(&path, &whole).unwrap();
    let mut bytes = open_bytes(dir.path(), id);
    let begin = bytes.next(300).unwrap().unwrap();
    let other = path.with_extension("part");
    fs::write(&other, vec![b'x'; whole.len()]).unwrap();
    fs::rename(&other, &path).unwrap();
    assert_eq!([begin, drain(&mut bytes, 1 << 20)].concat(), whole);
}
