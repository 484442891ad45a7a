//! The keeper of `afterbay run --keep`, and the messages to a supervisor.

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixListener;
use std::process::Stdio;

use afterbay_fdstore::NotifySocket;
use afterbay_tests::commands::{afterbay_command, verify};
use afterbay_tests::frames::{SynthRequest, batch, rows};
use afterbay_tests::{Afterbay, Sandbox, Sender, until, wait_for};
use afterbay_wire::synth::SynthWire::Msgpack;
use rustix::process::{Pid, Signal, kill_process};

/// The process ids of a process's children.
fn children(pid: u32) -> Vec<i32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

fn send(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// Kills the keeper's worker and waits until the stream of the next one has started.
pub(super) fn kill_worker(keeper: &Afterbay) {
    let started = keeper.events("StreamStarted").len();
    send(children(keeper.pid())[0], Signal::KILL);
    until("the next worker's stream starts", || keeper.events("StreamStarted").len() > started);
}

#[test]
fn a_killed_worker_under_the_keeper_loses_no_connection_and_no_byte() {
    let sandbox = Sandbox::new();
    let (mut reader, mut credit, config) = sandbox.counting_tokenizer();
    let keeper = Afterbay::run_with(&sandbox, &config, &["--keep"]);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let mut a = SynthRequest::new("a");
    for id in 1..=6 {
        let frame = afterbay_tests::peers::framed(&batch(Msgpack, vec![a.row(&[id])]));
        // A kill in the middle of a frame, and one between two frames.
        let (head, tail) = frame.split_at(frame.len() / 2);
        sender.raw(head);
        if id % 2 == 0 {
            kill_worker(&keeper);
        }
        sender.raw(tail);
        let ids: Vec<_> = rows(&reader.frame()).into_iter().flat_map(|row| row.ids).collect();
        assert_eq!(ids, [id]);
        credit.finished().unwrap();
        if id % 3 == 0 {
            kill_worker(&keeper);
        }
    }
    assert_eq!(keeper.events("SenderConnected").len(), 1, "the sender never connects again");
    sender.send(&batch(Msgpack, vec![a.last(&[7])]));
    reader.frame();
    credit.finished().unwrap();
    assert_eq!(keeper.stop(), 0);
    assert_eq!(verify(&sandbox).0, 0);
}

#[test]
fn the_keeper_forwards_signals_and_ends_with_the_exit_code_of_its_worker() {
    let sandbox = Sandbox::new();
    let file = sandbox.replace("wrong.toml", "nonsense = 1\n");
    let status = afterbay_command(&["run", "--keep", "--config", &file]).status().unwrap();
    assert_eq!(status.code(), Some(64));

    let config = sandbox.config();
    let keeper = Afterbay::run_with(&sandbox, &config, &["--keep"]);
    sandbox.write(&config.stream("max_message = \"1MiB\""));
    keeper.hang_up();
    keeper.event("ConfigReloadFailed");
    // A worker that does nothing about SIGTERM cannot be restarted by it.
    let worker = children(keeper.pid())[0];
    send(worker, Signal::STOP);
    keeper.terminate();
    send(worker, Signal::KILL);
    let mut keeper = keeper;
    assert_eq!(keeper.wait(), 128 + 9);
}

/// Somebody listens on the stream's endpoint, so each worker fails at its start, and the delays grow.
#[test]
fn a_keeper_that_is_stopped_between_two_workers_ends_with_the_code_of_the_last_one() {
    let sandbox = Sandbox::new();
    let _listens = UnixListener::bind(sandbox.path("in")).unwrap();
    let file = sandbox.write(&sandbox.config());
    let mut command = afterbay_command(&["run", "--keep", "--config", &file]);
    let mut keeper = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(keeper.stderr.take().unwrap()).lines().map(Result::unwrap);
    let delay = |line: &str| {
        let (_, rest) = line.split_once("starts again in ")?;
        rest.split_once(" ms")?.0.parse::<u64>().ok()
    };
    let long = lines.find(|line| delay(line).is_some_and(|millis| millis >= 800)).unwrap();
    assert!(long.contains("exited with 1"), "{long}");
    send(keeper.id() as i32, Signal::TERM);
    assert_eq!(keeper.wait().unwrap().code(), Some(1));
    let rest: Vec<String> = lines.collect();
    assert!(rest.is_empty(), "another worker was started: {rest:?}");
}

#[test]
fn the_supervisor_hears_ready_status_reloading_stopping_and_the_watchdogs_pings() {
    let sandbox = Sandbox::new();
    let socket = NotifySocket::bind(sandbox.path("notify")).unwrap();
    // The first message with this word.
    let next = |word: &str| {
        wait_for(word, || socket.receive().unwrap().filter(|message| message.value(word).is_some()))
    };
    let variables = [("NOTIFY_SOCKET", socket.path().to_str().unwrap()), ("WATCHDOG_USEC", "200000")];
    let afterbay = Afterbay::run_in(&sandbox, &sandbox.config(), &variables);
    let status = next("READY").value("STATUS").unwrap().to_owned();
    assert_eq!(status, "streams: 1, frames/s: 0, readers connected: 0 of 1, frames waiting: 0");
    assert!(next("WATCHDOG").says("WATCHDOG"));
    afterbay.hang_up();
    let reloading = next("RELOADING");
    assert!(reloading.value("MONOTONIC_USEC").unwrap().parse::<u64>().unwrap() > 0);
    next("READY");
    afterbay.terminate();
    next("STOPPING");
    assert_eq!(afterbay.stop(), 0);
}
