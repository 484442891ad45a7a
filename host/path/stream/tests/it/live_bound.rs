//! More live requests than the bound allows, and plugins whose fault ends a request.

use crate::world::{PluginOf, ReaderRow, Scheduler, World};
use afterbay_config::OnFault;
use afterbay_events::event::LiveRequestsFull;

/// The bound.
const MOST: usize = 1 << 18;

#[test]
fn requests_past_the_bound_are_ended_and_the_end_of_others_makes_room() {
    let mut guard = PluginOf::new("guard", "judges", r#"{"action": "drop"}"#);
    guard.config.on_fault = OnFault::Terminate;
    let mut world = World::new(vec![guard]);
    let mut process = world.start();
    world.settle(&mut process);
    let mut scheduler = Scheduler::default();
    let mut answer = |rids: &[String], is_last| -> Vec<ReaderRow> {
        let rows: Vec<(&str, &[i64], bool)> = rids.iter().map(|rid| (&**rid, &[1][..], is_last)).collect();
        world.received.clear();
        world.send_unread(&scheduler.frame(&rows));
        world.await_frames(&mut process, 1);
        world.rows()
    };
    let of = |rids: std::ops::Range<usize>| -> Vec<String> { rids.map(|at| format!("r-{at}")).collect() };

    let sent = answer(&of(0..MOST + 8), false);
    assert!(sent.iter().all(|(_, ids, _)| ids.is_empty()), "the guard sees every row that is not ended");
    let ended: Vec<_> = sent.iter().filter(|(_, _, is_last)| *is_last).map(|(rid, ..)| rid.clone()).collect();
    assert_eq!((sent.len(), ended), (MOST + 8, of(MOST..MOST + 8)));
    // A further request is ended, too.
    assert_eq!(answer(&["more".into()], false), [("more".into(), vec![], true)]);
    // Live requests still pass the guard, and their end makes room.
    assert_eq!(answer(&of(0..20_000), true).len(), 20_000);
    assert_eq!(answer(&["later".into()], false), [("later".into(), vec![], false)]);

    let full: Vec<_> = world.recorder.of::<LiveRequestsFull>().iter().map(|full| full.limit).collect();
    assert_eq!(full, [MOST as u64]);
    let counters = world.metrics.stream("s");
    assert_eq!((counters.rows_unread.get(), counters.requests_live.get()), (9, (MOST - 20_000 + 1) as u64));
}
