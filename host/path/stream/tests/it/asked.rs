//! The record of a request, as plugins read it.

use crate::world::{PluginOf, Scheduler, World};
use afterbay_events::event::PluginLog;
use afterbay_runtime::Grants;
use afterbay_wire::{RequestRecord, Sampling};

/// The answers that the plugin got, in the order of its questions.
fn answers(world: &World) -> Vec<String> {
    let logs = world.recorder.of::<PluginLog>();
    logs.iter().filter_map(|log| Some(log.line.strip_prefix("asked ")?.to_owned())).collect()
}

#[test]
fn a_plugin_is_told_what_a_request_was_asked_for_also_after_a_kill_of_afterbay() {
    let mut remembers = PluginOf::new("remembers", "remembers", r#"{"asks": true}"#);
    remembers.grants = Grants { request: true, signals: true, ..Grants::default() };
    let mut world = World::new(vec![remembers]);
    let mut process = world.start();
    let sampling = Some(Sampling { max_tokens: Some(16), ..Sampling::default() });
    let record = RequestRecord { rid: "a".into(), sampling, ..RequestRecord::default() };
    world.send(&mut process, &record.with_prompt(&[5, 6, 7]).to_frame());
    let mut scheduler = Scheduler::default();
    world.send(&mut process, &scheduler.frame(&[("a", &[1], false), ("b", &[1], false)]));
    let of_a = r#"{"rid":"a","prompt_tokens":3,"sampling":{"max_tokens":16}}, prompt Some([5, 6, 7])"#;
    let expected = [of_a, "nothing, prompt None"];
    assert_eq!(answers(&world), expected);
    let mut process = world.kill(process);
    world.send(&mut process, &scheduler.frame(&[("a", &[2], false), ("b", &[2], false)]));
    assert_eq!(answers(&world), [expected, expected].concat());
    world.settle(&mut process);
    assert_eq!(world.rows().len(), 4, "the record goes to no reader");
}
