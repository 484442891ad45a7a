//! Seals: what a change of a sealed journal shows, and what an erasure leaves.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::*;
use crate::erase::{Eraser, RewrittenFrame};
use crate::format::{self, HEADER_BYTES};
use crate::pause::Pause;
use crate::reader::{ErasedBy, JournalReader};
use crate::segment::{Payloads, ScanStep};
use crate::segment_end::end_records;
use crate::storage::Disk;
use crate::{
    Background, JournalDirectory, JournalOptions, JournalRequest, JournalWriter, Outcome, Passage,
    PluginAction, Verdict,
};
use bytes::Bytes;

/// The frames of these tests: `rid=text` separated by `;`. A frame with `~` at its start is written anew: an erasure moves its rows.
struct Texts;

impl EraseRows for Texts {
    fn erase(
        &mut self,
        _stream: &str,
        frame: &Bytes,
        is_erased: &dyn Fn(&[u8]) -> bool,
    ) -> Result<RewrittenFrame, String> {
        let text = std::str::from_utf8(frame).map_err(|error| error.to_string())?;
        let moves = text.starts_with('~');
        let row = |row: &str| match row.trim_start_matches('~').split_once('=') {
            Some((rid, _)) if moves && is_erased(rid.as_bytes()) => format!("{rid}="),
            Some((rid, said)) if is_erased(rid.as_bytes()) => format!("{rid}={}", "x".repeat(said.len())),
            _ => row.trim_start_matches('~').to_owned(),
        };
        let rows = text.trim_end().split(';').map(row).collect::<Vec<_>>().join(";");
        let rows = if moves { format!("~{rows}") } else { rows };
        let bytes = format!("{rows:width$}", width = text.len()).into();
        Ok(RewrittenFrame { bytes, left: Vec::new() })
    }
}

fn sign(bytes: &[u8]) -> Vec<u8> {
    Sha256::digest([b"key", bytes].concat()).to_vec()
}

use sha2::{Digest as _, Sha256};

struct Sealed {
    dir: tempfile::TempDir,
    directory: JournalDirectory,
}

const STEPS: usize = 24;
const RIDS: [&str; 3] = ["a", "b", "c"];

impl Sealed {
    /// A sealed journal of a few segments with three requests in each frame. Frames begin with `begin`.
    fn new(begin: &str) -> Sealed {
        let sealed = Sealed::unsealed(begin);
        assert!(sealed.seal().unwrap().len() > 2);
        sealed
    }

    fn unsealed(begin: &str) -> Sealed {
        let dir = tempfile::tempdir().unwrap();
        let options = JournalOptions { segment_bytes: 4096, ..JournalOptions::default() };
        let (disk, by) = (Arc::new(Disk), Background::Caller);
        let directory = JournalDirectory::open_on(disk, dir.path(), options, by).unwrap();
        let (mut writer, _) = directory.stream("s").unwrap();
        let requests = RIDS.map(|rid| writer.open(rid));
        for step in 0..STEPS {
            say(&mut writer, &requests, begin, step);
            writer.tend();
        }
        requests.iter().for_each(|request| writer.close(*request));
        writer.finish().unwrap();
        Sealed { dir, directory }
    }

    fn stream(&self) -> StreamReader {
        JournalReader::open(self.dir.path()).unwrap().stream("s").unwrap()
    }

    fn seal(&self) -> Result<Vec<SegmentId>, SealError> {
        let (rows, sign) = (&mut Texts, &sign);
        let mut sealer = Sealer { instance: "host-1", program: "test", rows, secret: [7; 32], sign };
        Ok(self.stream().seal(&mut sealer)?.segments)
    }

    fn check(&self) -> SealReport {
        self.check_since(None)
    }

    fn check_since(&self, head: Option<&str>) -> SealReport {
        let is_signed = |bytes: &[u8], signature: &[u8]| sign(bytes) == signature;
        self.stream().verify_seals(&mut Texts, &is_signed, head).unwrap()
    }

