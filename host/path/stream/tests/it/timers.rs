//! Timers of plugins, and requests that end although no row of them comes.

use crate::world::{PluginOf, Process, ReaderRow, Scheduler, World};
use afterbay_events::event::PluginLog;
use afterbay_wire::RequestRecord;
use std::time::Duration;

const AFTER: Duration = Duration::from_secs(5);

fn world(settings: &str) -> (World, Process) {
    let world = World::new(vec![PluginOf::new("times", "times", settings)]);
    let process = world.start();
    (world, process)
}

/// Sends the record of a request.
fn arrive(world: &mut World, process: &mut Process, rid: &str) {
    let record = RequestRecord { rid: rid.into(), ..RequestRecord::default() };
    world.send(process, &record.with_prompt(&[5, 6, 7]).to_frame());
}

/// Lets time pass.
fn pass(world: &mut World, process: &mut Process, time: Duration) {
    world.clock.pass(time);
    world.settle(process);
}

fn row(rid: &str, ids: &[i64], is_last: bool) -> ReaderRow {
    (rid.to_owned(), ids.to_vec(), is_last)
}

fn lines(world: &World, with: &str) -> Vec<String> {
    let logs = world.recorder.of::<PluginLog>();
    logs.iter().filter(|log| log.line.contains(with)).map(|log| log.line.clone()).collect()
}

#[test]
fn a_request_without_a_row_ends_with_a_row_of_afterbays_own_when_its_timer_is_due() {
    let (mut world, mut process) = world(r#"{"after_ms": 5000}"#);
    let mut scheduler = Scheduler::default();
    world.send(&mut process, &scheduler.frame(&[("a", &[1], true)]));
    arrive(&mut world, &mut process, "b");
    pass(&mut world, &mut process, AFTER - Duration::from_millis(1));
    assert_eq!(world.rows(), [row("a", &[1], true)]);
    pass(&mut world, &mut process, Duration::from_millis(20));
    assert_eq!(world.rows(), [row("a", &[1], true), row("b", &[], true)]);
    // The rows that the scheduler still sends go no further.
    world.send(&mut process, &scheduler.frame(&[("b", &[1], false)]));
    world.send(&mut process, &scheduler.frame(&[("b", &[2], true)]));
    assert_eq!(world.rows().len(), 2);
    assert_eq!(lines(&world, "opened"), ["opened a resumed false", "opened b resumed false"]);
}

#[test]
fn before_any_frame_has_shown_the_form_of_a_row_a_request_ends_with_the_first_that_does() {
    let (mut world, mut process) = world(r#"{"after_ms": 5000}"#);
    arrive(&mut world, &mut process, "a");
    arrive(&mut world, &mut process, "b");
    pass(&mut world, &mut process, AFTER * 2);
    assert_eq!(lines(&world, "due").len(), 2);
    assert_eq!(world.rows(), []);
    let frame = Scheduler::default().frame(&[("a", &[1], false), ("c", &[1], false)]);
    world.send(&mut process, &frame);
    // The row of a is its last, and b gets one of its own.
    pass(&mut world, &mut process, Duration::from_millis(20));
    assert_eq!(world.rows(), [row("a", &[1], true), row("c", &[1], false), row("b", &[], true)]);
}

#[test]
fn a_plugin_gives_the_last_row_tokens_and_the_counts_stay_right() {
    let (mut world, mut process) = world(r#"{"after_ms": 5000, "says": [7, 8]}"#);
    let mut scheduler = Scheduler::default();
    world.send(&mut process, &scheduler.frame(&[("a", &[1, 2, 3], false)]));
    pass(&mut world, &mut process, AFTER + Duration::from_millis(20));
    assert_eq!(world.rows(), [row("a", &[1, 2, 3], false), row("a", &[7, 8], true)]);
    world.send(&mut process, &scheduler.frame(&[("a", &[4], true)]));
    assert_eq!(world.rows().len(), 2);
    assert_eq!(world.recorder.of::<afterbay_events::event::RequestImbalance>(), []);
}

#[test]
fn an_instance_that_takes_over_sets_its_own_timers_by_the_arrival_of_each_request() {
    for kills in [false, true] {
        let (mut world, mut process) = world(r#"{"after_ms": 5000}"#);
        let mut scheduler = Scheduler::default();
        world.send(&mut process, &scheduler.frame(&[("a", &[1], false)]));
        arrive(&mut world, &mut process, "b");
        pass(&mut world, &mut process, AFTER / 2);
        let mut process = if kills { world.kill(process) } else { world.hand_over(process) };
        world.settle(&mut process);
        world.send(&mut process, &scheduler.frame(&[("c", &[1], false)]));
        assert_eq!(lines(&world, "due"), [""; 0], "kills: {kills}");
        pass(&mut world, &mut process, AFTER / 2 + Duration::from_millis(20));
        let rows = world.rows();
        let mut ended: Vec<&str> = rows.iter().filter(|row| row.2).map(|row| &*row.0).collect();
        ended.sort_unstable();
        assert_eq!(ended, ["a", "b"], "kills: {kills}: {rows:?}");
        let opened = lines(&world, "opened b");
        assert_eq!(opened, ["opened b resumed false", "opened b resumed true"], "kills: {kills}");
    }
}

#[test]
fn a_kill_after_the_end_leaves_it_as_it_is() {
    let (mut world, mut process) = world(r#"{"after_ms": 5000}"#);
    let mut scheduler = Scheduler::default();
    world.send(&mut process, &scheduler.frame(&[("a", &[1], false)]));
    pass(&mut world, &mut process, AFTER + Duration::from_millis(20));
    assert_eq!(world.rows(), [row("a", &[1], false), row("a", &[], true)]);
    let mut process = world.kill(process);
    world.send(&mut process, &scheduler.frame(&[("a", &[2], false)]));
    pass(&mut world, &mut process, AFTER * 2);
    assert_eq!(world.rows().len(), 2);
}
