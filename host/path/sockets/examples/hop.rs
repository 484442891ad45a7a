//! Measures a hop through Pull and Push over ipc, beside libzmq's own proxy and beside no hop at all, in one run:
//!
//! `cargo run --release -p afterbay-sockets --example hop`
//!
//! All three share a source and a sink that speak ZMTP by hand on blocking sockets. Each forwarder is a process of its
//! own. Latency: one frame in flight, from before its write to after its read. Throughput: as fast as possible. The
//! example prints the best of several rounds, because machines are shared.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use afterbay_sockets::zmtp::{Conversation, FrameHeader, Role, ZmtpEvent};
use afterbay_sockets::{Endpoint, OutgoingFrame, Pull, PullOptions, Push, PushOptions, TokenRange};

const ROUNDS: usize = 3;
const PROXY: &str = "
import sys, zmq
context = zmq.Context()
pull, push = context.socket(zmq.PULL), context.socket(zmq.PUSH)
for socket in (pull, push):
    socket.set(zmq.RCVHWM, 0)
    socket.set(zmq.SNDHWM, 0)
pull.bind('ipc://' + sys.argv[1])
push.connect('ipc://' + sys.argv[2])
zmq.proxy(pull, push)
";

#[derive(Clone, Copy, Debug)]
enum Hop {
    Direct,
    Own,
    Libzmq,
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, command, input, output] = &arguments[..] {
        assert_eq!(command, "forward");
        return forward(Path::new(input), Path::new(output));
    }
    let hops = [Hop::Direct, Hop::Own, Hop::Libzmq];
    // Results by measurement and by hop.
    let mut best = [[0.0f64; 3]; 6];
    for _ in 0..ROUNDS {
        for (hop, column) in hops.into_iter().zip(0..) {
            let mut path = Path3::new(hop);
            let (p50, p99) = path.latency(1000, 5_000);
            let (small, small_cpu) = path.frames_a_second(1000, 200_000);
            let (big, big_cpu) = path.frames_a_second(100_000, 10_000);
            let figures = [p50, p99, small, big, small_cpu, big_cpu];
            for (row, figure) in figures.into_iter().enumerate() {
                let is_better = if !matches!(row, 2 | 3) {
                    figure < best[row][column]
                } else {
                    figure > best[row][column]
                };
                if is_better || best[row][column] == 0.0 {
                    best[row][column] = figure;
                }
            }
        }
    }
    println!("{:34}{:>12}{:>14}{:>14}{:>22}", "", "direct", "Pull -> Push", "libzmq proxy", "libzmq / ours");
    for (name, row, unit) in [
        ("1 KB, latency p50, us", 0, 1.0),
        ("1 KB, latency p99, us", 1, 1.0),
        ("1 KB, thousand frames a second", 2, 1e-3),
        ("100 KB, thousand frames a second", 3, 1e-3),
        ("1 KB, forwarder's CPU a frame, us", 4, 1.0),
        ("100 KB, forwarder's CPU a frame, us", 5, 1.0),
    ] {
        let [direct, own, libzmq] = best[row].map(|figure| figure * unit);
        println!("{name:34}{direct:>12.1}{own:>14.1}{libzmq:>14.1}{:>22.2}", libzmq / own);
    }
    let added = |column: usize| best[0][column] - best[0][0];
    println!(
        "{:34}{:>12}{:>14.1}{:>14.1}{:>22.2}",
        "1 KB, the hop alone p50, us",
        "",
        added(1),
        added(2),
        added(2) / added(1)
    );
}

/// A source, perhaps a forwarder, and a sink.
struct Path3 {
    source: UnixStream,
    sink: UnixStream,
    zmtp: Conversation,
    buffer: Vec<u8>,
    forwarder: Option<Child>,
    _dir: tempfile::TempDir,
}

