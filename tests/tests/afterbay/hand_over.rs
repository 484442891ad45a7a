//! A new process takes the place of a running one: under load, and with every failure before it runs.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use afterbay_tests::commands::{journal, run_afterbay, verify};
use afterbay_tests::components::guest;
use afterbay_tests::frames::{SynthRequest, batch, row, rows};
use afterbay_tests::holds::{HOLD, LONG, RELEASE};
use afterbay_tests::peers::{Input, framed};
use afterbay_tests::{Afterbay, Reader, Sandbox, Sender};
use afterbay_wire::synth::SynthWire::Msgpack;
use serde_json::Value;

use super::attributes::set_attributes;
use crate::python::{PythonPeer, python};

const HAND_OVERS: u64 = 3;
const FRAMES_EACH: u64 = 400;
const FRAME_BYTES: usize = 3000;

/// Sends numbered frames by libzmq during hand-overs. Returns the numbers that the reader got, and its connections.
fn hand_overs_under_load(listen: &str, connect: &str, sandbox: &Sandbox) -> (Vec<u64>, usize) {
    let config = sandbox.config().listen(listen).connect(connect);
    let mut reader = Reader::bind(connect);
    let ends = Arc::new(AtomicBool::new(false));
    let reading = std::thread::spawn({
        let ends = ends.clone();
        move || {
            let mut numbers = Vec::new();
            loop {
                match reader.next_within(Duration::from_millis(100)) {
                    Some(frame) => numbers.push(u64::from_le_bytes(frame[8..16].try_into().unwrap())),
                    // Every frame has been received.
                    None if ends.load(Ordering::SeqCst) => break (numbers, reader.accepted),
                    None => {}
                }
            }
        }
    });
    let mut peer = PythonPeer::start();
    let mut afterbay = Afterbay::run(sandbox, &config);
    peer.ask(&format!("push a connect {listen}"));
    for round in 0..HAND_OVERS {
        for at in (0..FRAMES_EACH).step_by(20) {
            peer.send_command(&format!("send a 1 {} 20 {FRAME_BYTES}", round * FRAMES_EACH + at));
            peer.send_command("sleep 10");
        }
        afterbay.upgrade(&[]).success();
        (0..FRAMES_EACH / 20).for_each(|_| drop((peer.answer(), peer.answer())));
    }
    let all = HAND_OVERS * FRAMES_EACH;
    afterbay.until_metrics("every frame is sent", |metrics| metrics.sink("taken_frame") == all);
    for event in ["TookOver", "HandOverFinished"] {
        afterbay.all_events(event, HAND_OVERS as usize);
    }
    assert!(afterbay.events("SenderClosed").is_empty(), "{}", afterbay.log());
    assert_eq!(afterbay.stop(), 0);
    ends.store(true, Ordering::SeqCst);
    reading.join().unwrap()
}

#[test]
fn a_new_process_takes_over_under_load_on_the_same_connections() {
    let port = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for is_tcp in [false, true] {
        let sandbox = Sandbox::new();
        let (listen, connect) = match is_tcp {
            true => (format!("tcp://127.0.0.1:{}", port()), format!("tcp://127.0.0.1:{}", port())),
            false => (sandbox.scheduler_side(), sandbox.reader_side()),
        };
        let (numbers, connections) = hand_overs_under_load(&listen, &connect, &sandbox);
        let all: Vec<u64> = (0..HAND_OVERS * FRAMES_EACH).collect();
        assert_eq!(numbers, all, "{listen}");
        assert_eq!(connections, 1, "{listen}");
        let (code, report) = verify(&sandbox);
        assert_eq!((code, &report["frames"]), (0, &(HAND_OVERS * FRAMES_EACH).into()), "{report}");
    }
}

