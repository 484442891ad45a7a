//! Erasure of requests: what is overwritten, what stays, and what a crash leaves, also of seals.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use crate::support::disk::SimDisk;
use crate::support::*;
use afterbay_journal::reader::{ErasedBy, JournalReader, ReadFrom, RequestFilter, StreamReader};
use afterbay_journal::*;
use afterbay_sim_disk::DiskCall;
use bytes::Bytes;

/// The frames of these tests: `rid=text` separated by `;`. A frame with `?` at its start cannot be decoded.
pub(crate) struct Texts;

impl EraseRows for Texts {
    fn erase(
        &mut self,
        _stream: &str,
        frame: &Bytes,
        is_erased: &dyn Fn(&[u8]) -> bool,
    ) -> Result<RewrittenFrame, String> {
        let text = std::str::from_utf8(frame).unwrap();
        if text.starts_with('?') {
            return Err("not decoded".into());
        }
        let rows = text.split(';').map(|row| match row.split_once('=') {
            Some((rid, said)) if is_erased(rid.as_bytes()) => format!("{rid}={}", "x".repeat(said.len())),
            _ => row.to_owned(),
        });
        Ok(RewrittenFrame { bytes: rows.collect::<Vec<_>>().join(";").into(), left: Vec::new() })
    }
}

const USER: ErasedBy = ErasedBy::User(1000);

fn names() -> Vec<String> {
    vec!["s".to_owned()]
}

/// Calls `erase` until the writer has ended its segment.
fn erase(
    directory: &JournalDirectory,
    writer: &mut JournalWriter,
    rid: &str,
) -> Result<Vec<ErasedRequests>, NotErased> {
    writer.flush().unwrap();
    loop {
        match directory.erase(&names(), rid, USER, &mut Texts) {
            Err(NotErased::Busy { .. }) => {
                writer.flush().unwrap();
                writer.tend();
            }
            erased => return erased,
        }
    }
}

/// Appends a frame in which each request has a row that says `text`, and lets the requests end with it if `ends`.
fn say(writer: &mut JournalWriter, of: &[(&str, JournalRequest)], text: &str, ends: bool) -> FrameNo {
    let rows: Vec<String> = of.iter().map(|(rid, _)| format!("{rid}={text} of {rid}")).collect();
    let frame = writer.append(rows.join(";").as_bytes(), 5).unwrap().frame;
    let requests: Vec<JournalRequest> = of.iter().map(|(_, request)| *request).collect();
    let note = |row: usize| PluginAction {
        row: row as u32,
        plugin: "notes".into(),
        verdict: Verdict::Annotate,
        text: format!("note on {}", of[row].0).into(),
        ids: vec![].into(),
        forwarded: 1,
    };
    let finish = |row: usize| RowFinish { row: row as u32, reason: "stop".into(), completion_tokens: None };
    let (actions, rows): (Vec<_>, _) = ((0..of.len()).map(note).collect(), 0..of.len());
    let finished: Vec<_> = rows.filter(|_| ends).map(finish).collect();
    let tokens = vec![1; of.len()];
    writer.outcome(&Outcome {
        actions: actions.into(),
        finished: finished.into(),
        ..plain_outcome(frame, &requests, &tokens)
    });
    if ends {
        requests.iter().for_each(|request| writer.close(*request));
    }
    frame
}

/// All bytes of the segments.
fn bytes(disk: &SimDisk) -> Vec<u8> {
    let mut all = Vec::new();
    for path in disk.segments() {
        disk.edit(&path, |bytes| all.extend_from_slice(bytes));
    }
    all
}

fn has(disk: &SimDisk, text: &str) -> bool {
    bytes(disk).windows(text.len()).any(|window| window == text.as_bytes())
}

fn problems(stream: &StreamReader) -> Vec<String> {
    stream.verify().unwrap().problems.iter().map(ToString::to_string).collect()
}

fn small() -> JournalOptions {
    JournalOptions { segment_bytes: 4096, ..options() }
}

/// A journal of several segments, with a request "gone" among others.
fn filled(disk: &SimDisk) -> (JournalDirectory, JournalWriter) {
    filled_with(disk, small(), 60, "secret")
}

