//! Random schedules of rows, barriers, stalls and bounds: a sink gets everything once and in order.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use crate::support::{Numbers, batch_of, bytes, options, rows_of, source_of};
use afterbay_batch::outbox::{Frame, FrameToSend, Options, Outbox, Totals, When};
use afterbay_batch::{Content, JoinEnds};
use afterbay_wire::synth::{SynthBatch, SynthFinish, SynthRow, SynthWire};
use afterbay_wire::{Batch, BatchKind, DecodedFrame, Finish, Layouts, Matched, decode};
use bytes::Bytes;
use proptest::prelude::*;

/// A step of a schedule.
#[derive(Clone, Debug)]
enum Step {
    /// A batch: for each request its number, its tokens, and whether this row is its last.
    Rows(Vec<(u8, u8, bool)>),
    /// A control message.
    Barrier,
    /// A frame without content.
    Nothing,
    /// The sink takes this number of frames, or fewer if fewer wait.
    Take(u8),
    /// The sink confirms every sent frame.
    Confirm,
    /// Time passes, in milliseconds.
    Wait(u8),
    /// The outbox is made again from what is known of the sent frames, which are still on their way.
    Anew,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let row = (0..12u8, 1..4u8, prop::bool::weighted(0.1));
    let step = prop_oneof![
        8 => prop::collection::vec(row, 1..10).prop_map(Step::Rows),
        1 => Just(Step::Barrier),
        1 => Just(Step::Nothing),
        5 => (1..4u8).prop_map(Step::Take),
        3 => Just(Step::Confirm),
        2 => (1..30u8).prop_map(Step::Wait),
        1 => Just(Step::Anew),
    ];
    prop::collection::vec(step, 1..60)
}

/// The scheduler's side: the tokens of each request so far.
#[derive(Default)]
struct Scheduler {
    /// By number: the current life of the request, and its tokens so far.
    requests: HashMap<u8, (u32, u64)>,
    next: i64,
    kind: Option<BatchKind>,
    /// Ids are the bytes of this text, request by request.
    text: Option<&'static str>,
}

impl Scheduler {
    fn batch(&mut self, rows: &[(u8, u8, bool)], wire: SynthWire) -> Option<Batch> {
        let mut made = BTreeMap::new();
        for (number, tokens, last) in rows {
            if made.contains_key(number) {
                continue;
            }
            let name = |life: u32| match number {
                0 => format!("HEALTH_CHECK_{life:032x}"),
                _ => format!("req-{number}"),
            };
            let before = self.requests.get(number).map_or(0, |(_, count)| *count as usize);
            let ids: Vec<i64> = match self.text {
                Some(text) => {
                    text.bytes().cycle().skip(before).take((*tokens).into()).map(i64::from).collect()
                }
                None => (0..*tokens).map(|_| self.next_id()).collect(),
            };
            let request = self.requests.entry(*number).or_default();
            request.1 += u64::from(*tokens);
            let (life, count) = *request;
            if *last {
                *request = (life + 1, 0);
            }
            let text = ids.iter().map(|id| format!("<{id}>")).collect();
            made.insert(
                *number,
                SynthRow {
                    rid: name(life),
                    prompt_tail: if count == u64::from(*tokens) { vec![7, 8] } else { Vec::new() },
                    ids,
                    text,
                    finish: last.then(|| match life % 2 {
                        0 => SynthFinish::Length(count),
                        _ => SynthFinish::StopText("stop".to_owned()),
                    }),
                    completion_tokens: count,
                    prompt_tokens: 9,
                    ..SynthRow::default()
                },
            );
        }
        let rows: Vec<SynthRow> = made.into_values().collect();
        let kind = self.kind.unwrap_or(BatchKind::TokenId);
        let bytes = SynthBatch { rows }.encode(kind, wire).unwrap();
        Some(batch_of(bytes))
    }

    fn next_id(&mut self) -> i64 {
        self.next += 1;
        self.next
    }
}

