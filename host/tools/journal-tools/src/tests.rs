//! The end of a request in every way that one can end, and the answers for a rid that is not found, on small journals.

mod asked;
mod erase;
mod export;
mod ls;
mod neighbours;
mod pack;
mod seal;
mod steps;
mod training;
mod two_legs;
mod usage;

use crate::not_found::not_found;
use crate::place::Selected;
use crate::source::Source;
use afterbay_journal::reader::{JournalReader, OperatorAbort};
use afterbay_journal::{
    FrameNo, JournalDirectory, JournalOptions, JournalRequest, JournalWriter, OPERATOR, Outcome, Passage,
    PluginAction, RowFinish, SWALLOWED, SyncPolicy, Verdict,
};
use afterbay_journal_view::content::{Absent, ContentBounds, ContentReader};
use afterbay_journal_view::ending::{LegEnd, SCHEDULER, TokenizerHint};
use afterbay_journal_view::request_end::RequestEnd;
use afterbay_text::TokenBytes;
use afterbay_wire::synth::{SynthBatch, SynthRow, SynthWire};
use afterbay_wire::{BatchKind, Layouts, RequestRecord};
use std::path::Path;

const STREAM: &str = "decode";
const NS: u64 = 1_000_000_000;

/// A journal with a writer. Each frame has one row.
struct Scene {
    dir: tempfile::TempDir,
    directory: JournalDirectory,
    writer: JournalWriter,
    now: u64,
}

impl Scene {
    fn new() -> Scene {
        Scene::with(JournalOptions::default())
    }

    fn with(options: JournalOptions) -> Scene {
        let dir = tempfile::tempdir().unwrap();
        let directory =
            JournalDirectory::open(dir.path(), JournalOptions { sync: SyncPolicy::None, ..options }).unwrap();
        let (writer, _) = directory.stream(STREAM).unwrap();
        Scene { dir, directory, writer, now: 1_700_000_000 * NS }
    }

    fn request(&mut self, rid: &str) -> JournalRequest {
        self.writer.open(rid)
    }

    /// Opens a request at its record, which has these ids of the prompt.
    fn asked(&mut self, record: RequestRecord, prompt_ids: &[u32]) -> JournalRequest {
        self.now += NS;
        let request = self.writer.open_with(&record.rid, &record.attributes());
        // A record without ids may say how many there are.
        let record = if record.prompt_tokens.is_some() { record } else { record.with_prompt(prompt_ids) };
        let frame = record.to_frame();
        let frame = self.writer.append(&frame, self.now).unwrap().frame;
        self.writer.outcome(&Outcome {
            requests: (&[request]).into(),
            tokens: (&[0]).into(),
            ..Outcome::new(frame, self.now, Passage::Barrier("request".into()))
        });
        request
    }

    /// Stores a row and its outcome.
    fn row(&mut self, request: JournalRequest, ids: &[i64], finish: &str, actions: &[(&str, Verdict, &str)]) {
        self.row_of(BatchKind::TokenId, "", request, ids, finish, actions);
    }

    fn row_of(
        &mut self,
        kind: BatchKind,
        text: &str,
        request: JournalRequest,
        ids: &[i64],
        finish: &str,
        actions: &[(&str, Verdict, &str)],
    ) {
        self.now += NS;
        let row = SynthRow { rid: "r".into(), ids: ids.to_vec(), text: text.into(), ..SynthRow::default() };
        let frame = SynthBatch { rows: vec![row] }.encode(kind, SynthWire::Msgpack).unwrap();
        let frame = self.writer.append(&frame, self.now).unwrap().frame;
        self.outcome(frame, request, ids.len(), finish, actions);
    }

    fn outcome(
        &mut self,
        frame: FrameNo,
        request: JournalRequest,
        tokens: usize,
        finish: &str,
        actions: &[(&str, Verdict, &str)],
    ) {
        let ends = !finish.is_empty();
        let finish = RowFinish { row: 0, reason: finish.to_owned().into(), completion_tokens: None };
        let actions: Vec<PluginAction<'_>> = actions.iter().map(|action| self::action(*action)).collect();
        self.writer.outcome(&Outcome {
            requests: (&[request]).into(),
            tokens: (&[tokens as u32]).into(),
            finished: if ends { vec![finish] } else { Vec::new() }.into(),
            actions: actions.into(),
            ..Outcome::new(frame, self.now, Passage::Unchanged)
        });
        if ends {
            self.writer.close(request);
        }
    }