fn filled_with(
    disk: &SimDisk,
    options: JournalOptions,
    frames: usize,
    text: &str,
) -> (JournalDirectory, JournalWriter) {
    let (directory, mut writer, _) = begin(disk, options);
    let gone = writer.open("gone");
    let stays = writer.open("stays");
    for _ in 0..frames {
        say(&mut writer, &[("gone", gone), ("stays", stays)], text, false);
        writer.tend();
    }
    say(&mut writer, &[("gone", gone)], "secret", true);
    say(&mut writer, &[("stays", stays)], "secret", false);
    writer.flush().unwrap();
    writer.tend();
    (directory, writer)
}

#[test]
fn an_erased_request_has_no_text_and_no_note_in_the_segments_and_others_keep_every_byte() {
    let disk = SimDisk::new(1);
    let (directory, mut writer) = filled(&disk);
    let before = bytes(&disk);
    assert!(has(&disk, "secret of gone") && has(&disk, "note on gone"));
    let at = disk.pass_time(7);
    let erased = erase(&directory, &mut writer, "gone").unwrap();
    assert_eq!((erased[0].rows, erased[0].tokens, erased[0].left.count), (61, 61, 0));
    assert!(erased[0].segments > 2, "{erased:?}");
    assert!(!has(&disk, "secret of gone") && !has(&disk, "note on gone"));
    let of_stays = |bytes: &[u8]| {
        let text = b"secret of stays";
        bytes.windows(text.len()).filter(|window| window == text).count()
    };
    assert_eq!(of_stays(&bytes(&disk)), of_stays(&before));
    let stream = stream(&disk);
    assert_eq!(problems(&stream), [""; 0]);
    let [life] = &stream.lives("gone").unwrap()[..] else { panic!() };
    let erasure = life.request.erased.unwrap();
    assert_eq!((erasure.unix_ns, erasure.by), (at, USER));
    assert_eq!((life.rows.len(), &*life.rows[0].actions[0].text), (61, ""));
    assert_eq!(stream.lives("stays").unwrap()[0].rows[0].actions[0].text, "note on stays");
    let listed = stream.requests(RequestFilter::default()).unwrap().map(Result::unwrap);
    let listed: Vec<(String, bool)> = listed.map(|info| (info.rid, info.erased.is_some())).collect();
    assert_eq!(listed, [("gone".to_owned(), true), ("stays".to_owned(), false)]);
    let notes = stream.verify().unwrap().notes;
    assert!(notes.contains(&VerifyNote::Erased { requests: 1, last_unix_ns: at }), "{notes:?}");
}

#[test]
fn only_the_records_of_the_erased_request_differ_byte_for_byte() {
    let disk = SimDisk::new(1);
    let (directory, mut writer) = filled(&disk);
    // Ends the last segment, so that the erasure changes nothing but its own records.
    let first = directory.erase(&names(), "gone", USER, &mut Texts);
    assert!(matches!(first, Err(NotErased::Busy { .. })), "{first:?}");
    writer.flush().unwrap();
    writer.tend();
    let paths = disk.segments();
    let read = |disk: &SimDisk| {
        let read = |path: &std::path::PathBuf| {
            let mut all = Vec::new();
            disk.edit(path, |bytes| all.clone_from(bytes));
            all
        };
        paths.iter().map(read).collect::<Vec<Vec<u8>>>()
    };
    let before = read(&disk);
    let frames = |stream: &StreamReader| -> Vec<Vec<u8>> {
        stream.frames(ReadFrom::Start).unwrap().map(|frame| frame.unwrap().0.bytes).collect()
    };
    let frames_before = frames(&stream(&disk));
    erase(&directory, &mut writer, "gone").unwrap();
    for (before, after) in frames_before.iter().zip(frames(&stream(&disk))) {
        let (before, after) = (std::str::from_utf8(before).unwrap(), String::from_utf8(after).unwrap());
        assert_eq!(before.replace("secret of gone", &"x".repeat("secret of gone".len())), after);
    }
    for (before, after) in before.iter().zip(read(&disk)) {
        // Everything up to the summary, which the trailer gives, has its place, and only bytes of erased texts and checksums differ.
        let trailer = before.len() - 32;
        let summary = u64::from_le_bytes(before[trailer + 8..trailer + 16].try_into().unwrap()) as usize;
        // The last segment has none.
        let records = before[..summary.min(before.len())].iter().zip(&after);
        let differ = records.filter(|(one, other)| one != other).count();
        let erased = before.windows(14).filter(|text| text == b"secret of gone").count();
        assert!(differ <= erased * (14 + 4 + 12 + 4), "{differ} bytes for {erased} rows");
        assert!(after.len() >= before.len());
    }
}

