//! A reader that is connected and finishes nothing.

use crate::world::{Scheduler, World};
use afterbay_events::event::SinkState;
use afterbay_sockets::credit::{CreditWriter, ReaderKind};
use std::time::Duration;

/// The sink of [`World`].
const SINK: &str = "reader";

#[test]
fn a_stalled_reader_is_a_condition_and_a_first_token_counts_when_the_reader_takes_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(Vec::new());
    world.credit = Some(dir.path().join("page"));
    let mut page = CreditWriter::open(&dir.path().join("page"), ReaderKind::Tokenizer).unwrap();
    let mut process = world.start();
    world.settle(&mut process);
    world.send(&mut process, &Scheduler::default().frame(&[("a", &[1], false)]));
    let sink = world.metrics.sink("s", SINK);
    let taken = || (sink.first_token_taken_seconds.count(), sink.first_token_taken_seconds.sum());
    let sent = world.metrics.stream("s");
    assert_eq!((sent.first_token_seconds.count(), taken().0), (1, 0), "sent, and not taken");

    world.clock.pass(Duration::from_secs(12));
    world.settle(&mut process);
    let conditions = world.health.conditions();
    let (key, stalled) = &conditions[0];
    assert_eq!((&key[..], conditions.len()), (&format!("stalled:s/{SINK}")[..], 1));
    assert!(stalled.text.starts_with("the reader finishes none of its frames (1 wait)"), "{}", stalled.text);
    assert!(world.health.is_ready());

    page.finished().unwrap();
    world.clock.pass(Duration::from_secs(1));
    world.settle(&mut process);
    assert_eq!(world.health.conditions(), []);
    assert!(taken().0 == 1 && taken().1 >= Duration::from_secs(12), "{:?}", taken());
    let states: Vec<_> = world.recorder.of::<SinkState>().iter().map(|event| event.state).collect();
    assert_eq!(states, ["stalled", "keeping_up"]);
}