    /// The sentences and the JSON of the only request with this rid.
    fn end(&mut self, rid: &str, tokens: Option<&TokenBytes>) -> (Vec<String>, serde_json::Value) {
        let _ = self.writer.flush();
        end(self.dir.path(), rid, tokens)
    }

    fn sentences(&mut self, rid: &str) -> Vec<String> {
        self.end(rid, None).0
    }

    fn not_found(&mut self, rid: &str) -> String {
        let _ = self.writer.flush();
        self::missing(self.dir.path(), rid)
    }
}

/// The directory of a journal of SGLang, with one request.
pub(crate) fn sglang() -> tempfile::TempDir {
    let mut scene = Scene::new();
    let request = scene.request("r");
    scene.row(request, &[1], "length", &[]);
    scene.writer.flush().unwrap();
    scene.dir
}

fn action((plugin, verdict, text): (&str, Verdict, &str)) -> PluginAction<'static> {
    let (plugin, text) = (plugin.to_owned().into(), text.to_owned().into());
    PluginAction { row: 0, plugin, verdict, text, ids: Vec::new().into(), forwarded: 0 }
}

/// The action of a plugin that releases a row that it held.
fn release(row: u32) -> PluginAction<'static> {
    PluginAction { row, ids: vec![1].into(), ..action(("pii", Verdict::Release, "")) }
}

fn end(dir: &Path, rid: &str, tokens: Option<&TokenBytes>) -> (Vec<String>, serde_json::Value) {
    let stream = JournalReader::open(dir).unwrap().stream(STREAM).unwrap();
    let [life] = stream.lives(rid).unwrap().try_into().unwrap();
    let layouts = Layouts::builtin();
    let reader = ContentReader::new(&stream, &layouts);
    let contents = reader.contents(&life, ContentBounds::NONE);
    let leg = LegEnd::new(STREAM, SCHEDULER, &life, &contents, tokens, || reader.rows_absent(&life));
    let legs = [&leg];
    let end = RequestEnd::of(&legs).unwrap();
    (end.sentences(TokenizerHint::Option), end.json(TokenizerHint::Key))
}

fn missing(dir: &Path, rid: &str) -> String {
    let source = Source::of(dir.to_owned()).open().unwrap();
    let journal = source.journal().unwrap();
    let streams = vec![journal.stream(STREAM).unwrap()];
    not_found(&Selected { source, journal, streams, config: None }, rid).to_string()
}

/// The row that a plugin or an operator dropped because the request had ended.
fn swallowed(plugin: &str) -> [(&str, Verdict, &str); 1] {
    [(plugin, Verdict::Drop, SWALLOWED)]
}

const UNACKNOWLEDGED: &str = "No reader has acknowledged the last row.";

#[test]
fn the_scheduler_ends_a_request() {
    let mut scene = Scene::new();
    let (a, b) = (scene.request("a"), scene.request("b"));
    scene.row(a, &[1], "", &[]);
    scene.row(a, &[2], "length", &[]);
    scene.row(b, &[3], "abort", &[]);
    let (sentences, json) = scene.end("a", None);
    let ended = "The scheduler ended the request with row 0 of frame 2: finish reason length.";
    assert_eq!(sentences, [ended, UNACKNOWLEDGED]);
    assert_eq!((&json["by"], &json["scheduler_said"]), (&"limit".into(), &"length".into()), "{json}");
    assert_eq!(
        (&json["reader_got"]["finish_reason"], &json["frame"]),
        (&"length".into(), &2.into()),
        "{json}"
    );
    let aborted = &scene.sentences("b")[0];
    assert!(aborted.starts_with("The scheduler aborted the request with row 0 of frame 3. "), "{aborted}");
}