#[test]
fn every_request_that_used_the_rid_is_erased_and_a_second_erasure_writes_nothing() {
    let disk = SimDisk::new(1);
    let (directory, mut writer, _) = begin(&disk, small());
    for text in ["first", "second"] {
        let request = writer.open("again");
        say(&mut writer, &[("again", request)], text, true);
    }
    let erased = erase(&directory, &mut writer, "again").unwrap();
    assert_eq!(erased[0].requests.len(), 2);
    assert!(!has(&disk, "first of again") && !has(&disk, "second of again"));
    let before = bytes(&disk);
    disk.pass_time(9);
    let again = erase(&directory, &mut writer, "again").unwrap();
    assert_eq!((again[0].segments, again[0].rows), (0, 2));
    assert_eq!(bytes(&disk), before);
    assert!(erase(&directory, &mut writer, "unknown").unwrap().is_empty());
}

#[test]
fn a_live_request_and_rows_that_a_sink_has_not_taken_are_refused_with_the_reason() {
    let disk = SimDisk::new(1);
    let (directory, mut writer, _) = begin(&disk, small());
    let request = writer.open("r");
    say(&mut writer, &[("r", request)], "text", false);
    writer.flush().unwrap();
    let refused = erase(&directory, &mut writer, "r").unwrap_err().to_string();
    assert_eq!(refused, "request \"r\" is live on stream \"s\": it can be erased after its end");
    let last = say(&mut writer, &[("r", request)], "text", true);
    writer.sent("reader", 1, SinkContent::Whole(FrameNo(1)), 0);
    writer.taken("reader", 1, FrameNo(1), None, 0);
    writer.flush().unwrap();
    let refused = erase(&directory, &mut writer, "r").unwrap_err().to_string();
    assert_eq!(refused, "sink \"reader\" of stream \"s\" has not taken the rows of \"r\" up to frame 2");
    assert!(has(&disk, "text of r"));
    writer.sent("reader", 2, SinkContent::Whole(last), 0);
    writer.taken("reader", 2, last, None, 0);
    erase(&directory, &mut writer, "r").unwrap();
    assert!(!has(&disk, "text of r"));
}

#[test]
fn a_frame_that_cannot_be_decoded_and_names_the_rid_is_named() {
    let disk = SimDisk::new(1);
    let (directory, mut writer, _) = begin(&disk, small());
    let request = writer.open("id-1");
    say(&mut writer, &[("id-1", request)], "text", false);
    for frame in ["? id-1=hidden", "? other=hidden"] {
        let frame = writer.append(frame.as_bytes(), 5).unwrap().frame;
        writer.outcome(&Outcome::new(frame, 5, Passage::NotUnderstood("why".into())));
    }
    say(&mut writer, &[("id-1", request)], "text", true);
    let erased = erase(&directory, &mut writer, "id-1").unwrap();
    assert_eq!(erased[0].left.first, [LeftFrame { frame: FrameNo(2), why: "not decoded".into() }]);
    assert!(has(&disk, "id-1=hidden") && !has(&disk, "text of id-1"));
}

#[test]
fn the_bytes_sent_in_place_of_a_frame_are_erased_too() {
    let disk = SimDisk::new(1);
    let (directory, mut writer, _) = begin(&disk, small());
    let request = writer.open("r");
    let frame = writer.append(b"r=received", 5).unwrap().frame;
    let (requests, tokens) = ([request], [1]);
    let outcome = plain_outcome(frame, &requests, &tokens);
    let changed = Some(Bytes::from_static(b"r=replaced;o=other"));
    writer.outcome(&Outcome { passage: Passage::Changed, changed, ..outcome });
    writer.close(request);
    erase(&directory, &mut writer, "r").unwrap();
    assert!(!has(&disk, "received") && !has(&disk, "replaced") && has(&disk, "o=other"));
    assert_eq!(problems(&stream(&disk)), [""; 0]);
}

#[test]
fn the_outcome_in_a_later_segment_than_its_frame_is_erased_with_the_frame() {
    let disk = SimDisk::new(1);
    let (directory, mut writer, _) = begin(&disk, small());
    let waits = writer.append(b"r=early;o=early", 5).unwrap().frame;
    for _ in 0..20 {
        let frame = writer.append(&[b'.'; 400], 5).unwrap().frame;
        writer.outcome(&plain_outcome(frame, &[], &[]));
    }
    writer.tend();
    let request = writer.open("r");
    writer.outcome(&plain_outcome(waits, &[request], &[1]));
    writer.close(request);
    erase(&directory, &mut writer, "r").unwrap();
    assert!(!has(&disk, "r=early") && has(&disk, "o=early"));
}

