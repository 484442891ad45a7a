//! Reloads of a plugin beside live requests.

use crate::world::{PluginOf, Scheduler, World, statuses};
use afterbay_config::OnFault;
use afterbay_events::event::{PluginFault, PluginReloadFailed, PluginReloaded};

#[test]
fn a_component_that_faults_on_rows_of_live_requests_is_refused_and_ends_none_of_them() {
    let mut guard = PluginOf::new("guard", "nothing", "{}");
    guard.config.on_fault = OnFault::Terminate;
    let mut world = World::new(vec![guard]);
    let mut process = world.start();
    let mut scheduler = Scheduler::default();
    world.send(&mut process, &scheduler.frame(&[("a", &[1], false), ("b", &[2], false)]));
    let before = statuses(&mut process)[0].digest;

    let crashes = PluginOf::new("guard", "crashes", r#"{"by": "index"}"#).setup().instance;
    process.stream.handle().reload("guard", Ok(crashes));
    world.settle(&mut process);
    let failed = world.recorder.of::<PluginReloadFailed>();
    assert!(failed[0].why.starts_with("it faults on rows of live requests: "), "{failed:?}");
    assert_eq!((failed.len(), world.recorder.of::<PluginReloaded>()), (1, Vec::new()));
    let status = &statuses(&mut process)[0];
    assert_eq!((&status.digest, &status.next), (&before, &None));
    assert_eq!(status.reloads.last().unwrap().refused.as_ref(), Some(&failed[0].why));
    assert!(world.health.conditions()[0].1.text.starts_with("the previous component stays: "));

    world.send(&mut process, &scheduler.frame(&[("a", &[3], true), ("b", &[4], true)]));
    let row = |rid: &str, id, is_last| (rid.to_owned(), vec![id], is_last);
    let expected = [row("a", 1, false), row("b", 2, false), row("a", 3, true), row("b", 4, true)];
    assert_eq!(world.rows(), expected);
    assert_eq!(world.recorder.of::<PluginFault>(), []);
}