    fn problems(&self) -> Vec<String> {
        self.check().problems.iter().map(|problem| problem.what.to_string()).collect()
    }

    fn erase(&self, rid: &str) {
        self.directory.erase(&["s".to_owned()], rid, ErasedBy::Remote, &mut Texts).unwrap();
    }

    fn path(&self, segment: SegmentId) -> PathBuf {
        self.dir.path().join("s").join(segment.to_string())
    }

    fn replace(&self, segment: SegmentId, from: &str, to: &str) {
        assert_eq!(from.len(), to.len());
        self.rewrite(segment, |records| {
            for (_, payload) in records {
                let at = payload.windows(from.len()).position(|window| window == from.as_bytes());
                if let Some(at) = at {
                    payload[at..at + from.len()].copy_from_slice(to.as_bytes());
                }
            }
        });
    }

    /// Writes the records of a segment again, after a change, with right checksums and the same summary.
    fn rewrite(&self, id: SegmentId, change: impl FnOnce(&mut Vec<(format::RecordHead, Vec<u8>)>)) {
        let segment = self.stream().segments.open(id).unwrap().unwrap();
        let summary = segment.summary().unwrap().unwrap();
        let mut scan = segment.records(summary.begins, Payloads::All);
        let mut records = Vec::new();
        while let ScanStep::Record(record) = scan.step().unwrap() {
            records.push((record.head, scan.payload(&record).to_vec()));
        }
        change(&mut records);
        let mut bytes = Vec::new();
        segment.header.encode(&mut bytes);
        for (head, payload) in records {
            format::record(&mut bytes, head.kind, head.number, head.time, |out| {
                out.extend_from_slice(&payload);
            });
        }
        let begins = bytes.len() as u64;
        bytes.extend(end_records(&summary.entries, &summary.totals, begins));
        format::add_checksums(&mut bytes[HEADER_BYTES..], segment.header.salt, HEADER_BYTES as u64);
        std::fs::write(self.path(id), bytes).unwrap();
    }
}

fn say(writer: &mut JournalWriter, requests: &[JournalRequest], begin: &str, step: usize) {
    let rows: Vec<String> = RIDS.iter().map(|rid| format!("{rid}=text {step} of {rid}")).collect();
    let frame = writer.append(format!("{begin}{}", rows.join(";")).as_bytes(), 5).unwrap().frame;
    let action = |row: u32| PluginAction {
        row,
        plugin: "notes".into(),
        verdict: Verdict::Annotate,
        text: format!("note {step} on {}", RIDS[row as usize]).into(),
        ids: vec![].into(),
        forwarded: 1,
    };
    let (actions, tokens) = ([action(0), action(2)], [1; 3]);
    writer.outcome(&Outcome {
        requests: requests.into(),
        tokens: (&tokens).into(),
        actions: (&actions).into(),
        ..Outcome::new(frame, 5, Passage::Unchanged)
    });
    // Fills a segment with a few frames.
    let other = writer.append(&[b'.'; 300], 5).unwrap().frame;
    writer.outcome(&Outcome::new(other, 5, Passage::Barrier("other".into())));
}

#[test]
fn a_sealed_journal_verifies_and_a_second_seal_adds_nothing() {
    let sealed = Sealed::new("");
    let report = sealed.check();
    assert_eq!(report.problems, []);
    let segments = sealed.stream().segments().unwrap();
    assert_eq!((report.segments, report.unsealed), (segments.len() as u64, 0));
    assert_eq!((report.first, report.erased), (segments.first().copied(), 0));
    assert_eq!(report.instance.as_deref(), Some("host-1"));
    assert_eq!(sealed.seal().unwrap(), []);
    assert_eq!(sealed.check(), report);
}