#[test]
fn the_age_of_a_segment_stays_and_retention_removes_it_in_its_time() {
    let disk = SimDisk::new(1);
    let (directory, mut writer) = filled(&disk);
    let oldest = disk.segments()[0].clone();
    let modified = || {
        let listed = afterbay_journal::storage::Storage::list(&*disk.process(), oldest.parent().unwrap());
        let name = oldest.file_name().unwrap().to_str().unwrap();
        listed.unwrap().iter().find(|entry| entry.name == name).unwrap().modified_unix_ns
    };
    let before = modified();
    disk.pass_time(1_000_000);
    erase(&directory, &mut writer, "gone").unwrap();
    assert_eq!(modified(), before);
}

#[test]
fn without_a_writer_a_segment_that_a_killed_process_left_is_ended_first() {
    let disk = SimDisk::new(1);
    let (directory, writer) = filled(&disk);
    disk.kill();
    drop(catch_unwind(AssertUnwindSafe(|| drop((directory, writer)))));
    let options = small();
    let directory =
        JournalDirectory::open_on(disk.process(), Path::new(DIR), options, Background::Caller).unwrap();
    let erased = directory.erase(&names(), "gone", USER, &mut Texts).unwrap();
    assert_eq!(erased[0].rows, 61);
    assert!(!has(&disk, "secret of gone"));
    let (mut writer, recovered) = directory.stream("s").unwrap();
    assert_eq!(recovered.live.len(), 1);
    say(&mut writer, &[("stays", recovered.live[0].request)], "secret", true);
    writer.finish().unwrap();
    assert_eq!(problems(&stream(&disk)), [""; 0]);
}

/// Runs an erasure that dies at each call to the disk in turn, by a kill or a power cut.
fn dies_at_each_call(dies: fn(&SimDisk)) {
    let mut died = 0;
    for call in 0.. {
        let disk = SimDisk::new(call);
        let durable = JournalOptions { sync: SyncPolicy::Always, ..small() };
        let (directory, writer) =
            filled_with(&disk, durable.clone(), 5, &format!("{}secret", "-".repeat(600)));
        let busy = directory.erase(&names(), "gone", USER, &mut Texts);
        assert!(matches!(busy, Err(NotErased::Busy { .. })));
        writer.finish().unwrap();
        let sealer = &mut Sealer {
            instance: "host-1",
            program: "test",
            rows: &mut Texts,
            secret: [1; 32],
            sign: &|bytes| bytes.to_vec(),
        };
        assert!(stream(&disk).seal(sealer).unwrap().segments.len() > 1);
        let mut left = call;
        let process: Arc<SimDisk> = Arc::new(disk.clone());
        disk.set_hook(Some(Box::new(move |_: DiskCall| {
            assert!(left > 0, "dies here");
            left -= 1;
            usize::MAX
        })));
        let hook_of = process.clone();
        let erased = catch_unwind(AssertUnwindSafe(|| directory.erase(&names(), "gone", USER, &mut Texts)));
        hook_of.set_hook(None);
        let is_done = erased.is_ok();
        died += u64::from(!is_done);
        dies(&disk);
        let _ = catch_unwind(AssertUnwindSafe(|| drop(directory)));
        // Each segment is as before or as after, and every other row is there.
        let after = stream(&disk);
        assert_eq!(problems(&after), [""; 0], "call {call}");
        let frames: Vec<Vec<u8>> =
            after.frames(ReadFrom::Start).unwrap().map(|frame| frame.unwrap().0.bytes).collect();
        assert_eq!(frames.len(), 7, "call {call}");
        let stays = frames.iter().filter(|frame| frame.windows(15).any(|text| text == b"secret of stays"));
        assert_eq!(stays.count(), 6, "call {call}");
        if after.lives("gone").unwrap()[0].request.erased.is_some() {
            assert!(!has(&disk, "secret of gone"), "call {call}");
        }
        // It can be repeated.
        let (directory, mut writer, _) = begin(&disk, durable);
        erase(&directory, &mut writer, "gone").unwrap();
        assert!(!has(&disk, "secret of gone"), "call {call}");
        assert!(disk.paths().iter().all(|path| path.extension().is_none_or(|it| it != "part")));
        let stream = stream(&disk);
        assert_eq!(problems(&stream), [""; 0], "call {call}");
        let seals = stream.verify_seals(&mut Texts, &|bytes, signature| bytes == signature, None).unwrap();
        assert_eq!(seals.problems, [], "call {call}");
        assert!(seals.erased > 0, "call {call}");
        if is_done {
            break;
        }
    }
    assert!(died > 10, "{died} calls");
}

