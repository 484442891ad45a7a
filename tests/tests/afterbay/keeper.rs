//! The keeper of `afterbay run --keep`, and the messages to a supervisor.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};

use afterbay_supervision::fdstore::NotifySocket;
use afterbay_tests::admin::{Address, get};
use afterbay_tests::commands::{afterbay_command, run_afterbay, verify};
use afterbay_tests::frames::{SynthRequest, batch, rows};
use afterbay_tests::{Afterbay, Sandbox, Sender, until, wait_for};
use afterbay_wire::synth::SynthWire::Msgpack;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// The process ids of a keeper's workers. The follower of a killed worker is a child of the keeper, too, until it has ended.
fn children(pid: u32) -> Vec<i32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let is_worker = |pid: &i32| {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "afterbay")
    };
    text.split_whitespace().map(|pid| pid.parse().unwrap()).filter(is_worker).collect()
}

/// The process id of a process's parent.
fn has_ended(pid: u32) -> bool {
    // Its parent may not have taken its exit code.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    !stat.is_ok_and(|stat| !stat.contains(") Z "))
}

fn parent(pid: u32) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, rest) = stat.rsplit_once(')').unwrap();
    rest.split_whitespace().nth(1).unwrap().parse().unwrap()
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

/// The engine is a shell. It writes no rendezvous file, so no stream runs.
#[test]
fn a_launchers_afterbay_survives_kills_starts_again_by_its_script_and_ends_with_the_engine() {
    let sandbox = Sandbox::new();
    let (journal, log) = (sandbox.text("journal"), sandbox.text("log"));
    let launcher = ["sglang", "--admin", "none", "--journal", &journal, "--log-file", &log, "--", "sh", "-c"];
    let mut engine = afterbay_command(&[&launcher[..], &["dirname $AFTERBAY_RENDEZVOUS; read end"]].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut dir = String::new();
    BufReader::new(engine.stdout.take().unwrap()).read_line(&mut dir).unwrap();
    let dir = Path::new(dir.trim());
    let admin = Address::Unix(sandbox.path("journal/ADMIN.sock"));
    let worker = || -> u32 {
        let status: Value = serde_json::from_str(&get(&admin, "/v1/status").body).unwrap();
        status["pid"].as_u64().unwrap().try_into().unwrap()
    };
    let (first, keeper) = (worker(), parent(worker()));
    send(first as i32, Signal::KILL);
    until("the keeper starts a worker", || children(keeper).first().is_some_and(|pid| *pid != first as i32));
    let second = worker();
    assert_eq!(parent(second), keeper);

    send(keeper as i32, Signal::KILL);
    until("the keeper has ended", || parent(second) != keeper);
    let start = || Command::new("sh").arg(dir.join("start")).stderr(Stdio::piped()).spawn().unwrap();
    let refused = start().wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains(&format!("locked by process {second}")), "the worker goes on: {said}");
    send(second as i32, Signal::TERM);
    until("the worker has let go of the journal", || has_ended(second));
    let mut script = start();
    let mut lines = BufReader::new(script.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("waits for the scheduler to write")), "a new worker runs");
    send(worker() as i32, Signal::KILL);
    let line = lines.find(|line| line.contains("starts again")).unwrap();
    assert!(!line.contains(" with 0 kept"), "the new keeper has the descriptors: {line}");

    drop(engine.stdin.take());
    assert!(!engine.wait().unwrap().success(), "`read` has found no line");
    until("the launcher's directory is removed", || !dir.exists());
    let (code, rest) = (script.wait().unwrap(), lines.collect::<Vec<_>>());
    assert!(code.success(), "{code}: {rest:#?}");
}

/// The engine is a shell in the place of a scheduler that sends nothing.
#[test]
fn afterbay_is_ready_on_a_node_whose_schedulers_send_no_output_and_waits_again_after_their_end() {
    let sandbox = Sandbox::new();
    let (config, rendezvous) = (sandbox.write(&sandbox.config()), sandbox.text("r.json"));
    let words = ["run", "--config", &config, "--rendezvous", &rendezvous];
    let mut afterbay = afterbay_command(&words).stderr(Stdio::null()).spawn().unwrap();
    let socket = sandbox.path("journal/ADMIN.sock");
    until("the admin address is open", || UnixStream::connect(&socket).is_ok());
    let admin = Address::Unix(socket);
    let answers = |code: u16| get(&admin, "/readyz").status == code;
    until("it waits", || answers(503));
    let mut engine = Command::new("sleep").arg("600").spawn().unwrap();
    let silent =
        json!({"format": 1, "engine": "sglang", "pid": engine.id(), "why": "its schedulers send no output"});
    std::fs::write(sandbox.path("r.json.silent"), silent.to_string()).unwrap();
    until("it is ready", || answers(200));
    engine.kill().unwrap();
    engine.wait().unwrap();
    until("it waits again", || answers(503));
    send(afterbay.id() as i32, Signal::TERM);
    assert!(afterbay.wait().unwrap().success());
}

#[test]
fn a_launcher_whose_afterbay_cannot_start_says_so_at_once() {
    let sandbox = Sandbox::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let (admin, journal) = (taken.local_addr().unwrap().to_string(), sandbox.text("journal"));
    let launched = run_afterbay(&["sglang", "--admin", &admin, "--journal", &journal, "--", "true"]);
    assert_eq!(launched.code, 1, "{launched:?}");
    assert!(launched.stderr.contains("afterbay run has ended, see its log"), "{launched:?}");
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
