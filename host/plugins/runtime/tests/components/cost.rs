//! Prints the cost of plugin calls: `cargo test --release -p afterbay-runtime --test components cost -- --ignored --nocapture`.

use std::time::{Duration, Instant};

use afterbay_runtime::{Columns, FinishKind, Limits, Opened};
use rustix::time::{ClockId, clock_gettime};

use crate::{guest, host};

/// The CPU time of a call in the shortest of several rounds, which was disturbed least.
fn time_of(calls: u32, mut call: impl FnMut()) -> Duration {
    (0..9)
        .map(|_| {
            let began = processor_time();
            (0..calls).for_each(|_| call());
            (processor_time() - began) / calls
        })
        .min()
        .unwrap()
}

fn processor_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

struct Batch {
    requests: Vec<u64>,
    output_ids: Vec<i64>,
    output_ends: Vec<u32>,
    completion_tokens: Vec<u64>,
    finished: Vec<FinishKind>,
}

impl Batch {
    fn new(rows: usize) -> Self {
        Self {
            requests: (0..rows as u64).collect(),
            output_ids: (0..rows as i64).map(|id| 151_000 - id).collect(),
            output_ends: (1..=rows as u32).collect(),
            completion_tokens: vec![100; rows],
            finished: vec![FinishKind::Running; rows],
        }
    }

    fn columns(&self) -> Columns<'_> {
        Columns {
            requests: &self.requests,
            output_ids: &self.output_ids,
            output_ends: &self.output_ends,
            completion_tokens: &self.completion_tokens,
            finished: &self.finished,
            ..Columns::default()
        }
    }
}

#[test]
#[ignore = "a measurement, to be run alone and in release"]
fn cost_of_a_batch() {
    for (name, settings) in
        [("logs", r#"{"lines": 0}"#), ("nothing", "{}"), ("judges", r#"{"action": "echo"}"#)]
    {
        let component = host().load(name, &guest(name), Limits::default()).unwrap();
        for rows in [1, 64, 1_024, 4_096] {
            let batch = Batch::new(rows);
            let mut plugin = component.instantiate(settings).unwrap();
            let took = time_of(500_000 / (rows as u32 + 500), || {
                plugin.process(&batch.columns()).unwrap();
            });
            let ns_row = took.as_nanos() as f64 / rows as f64;
            println!(
                "{name:8} {rows:5} rows: {:9.3} us a call, {ns_row:8.2} ns a row",
                took.as_nanos() as f64 / 1e3
            );
        }
    }
}

#[test]
#[ignore = "a measurement, to be run alone and in release"]
fn cost_of_a_life() {
    let bytes = guest("nothing");
    let began = Instant::now();
    let component = host().load("nothing", &bytes, Limits::default()).unwrap();
    println!("load ({} KiB): {:?}", bytes.len() >> 10, began.elapsed());
    let took = time_of(500, || drop(component.instantiate("{}").unwrap()));
    println!("instantiate, describe, configure, drop: {took:?}");
    let panics = host().load("panics", &guest("panics"), Limits::default()).unwrap();
    let took = time_of(500, || {
        let mut plugin = panics.instantiate(r#"{"in": "process"}"#).unwrap();
        plugin.process(&Columns { requests: &[1], ..Columns::default() }).unwrap_err();
    });
    println!("a fault and a fresh instance: {took:?}");
    let loops = host().load("loops", &guest("loops"), Limits::default()).unwrap();
    let mut longest = Duration::ZERO;
    let took = time_of(20, || {
        let mut plugin = loops.instantiate(r#"{"in": "process"}"#).unwrap();
        let began = Instant::now();
        plugin.process(&Columns { requests: &[1], ..Columns::default() }).unwrap_err();
        longest = longest.max(began.elapsed());
    });
    println!(
        "an endless call with a deadline of 2 ms: {took:?} of processor time, the longest took {longest:?}"
    );
    let mut plugin = component.instantiate("{}").unwrap();
    let opened = |request| Opened {
        request,
        rid: "0123456789abcdef",
        front_end: "",
        sink: "",
        arrived_ms: 0,
        prompt_tokens: 9,
        received_tokens: 0,
        resumed: false,
    };
    let requests: Vec<_> = (0..1_024).map(opened).collect();
    let took = time_of(200, || plugin.open(&requests).unwrap());
    println!("open of 1,024 requests: {took:?}");
    let directory = tempfile::tempdir().unwrap();
    let options = || afterbay_runtime::HostOptions {
        cache_dir: Some(directory.path().join("cache")),
        ..Default::default()
    };
    let cached = afterbay_runtime::Host::new(options()).unwrap();
    cached.load("nothing", &bytes, Limits::default()).unwrap();
    let took = time_of(20, || drop(cached.load("nothing", &bytes, Limits::default()).unwrap()));
    println!("load from the cache: {took:?}");
    let took = time_of(3, || drop(afterbay_runtime::Host::new(options()).unwrap()));
    println!("a host: {took:?}");
}
