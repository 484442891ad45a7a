//! The engine's time in the commands, on small journals.

use super::{NS, STREAM, Scene};
use crate::steps::{Steps, json};
use afterbay_journal::reader::{JournalReader, RequestFilter};
use afterbay_journal_view::ended::{EngineStep, each_step};
use afterbay_journal_view::neighbours::EngineTimes;
use afterbay_wire::RequestRecord;

fn record(rid: &str, prompt_tokens: u64) -> RequestRecord {
    RequestRecord { rid: rid.into(), prompt_tokens: Some(prompt_tokens), ..RequestRecord::default() }
}

/// `light` streams while the prompt of `heavy` takes 8 s, then both go on. `later` comes after a pause.
fn scene() -> Scene {
    let mut scene = Scene::new();
    let light = scene.asked(record("light", 1), &[]);
    scene.batch(&[light], &[]);
    let heavy = scene.asked(record("heavy", 8000), &[]);
    scene.now += 6 * NS;
    scene.batch(&[heavy], &[]);
    scene.batch(&[light, heavy], &[light, heavy]);
    scene.now += 3600 * NS;
    let later = scene.asked(record("later", 100), &[]);
    scene.batch(&[later], &[later]);
    scene.writer.flush().unwrap();
    scene
}

fn steps(scene: &Scene) -> Vec<EngineStep> {
    let stream = JournalReader::open(scene.dir.path()).unwrap().stream(STREAM).unwrap();
    let (segments, mut all) = (stream.segments().unwrap(), Vec::new());
    each_step(stream, &segments, &mut |step| {
        all.push(step);
        true
    })
    .unwrap();
    all
}

#[test]
fn the_slowest_steps_come_first_with_the_requests_and_the_prompts_that_were_computed() {
    let scene = scene();
    let mut slowest = Steps::new(2);
    steps(&scene).into_iter().for_each(|step| slowest.add(STREAM, step));
    assert_eq!((slowest.count, slowest.gpu_ns), (4, 11 * NS), "the pause counts for none");
    let shown: Vec<serde_json::Value> =
        slowest.slowest().iter().map(|(stream, step)| json(stream, step)).collect();
    let of = |name: &str| shown.iter().map(|step| step[name].clone()).collect::<Vec<_>>();
    assert_eq!(of("gpu_ns"), [8 * NS, NS]);
    assert_eq!((of("tokens")[0].clone(), of("prompt_tokens")[0].clone()), (1.into(), 8000.into()));
    assert_eq!(shown[0]["requests"][0]["rid"], "heavy");
    assert_eq!(of("frame")[1], 2, "of equal steps the earlier");
}

#[test]
fn a_request_that_waited_for_anothers_prompt_says_for_how_long() {
    let scene = scene();
    let times = |rid: &str| {
        let stream = JournalReader::open(scene.dir.path()).unwrap().stream(STREAM).unwrap();
        let filter = RequestFilter { rid_prefix: Some(rid.to_owned()), ..RequestFilter::default() };
        let info = stream.requests(filter).unwrap().next().unwrap().unwrap();
        let times = EngineTimes::read(stream, &info).unwrap();
        let others = times.others.values().map(|it| (it.rid.to_string(), it.ahead_ns, it.beside_ns));
        (times.own_ns, times.others_ns, others.collect::<Vec<_>>())
    };
    let (own, others, waited) = times("light");
    // The whole of its life is its own time and that of others.
    assert_eq!(own + others, 10 * NS);
    assert_eq!((&*waited[0].0, waited[0].1, waited.len()), ("heavy", 8 * NS, 1));
    assert_eq!(waited[0].2, others - 8 * NS);
    let (own, others, waited) = times("heavy");
    assert_eq!((own + others, waited[0].1), (9 * NS, 0));
    assert_eq!(times("later"), (NS, 0, Vec::new()));
}