/// A request on either side: ids, text, the scheduler's count, and whether it has ended.
#[derive(Clone, Debug, Default, PartialEq)]
struct Had {
    ids: Vec<i64>,
    text: String,
    count: u64,
    ended: bool,
    is_health_check: bool,
}

#[derive(Default)]
struct Reader {
    /// By number.
    requests: BTreeMap<u64, Had>,
    /// Barriers, and the tokens before each, without health checks.
    barriers: Vec<BTreeMap<u64, Had>>,
    /// The last request with each rid.
    last: BTreeMap<String, u64>,
}

impl Reader {
    fn read(&mut self, batch: &Batch, numbers: &[u64]) {
        for (row, number) in (0..).zip(numbers) {
            let rid = batch.rid(row);
            let last = self.last.entry(rid.to_owned()).or_insert(*number);
            let before = std::mem::replace(last, *number);
            assert!(before <= *number, "{rid}: a row of an earlier request comes after a later one");
            assert!(
                before == *number || self.requests[&before].ended,
                "{rid} comes again before its last row"
            );
            let had = self.requests.entry(*number).or_default();
            had.is_health_check = rid.starts_with("HEALTH");
            assert!(!had.ended, "{rid} has a row after its last");
            batch.row_ids(row, &mut had.ids);
            had.text += batch.text(row).unwrap_or_default();
            had.count = batch.completion_tokens(row).unwrap();
            had.ended = batch.finish(row) != Finish::Running;
        }
    }

    fn barrier(&mut self) {
        let others = self.requests.iter().filter(|(_, had)| !had.is_health_check);
        self.barriers.push(others.map(|(number, had)| (*number, had.clone())).collect());
    }
}

/// A row that waits: the tokens of it.
type WaitingRows = BTreeMap<u64, u64>;

struct Run {
    outbox: Outbox,
    /// Whether the outbox sends every frame unchanged.
    is_unjoined: bool,
    came: Reader,
    got: Reader,
    left: u64,
    max_rows: usize,
    now: Instant,
    frames: BTreeMap<u64, Bytes>,
    numbers: Numbers,
    /// The request of each row of each frame.
    requests: BTreeMap<u64, Box<[u64]>>,
    /// The rid of each request.
    rids: BTreeMap<u64, String>,
    /// The time at which each frame was received.
    at: BTreeMap<u64, Instant>,
    /// For each request, its rows that are not sent as the outbox reports it: the frame and the tokens of each.
    unsent: BTreeMap<u64, WaitingRows>,
    /// The text of each request before a detokenizer, in bytes.
    texts: BTreeMap<u64, Vec<u8>>,
    /// Rows received.
    rows: u64,
    /// The counts that the outbox must have.
    totals: Totals,
    /// The counts of the outboxes before this one.
    earlier: Totals,
    /// Barriers that are not sent.
    barriers: BTreeSet<u64>,
    /// The last frame that was put in.
    last: u64,
}

