//! The process has no free descriptor. This test is alone in its process, because the limit is the process's.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "it/support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use afterbay_sockets::{PullNotice, PullOptions};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::raw::Raw;
use support::{Loop, ipc};

#[test]
fn without_a_free_descriptor_a_connection_waits_is_reported_and_is_accepted_later() {
    let dir = tempfile::tempdir().unwrap();
    let mut this = Loop::bind(&ipc(&dir, "full"), PullOptions::default());
    let mut early = Raw::push(&this.endpoint());
    early.send(b"early");
    this.receive(1);
    let mut late = Raw::push(&this.endpoint());
    late.send(b"late");
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(3), ..limit }).unwrap();
    let start = Instant::now();
    let mut turns = 0;
    while start.elapsed() < Duration::from_millis(500) {
        this.turn(Duration::from_millis(500));
        turns += 1;
    }
    assert!(turns < 20, "{turns} turns: it spins");
    let refused = this.pulled.iter().find_map(|notice| match notice {
        PullNotice::Refused { why, .. } => Some(why.to_string()),
        _ => None,
    });
    assert_eq!(refused.as_deref(), Some("accept: Too many open files (os error 24)"));
    early.send(b"goes on");
    this.receive(2);
    setrlimit(Resource::Nofile, limit).unwrap();
    this.receive(3);
    assert_eq!(this.received[2].bytes, &b"late"[..]);
}