#[test]
fn a_kill_at_any_call_to_the_disk_leaves_each_segment_as_before_or_as_after() {
    dies_at_each_call(SimDisk::kill);
}

#[test]
fn a_power_cut_at_any_call_to_the_disk_leaves_each_segment_as_before_or_as_after() {
    dies_at_each_call(SimDisk::cut_power);
}

#[test]
fn a_disk_that_refuses_the_copy_leaves_the_segments_and_the_next_erasure_succeeds() {
    let disk = SimDisk::new(1);
    let (directory, mut writer) = filled(&disk);
    let _ = directory.erase(&names(), "gone", USER, &mut Texts);
    writer.flush().unwrap();
    writer.tend();
    let before = bytes(&disk);
    disk.set_faults(crate::support::disk::Faults { sync: 1, ..Default::default() });
    assert!(matches!(erase(&directory, &mut writer, "gone"), Err(NotErased::Io(_))));
    disk.set_faults(crate::support::disk::Faults::default());
    assert_eq!(bytes(&disk), before);
    erase(&directory, &mut writer, "gone").unwrap();
    assert!(!has(&disk, "secret of gone"));
    let _ = JournalReader::open_on(Arc::new(disk.clone()), Path::new(DIR)).unwrap();
}

#[test]
fn every_flipped_bit_after_the_totals_of_an_erased_segment_is_reported() {
    let disk = SimDisk::new(1);
    let (directory, mut writer, _) = begin(&disk, small());
    let request = writer.open("r");
    say(&mut writer, &[("r", request)], "text", true);
    erase(&directory, &mut writer, "r").unwrap();
    let path = disk.segments()[0].clone();
    let mut bytes = 0;
    disk.edit(&path, |all| bytes = all.len());
    // The ERASED has 32 + 5 bytes, and the TRAILER 32.
    for at in bytes - 32 - 37..bytes {
        disk.edit(&path, |all| all[at] ^= 4);
        assert_ne!(problems(&stream(&disk)), [""; 0], "byte {at}");
        disk.edit(&path, |all| all[at] ^= 4);
    }
    assert_eq!(problems(&stream(&disk)), [""; 0]);
}

const SECOND: u64 = 1_000_000_000;

/// A stream whose requests with a rid of `short…` are to be erased after 100 s, and those of `long…` after 1000 s.
fn with_ages(disk: &SimDisk) -> (JournalDirectory, JournalWriter) {
    let (directory, mut writer, _) = begin(disk, small());
    set_ages(&directory, &mut writer);
    (directory, writer)
}

fn set_ages(directory: &JournalDirectory, writer: &mut JournalWriter) {
    let kind = |kind: &str| ("kind".to_owned(), kind.to_owned());
    writer.set_attributes(Box::new(move |rid, _| rid.split('-').take(1).map(kind).collect()));
    let rule = |of: &str, seconds| EraseRule {
        attribute: Some(kind(of)),
        after: std::time::Duration::from_secs(seconds),
    };
    directory.erase_expired(vec![rule("short", 100), rule("long", 1000)], Box::new(Texts));
}

/// Lets the time pass in which the retention thread works.
fn tend(disk: &SimDisk, directory: &JournalDirectory, writer: &mut JournalWriter, seconds: u64) {
    disk.pass_time(seconds * SECOND);
    for _ in 0..8 {
        directory.tend();
        writer.flush().unwrap();
        writer.tend();
    }
}

#[test]
fn a_request_is_erased_at_its_age_and_one_without_an_age_stays() {
    let disk = SimDisk::new(1);
    let (directory, mut writer) = with_ages(&disk);
    let requests = ["short-1", "long-1", "never-1"].map(|rid| (rid, writer.open(rid)));
    say(&mut writer, &requests, "secret", true);
    writer.flush().unwrap();
    // The idle stream's segment ends after an eighth of the shortest age.
    tend(&disk, &directory, &mut writer, 0);
    tend(&disk, &directory, &mut writer, 13);
    tend(&disk, &directory, &mut writer, 98);
    assert!(has(&disk, "secret of short-1"));
    tend(&disk, &directory, &mut writer, 3);
    assert!(!has(&disk, "secret of short-1") && !has(&disk, "note on short-1"));
    assert!(has(&disk, "secret of long-1") && has(&disk, "secret of never-1"));
    tend(&disk, &directory, &mut writer, 1000);
    assert!(!has(&disk, "secret of long-1") && has(&disk, "secret of never-1"));
    let stream = stream(&disk);
    assert_eq!(problems(&stream), [""; 0]);
    assert_eq!(stream.lives("short-1").unwrap()[0].request.erased.unwrap().by, ErasedBy::Rule);
    let notices: Vec<BackgroundNotice> = std::iter::from_fn(|| writer.next_notice()).collect();
    let erased =
        notices.iter().filter(|notice| matches!(notice, BackgroundNotice::Erased { requests: 1, .. }));
    assert_eq!(erased.count(), 2, "{notices:?}");
}

