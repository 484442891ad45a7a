//! A journal of a vLLM stream, written by hand, and the counts that are made again from it.

use super::recount;
use afterbay_journal::reader::JournalReader;
use afterbay_journal::{
    JournalDirectory, JournalOptions, JournalRequest, JournalWriter, Outcome, Passage, PluginAction,
    RowFinish, SyncPolicy, Verdict,
};
use afterbay_wire::Engine;
use afterbay_wire::vllm::{SynthOutput, SynthOutputs};
use afterbay_wire::{DecodedFrame, Finish, Layouts};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::path::Path;

/// A journal of one vLLM stream. Requests open with their first row and close with their last.
struct Scene {
    dir: tempfile::TempDir,
    _directory: JournalDirectory,
    writer: JournalWriter,
    live: BTreeMap<String, JournalRequest>,
}

impl Scene {
    fn new() -> Scene {
        let dir = tempfile::tempdir().unwrap();
        let options = JournalOptions { sync: SyncPolicy::None, ..JournalOptions::default() };
        let directory = JournalDirectory::open(dir.path(), options).unwrap();
        let (writer, _) = directory.stream("vllm").unwrap();
        Scene { dir, _directory: directory, writer, live: BTreeMap::new() }
    }

    /// Stores a frame that left as it arrived.
    fn passed(&mut self, frame: Bytes) {
        self.stored(frame, 0, None, Vec::new());
    }

    /// Stores a frame. The ledger takes each row for `surplus` tokens more than it has. `changed` left in its place.
    fn stored(
        &mut self,
        frame: Bytes,
        surplus: u32,
        changed: Option<Bytes>,
        actions: Vec<PluginAction<'static>>,
    ) {
        let number = self.writer.append(&frame, 1).unwrap().frame;
        let (mut requests, mut tokens, mut finished, mut ended) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        if let DecodedFrame::Batch(batch) = afterbay_wire::decode(frame, &Layouts::of(Engine::Vllm)) {
            for row in 0..batch.rows() {
                let rid = batch.rid(row).to_owned();
                let request = match self.live.get(&rid) {
                    Some(request) => *request,
                    None => self.writer.open(&rid),
                };
                self.live.insert(rid.clone(), request);
                requests.push(request);
                tokens.push(batch.tokens(row) + surplus);
                if batch.finish(row) != Finish::Running {
                    finished.push(RowFinish { row, reason: "length".into(), completion_tokens: None });
                    ended.push(rid);
                }
            }
        }
        let passage = if changed.is_some() { Passage::Changed } else { Passage::Unchanged };
        self.writer.outcome(&Outcome {
            requests: requests.into(),
            tokens: tokens.into(),
            finished: finished.into(),
            changed,
            actions: actions.into(),
            ..Outcome::new(number, 1, passage)
        });
        for rid in ended {
            self.writer.close(self.live.remove(&rid).unwrap());
        }
    }

    /// The requests, the prompt tokens and the completion tokens, and the problems.
    fn recount(&mut self) -> ((u64, u64, u64), Vec<String>) {
        self.writer.flush().unwrap();
        let stream = JournalReader::open(self.dir.path()).unwrap().stream("vllm").unwrap();
        assert!(stream.verify().unwrap().problems.is_empty(), "the records alone show nothing");
        let found = recount(&stream).unwrap().unwrap();
        ((found.requests, found.prompt_tokens, found.completion_tokens), found.problems)
    }
}

fn row(rid: &str, ids: &[i64]) -> SynthOutput {
    SynthOutput { request_id: rid.to_owned(), new_token_ids: ids.to_vec(), ..SynthOutput::default() }
}

fn first(rid: &str, ids: &[i64]) -> SynthOutput {
    SynthOutput { prompt_tokens: Some(7), ..row(rid, ids) }
}

fn last(rid: &str, ids: &[i64]) -> SynthOutput {
    SynthOutput { finish_reason: Some(1), ..row(rid, ids) }
}

fn frame(rows: Vec<SynthOutput>) -> Bytes {
    SynthOutputs { rows, ..SynthOutputs::default() }.encode()
}

#[test]
fn whole_requests_of_the_real_vllm_are_recounted_with_their_usage() {
    let mut scene = Scene::new();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/fixtures/vllm");
    let (mut requests, mut prompt, mut completion) = (0, 0, 0);
    for name in ["plain_length", "token_prompt", "eos"] {
        for at in 0.. {
            let path = fixtures.join(format!("{name}-{at:03}.frame"));
            let Ok(frame) = std::fs::read(&path) else { break };
            let json = std::fs::read(path.with_extension("json")).unwrap();
            let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
            for row in json["decoded"]["outputs"].as_array().unwrap() {
                completion += row["new_token_ids"].as_array().unwrap().len() as u64;
                prompt += row["prefill_stats"]["num_prompt_tokens"].as_u64().unwrap_or(0);
                requests += u64::from(!row["finish_reason"].is_null());
            }
            scene.passed(frame.into());
        }
    }
    assert!(requests >= 3 && prompt > 0, "{requests} requests, {prompt} prompt tokens");
    assert_eq!(scene.recount(), ((requests, prompt, completion), Vec::new()));
}

