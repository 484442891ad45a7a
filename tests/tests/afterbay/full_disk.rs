//! A file system of 12 MiB that fills up. After it has room again, a restart repeats no token that the reader received.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use afterbay_sockets::credit::{CreditWriter, ReaderKind};
use afterbay_tests::commands::verify;
use afterbay_tests::frames::{Ids, SynthRequest, batch, ids, rows};
use afterbay_tests::{Afterbay, Config, Reader, Sandbox, Sender, until};
use afterbay_wire::synth::SynthWire::Msgpack;

const ROWS: usize = 256;
const TOKENS: i64 = 20;
const MIB: usize = 1 << 20;

/// The journal's directory as a small file system, if this machine lets a test mount one.
struct Small(PathBuf);

impl Small {
    fn mount(sandbox: &Sandbox) -> Option<Small> {
        let dir = sandbox.journal();
        std::fs::create_dir(&dir).unwrap();
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=12m", "tmpfs"]).arg(&dir).output();
        let is_mounted = mounted.is_ok_and(|output| output.status.success());
        if !is_mounted {
            eprintln!("not run: this machine lets no test mount a tmpfs");
        }
        is_mounted.then_some(Small(dir))
    }

    fn ballast(&self) -> PathBuf {
        self.0.join("ballast")
    }

    /// Takes up this many bytes, or all free bytes if there are fewer.
    fn fill(&self, bytes: usize) {
        let _full = std::fs::write(self.ballast(), vec![0; bytes]);
    }

    fn free(&self) {
        std::fs::remove_file(self.ballast()).unwrap();
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // The mount is busy only while a process of a failed test still runs.
        let _ = Command::new("umount").args(["-l".as_ref(), self.0.as_os_str()]).status();
    }
}

/// Frames of [`ROWS`] rows. No id repeats within a request.
fn frames(count: i64) -> Vec<Vec<u8>> {
    let mut requests: Vec<SynthRequest> =
        (0..ROWS).map(|at| SynthRequest::new(&format!("request-{at}"))).collect();
    let ids = |frame: i64| -> Vec<i64> { (frame * TOKENS..(frame + 1) * TOKENS).collect() };
    let frame = |frame| {
        let rows = requests.iter_mut().map(|request| request.row(&ids(frame)));
        batch(Msgpack, rows.collect()).to_vec()
    };
    (0..count).map(frame).collect()
}

/// Flags for a reader's thread.
#[derive(Clone, Default)]
struct ReaderFlags {
    /// Whether the reader pauses.
    paused: Arc<AtomicBool>,
    /// Whether no more frames follow.
    over: Arc<AtomicBool>,
}

/// Receives frames on a thread until `over` is set, and counts them if `counts`.
fn read_all(sandbox: &Sandbox, counts: bool, flags: &ReaderFlags) -> JoinHandle<Vec<Vec<u8>>> {
    let mut reader = Reader::bind(&sandbox.reader_side());
    let mut credit = counts.then(|| CreditWriter::open(&sandbox.credit(), ReaderKind::Detokenizer).unwrap());
    let flags = flags.clone();
    std::thread::spawn(move || {
        let mut received = Vec::new();
        loop {
            if flags.paused.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            match reader.next_within(Duration::from_millis(20)) {
                Some(frame) => {
                    received.push(frame);
                    if let Some(credit) = &mut credit {
                        credit.finished().unwrap();
                    }
                }
                None if flags.over.load(Ordering::SeqCst) => return received,
                None => {}
            }
        }
    })
}

fn until_drained(afterbay: &Afterbay) {
    until("the reader has every frame", || {
        let metrics = afterbay.metrics();
        let waits = metrics.stream("outbox_frames") + metrics.stream("spilled_frames");
        waits + metrics.sink("lag_frames") + metrics.sink("queue_frames") == 0
    });
}

fn config(sandbox: &Sandbox, on_error: &str, counts: bool) -> Config {
    let config = sandbox
        .config()
        .sink("reader = \"tokenizer\"\ntool_calls = \"joined\"")
        .journal("segment = \"1MiB\"");
    let config = config.journal(&format!("on_error = {on_error:?}"));
    if counts { config.credit(sandbox) } else { config }
}