impl Run {
    fn got(&mut self, leaving: &FrameToSend) {
        let source = source_of(leaving);
        self.left += 1;
        assert_eq!(leaving.sequence, self.left, "numbers have no gaps");
        if let Some(number) = source {
            assert_eq!(Some(&leaving.bytes), self.frames.get(&number), "frame {number} is as it came");
        }
        match decode(leaving.bytes.clone(), &Layouts::builtin()) {
            DecodedFrame::Batch(batch) => {
                let ahead: Vec<(u64, u64)> = match source {
                    Some(frame) => self.requests[&frame].iter().map(|request| (*request, frame)).collect(),
                    None => rows_of(leaving),
                };
                // A frame has at most one request with each rid.
                let told: BTreeMap<&str, (u64, u64)> =
                    ahead.iter().map(|told| (&*self.rids[&told.0], *told)).collect();
                assert_eq!(told.len(), ahead.len());
                let told: Vec<(u64, u64)> = batch.rids().map(|rid| told[rid]).collect();
                let mut oldest = u64::MAX;
                for (row, (request, through)) in (0..).zip(told.iter().copied()) {
                    let waiting = self.unsent.get_mut(&request).unwrap();
                    assert!(waiting.contains_key(&through), "a row leaves once");
                    let later = waiting.split_off(&(through + 1));
                    let sent = std::mem::replace(waiting, later);
                    oldest = oldest.min(*sent.keys().next().unwrap());
                    self.totals.rows_sent += sent.len() as u64;
                    self.totals.rows_joined += sent.len() as u64 - 1;
                    self.check_text(&batch, row, request, sent.len());
                }
                assert!(leaving.counted, "the reader counts a batch");
                assert_eq!(leaving.at, self.at[&oldest], "the time of the oldest row");
                assert!(source.is_some() || batch.rows() as usize <= self.max_rows);
                self.totals.frames_composed += u64::from(source.is_none());
                let numbers: Vec<u64> = told.iter().map(|(request, _)| *request).collect();
                self.got.read(&batch, &numbers);
            }
            DecodedFrame::Barrier(_) => {
                let frame = source.unwrap();
                self.barriers.remove(&frame);
                assert_eq!((leaving.counted, leaving.at), (false, self.at[&frame]));
                self.got.barrier();
            }
        }
    }

    /// A joined row ends where the text is whole or the request ends, and the row with a stop text is alone.
    fn check_text(&mut self, batch: &Batch, row: u32, request: u64, joined: usize) {
        let Some(text) = self.texts.get_mut(&request) else { return };
        let mut ids = Vec::new();
        batch.row_ids(row, &mut ids);
        text.extend(ids.iter().map(|id| *id as u8));
        let finish = batch.finish(row);
        let is_stop_text = matches!(finish, Finish::Stop { matched: Matched::Text(_) });
        assert!(joined == 1 || !is_stop_text, "a row with a stop text is joined");
        if joined > 1 && finish == Finish::Running {
            assert!(std::str::from_utf8(text).is_ok(), "a joined row cuts a character: {text:?}");
        }
    }

    /// The outbox counts what waits, and knows since when the oldest of it waits.
    fn check_waiting(&self) {
        let rows = self.unsent.values().flat_map(|rows| rows.iter());
        let frames: BTreeSet<u64> =
            rows.clone().map(|(frame, _)| *frame).chain(self.barriers.iter().copied()).collect();
        let (waiting_rows, tokens) = match self.is_unjoined {
            true => (frames.len(), 0),
            false => (rows.clone().count() + self.barriers.len(), rows.map(|(_, tokens)| tokens).sum()),
        };
        assert_eq!((self.outbox.rows(), self.outbox.tokens()), (waiting_rows, tokens));
        assert_eq!(self.outbox.is_empty(), frames.is_empty());
        assert_eq!(self.outbox.oldest(), frames.first().map(|frame| self.at[frame]));
        // A frame of which nothing waits keeps its memory while an older frame waits.
        let since = frames.first().copied().unwrap_or(u64::MAX);
        let bytes = |frame: &u64| self.frames.get(frame).map_or(0, |bytes| bytes.len() as u64);
        let (least, most) = (
            frames.iter().map(bytes).sum(),
            self.frames.range(since..).map(|(_, bytes)| bytes.len() as u64).sum(),
        );
        assert!((least..=most).contains(&self.outbox.bytes()));
        assert!((frames.len()..=self.frames.range(since..).count()).contains(&self.outbox.frames()));
    }