#[test]
fn a_plugin_ends_a_request_and_the_scheduler_goes_on() {
    let mut scene = Scene::new();
    let request = scene.request("a");
    scene.row(request, &[75], "", &[("loops", Verdict::Finish, "stop-on-loop")]);
    scene.row(request, &[75, 108], "", &swallowed("loops"));
    let ended = "Plugin \"loops\" ended the request with row 0 of frame 1: \
                 the reader got finish reason stop (matched: \"stop-on-loop\").";
    let so_far = "The scheduler has not ended the request. \
                  It has sent 2 tokens in 1 row, which the reader did not get.";
    let ids = "The ids that the reader did not get: 75 108 (--tokenizer FILE shows their text)";
    let (sentences, json) = scene.end("a", None);
    assert_eq!(sentences, [ended, so_far, ids, UNACKNOWLEDGED]);
    // The dashboard has no options.
    let ids = "The ids that the reader did not get: 75 108 (the key tokenizer of a [[stream.sink]] shows their text)";
    assert_eq!(json["sentences"][2], ids, "{json}");
    scene.row(request, &[111], "length", &swallowed("loops"));
    let went_on = "The scheduler went on for 3 tokens in 2 rows, which the reader did not get, \
                   and then ended the request: length.";
    let tokenizer =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../path/text/tests/fixtures/byte-fallback");
    let tokens = TokenBytes::load(&tokenizer).unwrap();
    let (sentences, json) = scene.end("a", Some(&tokens));
    let text = "The text that the reader did not get: \"Hil\"";
    assert_eq!(sentences, [ended, went_on, text, UNACKNOWLEDGED]);
    assert_eq!((&json["by"], &json["plugin"]), (&"plugin".into(), &"loops".into()), "{json}");
    assert_eq!(json["reader_got"], serde_json::json!({"finish_reason": "stop", "text": "stop-on-loop"}));
    let swallowed = serde_json::json!({"rows": 2, "tokens": 3, "ids": [75, 108, 111], "text": "Hil"});
    assert_eq!((&json["swallowed"], &json["scheduler_said"]), (&swallowed, &"length".into()), "{json}");
}

#[test]
fn a_plugin_aborts_a_request_and_the_scheduler_aborts_it_too() {
    let mut scene = Scene::new();
    let request = scene.request("a");
    scene.row(request, &[1], "", &[("guard", Verdict::Abort, "forbidden")]);
    scene.row(request, &[], "abort", &swallowed("guard"));
    let ended = "Plugin \"guard\" ended the request with row 0 of frame 1: \
                 the reader got finish reason abort (message: \"forbidden\").";
    let aborted = "The scheduler sent no more tokens, and then aborted the request.";
    assert_eq!(scene.sentences("a"), [ended, aborted, UNACKNOWLEDGED]);
}

#[test]
fn a_plugin_and_the_scheduler_end_a_request_with_the_same_row() {
    let mut scene = Scene::new();
    let request = scene.request("a");
    scene.row(request, &[1], "length", &[("grammar", Verdict::Finish, "not JSON")]);
    let sentences = scene.sentences("a");
    assert!(
        sentences[0].contains("the reader got finish reason stop (matched: \"not JSON\")"),
        "{sentences:?}"
    );
    assert_eq!(sentences[1], "In the same row, the scheduler ended the request: length.");
}

#[test]
fn afterbay_ends_a_request_whose_guard_failed() {
    let mut scene = Scene::new();
    let request = scene.request("a");
    let why = "afterbay: plugin \"guard\" did not judge this row";
    let error = format!("500 {why}");
    scene.row(request, &[1], "", &[("guard", Verdict::Drop, why), ("guard", Verdict::Error, &error)]);
    let (sentences, json) = scene.end("a", None);
    let ended = format!(
        "Afterbay ended the request with row 0 of frame 1, because plugin \"guard\" failed \
         (on_fault = \"terminate\"): the reader got finish reason error (message: {error:?})."
    );
    assert_eq!(sentences[0], ended);
    assert_eq!(sentences[1], "The scheduler has not ended the request, and has sent no more rows.");
    assert_eq!((&json["by"], &json["plugin"]), (&"fault".into(), &"guard".into()), "{json}");
}

