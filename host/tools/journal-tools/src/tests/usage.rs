//! Sums of usage once retention has removed segments.

use crate::place::Selected;
use crate::source::Source;
use crate::usage::Answer;
use afterbay_events::{Events, Health, Metrics};
use afterbay_follow::usage::Usage;
use afterbay_follow::{Following, Telemetry};
use afterbay_journal::reader::JournalReader;
use afterbay_journal::{
    Background, JournalDirectory, JournalOptions, JournalWriter, Outcome, Passage, RowFinish, SyncPolicy,
    storage::Disk,
};
use afterbay_journal_view::usage::Records;
use std::path::Path;
use std::sync::Arc;

const SECOND: u64 = 1_000_000_000;
const BEGIN: u64 = 1_700_000_000 * SECOND;

/// A journal that keeps few requests, and the records of usage, if somebody writes them.
struct Scene {
    dir: tempfile::TempDir,
    directory: JournalDirectory,
    writer: JournalWriter,
    records: Option<Following<Usage>>,
    requests: u64,
}

impl Scene {
    fn new() -> Scene {
        let dir = tempfile::tempdir().unwrap();
        let options = JournalOptions {
            sync: SyncPolicy::None,
            segment_bytes: 4096,
            retain_bytes: Some(12_000),
            ..JournalOptions::default()
        };
        let directory =
            JournalDirectory::open_on(Arc::new(Disk), dir.path(), options, Background::Caller).unwrap();
        let (writer, _) = directory.stream("s").unwrap();
        Scene { dir, directory, writer, records: None, requests: 0 }
    }

    fn records(&self) -> Following<Usage> {
        let (events, health) = (Events::new(), Health::default());
        let metrics = Metrics::new(events.clone(), health.clone());
        let telemetry = Telemetry { events, health, metrics };
        let usage = Usage::new(Arc::new(Disk), &self.dir.path().join(".usage"), None, &telemetry);
        Following::new(usage, Arc::new(Disk), self.dir.path(), &telemetry)
    }

    fn record(mut self) -> Scene {
        self.records = Some(self.records());
        self
    }

    /// Requests of one token, one a second.
    fn requests(&mut self, count: u64) {
        for _ in 0..count {
            let now = BEGIN + self.requests * SECOND;
            self.requests += 1;
            let request = self.writer.open("r");
            let frame = self.writer.append(&[1; 400], now).unwrap().frame;
            let finish = RowFinish { row: 0, reason: "stop".into(), completion_tokens: Some(1) };
            self.writer.outcome(&Outcome {
                requests: (&[request]).into(),
                tokens: (&[1]).into(),
                finished: vec![finish].into(),
                ..Outcome::new(frame, now, Passage::Unchanged)
            });
            self.writer.close(request);
            self.writer.flush().unwrap();
            self.writer.tend();
            if let Some(records) = &mut self.records {
                while records.look(false).unwrap() {}
            }
            self.directory.tend();
        }
    }

    /// The number of requests since this second, and the second since which the answer is complete.
    fn answer(&self, since: Option<u64>) -> (u64, Option<u64>) {
        let source = Source::of(self.dir.path().to_owned()).open().unwrap();
        let journal = source.journal().unwrap();
        let streams = vec![journal.stream("s").unwrap()];
        let mut answer =
            Answer::new(vec!["tenant".parse().unwrap()], since.map(|since| BEGIN + since * SECOND));
        answer.add_journal(Selected { source, journal, streams, config: None }).unwrap();
        let complete_since = answer.complete_since();
        (answer.sums.total().requests, complete_since.map(|time| (time - BEGIN) / SECOND))
    }

    /// The second of the oldest request that the journal has.
    fn oldest(&self) -> u64 {
        let stream = JournalReader::open(self.dir.path()).unwrap().stream("s").unwrap();
        let begun = stream.begun_unix_ns(stream.segments().unwrap()[0]).unwrap().unwrap();
        (begun - BEGIN) / SECOND
    }
}

#[test]
fn a_whole_journal_is_a_complete_answer() {
    let mut scene = Scene::new();
    scene.requests(10);
    assert_eq!(scene.answer(None), (10, None));
}

#[test]
fn a_journal_without_records_says_since_when_its_answer_is_complete() {
    let mut scene = Scene::new();
    scene.requests(100);
    let oldest = scene.oldest();
    assert!(oldest > 50, "retention has removed segments: {oldest}");
    let (requests, complete_since) = scene.answer(None);
    assert_eq!(complete_since, Some(oldest));
    assert!(requests < 100);
    assert_eq!(
        scene.answer(Some(oldest + 1)),
        (99 - oldest, None),
        "a part that the journal has is complete"
    );
}

#[test]
fn records_complete_the_answer_of_a_journal_whose_segments_were_removed() {
    let mut scene = Scene::new().record();
    scene.requests(100);
    scene.records = None;
    // The end is not recorded yet.
    scene.requests(3);
    assert!(scene.oldest() > 50);
    assert_eq!(scene.answer(None), (103, None));
    assert_eq!(scene.answer(Some(20)), (83, None));
}

#[test]
fn requests_that_were_removed_while_nobody_recorded_are_named_as_a_gap() {
    let mut scene = Scene::new().record();
    scene.requests(20);
    scene.records = None;
    scene.requests(80);
    let oldest = scene.oldest();
    assert_eq!(scene.answer(None).1, Some(oldest), "the records end before the journal begins");
    // Later records know that they begin anew.
    let mut scene = scene.record();
    scene.requests(60);
    assert!(scene.oldest() > oldest + 20);
    let (requests, complete_since) = scene.answer(None);
    assert_eq!(complete_since, Some(oldest));
    assert!(requests < 160);
    assert_eq!(scene.answer(Some(oldest + 1)), (159 - oldest, None));
}

#[test]
fn a_directory_of_records_is_summed_and_no_other_directory_is_taken_for_one() {
    let mut scene = Scene::new().record();
    scene.requests(30);
    let usage = scene.dir.path().join(".usage");
    let mut answer = Answer::new(vec!["tenant".parse().unwrap()], None);
    answer.add_records_alone(&Records::open(Arc::new(Disk), &usage).unwrap().unwrap()).unwrap();
    assert_eq!((answer.sums.total().requests, answer.complete_since()), (30, None));
    let none = |dir: &Path| Records::open(Arc::new(Disk), dir).unwrap().is_none();
    assert!(none(scene.dir.path()) && none(&scene.dir.path().join("absent")));
    assert!(JournalReader::open(&usage).is_err(), "a directory of records is no journal");
}
