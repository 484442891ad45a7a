//! Trajectories and timed traces of journals with the records of requests.

use super::erase::{nobody_answers, run_from};
use super::{NS, STREAM, Scene};
use crate::place::Selected;
use crate::source::Source;
use crate::timed_trace::{TimedTrace, timed_trace};
use crate::trajectories::{SessionKey, trajectories};
use afterbay_journal::{JournalOptions, Verdict};
use afterbay_journal_view::trajectory::Trajectory;
use afterbay_wire::{Multimodal, RequestRecord, Trace};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::ExitCode;

/// The record of a request of a session, whose scheduler got it at this second.
fn record(rid: &str, session: Option<&str>, second: u64) -> RequestRecord {
    RequestRecord {
        rid: rid.into(),
        session: session.map(str::to_owned),
        arrived_unix_ns: Some(1_700_000_000 * NS + second * NS),
        ..RequestRecord::default()
    }
}

fn selected(dir: &Path) -> Selected {
    let source = Source::of(dir.to_owned()).open().unwrap();
    let journal = source.journal().unwrap();
    let streams = vec![journal.stream(STREAM).unwrap()];
    Selected { source, journal, streams, config: None }
}

fn read(scene: &mut Scene, by: &str, only: Option<&str>) -> (Vec<Trajectory>, usize) {
    scene.writer.flush().unwrap();
    read_dir(scene.dir.path(), by, only)
}

fn read_dir(dir: &Path, by: &str, only: Option<&str>) -> (Vec<Trajectory>, usize) {
    let mut all = Vec::new();
    let live =
        trajectories(&selected(dir), &by.parse::<SessionKey>().unwrap(), only, (None, None), &mut |it| {
            all.push(it);
            Ok(())
        });
    (all, live.unwrap())
}

fn trace(scene: &mut Scene, block_tokens: usize) -> TimedTrace {
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    let block = NonZeroUsize::new(block_tokens).unwrap();
    scene.writer.flush().unwrap();
    timed_trace(&selected(scene.dir.path()), (None, None), (block, 1.0), &hasher).unwrap()
}

#[test]
fn the_turns_of_interleaved_sessions_are_trajectories_with_prompts_answers_and_their_prefix() {
    // Each segment holds few frames, so that a session is in several.
    let mut scene = Scene::with(JournalOptions { segment_bytes: 4096, ..JournalOptions::default() });
    for turn in 0..5_u32 {
        for session in ["a", "b"] {
            let prompt: Vec<u32> = (0..=2 * turn).collect();
            // Session b tokenises the last answer again.
            let prompt = match (session, turn) {
                ("b", 4) => vec![0, 1, 2, 3, 4, 5, 6, 78],
                _ => prompt,
            };
            let rid = format!("{session}-{turn}");
            let request = scene.asked(record(&rid, Some(session), u64::from(turn)), &prompt);
            scene.row(request, &[i64::from(2 * turn + 1)], "length", &[]);
        }
    }
    let alone = scene.asked(record("alone", None, 9), &[7]);
    scene.row(alone, &[1, 2], "", &[]);
    scene.row(alone, &[3], "", &[("guard", Verdict::Drop, "secret")]);
    scene.row(alone, &[4], "stop", &[]);
    let live = scene.asked(record("live", Some("a"), 10), &[7]);
    scene.row(live, &[1], "", &[]);
    let (all, live) = read(&mut scene, "session", None);
    let shape = |it: &Trajectory| {
        (it.session.clone(), it.turns.iter().map(|turn| turn.rid.clone()).collect::<Vec<_>>())
    };
    let rids = |session: &str| (0..5).map(|turn| format!("{session}-{turn}")).collect::<Vec<_>>();
    let expected =
        [(Some("a".into()), rids("a")), (Some("b".into()), rids("b")), (None, vec!["alone".into()])];
    assert_eq!((all.iter().map(shape).collect::<Vec<_>>(), live), (expected.to_vec(), 1));
    let kept = |it: &Trajectory| it.turns.iter().map(|turn| Some(turn.prefix?.is_kept)).collect::<Vec<_>>();
    assert_eq!(kept(&all[0]), [None, Some(true), Some(true), Some(true), Some(true)]);
    assert_eq!(kept(&all[1])[4], Some(false));
    let prefix = all[1].turns[4].prefix.unwrap();
    assert_eq!((prefix.equal, prefix.of, prefix.expected, prefix.got), (7, 8, Some(7), Some(78)));
    let last = &all[0].turns[4];
    assert_eq!(last.prompt_ids.as_deref(), Some(&[0, 1, 2, 3, 4, 5, 6, 7, 8][..]));
    assert_eq!((last.ids.as_deref(), &last.missing), (Some(&[9][..]), &Vec::new()));
    let alone = &all[2].turns[0];
    assert_eq!(alone.ids.as_deref(), Some(&[1, 2, 3, 4][..]));
    let [dropped] = &alone.actions[..] else { panic!("{:?}", alone.actions) };
    assert_eq!(
        (&*dropped.plugin, &*dropped.verdict, &*dropped.reason, dropped.first_id),
        ("guard", "drop", "secret", 2)
    );
    // One session alone, and each request alone.
    assert_eq!(
        read(&mut scene, "session", Some("b")).0.iter().map(shape).collect::<Vec<_>>(),
        expected[1..2]
    );
    assert_eq!(read(&mut scene, "request", None).0.len(), 11);
}

