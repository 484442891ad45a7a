//! Runs a schedule and checks the promises.

use crate::check;
use crate::schedule::Schedule;
use crate::world::{Summary, World};

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The promise that was broken, in words.
    pub what: String,
    /// The events of the stream so far.
    pub events: Vec<String>,
}

/// Runs a schedule.
pub fn run(schedule: &Schedule) -> Result<Summary, Failure> {
    let mut world = World::new(schedule);
    let result = world.run(schedule);
    let result = result.and_then(|ended| check::check(&world, &ended).map(|frames| world.summary(frames)));
    let (dir, pid) = (world.machine.dir.to_string_lossy(), format!("pid {}", std::process::id()));
    let plain = |text: String| text.replace(&*dir, "DIR").replace(&pid, "pid PID");
    let events = || world.recorder.all().iter().map(|event| plain(format!("{event:?}"))).collect();
    let result = result.map_err(|what| Failure { what, events: events() });
    world.end();
    result
}
