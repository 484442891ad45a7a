//! A disk that fills up, on a file system of 12 MiB: after it is freed, a restart repeats nothing that the reader has had.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use afterbay_sockets::credit::CreditWriter;
use afterbay_tests::commands::verify;
use afterbay_tests::frames::{Ids, SynthRequest, batch, ids, rows};
use afterbay_tests::{Afterbay, Config, Reader, Sandbox, Sender, until};
use afterbay_wire::synth::SynthWire::Msgpack;

const ROWS: usize = 256;
const TOKENS: i64 = 20;
const MIB: usize = 1 << 20;

/// The journal's directory as a file system of its own, where this machine lets a test mount one.
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

    /// Takes up room; where there is less than that, all there is.
    fn fill(&self, bytes: usize) {
        let _full = std::fs::write(self.ballast(), vec![0; bytes]);
    }

    fn free(&self) {
        std::fs::remove_file(self.ballast()).unwrap();
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // Busy only while a process that a failed test has left still runs.
        let _ = Command::new("umount").args(["-l".as_ref(), self.0.as_os_str()]).status();
    }
}

/// Frames of as many rows each; an id is never the same twice in a request.
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

/// What a reader's thread is told.
#[derive(Clone, Default)]
struct Told {
    /// To read nothing for now.
    paused: Arc<AtomicBool>,
    /// That nothing more comes.
    over: Arc<AtomicBool>,
}

/// Reads, and counts where it has a page, until it is told that nothing more comes.
fn read_all(sandbox: &Sandbox, counts: bool, told: &Told) -> JoinHandle<Vec<Vec<u8>>> {
    let mut reader = Reader::bind(&sandbox.reader_side());
    let mut credit = counts.then(|| CreditWriter::open(&sandbox.credit()).unwrap());
    let told = told.clone();
    std::thread::spawn(move || {
        let mut had = Vec::new();
        loop {
            if told.paused.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            match reader.next_within(Duration::from_millis(20)) {
                Some(frame) => {
                    had.push(frame);
                    if let Some(credit) = &mut credit {
                        credit.finished().unwrap();
                    }
                }
                None if told.over.load(Ordering::SeqCst) => return had,
                None => {}
            }
        }
    })
}

fn until_drained(afterbay: &Afterbay) {
    until("all is with the reader", || {
        let metrics = afterbay.metrics();
        let waits = metrics.stream("outbox_frames") + metrics.stream("spilled_frames");
        waits + metrics.sink("lag_frames") + metrics.sink("queue_frames") == 0
    });
}

fn config(sandbox: &Sandbox, on_error: &str, counts: bool) -> Config {
    let config = sandbox.config().sink("reader = \"tokenizer\"").journal("segment = \"1MiB\"");
    let config = config.journal(&format!("on_error = {on_error:?}"));
    if counts { config.credit(sandbox) } else { config }
}