#[test]
fn an_operator_aborts_a_request() {
    let mut scene = Scene::new();
    let (done, waits, late) = (scene.request("done"), scene.request("waits"), scene.request("late"));
    for request in [done, waits, late] {
        scene.row(request, &[1], "", &[]);
        scene.writer.ending(request, OperatorAbort::Expected);
    }
    let (sentences, json) = scene.end("waits", None);
    let expected =
        "An operator asked for an abort: the scheduler's own row for the abort will be the last row.";
    assert!(sentences[0].starts_with("The request has not ended. "), "{sentences:?}");
    assert_eq!((&*sentences[1], &json["operator_abort"]), (expected, &"expected".into()), "{json}");
    scene.writer.ending(waits, OperatorAbort::Due);
    let due =
        "An operator asked for an abort, and the scheduler was told: the next row will be the last row.";
    assert_eq!(scene.sentences("waits")[1], due);

    scene.writer.ending(done, OperatorAbort::Due);
    scene.row(done, &[2], "", &[(OPERATOR, Verdict::Finish, "afterbay: aborted by operator")]);
    scene.row(done, &[3], "abort", &swallowed(OPERATOR));
    let (sentences, json) = scene.end("done", None);
    let ended = "An operator ended the request with row 0 of frame 4 (`afterbay abort`): \
                 the reader got finish reason stop (matched: \"afterbay: aborted by operator\").";
    let aborted = "The scheduler went on for 1 token in 1 row, which the reader did not get, \
                   and then aborted the request.";
    assert_eq!((&*sentences[0], &*sentences[1], &json["by"]), (ended, aborted, &"operator".into()));

    scene.row(late, &[2], "length", &[]);
    let sentences = scene.sentences("late");
    assert!(sentences[0].starts_with("The scheduler ended the request"), "{sentences:?}");
    assert_eq!(sentences[1], "An operator had asked for an abort, which came too late to change anything.");
}

#[test]
fn afterbay_gives_a_request_up() {
    let mut scene = Scene::new();
    let (silent, ended) = (scene.request("silent"), scene.request("ended"));
    scene.row(silent, &[1], "", &[]);
    scene.row(ended, &[1], "", &[("loops", Verdict::Finish, "loop")]);
    scene.writer.close(silent);
    scene.writer.close(ended);
    let (sentences, json) = scene.end("silent", None);
    assert!(
        sentences[0].starts_with("Nobody ended the request. The last row was received at "),
        "{sentences:?}"
    );
    assert_eq!((sentences.len(), &json["by"]), (1, &"lost".into()), "{json}");
    let no_more =
        "The scheduler sent no more tokens. It gave no finish reason, and Afterbay stopped waiting for one.";
    assert_eq!(scene.sentences("ended")[1], no_more);
}

#[test]
fn the_engine_ends_a_request_without_a_row() {
    let mut scene = Scene::new();
    let (left, ended) = (scene.request("left"), scene.request("ended"));
    scene.row(left, &[1], "", &[]);
    scene.row(ended, &[1], "", &[("loops", Verdict::Finish, "loop")]);
    scene.writer.close_as(left, "abort");
    scene.writer.close_as(ended, "abort");
    let (sentences, json) = scene.end("left", None);
    assert!(
        sentences[0].starts_with(
            "The scheduler ended the request without a row, because the engine's API server aborted it: "
        ),
        "{sentences:?}"
    );
    assert_eq!(
        (sentences.len(), &json["by"], &json["scheduler_said"]),
        (1, &"client".into(), &"abort".into())
    );
    assert!(json["reader_got"].is_null(), "{json}");
    let (sentences, json) = scene.end("ended", None);
    assert_eq!(sentences[1], "The scheduler sent no more tokens, and then aborted the request.");
    assert_eq!((&json["by"], &json["plugin"]), (&"plugin".into(), &"loops".into()), "{json}");
}

#[test]
fn a_live_request_has_not_ended_and_a_plugin_may_hold_its_last_rows() {
    let mut scene = Scene::new();
    let request = scene.request("a");
    scene.row(request, &[1], "", &[]);
    scene.row(request, &[2], "", &[("pii", Verdict::Hold, "for at most 100 ms")]);
    let (sentences, json) = scene.end("a", None);
    assert!(
        sentences[0].starts_with("The request has not ended. The last row was received at "),
        "{sentences:?}"
    );
    assert_eq!(sentences[1..], ["Plugin \"pii\" holds the last 1 row."]);
    assert_eq!((&json["by"], &json["frame"]), (&serde_json::Value::Null, &serde_json::Value::Null), "{json}");
}