#[test]
fn a_segment_that_is_written_is_sealed_once_it_has_ended() {
    let sealed = Sealed::unsealed("");
    assert_eq!(sealed.problems(), ["nothing is sealed"]);
    let first = sealed.seal().unwrap();
    let (mut writer, _) = sealed.directory.stream("s").unwrap();
    let request = writer.open("later");
    say(&mut writer, &[request; 3], "", 1);
    writer.flush().unwrap();
    assert_eq!(sealed.seal().unwrap(), []);
    assert_eq!((sealed.check().unsealed, sealed.problems()), (1, vec![]));
    writer.close(request);
    writer.finish().unwrap();
    assert_eq!(sealed.seal().unwrap().len(), 1);
    assert_eq!((sealed.check().segments, sealed.problems()), (first.len() as u64 + 1, vec![]));
}

#[test]
fn a_flipped_bit_of_a_sealed_segment_is_found() {
    let sealed = Sealed::new("");
    for (first, id) in sealed.stream().segments().unwrap().into_iter().enumerate() {
        let path = sealed.path(id);
        let before = std::fs::read(&path).unwrap();
        // One copy of the header is enough.
        for at in (HEADER_BYTES + first..before.len()).step_by(13) {
            let mut bytes = before.clone();
            bytes[at] ^= 1 << (at % 8);
            std::fs::write(&path, &bytes).unwrap();
            // The index of rids repeats the summary, so that only a plain check compares the two.
            let is_found =
                !sealed.problems().is_empty() || !sealed.stream().verify().unwrap().problems.is_empty();
            assert!(is_found, "{id} byte {at}");
        }
        std::fs::write(&path, &before).unwrap();
    }
    assert_eq!(sealed.problems(), [""; 0]);
}

#[test]
fn a_removed_swapped_added_or_changed_record_with_right_checksums_is_found() {
    for is_erased in [false, true] {
        let sealed = Sealed::new("");
        if is_erased {
            sealed.erase("b");
        }
        let id = sealed.stream().segments().unwrap()[1];
        let before = std::fs::read(sealed.path(id)).unwrap();
        let mut count = 0;
        sealed.rewrite(id, |records| count = records.len());
        assert_eq!(std::fs::read(sealed.path(id)).unwrap(), before, "nothing was changed");
        assert!(count > 10);
        type Records = Vec<(format::RecordHead, Vec<u8>)>;
        let found = |what: &str, at: usize, change: &dyn Fn(&mut Records)| {
            sealed.rewrite(id, change);
            assert_ne!(sealed.problems(), [""; 0], "{what} {at}, erased: {is_erased}");
            std::fs::write(sealed.path(id), &before).unwrap();
        };
        for at in 0..count {
            found("removed", at, &|records| drop(records.remove(at)));
            found("doubled", at, &|records| records.insert(at, records[at].clone()));
            found("another time", at, &|records| records[at].0.time += 1);
            found("another number", at, &|records| records[at].0.number += 1);
            found("longer", at, &|records| records[at].1.push(0));
            found("last byte", at, &|records| {
                // A record without a payload gets one.
                match records[at].1.last_mut() {
                    Some(last) => *last ^= 1,
                    None => records[at].1.push(0),
                }
            });
        }
        for at in 1..count {
            let mut are_same = false;
            sealed.rewrite(id, |records| are_same = records[at] == records[at - 1]);
            if !are_same {
                found("swapped", at, &|records| records.swap(at - 1, at));
            }
        }
    }
}