/// Fills the disk under load, stops or kills Afterbay, frees the disk and starts Afterbay again. Returns the ids that the reader
/// received and the ids that were sent; `None` without a mount.
fn fill_stop_free_and_start(on_error: &str, counts: bool, is_killed: bool, more: i64) -> Option<(Ids, Ids)> {
    let sandbox = Sandbox::new();
    let small = Small::mount(&sandbox)?;
    let config = config(&sandbox, on_error, counts);
    let flags = ReaderFlags::default();
    let reads = read_all(&sandbox, counts, &flags);
    let afterbay = Afterbay::run_with(&sandbox, &config, &["--drain-timeout", "500ms"]);
    let frames = frames(20 + more);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    frames[..20].iter().for_each(|frame| sender.send(frame));
    afterbay.until_metrics("the first are taken", |metrics| metrics.sink("taken_frame") == 20);
    small.fill(7 * MIB);
    // Journaled frames must be sent while the disk is full.
    flags.paused.store(true, Ordering::SeqCst);
    let sent = frames[20..].iter().take_while(|frame| sender.try_send(frame, Duration::from_millis(500)));
    let sent = 20 + sent.count();
    if on_error == "forward" {
        let conditions = afterbay.until_degraded("journal:test");
        assert_eq!(sent, frames.len());
        assert!(conditions.contains("frames are forwarded and not persisted"), "{conditions}");
    } else {
        let conditions = afterbay.until_ready(503);
        assert!(conditions.contains("nothing is received or sent that cannot be recorded"), "{conditions}");
    }
    flags.paused.store(false, Ordering::SeqCst);
    until_drained(&afterbay);
    if is_killed {
        afterbay.kill();
    } else {
        let code = afterbay.stop();
        assert!(on_error == "forward" || code == 1, "a frame was not persisted, but the exit code is {code}");
    }
    drop(sender);
    small.free();
    let afterbay = Afterbay::run(&sandbox, &config);
    afterbay.until_healthy();
    until_drained(&afterbay);
    assert_eq!(afterbay.stop(), 0);
    flags.over.store(true, Ordering::SeqCst);
    let received = reads.join().unwrap();
    let (code, report) = verify(&sandbox);
    assert_eq!(code, 0, "{report}");
    let sent = ids(&frames[..sent]);
    for row in received.iter().flat_map(|frame| rows(frame)) {
        assert!(!row.ids.is_empty(), "{row:?}");
    }
    Some((ids(&received), sent))
}

fn repeats(received: &Ids) -> usize {
    received.values().flat_map(|ids| ids.windows(2)).filter(|pair| pair[1] <= pair[0]).count()
}

/// The simulation has the deaths on a full disk, and readers that count.
#[test]
fn a_restart_after_a_full_disk_repeats_no_sent_token() {
    let Some((received, sent)) = fill_stop_free_and_start("stop", false, false, 80) else { return };
    assert_eq!(repeats(&received), 0);
    for (rid, ids) in &received {
        assert!(sent[rid].starts_with(ids), "{rid}: an id is missing in between");
    }
}

#[test]
fn a_restart_after_unpersisted_frames_repeats_no_sent_token() {
    // The larger load exceeds the room for records of unpersisted frames.
    for (counts, is_killed, more) in [(false, false, 80), (true, true, 400)] {
        let Some((received, sent)) = fill_stop_free_and_start("forward", counts, is_killed, more) else {
            return;
        };
        assert_eq!(repeats(&received), 0, "counts: {counts}, killed: {is_killed}");
        assert_eq!(received, sent, "counts: {counts}, killed: {is_killed}");
    }
}

#[test]
fn on_error_forward_starts_on_a_full_disk_and_persists_again_when_the_disk_has_room() {
    for is_new in [true, false] {
        let sandbox = Sandbox::new();
        let Some(small) = Small::mount(&sandbox) else { return };
        let config = config(&sandbox, "forward", false);
        let mut reader = Reader::bind(&sandbox.reader_side());
        let frames = frames(30);
        let begin = if is_new { 0 } else { 10 };
        if !is_new {
            let afterbay = Afterbay::run(&sandbox, &config);
            let mut sender = Sender::connect(&sandbox.scheduler_side());
            frames[..10].iter().for_each(|frame| sender.send(frame));
            assert_eq!(until_all(&mut reader, &frames[..10]), ids(&frames[..10]));
            // A stop, because a killed journal leaves preallocated room that a start would use.
            assert_eq!(afterbay.stop(), 0);
        }
        small.fill(12 * MIB);
        let afterbay = Afterbay::run(&sandbox, &config);
        let conditions = afterbay.until_degraded("journal:test");
        assert!(
            conditions.contains("frames are forwarded and not persisted")
                && conditions.contains("No space left"),
            "{conditions}"
        );
        assert_eq!(afterbay.event("JournalWriteFailed")["on_error"], "forward");
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        let (unkept, kept) = (&frames[begin..20], &frames[20..]);
        unkept.iter().for_each(|frame| sender.send(frame));
        assert_eq!(until_all(&mut reader, unkept), ids(unkept));
        small.free();
        // Without a further frame.
        afterbay.until_healthy();
        kept.iter().for_each(|frame| sender.send(frame));
        assert_eq!(until_all(&mut reader, kept), ids(kept));
        assert_eq!(afterbay.stop(), 0);
        let (code, report) = verify(&sandbox);
        assert_eq!(report["frames"], if is_new { 10 } else { 20 }, "{report}");
        assert_eq!(code, 0, "{report}");
    }
}

/// Receives frames until they have as many tokens as `frames`. Rows may be joined.
fn until_all(reader: &mut Reader, frames: &[Vec<u8>]) -> Ids {
    let tokens = |ids: &Ids| ids.values().map(Vec::len).sum::<usize>();
    let (mut received, sent) = (Vec::new(), tokens(&ids(frames)));
    while tokens(&ids(&received)) < sent {
        received.push(reader.frame());
    }
    ids(&received)
}