#[test]
fn an_age_outlives_segments_and_kills_and_a_live_request_is_not_erased() {
    let disk = SimDisk::new(1);
    let (directory, mut writer) = with_ages(&disk);
    let lives = writer.open("short-live");
    for _ in 0..100 {
        say(&mut writer, &[("short-live", lives)], "secret", false);
        writer.tend();
    }
    writer.flush().unwrap();
    tend(&disk, &directory, &mut writer, 500);
    assert!(has(&disk, "secret of short-live"));
    disk.kill();
    drop((directory, writer));
    let (directory, mut writer, recovered) = begin(&disk, small());
    set_ages(&directory, &mut writer);
    let [live] = &recovered.live[..] else { panic!("{:?}", recovered.live) };
    assert_eq!(live.info.attributes[0].1, "short");
    say(&mut writer, &[("short-live", live.request)], "secret", true);
    writer.flush().unwrap();
    tend(&disk, &directory, &mut writer, 0);
    tend(&disk, &directory, &mut writer, 13);
    tend(&disk, &directory, &mut writer, 101);
    assert!(!has(&disk, "secret of short-live"));
    assert_eq!(problems(&stream(&disk)), [""; 0]);
}

#[test]
fn a_request_that_is_due_waits_for_its_reader() {
    let disk = SimDisk::new(1);
    let (directory, mut writer) = with_ages(&disk);
    let request = writer.open("short-1");
    let frame = say(&mut writer, &[("short-1", request)], "secret", true);
    writer.sent("reader", 1, SinkContent::Whole(frame), 0);
    writer.flush().unwrap();
    tend(&disk, &directory, &mut writer, 0);
    tend(&disk, &directory, &mut writer, 101);
    tend(&disk, &directory, &mut writer, 101);
    assert!(has(&disk, "secret of short-1"));
    let notices: Vec<BackgroundNotice> = std::iter::from_fn(|| writer.next_notice()).collect();
    let is_refused = |notice: &BackgroundNotice| matches!(notice, BackgroundNotice::EraseFailed { .. });
    assert!(notices.iter().any(is_refused), "{notices:?}");
    writer.taken("reader", 1, frame, None, 0);
    writer.flush().unwrap();
    tend(&disk, &directory, &mut writer, 101);
    assert!(!has(&disk, "secret of short-1"));
}

/// Prints how long it takes to erase one request of a journal of 2 GiB: `cargo test -p afterbay-journal --test it -- --ignored
/// --nocapture one_request_of_a_journal_of_2_gib`.
#[test]
#[ignore = "measures"]
fn one_request_of_a_journal_of_2_gib() {
    let dir = tempfile::tempdir().unwrap();
    let (directory, mut writer, _) = open(dir.path(), JournalOptions::default());
    // 64 rows of 1.5 KB, and the request of interest in 600 of 21,000 frames.
    let others: Vec<_> = (0..64).map(|at| format!("other-{at}")).collect();
    let others: Vec<_> = others.iter().map(|rid| (&**rid, writer.open(rid))).collect();
    let mut gone = others[0].1;
    let text = "t".repeat(1500);
    for frame in 0..21_000 {
        if frame == 10_000 {
            gone = writer.open("gone");
        }
        match frame {
            10_000..10_600 => {
                let mut rows = others.clone();
                rows.push(("gone", gone));
                say(&mut writer, &rows, &text, false);
            }
            10_600 => _ = say(&mut writer, &[("gone", gone)], &text, true),
            _ => _ = say(&mut writer, &others, &text, false),
        }
    }
    writer.flush().unwrap();
    let begun = std::time::Instant::now();
    let erased = directory.erase(&names(), "gone", USER, &mut Texts).unwrap();
    println!("{:?}: {erased:?}", begun.elapsed());
}