#[test]
fn an_erased_request_leaves_the_seal_valid_and_content_of_others_is_still_proven() {
    let sealed = Sealed::new("");
    let head = sealed.check().head.unwrap();
    sealed.erase("b");
    let segments = sealed.stream().segments().unwrap();
    let report = sealed.check_since(Some(&head));
    assert_eq!((&report.problems[..], report.rewritten_frames), (&[][..], 0));
    assert_eq!((report.erased, report.head), (1, Some(head)));
    // Nothing tells what the erased request said: its salts are gone, and no other segment has them.
    let mut salts = BTreeSet::new();
    for id in &segments {
        let seal = SealFile::read(&Disk, &sealed.dir.path().join("s"), *id).unwrap().unwrap();
        assert_eq!(seal.exact_salt, None);
        for (part, _, salt) in seal.salted_parts() {
            assert_eq!(salt.is_none(), *part == Part::Request(2), "{part:?}");
            assert!(salt.is_none_or(|salt| salts.insert(salt)), "{id} {part:?}");
        }
    }
    let id = segments[1];
    let before = std::fs::read(sealed.path(id)).unwrap();
    for (from, to, problem) in [
        ("of a", "if a", "content of request 1 \"a\" is not what was sealed"),
        ("on a", "in a", "content of request 1 \"a\" is not what was sealed"),
        ("b=xxxx", "b=text", "content of request 2 \"b\" counts as erased in the seal and is there"),
        ("c=text", "d=text", "records in the bytes 0"),
        (".", ",", "records in the bytes 0"),
    ] {
        sealed.replace(id, from, to);
        let problems = sealed.problems();
        assert!(problems.iter().any(|it| it.starts_with(problem)), "{from}: {problems:?}");
        std::fs::write(sealed.path(id), &before).unwrap();
    }
    sealed.erase("a");
    sealed.erase("c");
    assert_eq!(sealed.problems(), [""; 0]);
    assert_eq!(sealed.check().erased, 3);
}

#[test]
fn an_erasure_of_one_of_two_requests_with_the_same_rid_leaves_the_other_proven() {
    let sealed = Sealed::unsealed("");
    let (mut writer, _) = sealed.directory.stream("s").unwrap();
    for _ in 0..2 {
        let request = writer.open("again");
        let frame = writer.append(b"again=said", 5).unwrap().frame;
        let (requests, tokens) = ([request], [1]);
        writer.outcome(&Outcome {
            requests: (&requests).into(),
            tokens: (&tokens).into(),
            ..Outcome::new(frame, 5, Passage::Unchanged)
        });
        writer.close(request);
    }
    // No outcome names the request of this frame.
    writer.append(b"lost=said", 5).unwrap();
    writer.finish().unwrap();
    let last = *sealed.seal().unwrap().last().unwrap();
    let (root, pause) = (sealed.directory.root(), &Pause::new(false));
    let first = sealed.stream().lives("again").unwrap()[0].request.number;
    let eraser = Eraser { root, pause, by: ErasedBy::Rule };
    eraser.erase(&["s".to_owned()], None, &|info| info.number == first, &mut Texts).unwrap();
    assert_eq!((sealed.problems(), sealed.check().erased), (vec![], 1));
    sealed.replace(last, "again=said", "again=sold");
    let problems = sealed.problems();
    assert!(problems[0].ends_with("\"again\" is not what was sealed"), "{problems:?}");
    sealed.replace(last, "again=sold", "again=said");
    sealed.replace(last, "lost=said", "lost=sold");
    assert_eq!(sealed.problems(), ["content of \"lost\" is not what was sealed"]);
}

#[test]
fn a_request_that_was_erased_before_the_seal_is_sealed_without_its_content() {
    let sealed = Sealed::unsealed("");
    sealed.erase("b");
    sealed.seal().unwrap();
    assert_eq!((sealed.problems(), sealed.check().erased), (vec![], 0));
    sealed.erase("a");
    assert_eq!(sealed.problems(), [""; 0]);
}

#[test]
fn frames_that_an_erasure_writes_anew_are_counted_and_others_are_proven() {
    let sealed = Sealed::new("~");
    assert_eq!(sealed.check().rewritten_frames, 0);
    let id = sealed.stream().segments().unwrap()[1];
    let before = std::fs::read(sealed.path(id)).unwrap();
    sealed.replace(id, "of a", "if a");
    assert_ne!(sealed.problems(), [""; 0]);
    std::fs::write(sealed.path(id), &before).unwrap();
    sealed.erase("b");
    let report = sealed.check();
    assert_eq!((&report.problems[..], report.rewritten_frames), (&[][..], STEPS as u64));
}

