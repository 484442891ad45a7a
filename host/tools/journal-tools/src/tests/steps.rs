//! The engine's time in the commands, on small journals.

use super::{NS, STREAM, Scene};
use afterbay_journal::JournalOptions;
use afterbay_journal::reader::{JournalReader, RequestFilter};
use afterbay_journal_view::neighbours::EngineTimes;
use afterbay_journal_view::steps::{SlowestSteps, StepSearch, json};
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

fn slowest(scene: &Scene, search: StepSearch) -> SlowestSteps {
    let journal = JournalReader::open(scene.dir.path()).unwrap();
    SlowestSteps::read(&journal, &[journal.stream(STREAM).unwrap()], &search).unwrap()
}

#[test]
fn the_slowest_steps_come_first_with_the_requests_and_the_prompts_that_were_computed() {
    let scene = scene();
    let slowest = slowest(&scene, StepSearch { slowest: 2, ..StepSearch::default() });
    assert_eq!((slowest.known, slowest.gpu_ns), (4, 11 * NS), "the pause counts for none");
    let shown: Vec<serde_json::Value> =
        slowest.steps.iter().map(|(stream, step)| json(stream, step)).collect();
    let of = |name: &str| shown.iter().map(|step| step[name].clone()).collect::<Vec<_>>();
    assert_eq!(of("gpu_ns"), [8 * NS, NS]);
    assert_eq!((of("tokens")[0].clone(), of("prompt_tokens")[0].clone()), (1.into(), 8000.into()));
    assert_eq!(shown[0]["requests"][0]["rid"], "heavy");
    assert_eq!(of("frame")[1], 2, "of equal steps the earlier");
    assert_eq!((of("rows"), of("new_requests")), (vec![1.into(), 1.into()], vec![1.into(), 1.into()]));
}

#[test]
fn steps_are_found_by_their_frame_their_request_and_their_time() {
    let scene = scene();
    let all = StepSearch { slowest: 9, ..StepSearch::default() };
    let frames = |search: StepSearch| {
        let found = slowest(&scene, search);
        let mut frames: Vec<u64> = found.steps.iter().map(|(_, step)| step.frame.0).collect();
        frames.sort_unstable();
        frames
    };
    assert_eq!(frames(all.clone()), [2, 4, 5, 7]);
    assert_eq!(frames(StepSearch { frame: Some(4), ..all.clone() }), [4]);
    assert_eq!(
        frames(StepSearch { frame: Some(1), ..all.clone() }),
        [0; 0],
        "a record of a request is no step"
    );
    assert_eq!(frames(StepSearch { rid: Some("light".into()), ..all.clone() }), [2, 5]);
    let later = 1_700_000_000 * NS + 3600 * NS;
    assert_eq!(frames(StepSearch { since_unix_ns: later, ..all.clone() }), [7]);
    assert_eq!(frames(StepSearch { until_unix_ns: later, ..all }), [2, 4, 5]);
}

#[test]
fn a_search_past_the_bound_of_bytes_leaves_the_oldest_segments_out_and_says_since_when_it_is_complete() {
    let mut scene = Scene::with(JournalOptions { segment_bytes: 4096, ..JournalOptions::default() });
    let request = scene.request("r");
    for _ in 0..200 {
        scene.batch(&[request], &[]);
    }
    scene.writer.flush().unwrap();
    let whole = slowest(&scene, StepSearch { slowest: 1000, ..StepSearch::default() });
    assert_eq!((whole.known, whole.complete_since_unix_ns), (200, None));
    let bounded = StepSearch { slowest: 1000, bytes_max: 10_000, ..StepSearch::default() };
    let part = slowest(&scene, bounded.clone());
    let since = part.complete_since_unix_ns.unwrap();
    assert!((1..200).contains(&part.known), "{}", part.known);
    // The newest steps are those that were read.
    let newest = slowest(&scene, StepSearch { since_unix_ns: since, slowest: 1000, ..StepSearch::default() });
    assert_eq!((part.known, newest.complete_since_unix_ns), (newest.known, None));
    // A time that is read as a whole is complete.
    let recent = slowest(&scene, StepSearch { since_unix_ns: since + NS, ..bounded });
    assert_eq!(recent.complete_since_unix_ns, None);
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