#[test]
fn rows_held_in_two_streams_continue_in_the_next_process() {
    let sandbox = Sandbox::new();
    let end = |end: &str, rank: usize| sandbox.ipc(&format!("{end}-{rank}"));
    let ranks = [0, 1];
    let streams = ranks.map(|rank| {
        format!(
            "[[stream]]\nname = \"rank-{rank}\"\nlisten = {:?}\n\
             sink = [{{ name = \"reader\", connect = {:?}, reader = \"tokenizer\", tool_calls = \"joined\" }}]\n\
             [[stream.plugin]]\nname = \"holds\"\ncomponent = {:?}\nsettings = {{ {LONG} }}\n\
             limits = {{ deadline = \"10s\", hold = \"60s\" }}\n",
            end("in", rank),
            end("out", rank),
            guest("holds"),
        )
    });
    let rest = format!("[journal]\ndir = {:?}\n[admin]\nlisten = \"127.0.0.1:0\"\n", sandbox.journal());
    let mut readers = ranks.map(|rank| Reader::bind(&end("out", rank)));
    let mut afterbay = Afterbay::run_toml(&sandbox, &(streams.concat() + &rest), &[]);
    let mut senders = ranks.map(|rank| Sender::connect(&end("in", rank)));
    let mut requests =
        ranks.map(|rank| ["held", "plain"].map(|it| SynthRequest::new(&format!("{it}-{rank}"))));
    let mut tails = Vec::new();
    for (rank, [held, plain]) in requests.iter_mut().enumerate() {
        senders[rank].send(&batch(Msgpack, vec![held.row(&[HOLD]), plain.row(&[1])]));
        assert_eq!(rows(&readers[rank].frame()), [row(&format!("plain-{rank}"), &[1], 1, None)]);
        // A frame of which half is on its way at the hand-over.
        let frame = framed(&batch(Msgpack, vec![held.row(&[5]), plain.row(&[2])]));
        let (head, tail) = frame.split_at(frame.len() / 2);
        senders[rank].raw(head);
        tails.push(tail.to_vec());
    }
    afterbay.upgrade(&[]).success();
    for (rank, [held, plain]) in requests.iter_mut().enumerate() {
        let (held_rid, plain_rid) = (format!("held-{rank}"), format!("plain-{rank}"));
        senders[rank].raw(&tails[rank]);
        assert_eq!(rows(&readers[rank].frame()), [row(&plain_rid, &[2], 2, None)], "the other row waits too");
        senders[rank].send(&batch(Msgpack, vec![held.last(&[RELEASE]), plain.last(&[3])]));
        let out = [
            row(&held_rid, &[HOLD, 5, RELEASE], 3, Some("length")),
            row(&plain_rid, &[3], 3, Some("length")),
        ];
        assert_eq!(rows(&readers[rank].frame()), out);
    }
    assert_eq!(afterbay.event("TookOver")["streams"], 2);
    assert!(afterbay.events("SenderClosed").is_empty(), "{}", afterbay.log());
    assert_eq!(readers.map(|reader| reader.accepted), [1, 1]);
    assert_eq!(afterbay.stop(), 0);
    journal(&sandbox, &["verify"]).success();
}

/// A new process that fails at a step, in place of a binary. Its standard input is the connection.
const FAILING: &str = r#"
import os, signal, socket, sys
step, formats = sys.argv[1:]
if step == "crash":
    os.kill(os.getpid(), signal.SIGKILL)
s = socket.socket(fileno=0)
def receive():
    text, fds, _, _ = socket.recv_fds(s, 4096, 8)
    for fd in fds:
        os.close(fd)
    return text.decode()
if step == "garbage":
    s.send(b"GET / HTTP/1.1")
    sys.exit(receive() and 5)
if step == "formats":
    formats = "journal 0"
s.send(f"VERSION=99.0.0\nFORMATS={formats}\nMAINPID={os.getpid()}".encode())
if step == "asked":
    sys.exit(6)
message = receive()
if not message:
    sys.exit(7)
if step == "descriptors":
    sys.exit(8)
while message != "STATE=1":
    message = receive()
if step == "failed":
    s.send(b"FAILED=the disk is full")
elif step == "built":
    s.send(b"SURPRISE=1")
elif step == "ready":
    s.send(b"READY=1")
os.kill(os.getpid(), signal.SIGKILL)
"#;