    /// Makes the outbox again, as after a panic: sent frames are known, waiting ones are not.
    fn anew(&mut self, options: &Options) {
        let done = self.outbox.taken_through();
        self.earlier = sum(self.earlier, self.outbox.totals());
        self.outbox = Outbox::new(options.clone(), self.left, done);
        for number in done + 1..=self.last {
            let rest = match self.frames.get(&number).cloned().map(|bytes| decode(bytes, &Layouts::builtin()))
            {
                Some(DecodedFrame::Batch(batch)) => self.rest(number, batch),
                Some(DecodedFrame::Barrier(barrier)) if self.barriers.contains(&number) => {
                    Content::Whole { bytes: barrier.bytes().clone(), counted: false, rows: 0, first_rows: 0 }
                }
                _ => Content::Nothing,
            };
            self.at.insert(number, self.now);
            self.outbox.push_rest(Frame { number, at: self.now, content: rest }, self.left);
        }
    }

    fn rest(&mut self, frame: u64, batch: Batch) -> Content {
        let has_left = |number: &u64| self.unsent.get(number).is_none_or(|rows| !rows.contains_key(&frame));
        let requests = (0..).zip(self.requests[&frame].iter().copied());
        let (rest, requests): (Vec<u32>, Vec<u64>) = requests.filter(|(_, number)| !has_left(number)).unzip();
        if rest.is_empty() {
            return Content::Nothing;
        }
        let batch = if rest.len() == batch.rows() as usize { batch } else { batch.take(&rest).unwrap() };
        self.frames.insert(frame, batch.bytes().clone());
        self.requests.insert(frame, requests.clone().into());
        Content::Rows { batch, requests: requests.into() }
    }
}

fn sum(one: Totals, other: Totals) -> Totals {
    Totals {
        frames_composed: one.frames_composed + other.frames_composed,
        rows_sent: one.rows_sent + other.rows_sent,
        rows_joined: one.rows_joined + other.rows_joined,
        frames_torn: one.frames_torn + other.frames_torn,
    }
}

fn run(options: Options, wire: SynthWire, kind: BatchKind, steps: &[Step]) -> Run {
    let max_rows = options.max_rows;
    let when = options.when;
    let is_text_whole = matches!(options.joins.ends, JoinEnds::WhereTextIsWhole(_));
    let mut run = Run {
        outbox: Outbox::new(options.clone(), 0, 0),
        is_unjoined: when == When::Never || matches!(options.joins.ends, JoinEnds::Nowhere),
        came: Reader::default(),
        got: Reader::default(),
        left: 0,
        max_rows,
        now: Instant::now(),
        frames: BTreeMap::new(),
        numbers: Numbers::default(),
        requests: BTreeMap::new(),
        rids: BTreeMap::new(),
        at: BTreeMap::new(),
        unsent: BTreeMap::new(),
        texts: BTreeMap::new(),
        rows: 0,
        totals: Totals::default(),
        earlier: Totals::default(),
        barriers: BTreeSet::new(),
        last: 0,
    };
    let text = is_text_whole.then_some("a\u{e9}\u{20ac}\u{1f642}");
    let mut scheduler = Scheduler { kind: Some(kind), text, ..Scheduler::default() };
    for (number, step) in (1..).zip(steps) {
        let at = run.now;
        run.at.insert(number, at);
        match step {
            Step::Rows(rows) => {
                let Some(batch) = scheduler.batch(rows, wire) else { continue };
                let requests = run.numbers.of(&batch);
                run.came.read(&batch, &requests);
                run.frames.insert(number, batch.bytes().clone());
                run.requests.insert(number, requests.clone());
                run.rows += u64::from(batch.rows());
                for ((rid, request), tokens) in
                    batch.rids().zip(requests.iter().copied()).zip(batch.token_counts())
                {
                    run.rids.insert(request, rid.to_owned());
                    run.unsent.entry(request).or_default().insert(number, tokens.into());
                    if is_text_whole {
                        run.texts.entry(request).or_default();
                    }
                }
                run.last = number;
                run.outbox.push(Frame { number, at, content: Content::Rows { batch, requests } });
            }
            Step::Barrier => {
                let bytes = Bytes::from_static(b"\x91\xa5Other");
                run.came.barrier();
                run.frames.insert(number, bytes.clone());
                (run.last, _) = (number, run.barriers.insert(number));
                run.outbox.push(Frame {
                    number,
                    at,
                    content: Content::Whole { bytes, counted: false, rows: 0, first_rows: 0 },
                });
            }
            Step::Nothing => {
                run.last = number;
                run.outbox.push(Frame { number, at, content: Content::Nothing });
            }
            Step::Anew => run.anew(&options),
            Step::Take(frames) => {
                for _ in 0..*frames {
                    match run.outbox.next(true, run.now) {
                        Some(leaving) => run.got(&leaving),
                        None => assert!(run.outbox.is_empty(), "nothing waits while the sink has room"),
                    }
                }
            }
            Step::Confirm => run.outbox.taken(run.left),
            Step::Wait(ms) => run.now += Duration::from_millis(u64::from(*ms)),
        }
        // Health checks do not wait.
        while when != When::Never
            && let Some(leaving) = run.outbox.next(false, run.now)
        {
            run.got(&leaving);
        }
        run.check_waiting();
    }
    // The sink is fast again.
    run.now += Duration::from_secs(1);
    while !run.outbox.is_empty() {
        let leaving = run.outbox.next(true, run.now).unwrap();
        run.got(&leaving);
        run.check_waiting();
        run.now += Duration::from_secs(1);
    }
    run
}