#[test]
fn a_missing_or_foreign_seal_or_segment_is_found() {
    let sealed = Sealed::new("");
    let segments = sealed.stream().segments().unwrap();
    let seal = |at: usize| seal_file::path(&sealed.dir.path().join("s"), segments[at]);
    let read = |path: &Path| std::fs::read(path).unwrap();
    let heads = [sealed.check().head.unwrap(), "00".repeat(32)];
    let (one, two) = (read(&seal(1)), read(&seal(2)));

    std::fs::remove_file(seal(1)).unwrap();
    let found = sealed.problems();
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!(found[0], "is not sealed, and a later segment is");
    assert!(found[1].starts_with("its seal does not follow"), "{found:?}");
    // Sealing does not close the hole.
    assert_eq!(sealed.seal().unwrap(), []);

    std::fs::write(seal(1), &two).unwrap();
    assert!(sealed.problems().iter().any(|it| it.starts_with("its seal is of 0000")));
    std::fs::write(seal(1), &one[..one.len() - 1]).unwrap();
    assert!(sealed.problems().contains(&"its seal cannot be read".to_owned()));
    std::fs::write(seal(1), &one).unwrap();
    assert_eq!(sealed.problems(), [""; 0]);

    let is_signed = |_: &[u8], _: &[u8]| false;
    let report = sealed.stream().verify_seals(&mut Texts, &is_signed, None).unwrap();
    assert_eq!(report.problems[0].what, SealProblemKind::Signature);

    let segment = read(&sealed.path(segments[1]));
    std::fs::remove_file(sealed.path(segments[1])).unwrap();
    assert_eq!(sealed.problems(), ["is sealed and missing"]);
    std::fs::write(sealed.path(segments[1]), &segment).unwrap();

    // Without a head that the reader knows, a shorter chain looks like an earlier one.
    for (at, segment) in segments.iter().enumerate().skip(1) {
        std::fs::remove_file(seal(at)).unwrap();
        std::fs::remove_file(sealed.path(*segment)).unwrap();
    }
    assert_eq!(sealed.problems(), [""; 0]);
    for head in heads {
        let problems = sealed.check_since(Some(&head)).problems;
        assert_eq!(problems[0].what, SealProblemKind::UnknownHead(head));
    }
}

#[test]
fn removed_segments_at_the_front_take_their_seals_along_and_the_chain_goes_on() {
    let sealed = Sealed::new("");
    let segments = sealed.stream().segments().unwrap();
    std::fs::remove_file(sealed.path(segments[0])).unwrap();
    assert_eq!((sealed.problems(), sealed.check().first), (vec![], Some(segments[1])));
    seal_file::remove(&Disk, &sealed.dir.path().join("s"), segments[0]).unwrap();
    assert_eq!((sealed.problems(), sealed.check().first), (vec![], Some(segments[1])));
}

#[test]
fn an_erasure_waits_while_the_segment_is_sealed_and_a_seal_while_a_request_is_erased() {
    let sealed = Sealed::unsealed("");
    let lock = seal_file::lock(&Disk, &sealed.dir.path().join("s")).unwrap().unwrap();
    let refused = sealed.directory.erase(&["s".to_owned()], "a", ErasedBy::Remote, &mut Texts).unwrap_err();
    assert!(matches!(refused, crate::NotErased::Busy { .. }), "{refused}");
    assert!(matches!(sealed.seal().unwrap_err(), SealError::Busy { .. }));
    drop(lock);
    sealed.erase("a");
    sealed.seal().unwrap();
    assert_eq!(sealed.problems(), [""; 0]);
}

#[test]
fn an_erasure_removes_a_damaged_seal() {
    let sealed = Sealed::new("");
    let id = sealed.stream().segments().unwrap()[0];
    let path = seal_file::path(&sealed.dir.path().join("s"), id);
    std::fs::write(&path, b"ABSEALED").unwrap();
    sealed.erase("a");
    assert!(!path.exists());
    assert_eq!(sealed.problems(), ["is not sealed, and a later segment is"]);
    assert_eq!(sealed.check().first, Some(sealed.stream().segments().unwrap()[1]));
}