#[test]
fn a_hand_over_that_fails_at_any_step_leaves_the_running_process_as_it_was() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let mut afterbay = Afterbay::run(&sandbox, &sandbox.config());
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let mut live = SynthRequest::new("live");
    let mut step = || {
        let frame = batch(Msgpack, vec![live.row(&[1])]);
        sender.send(&frame);
        assert_eq!(reader.frame(), frame);
    };
    step();
    sandbox.replace("failing.py", FAILING);
    let binary = sandbox.text("binary");
    let version = run_afterbay(&["--version"]).success();
    let formats = version.lines().find_map(|line| line.strip_prefix("formats:")).unwrap().trim();
    for (name, why) in [
        ("crash", "ended before it took over (signal: 9 (SIGKILL))"),
        ("garbage", "a message that does not say VERSION"),
        ("wrapper", "the binary starts another process"),
        ("formats", "its formats are \"journal 0\", those of the running process \"journal"),
        ("asked", "ended before it took over (exit status: 6)"),
        ("descriptors", "ended before it took over (exit status: 8)"),
        ("failed", "the new process: the disk is full"),
        ("built", "a message that does not say READY"),
        ("ready", "ended before it took over (signal: 9 (SIGKILL))"),
    ] {
        let (python, script) = (python().display().to_string(), sandbox.text("failing.py"));
        let exec = if name == "wrapper" { "" } else { "exec " };
        let script = format!("#!/bin/sh\n{exec}'{python}' '{script}' {name} '{formats}'\nexit 0\n");
        sandbox.replace("binary", script);
        std::fs::set_permissions(&binary, std::fs::Permissions::from_mode(0o700)).unwrap();
        let pid = afterbay.pid();
        let done = afterbay.upgrade(&["--binary", &binary]);
        let said: Value = serde_json::from_str(&done.stdout).unwrap();
        assert!(done.code == 1 && said["error"].as_str().unwrap().contains(why), "{name}: {said}");
        step();
        assert_eq!(afterbay.pid(), pid);
        assert_eq!(set_attributes(&afterbay, "later", r#"{"n":1}"#).0, 200, "{name}");
    }
    for event in ["HandOverBegun", "HandOverFailed"] {
        afterbay.all_events(event, 6);
    }
    assert!(afterbay.events("SenderClosed").is_empty() && reader.accepted == 1, "{}", afterbay.log());
    afterbay.upgrade(&[]).success();
    let frame = batch(Msgpack, vec![live.last(&[1])]);
    sender.send(&frame);
    assert_eq!(reader.frame(), frame);
    assert_eq!((afterbay.stop(), verify(&sandbox).0), (0, 0));
}

#[test]
fn attributes_the_admin_sockets_and_the_socket_for_aborts_go_over() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let config = sandbox.config().abort_by_push(&sandbox);
    let mut afterbay = Afterbay::run(&sandbox, &config);
    let scheduler = Input::connect(&sandbox.abort_side());
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let mut live = SynthRequest::new("live");
    let first = batch(Msgpack, vec![live.row(&[1])]);
    sender.send(&first);
    assert_eq!(reader.frame(), first);
    assert_eq!(set_attributes(&afterbay, "live", r#"{"n":1}"#).0, 200);
    let tcp = afterbay.tcp();
    afterbay.upgrade(&[]).success();
    let answer = afterbay.get("/v1/requests/live/attributes");
    assert!(answer.status == 200 && answer.body.contains(r#"{"n":1}"#), "{}", answer.body);
    assert_eq!(afterbay_tests::admin::get(&tcp, "/healthz").status, 200);
    // The earlier process has closed its connection to the scheduler, which connects again to the same socket.
    drop(scheduler);
    let mut scheduler = Input::connect(&sandbox.abort_side());
    // The form of an abort follows that of the batches.
    sender.send(&batch(Msgpack, vec![live.row(&[2])]));
    reader.frame();
    afterbay.abort_connected("live", &[]);
    assert_eq!(scheduler.abort(), "live");
    sender.send(&batch(Msgpack, vec![live.last(&[3])]));
    reader.frame();
    assert_eq!(afterbay.stop(), 0);
    assert!(!sandbox.path("in").exists(), "the inherited listener gives its name back");
}

#[test]
fn a_take_over_by_hand_and_an_upgrade_without_a_running_process_are_errors() {
    let sandbox = Sandbox::new();
    let file = sandbox.write(&sandbox.config());
    let done = run_afterbay(&["run", "--take-over", "--config", &file]);
    assert!(
        done.code == 1 && done.stderr.contains("for the process that `afterbay upgrade` starts"),
        "{done:?}"
    );
    let done = run_afterbay(&["upgrade", "--config", &file]);
    assert!(done.code == 1 && done.stderr.contains("admin unix:"), "{done:?}");
}

#[test]
fn a_changed_configuration_that_a_reload_refuses_comes_into_force() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let mut afterbay = Afterbay::run(&sandbox, &sandbox.config());
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let mut live = SynthRequest::new("live");
    sender.send(&batch(Msgpack, vec![live.row(&[1])]));
    reader.frame();
    sandbox.write(&sandbox.config().stream("max_peers = 7").listen(&sandbox.ipc("moved")));
    afterbay.event("ConfigReloadFailed");
    afterbay.upgrade(&[]).success();
    // The connections stay, and new ones go to the new name.
    let frame = batch(Msgpack, vec![live.row(&[2])]);
    sender.send(&frame);
    assert_eq!(reader.frame(), frame);
    let mut other = Sender::connect(&sandbox.ipc("moved"));
    let frame = batch(Msgpack, vec![live.last(&[3])]);
    other.send(&frame);
    assert_eq!(reader.frame(), frame);
    assert_eq!((afterbay.stop(), reader.accepted), (0, 1));
}