impl Drop for Path3 {
    fn drop(&mut self) {
        if let Some(child) = &mut self.forwarder {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Path3 {
    fn new(hop: Hop) -> Path3 {
        let dir = tempfile::tempdir().unwrap();
        let (input, output) = (dir.path().join("in"), dir.path().join("out"));
        let listener = UnixListener::bind(&output).unwrap();
        let forwarder = match hop {
            Hop::Direct => None,
            Hop::Own => Some(
                Command::new(std::env::current_exe().unwrap())
                    .arg("forward")
                    .args([&input, &output])
                    .spawn()
                    .unwrap(),
            ),
            Hop::Libzmq => {
                Some(Command::new(python()).args(["-c", PROXY]).args([&input, &output]).spawn().unwrap())
            }
        };
        let (source, sink) = match hop {
            Hop::Direct => UnixStream::pair().unwrap(),
            _ => {
                let (sink, _) = listener.accept().unwrap();
                (connect(&input), sink)
            }
        };
        let mut path = Path3 {
            source,
            sink,
            zmtp: Conversation::new(Role::Pull, 1 << 30),
            buffer: vec![0; 256 << 10],
            forwarder,
            _dir: dir,
        };
        path.source.write_all(&hello(Role::Push)).unwrap();
        if !matches!(hop, Hop::Direct) {
            // libzmq receives no message before it has sent its READY.
            let mut zmtp = Conversation::new(Role::Push, 0);
            while !zmtp.is_ready() {
                let read = path.source.read(&mut path.buffer).unwrap();
                let mut input = &path.buffer[..read];
                while !input.is_empty() {
                    input = &input[zmtp.feed(input).unwrap().0..];
                }
            }
            path.sink.write_all(&hello(Role::Pull)).unwrap();
        }
        path.source.write_all(&frame(1)).unwrap();
        path.receive(1);
        path
    }

    fn receive(&mut self, count: usize) {
        receive(&mut self.sink, &mut self.zmtp, &mut self.buffer, count);
    }

    /// p50 and p99 in microseconds.
    fn latency(&mut self, size: usize, count: usize) -> (f64, f64) {
        let frame = frame(size);
        let mut times: Vec<Duration> = (0..count)
            .map(|_| {
                let start = Instant::now();
                self.source.write_all(&frame).unwrap();
                self.receive(1);
                start.elapsed()
            })
            .collect();
        times.sort();
        let at = |part: f64| times[(count as f64 * part) as usize].as_secs_f64() * 1e6;
        (at(0.5), at(0.99))
    }

    /// Frames per second, and CPU microseconds of all the forwarder's threads per frame.
    fn frames_a_second(&mut self, size: usize, count: usize) -> (f64, f64) {
        // One write has as many frames as a sender's queue would give.
        let together = (64 << 10) / size + 1;
        let count = count / together * together;
        let frames = frame(size).repeat(together);
        let cpu = self.cpu_ns();
        let start = Instant::now();
        let mut source = self.source.try_clone().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || (0..count / together).for_each(|_| source.write_all(&frames).unwrap()));
            self.receive(count);
        });
        (count as f64 / start.elapsed().as_secs_f64(), (self.cpu_ns() - cpu) as f64 / 1e3 / count as f64)
    }

    fn cpu_ns(&self) -> u64 {
        let Some(forwarder) = &self.forwarder else { return 0 };
        let tasks = std::fs::read_dir(format!("/proc/{}/task", forwarder.id())).unwrap();
        let of = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("schedstat")).unwrap();
        tasks.map(|task| of(task.unwrap()).split(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    }
}

fn receive(sink: &mut UnixStream, zmtp: &mut Conversation, buffer: &mut [u8], count: usize) {
    let mut got = 0;
    while got < count {
        let read = sink.read(buffer).unwrap();
        assert!(read > 0);
        let mut input = &buffer[..read];
        while !input.is_empty() {
            let (used, event) = zmtp.feed(input).unwrap();
            input = &input[used..];
            got += usize::from(matches!(event, Some(ZmtpEvent::Message(_))));
        }
    }
}

fn hello(role: Role) -> Vec<u8> {
    let mut peer = Conversation::new(role, 0);
    let greeting = peer.output().to_vec();
    peer.feed(&greeting).unwrap();
    peer.output().to_vec()
}

fn frame(size: usize) -> Vec<u8> {
    [FrameHeader::message(size).as_bytes(), &vec![7; size]].concat()
}

fn connect(path: &Path) -> UnixStream {
    loop {
        if let Ok(stream) = UnixStream::connect(path) {
            return stream;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn python() -> std::path::PathBuf {
    let sglang = Path::new(&std::env::var_os("HOME").unwrap()).join(".cache/afterbay-sglang/venv/bin/python");
    std::env::var_os("AFTERBAY_TEST_PYTHON").map_or(sglang, Into::into)
}

/// The forwarder: one thread, one poll, like a stream.
fn forward(input: &Path, output: &Path) {
    let mut poll = mio::Poll::new().unwrap();
    let mut events = mio::Events::with_capacity(64);
    let tokens = TokenRange { first: 1, count: 9 };
    let mut pull =
        Pull::bind(poll.registry(), tokens, &Endpoint::ipc(input).unwrap(), PullOptions::default(), None)
            .unwrap();
    let tokens = TokenRange { first: 0, count: 1 };
    let to = Endpoint::ipc(output).unwrap();
    let mut push =
        Push::connect(poll.registry(), tokens, &to, PushOptions::default(), Instant::now()).unwrap();
    let mut sequence = 0;
    loop {
        let now = Instant::now();
        let due = [push.deadline(), pull.deadline()].into_iter().flatten().min();
        let timeout = due.map(|at| at.saturating_duration_since(now));
        let timeout = if pull.has_more() && push.room() { Some(Duration::ZERO) } else { timeout };
        poll.poll(&mut events, timeout).unwrap();
        let now = Instant::now();
        for event in events.iter() {
            if pull.owns(event.token()) {
                pull.ready(event, now);
            } else {
                push.ready(event, now);
            }
        }
        pull.tick(now);
        push.tick(now);
        // Queued frames share a write.
        while push.room()
            && let Some(message) = pull.receive()
        {
            sequence += 1;
            push.send(OutgoingFrame { sequence, bytes: message.bytes, counted: false }).unwrap();
            if push.pending().bytes >= 64 << 10 {
                push.flush(now);
            }
        }
        push.flush(now);
        while pull.next_notice().is_some() || push.next_notice().is_some() {}
    }
}