#[test]
fn the_text_of_a_second_leg_needs_no_tokenizer() {
    let mut scene = Scene::new();
    let request = scene.request("a");
    scene.row(request, &[1], "", &[("words", Verdict::Finish, "enough")]);
    scene.row_of(BatchKind::Str, "more ", request, &[2], "", &swallowed("words"));
    scene.row_of(BatchKind::Str, "words", request, &[3], "stop", &swallowed("words"));
    assert_eq!(scene.sentences("a")[2], "The text that the reader did not get: \"more words\"");
}

#[test]
fn rows_of_frames_that_were_not_stored_are_not_called_damaged() {
    let mut scene = Scene::new();
    let request = scene.request("a");
    scene.row(request, &[1], "", &[("loops", Verdict::Finish, "loop")]);
    let frame = scene.writer.skipped(1, scene.now);
    scene.outcome(frame, request, 2, "", &swallowed("loops"));
    scene.row(request, &[3], "length", &swallowed("loops"));
    let sentences = scene.sentences("a");
    let missing = "1 of these 2 rows have no content here: the frames were forwarded without being stored \
                   (on_error = \"forward\").";
    assert!(sentences.contains(&missing.to_owned()), "{sentences:?}");
}

#[test]
fn a_request_whose_segment_is_missing_says_that_rows_cannot_be_read() {
    let mut scene = Scene::with(JournalOptions { segment_bytes: 4096, ..JournalOptions::default() });
    let request = scene.request("a");
    scene.row(request, &[1], "", &[("loops", Verdict::Finish, "loop")]);
    for _ in 0..40 {
        scene.row(request, &[2; 100], "", &swallowed("loops"));
    }
    scene.row(request, &[3], "length", &swallowed("loops"));
    scene.writer.flush().unwrap();
    let segments =
        std::fs::read_dir(scene.dir.path().join(STREAM)).unwrap().map(|entry| entry.unwrap().path());
    let mut segments: Vec<_> =
        segments.filter(|path| path.extension().is_some_and(|it| it == "seg")).collect();
    segments.sort();
    std::fs::remove_file(&segments[0]).unwrap();
    let (sentences, json) = scene.end("a", None);
    assert!(sentences[0].starts_with("Plugin \"loops\" ended the request: "), "{sentences:?}");
    assert_eq!(json["by"], "plugin");
    assert!(
        sentences.last().unwrap().contains("of 42 rows are not shown: the journal is damaged (`"),
        "{sentences:?}"
    );
    let not_found = scene.not_found("b");
    assert!(
        not_found.starts_with("rid \"b\": not in the part of the journal that can be read\n"),
        "{not_found}"
    );
    assert!(not_found.contains("segments are missing"), "{not_found}");
}

#[test]
fn a_rid_that_is_not_in_the_journal_gets_the_directory_and_how_far_back_it_reaches() {
    let mut scene = Scene::new();
    let request = scene.request("chat-done");
    scene.row(request, &[1], "stop", &[]);
    let not_found = scene.not_found("chat-doen");
    assert!(
        not_found.starts_with("rid \"chat-doen\": not in the journal, did you mean \"chat-done\"?\n"),
        "{not_found}"
    );
    let reach = format!("{}: stream \"decode\" reaches back to 2023-11-1", scene.dir.path().display());
    assert!(not_found.contains(&reach) && not_found.ends_with("(no frame was removed)"), "{not_found}");
}

#[test]
fn a_rid_may_be_in_frames_that_were_not_stored() {
    let mut scene = Scene::new();
    let request = scene.request("a");
    scene.row(request, &[1], "", &[]);
    scene.writer.skipped(3, scene.now);
    scene.row(request, &[1], "stop", &[]);
    let not_found = scene.not_found("b");
    assert!(not_found.starts_with("rid \"b\": not in the frames that were stored\n"), "{not_found}");
    assert!(
        not_found
            .contains("not stored: 3 frames from frame 2 on, which were forwarded (on_error = \"forward\")"),
        "{not_found}"
    );
}

#[test]
fn the_reasons_for_a_missing_content_are_different_words() {
    let words =
        [Absent::NotStored, Absent::Removed, Absent::Unreadable, Absent::NotDecoded].map(Absent::words);
    assert_eq!(words, ["not stored", "removed", "cannot be read", "not decoded"]);
}