fn check(options: Options, wire: SynthWire, kind: BatchKind, steps: &[Step]) {
    let when = options.when;
    let mut run = run(options, wire, kind, steps);
    assert_eq!(run.came.requests, run.got.requests);
    assert_eq!(run.came.barriers.len(), run.got.barriers.len());
    for (came, got) in run.came.barriers.iter().zip(&run.got.barriers) {
        assert_eq!(came, got, "what came before a barrier leaves before it, and what came after it after");
    }
    assert!(run.unsent.values().all(|rows| rows.is_empty()), "what is told to have left is all that came");
    assert!(run.outbox.is_empty());
    assert_eq!((run.outbox.frames(), run.outbox.bytes(), run.outbox.rows()), (0, 0, 0));
    run.outbox.taken(run.left);
    let last = steps.iter().rposition(|step| matches!(step, Step::Rows(_) | Step::Barrier | Step::Nothing));
    assert_eq!(
        run.outbox.taken_through(),
        last.map_or(0, |at| at as u64 + 1),
        "everything that was taken is done with"
    );
    let totals = sum(run.earlier, run.outbox.totals());
    assert_eq!(totals, run.totals, "the counts are those of the sent frames");
    assert_eq!(totals.rows_sent, run.rows, "every row is counted once");
    if when == When::Never {
        assert_eq!((totals.frames_composed, totals.rows_joined), (0, 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn under_backpressure_each_request_gets_its_tokens_once_and_in_order(
        steps in steps(), max_rows in 4..9usize, pickle in any::<bool>(), text in any::<bool>(),
    ) {
        let wire = if pickle { SynthWire::Pickle } else { SynthWire::Msgpack };
        let kind = if text { BatchKind::Str } else { BatchKind::TokenId };
        check(options(When::Backpressure, JoinEnds::Anywhere, max_rows), wire, kind, &steps);
    }

    #[test]
    fn before_a_detokenizer_joined_rows_end_where_the_text_is_whole(steps in steps(), max_rows in 4..9usize) {
        check(options(When::Backpressure, bytes(), max_rows), SynthWire::Msgpack, BatchKind::TokenId, &steps);
    }

    #[test]
    fn without_joining_every_frame_is_sent_unchanged(steps in steps(), never in any::<bool>()) {
        let (when, joins) = match never {
            true => (When::Never, JoinEnds::Anywhere),
            false => (When::Backpressure, JoinEnds::Nowhere),
        };
        check(options(when, joins, 4), SynthWire::Msgpack, BatchKind::TokenId, &steps);
    }
}
