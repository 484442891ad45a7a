//! Other processes and threads: readers beside a writer, and a second process at the lock.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::*;
use afterbay_journal::reader::{JournalReader, JournalRecord, ReadFrom, RequestFilter};
use afterbay_journal::*;

const CHILD_DIR: &str = "AFTERBAY_JOURNAL_TEST_DIR";

/// Starts a child that runs the ignored test of this name on `dir`.
fn child(name: &str, dir: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("process::{name}"), "--ignored", "--nocapture"])
        .env(CHILD_DIR, dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn wait_for(child: &mut Child, word: &str) {
    let out = BufReader::new(child.stdout.as_mut().unwrap());
    assert!(out.lines().any(|line| line.unwrap().contains(word)), "the child never said {word:?}");
}

/// Directory of a child; `None` in a run of all ignored tests.
fn child_dir() -> Option<std::path::PathBuf> {
    std::env::var_os(CHILD_DIR).map(Into::into)
}

#[test]
#[ignore = "the child of another test"]
fn child_holds_the_lock() {
    let Some(dir) = child_dir() else { return };
    let (_directory, mut writer, _) = open(&dir, options());
    let request = writer.open("of the child");
    step(&mut writer, &[request], b"of the child", 1);
    writer.flush().unwrap();
    println!("ready");
    std::io::stdout().flush().unwrap();
    // Wait until killed, or until the parent exits.
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

#[test]
fn a_second_process_gets_the_pid_of_the_lock_and_may_still_read() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = child("child_holds_the_lock", dir.path());
    wait_for(&mut child, "ready");
    let error = JournalDirectory::open(dir.path(), options()).err().expect("it is locked");
    assert_eq!(
        error.to_string(),
        format!("journal {}: locked by process {}", dir.path().display(), child.id())
    );
    let lives = reader(dir.path()).lives("of the child").unwrap();
    assert_eq!(lives[0].rows.len(), 1);

    // The killed process has released the lock and left what it wrote.
    child.kill().unwrap();
    child.wait().unwrap();
    let (_directory, _writer, recovered) = open(dir.path(), options());
    assert_eq!(recovered.live.len(), 1);
    assert_eq!(recovered.last_frame, FrameNo(1));
}

#[test]
#[ignore = "the child of another test"]
fn child_writes_forever() {
    let Some(dir) = child_dir() else { return };
    let (_directory, mut writer, _) = open(&dir, JournalOptions { segment_bytes: 1 << 20, ..options() });
    println!("ready");
    let mut random = Random(7);
    for ns in 0.. {
        let request = writer.open(format!("rid-{ns}"));
        let length = random.below(5000) as usize;
        let mut bytes = random.bytes(length);
        // A checksum makes each frame verifiable on its own.
        bytes.extend_from_slice(&(bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>()).to_le_bytes());
        let frame = writer.append(&bytes, ns).unwrap().frame;
        writer.outcome(&plain_outcome(frame, &[request], &[1]));
        writer.close(request);
    }
}

fn is_right(bytes: &[u8]) -> bool {
    let (body, sum) = bytes.split_at(bytes.len() - 8);
    body.iter().map(|&byte| u64::from(byte)).sum::<u64>().to_le_bytes() == sum
}

#[test]
fn a_writer_killed_at_any_moment_leaves_a_clean_journal() {
    for round in 0..6 {
        let dir = tempfile::tempdir().unwrap();
        let mut child = child("child_writes_forever", dir.path());
        wait_for(&mut child, "ready");
        // Read beside the writer all the time.
        let mut tail = reader(dir.path()).tail(ReadFrom::Start).unwrap();
        let (until, mut last) = (Instant::now() + Duration::from_millis(100 + 70 * round), 0);
        while Instant::now() < until {
            match tail.next().unwrap() {
                Some(JournalRecord::Frame(frame)) => {
                    assert_eq!(frame.position.frame.0, last + 1, "frames come in order, none left out");
                    assert!(is_right(&frame.bytes));
                    last += 1;
                }
                Some(JournalRecord::Corrupt(id, offset, bytes)) => panic!("{id} {offset} {bytes} corrupt"),
                Some(_) => {}
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(last > 0, "something was read");
        let (directory, writer, recovered) = open(dir.path(), options());
        assert!(recovered.corrupt.is_empty() && recovered.last_frame.0 >= last);
        assert!(recovered.unfinished.len() <= 1, "only the last outcome had not been written");
        drop((writer, directory));
        let frames: Vec<_> =
            reader(dir.path()).frames(ReadFrom::Start).unwrap().map(Result::unwrap).collect();
        assert_eq!(frames.len() as u64, recovered.last_frame.0);
        assert!(frames.iter().all(|(frame, _)| is_right(&frame.bytes)));
        let report = reader(dir.path()).verify().unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
    }
}

#[test]
fn readers_see_only_complete_records_while_a_thread_writes_and_retention_removes() {
    let dir = tempfile::tempdir().unwrap();
    let small = JournalOptions {
        segment_bytes: 64 << 10,
        retain_bytes: Some(512 << 10),
        sync: SyncPolicy::Always,
        ..options()
    };
    let (directory, mut writer, _) = open(dir.path(), small);
    let done = Arc::new(AtomicBool::new(false));
    let stop = done.clone();
    let reading = std::thread::spawn({
        let path = dir.path().to_owned();
        move || {
            let (mut rounds, mut seen) = (0, 0);
            while !stop.load(Ordering::Acquire) {
                let Ok(stream) = JournalReader::open(&path).unwrap().stream("s") else { continue };
                for info in stream.requests(RequestFilter::default()).unwrap() {
                    assert!(info.unwrap().rid.starts_with("rid"));
                }
                let mut last = 0;
                for item in stream.frames(ReadFrom::Start).unwrap() {
                    let (frame, _) = item.unwrap();
                    assert!(frame.position.frame.0 > last && is_right(&frame.bytes));
                    last = frame.position.frame.0;
                    seen += 1;
                }
                let problems = stream.verify().unwrap().problems;
                assert!(problems.is_empty(), "{problems:?}");
                rounds += 1;
            }
            (rounds, seen)
        }
    });
    let mut random = Random(1);
    let until = Instant::now() + Duration::from_secs(2);
    let mut ns = 0;
    while Instant::now() < until {
        let request = writer.open(format!("rid-{ns}"));
        let length = random.below(3000) as usize;
        let mut bytes = random.bytes(length);
        bytes.extend_from_slice(&(bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>()).to_le_bytes());
        step(&mut writer, &[request], &bytes, ns);
        writer.close(request);
        ns += 1;
        if ns % 50 == 0 {
            directory.tend();
        }
    }
    let last = FrameNo(ns);
    writer.flush().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while writer.durable() < last && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(writer.durable(), last, "all becomes durable");
    done.store(true, Ordering::Release);
    let (rounds, seen) = reading.join().unwrap();
    assert!(rounds > 0 && seen > 0, "{rounds} rounds, {seen} frames");
}

#[test]
fn a_lock_goes_over_by_its_descriptor_and_no_moment_has_no_lock() {
    let dir = tempfile::tempdir().unwrap();
    let (earlier, writer, _) = open(dir.path(), options());
    let lock = || earlier.lock_descriptor().unwrap().unwrap();
    drop(writer);
    earlier.pause();
    let is_locked = || matches!(JournalDirectory::open(dir.path(), options()), Err(OpenError::Locked { .. }));
    // A new process that fails: the earlier one still has its lock.
    let failed = JournalDirectory::take_over(dir.path(), options(), lock()).unwrap();
    drop(failed.stream("s").unwrap());
    drop(failed);
    assert!(is_locked());
    earlier.claim();
    drop(earlier.stream("s").unwrap());
    earlier.pause();
    let next = JournalDirectory::take_over(dir.path(), options(), lock()).unwrap();
    drop(next.stream("s").unwrap());
    drop(earlier);
    assert!(is_locked());
    next.claim();
    drop(next);
    unlocked(|| JournalDirectory::open(dir.path(), options())).unwrap();
}

#[test]
fn a_lock_of_another_directory_is_refused() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (directory, ..) = open(other.path(), options());
    let lock = directory.lock_descriptor().unwrap().unwrap();
    drop(JournalDirectory::open(dir.path(), options()).unwrap());
    let error = JournalDirectory::take_over(dir.path(), options(), lock).err().unwrap();
    assert!(error.to_string().ends_with("the inherited lock is of another directory"), "{error}");
}