/// What the reader had in both lives, and what the second has said.
fn fill_stop_free_and_start(on_error: &str, counts: bool, is_killed: bool, more: i64) -> Option<(Ids, Ids)> {
    let sandbox = Sandbox::new();
    let small = Small::mount(&sandbox)?;
    let config = config(&sandbox, on_error, counts);
    let told = Told::default();
    let reads = read_all(&sandbox, counts, &told);
    let afterbay = Afterbay::run_with(&sandbox, &config, &["--drain-timeout", "500ms"]);
    let frames = frames(20 + more);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    frames[..20].iter().for_each(|frame| sender.send(frame));
    afterbay.until_metrics("the first are taken", |metrics| metrics.sink("taken_frame") == 20);
    small.fill(7 * MIB);
    // What is in the journal leaves when the disk is full.
    told.paused.store(true, Ordering::SeqCst);
    let sent = frames[20..].iter().take_while(|frame| sender.try_send(frame, Duration::from_millis(500)));
    let sent = 20 + sent.count();
    if on_error == "forward" {
        let said = afterbay.until_degraded("journal:test");
        assert_eq!(sent, frames.len());
        assert!(said.contains("frames are forwarded and not kept"), "{said}");
    } else {
        let said = afterbay.until_ready(503);
        assert!(said.contains("nothing is received or sent that cannot be recorded"), "{said}");
    }
    told.paused.store(false, Ordering::SeqCst);
    until_drained(&afterbay);
    if is_killed {
        afterbay.kill();
    } else {
        let code = afterbay.stop();
        assert!(on_error == "forward" || code == 1, "a frame could not be kept, and the exit code is {code}");
    }
    drop(sender);
    small.free();
    let afterbay = Afterbay::run(&sandbox, &config);
    afterbay.until_healthy();
    until_drained(&afterbay);
    assert_eq!(afterbay.stop(), 0);
    told.over.store(true, Ordering::SeqCst);
    let had = reads.join().unwrap();
    let (code, report) = verify(&sandbox);
    assert_eq!(code, 0, "{report}");
    let sent = ids(&frames[..sent]);
    for row in had.iter().flat_map(|frame| rows(frame)) {
        assert!(!row.ids.is_empty(), "{row:?}");
    }
    Some((ids(&had), sent))
}

fn repeats(had: &Ids) -> usize {
    had.values().flat_map(|ids| ids.windows(2)).filter(|pair| pair[1] <= pair[0]).count()
}

#[test]
fn a_restart_after_a_full_disk_repeats_no_sent_token() {
    for (counts, is_killed) in [(true, true), (false, false)] {
        let Some((had, sent)) = fill_stop_free_and_start("stop", counts, is_killed, 80) else { return };
        assert_eq!(repeats(&had), 0, "counts: {counts}, killed: {is_killed}");
        for (rid, ids) in &had {
            assert!(sent[rid].starts_with(ids), "{rid}: something is missing in between");
        }
    }
}

#[test]
fn a_restart_after_unpersisted_frames_repeats_no_sent_token() {
    // The last are more than the room for their records lasts.
    for (counts, is_killed, more) in [(false, false, 80), (true, true, 400)] {
        let Some((had, sent)) = fill_stop_free_and_start("forward", counts, is_killed, more) else { return };
        assert_eq!(repeats(&had), 0, "counts: {counts}, killed: {is_killed}");
        assert_eq!(had, sent, "counts: {counts}, killed: {is_killed}");
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
            // A journal that was killed has room set aside, which a start would find.
            assert_eq!(afterbay.stop(), 0);
        }
        small.fill(12 * MIB);
        let afterbay = Afterbay::run(&sandbox, &config);
        let said = afterbay.until_degraded("journal:test");
        assert!(
            said.contains("frames are forwarded and not kept") && said.contains("No space left"),
            "{said}"
        );
        assert_eq!(afterbay.event("JournalWriteFailed")["on_error"], "forward");
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        let (unkept, kept) = (&frames[begin..20], &frames[20..]);
        unkept.iter().for_each(|frame| sender.send(frame));
        assert_eq!(until_all(&mut reader, unkept), ids(unkept));
        small.free();
        // With no frame to find it out.
        afterbay.until_healthy();
        kept.iter().for_each(|frame| sender.send(frame));
        assert_eq!(until_all(&mut reader, kept), ids(kept));
        assert_eq!(afterbay.stop(), 0);
        let (code, report) = verify(&sandbox);
        assert_eq!(report["frames"], if is_new { 10 } else { 20 }, "{report}");
        assert_eq!(code, 0, "{report}");
    }
}

/// Reads until as many tokens have come as are in these frames. Their rows may come joined.
fn until_all(reader: &mut Reader, frames: &[Vec<u8>]) -> Ids {
    let tokens = |ids: &Ids| ids.values().map(Vec::len).sum::<usize>();
    let (mut had, sent) = (Vec::new(), tokens(&ids(frames)));
    while tokens(&ids(&had)) < sent {
        had.push(reader.frame());
    }
    ids(&had)
}
