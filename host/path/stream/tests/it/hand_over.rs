//! Hand-overs between any two frames, and adoption after a crash.

use crate::world::{PluginOf, Process, Scheduler, World, hand_over, statuses};
use afterbay_config::{Mode, Quarantine};
use afterbay_events::event::{PluginLog, PluginPromoted, PluginReplayed, SinkConnected, SinkLost};
use afterbay_runtime::Grants;
use afterbay_stream::PluginState;
use bytes::Bytes;
use std::sync::mpsc::channel;
use std::time::Duration;

const HOLD: i64 = 101;
const RELEASE: i64 = 102;

/// Holds rows, is replayed, imports a state, is in quarantine, and is a promoted shadow.
fn plugins() -> Vec<PluginOf> {
    let shadow = {
        let mut shadow = PluginOf::new("next", "judges", r#"{"action": "annotate"}"#);
        shadow.config.mode = Mode::Shadow { of: Some("now".into()) };
        shadow
    };
    let crashes = {
        let mut crashes = PluginOf::new("crashes", "crashes", r#"{"by": "index"}"#);
        crashes.config.quarantine = Quarantine { faults: 1, within: Duration::from_secs(3600) };
        crashes
    };
    let remembers = {
        let mut remembers = PluginOf::new("remembers", "remembers", "{}");
        remembers.grants = Grants { request: true, signals: true, ..Grants::default() };
        remembers
    };
    let mut holds = PluginOf::new("holds", "holds", r#"{"millis": 600000}"#);
    holds.config.limits.hold = Duration::from_secs(600);
    vec![holds, remembers, crashes, PluginOf::new("now", "judges", r#"{"action": "drop"}"#), shadow]
}

fn frames() -> Vec<Bytes> {
    let mut scheduler = Scheduler::default();
    let mut frame = |rows: &[(&str, &[i64], bool)]| scheduler.frame(rows);
    vec![
        frame(&[("a", &[1], false), ("b", &[2], false)]),
        frame(&[("a", &[HOLD, 3], false), ("b", &[4], false)]),
        frame(&[("a", &[5], false), ("b", &[HOLD], false), ("c", &[6], false)]),
        frame(&[("c", &[7], false)]),
        frame(&[("a", &[RELEASE], false), ("c", &[HOLD, 8], false)]),
        frame(&[("b", &[9], false), ("a", &[10], true)]),
        frame(&[("b", &[RELEASE, 11], true), ("d", &[12], true)]),
        frame(&[("c", &[13], true)]),
    ]
}

/// Starts a stream with all plugins, and promotes the shadow.
fn start(world: &mut World) -> Process {
    let mut process = world.start();
    world.settle(&mut process);
    let (sender, receiver) = channel();
    process.stream.handle().promote("next", move |promoted| sender.send(promoted).unwrap());
    assert!(process.stream.turn().is_none());
    assert_eq!(receiver.try_recv().unwrap(), Some(true));
    process
}

/// Sends all frames. `at` is called once, after this many frames.
fn run(after: usize, at: impl FnOnce(&mut World, Process) -> Process) -> World {
    let mut world = World::new(plugins());
    let mut process = start(&mut world);
    let mut at = Some(at);
    for (index, frame) in frames().iter().enumerate() {
        if index == after
            && let Some(at) = at.take()
        {
            process = at(&mut world, process);
        }
        world.send(&mut process, frame);
    }
    if let Some(at) = at.take() {
        process = at(&mut world, process);
    }
    world.settle(&mut process);
    let status = statuses(&mut process);
    let of = |plugin: &str| status.iter().find(|it| it.plugin == plugin).cloned();
    assert_eq!(of("now"), None, "the promoted shadow has its place");
    assert_eq!(of("next").unwrap().state, PluginState::Live);
    let crashes = of("crashes").unwrap();
    assert_eq!(crashes.state, PluginState::Quarantined);
    assert!(crashes.why.unwrap().contains("quarantined after 1 faults"));
    world
}

#[test]
fn a_hand_over_between_any_two_frames_changes_nothing_for_the_reader() {
    let expected = run(usize::MAX, |_, process| process).rows();
    assert_eq!(expected.len(), 10, "{expected:?}");
    for after in 1..=frames().len() {
        let world = run(after, |world, process| world.hand_over(process));
        assert_eq!(world.rows(), expected, "after frame {after}");
        assert_eq!(world.recorder.of::<SinkConnected>().len(), 1, "the connection stays");
        assert_eq!(world.recorder.of::<SinkLost>().len(), 0);
        assert_eq!(world.recorder.of::<PluginPromoted>().len(), 1, "the promotion goes over");
        let replayed = world.recorder.of::<PluginReplayed>();
        assert!(replayed.iter().all(|it| *it.plugin != *"remembers"), "it exports its state");
    }
}

#[test]
fn a_stream_whose_hand_over_failed_goes_on_as_if_nothing_had_happened() {
    let expected = run(usize::MAX, |_, process| process).rows();
    for after in 1..=frames().len() {
        let world = run(after, |world, mut process| {
            world.fail_hand_over(&mut process);
            process
        });
        assert_eq!(world.rows(), expected, "after frame {after}");
        assert_eq!(world.recorder.of::<SinkConnected>().len(), 1);
    }
}

#[test]
fn a_plugin_that_exports_its_state_continues_with_it() {
    let world = run(2, |world, process| world.hand_over(process));
    let logs = world.recorder.of::<PluginLog>();
    let resumed: Vec<_> = logs.iter().filter(|log| log.line.contains("opened with 2 rows")).collect();
    assert_eq!(resumed.len(), 1, "request b; request a has one held row: {logs:?}");
}

#[test]
fn calls_under_way_at_a_hand_over_are_asked_again_and_their_rows_wait() {
    let mut asks = PluginOf::new("asks", "asks", "{}");
    asks.grants = Grants { call: true, ..Grants::default() };
    let mut world = World::new(vec![asks]);
    let mut process = world.start();
    let mut scheduler = Scheduler::default();
    let rows = |world: &World| world.rows().into_iter().map(|(_, ids, _)| ids).collect::<Vec<_>>();
    for id in 1..=3 {
        world.send(&mut process, &scheduler.frame(&[("a", &[id], false)]));
    }
    world.service.answer(0);
    world.settle(&mut process);
    assert_eq!(rows(&world), [[1]]);
    process = world.hand_over(process);
    world.settle(&mut process);
    assert_eq!(rows(&world), [[1]], "the rows wait for the answers");
    let bodies: Vec<_> = world.service.bodies();
    assert_eq!(bodies, ["[1]", "[2]", "[3]", "[2]", "[3]"], "the answered call is not asked again");
    world.service.answer(3);
    world.settle(&mut process);
    world.send(&mut process, &scheduler.frame(&[("a", &[4], true)]));
    for call in [4, 5] {
        world.service.answer(call);
        world.settle(&mut process);
    }
    assert_eq!(rows(&world).concat(), [1, 2, 3, 4]);
}

#[test]
fn rows_behind_released_rows_of_their_request_survive_a_crash() {
    let mut asks = PluginOf::new("asks", "asks", "{}");
    asks.grants = Grants { call: true, ..Grants::default() };
    let mut world = World::new(vec![asks]);
    let mut process = world.start();
    let mut scheduler = Scheduler::default();
    for id in 1..=3 {
        world.send(&mut process, &scheduler.frame(&[("a", &[id], false)]));
    }
    world.service.answer(0);
    world.settle(&mut process);
    process = world.kill(process);
    world.settle(&mut process);
    let rows = world.rows().into_iter().map(|(_, ids, _)| ids).collect::<Vec<_>>();
    assert_eq!(rows.concat(), [1, 2, 3], "a crash releases held rows");
}

#[test]
fn after_a_crash_every_row_arrives_once_on_the_same_connections() {
    let mut expected = World::new(Vec::new());
    let mut process = expected.start();
    frames().iter().for_each(|frame| expected.send(&mut process, frame));
    for after in 1..frames().len() {
        let mut world = World::new(Vec::new());
        let mut process = world.start();
        world.settle(&mut process);
        for (index, frame) in frames().iter().enumerate() {
            if index == after {
                // One frame is in the kernel, and the process dies before it reads the frame.
                world.send_unread(frame);
                process = world.kill(process);
                world.settle(&mut process);
                continue;
            }
            world.send(&mut process, frame);
        }
        assert_eq!(world.rows(), expected.rows(), "after frame {after}");
        assert_eq!(world.recorder.of::<SinkConnected>().len(), 1);
    }
}

#[test]
fn rows_for_a_reader_that_is_away_at_a_hand_over_arrive_once() {
    let frames = frames();
    for takes_over in [true, false] {
        let mut world = World::new(Vec::new());
        let mut process = world.start();
        world.send(&mut process, &frames[0]);
        world.end_reader();
        world.send(&mut process, &frames[1]);
        world.send(&mut process, &frames[2]);
        if takes_over {
            process = world.hand_over(process);
        } else {
            world.fail_hand_over(&mut process);
        }
        world.bind_reader();
        world.await_frames(&mut process, 3);
        world.send(&mut process, &frames[3]);
        world.await_frames(&mut process, 4);
        assert_eq!(world.received, frames[..4], "takes over: {takes_over}");
    }
}

#[test]
fn a_stream_that_is_stopping_is_not_handed_over_and_a_second_hand_over_is_refused() {
    let mut world = World::new(Vec::new());
    let mut process = world.start();
    world.send(&mut process, &frames()[0]);
    assert!(hand_over(&mut process).is_ok());
    assert_eq!(hand_over(&mut process).unwrap_err(), "the stream is handed over already");
    process.stream.handle().resume();
    assert!(process.stream.turn().is_none());
    process.stream.handle().stop(std::time::Instant::now() + Duration::from_secs(1));
    let why = hand_over(&mut process).unwrap_err();
    assert_eq!(why, "the stream is stopping");
}