#[test]
fn a_request_whose_first_rows_never_arrived_is_a_problem() {
    let mut scene = Scene::new();
    scene.passed(frame(vec![first("whole", &[1]), row("late", &[2])]));
    scene.passed(frame(vec![last("whole", &[3]), last("late", &[4])]));
    // The engine ends a request that it could not begin, and its live requests are not judged.
    scene.passed(frame(vec![last("refused", &[]), row("live", &[5])]));
    let (counts, problems) = scene.recount();
    assert_eq!(counts, (3, 7, 4));
    let [problem] = &problems[..] else { panic!("{problems:?}") };
    assert!(
        problem.contains("\"late\": frame 1 row 1 is its first row, and has no prefill_stats"),
        "{problem}"
    );
}

#[test]
fn two_requests_with_one_id_are_a_problem_and_a_session_that_continues_is_none() {
    let mut scene = Scene::new();
    scene.passed(frame(vec![first("a", &[1]), first("b", &[1])]));
    scene.passed(frame(vec![first("a", &[2]), last("b", &[2])]));
    scene.passed(frame(vec![last("a", &[3]), last("b", &[3])]));
    let (counts, problems) = scene.recount();
    assert_eq!(counts, (3, 21 - 7, 6));
    let [problem] = &problems[..] else { panic!("{problems:?}") };
    assert!(problem.contains("\"a\": frame 2 row 0 has prefill_stats again"), "{problem}");
}

#[test]
fn a_request_that_another_engine_went_on_with_has_two_first_rows() {
    let mut scene = Scene::new();
    let migrated = |_: &str, _: &[(String, String)]| vec![("migrated_at".to_owned(), "1".to_owned())];
    scene.writer.set_attributes(Box::new(migrated));
    scene.passed(frame(vec![first("a", &[1])]));
    scene.passed(frame(vec![first("a", &[2])]));
    scene.passed(frame(vec![last("a", &[3])]));
    assert_eq!(scene.recount(), ((1, 7, 3), Vec::new()));
}

#[test]
fn a_turn_of_a_session_whose_first_turn_is_no_longer_stored_is_no_problem() {
    let mut scene = Scene::new();
    let attributes = |rid: &str, _: &[(String, String)]| match rid {
        "session" => vec![("resumable".to_owned(), "true".to_owned())],
        _ => Vec::new(),
    };
    scene.writer.set_attributes(Box::new(attributes));
    scene.passed(frame(vec![row("session", &[5]), row("late", &[5])]));
    scene.passed(frame(vec![last("session", &[6]), last("late", &[6])]));
    scene.passed(frame(vec![last("session", &[7])]));
    let (counts, problems) = scene.recount();
    assert_eq!(counts, (3, 0, 5));
    let [problem] = &problems[..] else { panic!("{problems:?}") };
    assert!(
        problem.contains("\"late\": frame 1 row 1 is its first row, and has no prefill_stats"),
        "{problem}"
    );
}

#[test]
fn a_count_of_the_ledger_that_the_rows_do_not_have_is_a_problem() {
    let mut scene = Scene::new();
    scene.passed(frame(vec![first("a", &[1, 2])]));
    scene.stored(frame(vec![last("a", &[3])]), 1, None, Vec::new());
    let (counts, problems) = scene.recount();
    assert_eq!(counts, (1, 7, 3));
    let received = "request 1 \"a\": its rows have 3 ids, the ledger counted 4";
    assert_eq!(problems, [received, "request 1 \"a\": 3 ids left, the ledger counted 4"]);
}

#[test]
fn the_ids_that_left_are_those_of_the_changed_frames() {
    let replaced = |forwarded| {
        let plugin = "masks".into();
        vec![PluginAction {
            row: 0,
            plugin,
            verdict: Verdict::Replace,
            text: "".into(),
            ids: Vec::new().into(),
            forwarded,
        }]
    };
    for (forwarded, problem) in [(2, None), (1, Some("request 1 \"a\": 3 ids left, the ledger counted 2"))] {
        let mut scene = Scene::new();
        let changed = frame(vec![first("a", &[8, 9])]);
        scene.stored(frame(vec![first("a", &[1, 2, 3])]), 0, Some(changed), replaced(forwarded));
        scene.passed(frame(vec![last("a", &[4])]));
        let (counts, problems) = scene.recount();
        assert_eq!((counts, problems), ((1, 7, 3), problem.map(str::to_owned).into_iter().collect()));
    }
}

#[test]
fn a_stream_of_another_engine_is_not_recounted() {
    let scene = crate::tests::sglang();
    let stream = JournalReader::open(scene.path()).unwrap().streams().unwrap();
    let stream = JournalReader::open(scene.path()).unwrap().stream(&stream[0]).unwrap();
    assert!(recount(&stream).unwrap().is_none());
}