#[test]
fn requests_are_turns_of_a_trace_or_of_a_routing_key_if_they_are_grouped_so() {
    let mut scene = Scene::new();
    for second in 0..2 {
        let traceparent = Some(format!("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b{second}-01"));
        let record = RequestRecord {
            trace: Some(Trace { traceparent, tracestate: None }),
            routing_key: Some("user-1".into()),
            ..record("r", None, second)
        };
        let request = scene.asked(record, &[1]);
        scene.row(request, &[1], "stop", &[]);
    }
    for (by, session) in [("trace", "4bf92f3577b34da6a3ce929d0e0e4736"), ("routing-key", "user-1")] {
        let (all, _) = read(&mut scene, by, None);
        assert_eq!((all.len(), all[0].session.as_deref(), all[0].turns.len()), (1, Some(session), 2), "{by}");
    }
}

#[test]
fn a_trajectory_says_what_the_journal_does_not_have_and_guesses_nothing() {
    let mut scene = Scene::new();
    let request = scene.request("without-record");
    scene.row(request, &[1], "stop", &[]);
    let without_ids = RequestRecord {
        prompt_tokens: Some(300_000),
        left_out: vec!["prompt_ids".into(), "grammar".into()],
        ..record("too-long", None, 0)
    };
    let request = scene.asked(without_ids, &[]);
    scene.row(request, &[2], "stop", &[]);
    let request = scene.asked(record("erased", None, 1), &[5, 6]);
    scene.row(request, &[3], "stop", &[]);
    let Scene { dir, directory, writer, .. } = scene;
    writer.finish().unwrap();
    drop(directory);
    assert_eq!(
        run_from(dir.path(), &["erase", "erased", "--yes"], nobody_answers).unwrap(),
        ExitCode::SUCCESS
    );
    let (all, _) = read_dir(dir.path(), "session", None);
    let turns: Vec<_> = all.iter().flat_map(|it| &it.turns).collect();
    let of = |rid: &str| *turns.iter().find(|turn| turn.rid == rid).unwrap();
    assert_eq!(of("without-record").missing, ["the request's record"]);
    assert_eq!(of("without-record").prompt_ids, None);
    let missing = ["the ids of the prompt", "grammar of the request's record, over the limit"];
    assert_eq!(
        (&*of("too-long").missing, of("too-long").prompt_tokens),
        (&missing.map(str::to_owned)[..], Some(300_000))
    );
    let erased = of("erased");
    assert_eq!(
        (&*erased.missing, &erased.prompt_ids, &erased.ids),
        (&["the request was erased".to_owned()][..], &None, &None)
    );
}

#[test]
fn a_timed_trace_has_arrivals_lengths_and_the_same_numbers_for_prompts_that_begin_alike() {
    let mut scene = Scene::new();
    let prompts: [&[u32]; 4] = [&[1, 2, 3, 4, 5], &[1, 2, 3, 4, 6], &[1, 2, 9, 9], &[1, 2, 3, 4, 5]];
    let lora = |second| if second == 3 { Some("sql".to_owned()) } else { None };
    // The last one arrived first.
    for (at, prompt) in prompts.iter().enumerate().rev() {
        let second = at as u64;
        let record = RequestRecord { lora: lora(second), ..record(&format!("r-{at}"), None, second) };
        let request = scene.asked(record, prompt);
        scene.row(request, &vec![1; at + 1], "length", &[]);
    }
    let TimedTrace { requests, live, unknown, without_ids } = trace(&mut scene, 2);
    assert_eq!((live, unknown, without_ids), (0, 0, 0));
    let lengths: Vec<_> =
        requests.iter().map(|it| (it.timestamp, it.input_length, it.output_length)).collect();
    assert_eq!(lengths, [(0.0, 5, 1), (1.0, 5, 2), (2.0, 4, 3), (3.0, 5, 4)]);
    // vLLM makes as many tokens as the blocks have.
    assert_eq!(requests.iter().map(|it| it.hash_ids.len()).collect::<Vec<_>>(), [3, 3, 2, 3]);
    let shared = |one: usize, other: usize| {
        let pairs = requests[one].hash_ids.iter().zip(&requests[other].hash_ids);
        pairs.take_while(|(one, other)| one == other).count()
    };
    assert_eq!([shared(0, 1), shared(0, 2), shared(0, 3)], [2, 1, 0]);
    // A block that stands elsewhere in the prompt has another number.
    assert_ne!(requests[2].hash_ids[1], requests[0].hash_ids[1]);
    assert!(requests.iter().flat_map(|it| &it.hash_ids).all(|number| *number < 1 << 53));
}

#[test]
fn a_timed_trace_counts_what_it_lacks_and_tells_prompts_with_other_images_apart() {
    let mut scene = Scene::new();
    let request = scene.request("without-record");
    scene.row(request, &[1], "stop", &[]);
    for (second, hash) in [(0, "cat"), (1, "dog")] {
        let image = Multimodal { modality: "image".into(), hash: Some(hash.into()), ..Multimodal::default() };
        let record = RequestRecord { multimodal: vec![image], ..record(hash, None, second) };
        let request = scene.asked(record, &[1, 1, 1]);
        scene.row(request, &[1], "stop", &[]);
    }
    let without_ids = RequestRecord { prompt_tokens: Some(40), ..record("without-ids", None, 2) };
    let request = scene.asked(without_ids, &[]);
    scene.row(request, &[1], "stop", &[]);
    scene.asked(record("live", None, 3), &[1]);
    let TimedTrace { requests, live, unknown, without_ids } = trace(&mut scene, 16);
    assert_eq!((requests.len(), live, unknown, without_ids), (3, 1, 1, 1));
    assert_ne!(requests[0].hash_ids, requests[1].hash_ids);
    assert_eq!((requests[2].input_length, requests[2].hash_ids.len()), (40, 3));
}
