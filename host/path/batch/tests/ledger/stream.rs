//! A stream without sockets and plugins: a journal in a temporary directory, the held rows, and the ledger.

use afterbay_batch::frame_log::FrameLog;
use afterbay_batch::hold::HeldRows;
use afterbay_batch::ledger::{
    AbortSender, FinishedEarly, Interrupted, Interruption, LeaseChange, Ledger, LedgerLinks, RecordLinks,
    RestartGap,
};
use afterbay_batch::records::{JournalPolicy, Records};
use afterbay_batch::{
    ChainOutput, Content, Decoded, FrameDecoder, HeldRow, JoinEnds, Persisted, Received, ReleasedRow,
    RoutingTable, RowContent, Settled, SinkTarget, Timestamp,
};
use afterbay_config::Takes;
use afterbay_events::{Events, Health, HoldEnd, Metrics, Recorder, StreamCounters, StreamTelemetry};
use afterbay_journal::{
    BacklogItem, FrameNo, JournalDirectory, JournalOptions, Outcome, PluginAction, RELEASE_MARKER,
    RecoveredStream, Verdict,
};
use afterbay_wire::synth::{SynthBatch, SynthFinish, SynthRow, SynthWire};
use afterbay_wire::{Batch, BatchKind, FinishReason, Layouts};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The plugin that decides.
pub const PLUGIN: &str = "decides";

pub struct Stream {
    parts: Option<Parts>,
    decoder: FrameDecoder,
    began: Timestamp,
    /// Seconds since the stream began.
    pub seconds: u64,
    telemetry: StreamTelemetry,
    health: Health,
    pub recorder: Recorder,
    routing: Arc<RoutingTable>,
    aborts: Option<Receiver<FinishedEarly>>,
    leases: (Sender<String>, Receiver<String>),
    interruptions: (Sender<String>, Receiver<String>),
    /// Whether requests whose engine has died may wait for another one.
    pub migrates: bool,
    pub dir: tempfile::TempDir,
}

struct Parts {
    ledger: Ledger,
    log: FrameLog,
    held: HeldRows,
    _journal: JournalDirectory,
}

/// A row of the scheduler: its request, its ids, and the request's tokens so far.
pub fn row(rid: &str, ids: &[i64], count: u64) -> SynthRow {
    SynthRow { rid: rid.to_owned(), ids: ids.to_vec(), completion_tokens: count, ..SynthRow::default() }
}

pub fn last(rid: &str, ids: &[i64], count: u64) -> SynthRow {
    SynthRow { finish: Some(SynthFinish::Length(count)), ..row(rid, ids, count) }
}

/// A row as a reader sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentRow {
    pub rid: String,
    pub ids: Vec<i64>,
    pub count: Option<u64>,
    pub is_last: bool,
    /// The number of the request.
    pub request: u64,
}

pub fn sent_rows(settled: Settled) -> Vec<SentRow> {
    let (_, content) = settled.into_parts();
    let Content::Rows { batch, requests } = content.content else { return Vec::new() };
    assert_eq!(requests.len(), batch.rows() as usize);
    rows_of(&batch).into_iter().zip(requests).map(|(row, request)| SentRow { request, ..row }).collect()
}

fn rows_of(batch: &Batch) -> Vec<SentRow> {
    let rows = (0..batch.rows()).map(|row| {
        let mut ids = Vec::new();
        batch.row_ids(row, &mut ids);
        let is_last = batch.finish(row) != afterbay_wire::Finish::Running;
        let count = batch.completion_tokens(row);
        SentRow { rid: batch.rid(row).to_owned(), ids, count, is_last, request: 0 }
    });
    rows.collect()
}

impl Stream {
    /// A stream with one reader and without an upstream connection.
    pub fn new() -> Stream {
        Stream::with(Vec::new(), false)
    }

    /// A stream with these sinks, and with a queue of aborts for the scheduler.
    pub fn with(sinks: Vec<(&str, Takes)>, has_upstream: bool) -> Stream {
        let (events, recorder) = Events::recorded();
        let health = Health::default();
        let counters = Metrics::new(events.clone(), health.clone()).stream("s");
        let sinks = sinks.into_iter().map(|(name, takes)| SinkTarget {
            name: name.into(),
            journal_name: name.to_owned(),
            takes,
            front_end: None,
        });
        // The journal abandons requests of long ago by the system's clock.
        let unix_ns = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let mut stream = Stream {
            parts: None,
            decoder: FrameDecoder::new(Layouts::builtin()),
            began: Timestamp { instant: Instant::now(), unix_ns: unix_ns.as_nanos() as u64 },
            seconds: 0,
            telemetry: StreamTelemetry { stream: "s".into(), events, counters },
            health,
            recorder,
            routing: Arc::new(RoutingTable::new(sinks.collect())),
            aborts: None,
            leases: channel(),
            interruptions: channel(),
            migrates: true,
            dir: tempfile::tempdir().unwrap(),
        };
        let sender = has_upstream.then(|| {
            let (sender, receiver) = channel();
            stream.aborts = Some(receiver);
            Box::new(move |finished| sender.send(finished).is_ok()) as AbortSender
        });
        stream.open(LedgerLinks { upstream: sender, ..LedgerLinks::default() });
        stream
    }

    fn open(&mut self, mut links: LedgerLinks) {
        let leases = self.leases.0.clone();
        links.leases = Some(Box::new(move |change| {
            let change = match change {
                LeaseChange::Begun { rid, number, of_engine } => {
                    let of_engine = of_engine.iter().map(|(name, value)| format!(" {name}={value}"));
                    let mut of_engine: Vec<String> = of_engine.collect();
                    of_engine.sort();
                    format!("{number} {rid}{}", of_engine.concat())
                }
                LeaseChange::Ended(number) => format!("{number} ended"),
            };
            leases.send(change).unwrap();
        }));
        let (interruptions, migrates) = (self.interruptions.0.clone(), self.migrates);
        links.interrupted = Some(Box::new(move |change| {
            let change = match change {
                Interruption::Began(Interrupted { rid, number, received, record }) => {
                    let record = record.read().unwrap();
                    format!("{number} {rid} has {received} behind {}", record.prompt_tokens.unwrap())
                }
                Interruption::Taken(number) => format!("{number} taken"),
                Interruption::Ended(number) => format!("{number} ended"),
            };
            interruptions.send(change).unwrap();
            migrates
        }));
        let journal = JournalDirectory::open(self.dir.path(), JournalOptions::default()).unwrap();
        let (mut writer, recovered) = journal.stream("s").unwrap();
        writer.set_attributes(Box::new(|_, of_engine| of_engine.to_vec()));
        links.journal = Some(Arc::new(writer.reader()));
        let now = self.now();
        let gap = RestartGap::new(recovered.last_frame, &recovered.live);
        let (routing, telemetry) = (self.routing.clone(), self.telemetry.clone());
        let mut ledger = Ledger::new(&recovered.live, links, gap, routing, telemetry, now);
        ledger.restore_counts(&recovered.live, &writer, &mut self.decoder);
        ledger.restore_first_rows(&recovered.live, &writer, &mut self.decoder);
        let policy = JournalPolicy::default();
        let (telemetry, health) = (self.telemetry.clone(), self.health.clone());
        let mut records = Records::new(writer, policy, &recovered, telemetry, health, now);
        let mut held = self.recover_held(&records, &ledger, &recovered, now.instant);
        held.restore(&[], now.instant, |_| false);
        ledger.restore_held(&recovered.live, &held, &mut records);
        let log = FrameLog::new(records, &recovered);
        self.parts = Some(Parts { ledger, log, held, _journal: journal });
    }

    /// The changes of requests whose engine has died, since the last call.
    pub fn interruptions(&self) -> Vec<String> {
        self.interruptions.1.try_iter().collect()
    }

    /// The changes of leases since the last call.
    pub fn leases(&self) -> Vec<String> {
        self.leases.1.try_iter().collect()
    }

    fn recover_held(
        &mut self,
        records: &Records,
        ledger: &Ledger,
        recovered: &RecoveredStream,
        now: Instant,
    ) -> HeldRows {
        let mut held = HeldRows::new(JoinEnds::Anywhere);
        let Some(after) = records.held_after() else { return held };
        let mut backlog = records.backlog_from(FrameNo(after.0 + 1));
        while backlog.position() <= recovered.last_frame {
            let Some(BacklogItem::Frame(frame)) = backlog.next().unwrap() else { break };
            held.recover(&frame, &mut self.decoder, |number| ledger.numbered(number), now).unwrap();
        }
        held
    }

    /// Ends the process and starts it again. `is_clean` seals the journal first.
    pub fn restart(&mut self, is_clean: bool) {
        let Some(Parts { ledger, mut log, .. }) = self.parts.take() else { return };
        assert!(log.records.flush());
        match is_clean {
            true => log.records.finish().unwrap(),
            false => drop(log),
        }
        self.open(ledger.into_links());
    }

    /// Starts the process again with the stream behind another one.
    pub fn put_behind_another(&mut self) {
        let Some(Parts { ledger, log, .. }) = self.parts.take() else { return };
        drop(log);
        let records = RecordLinks { find: Some(Arc::new(|_: &str| None)), ..RecordLinks::default() };
        self.open(LedgerLinks { records, ..ledger.into_links() });
    }

    pub fn now(&self) -> Timestamp {
        let after = Duration::from_secs(self.seconds);
        Timestamp {
            instant: self.began.instant + after,
            unix_ns: self.began.unix_ns + after.as_nanos() as u64,
        }
    }

    fn parts(&mut self) -> &mut Parts {
        self.parts.as_mut().unwrap()
    }

    pub fn ledger(&mut self) -> &mut Ledger {
        &mut self.parts().ledger
    }

    pub fn held(&mut self) -> &mut HeldRows {
        &mut self.parts().held
    }

    /// The ledger and the records, for methods that take both.
    pub fn both(&mut self) -> (&mut Ledger, &mut Records) {
        let Parts { ledger, log, .. } = self.parts();
        (ledger, &mut log.records)
    }

    /// The ledger, the held rows and the records.
    pub fn all(&mut self) -> (&mut Ledger, &mut HeldRows, &mut Records) {
        let Parts { ledger, log, held, .. } = self.parts();
        (ledger, held, &mut log.records)
    }

    pub fn counters(&self) -> &StreamCounters {
        &self.telemetry.counters
    }

    /// The aborts that the scheduler was sent since the last call.
    pub fn aborts(&self) -> Vec<FinishedEarly> {
        self.aborts.iter().flat_map(|aborts| aborts.try_iter()).collect()
    }

    pub fn persist(&mut self, bytes: Bytes) -> Persisted {
        let at = self.now();
        let log = &mut self.parts().log;
        log.persist(Received { bytes, at }, at);
        log.next(at).unwrap()
    }

    /// Persists and decodes a message.
    pub fn receive(&mut self, bytes: Bytes) -> Decoded {
        let persisted = self.persist(bytes);
        self.decoder.decode(persisted)
    }

    pub fn account(&mut self, rows: Vec<SynthRow>) -> ChainOutput {
        self.account_as(BatchKind::TokenId, rows)
    }

    pub fn account_as(&mut self, kind: BatchKind, rows: Vec<SynthRow>) -> ChainOutput {
        let decoded = self.receive(SynthBatch { rows }.encode(kind, SynthWire::Msgpack).unwrap());
        let (ledger, records) = self.both();
        let Ok(accounted) = ledger.account(decoded, records) else { panic!("no rows") };
        ChainOutput::new(accounted)
    }

    pub fn settle(&mut self, output: ChainOutput) -> Settled {
        let (ledger, held, records) = self.all();
        ledger.settle(output, held, records)
    }

    /// The rows that leave for a batch without a decision.
    pub fn pass(&mut self, rows: Vec<SynthRow>) -> Vec<SentRow> {
        let output = self.account(rows);
        sent_rows(self.settle(output))
    }

    /// The rows that leave for a batch with the same decision on each row.
    pub fn decide(&mut self, rows: Vec<SynthRow>, decide: &Decide) -> Vec<SentRow> {
        let output = self.decided(rows, decide);
        sent_rows(self.settle(output))
    }

    pub fn decided(&mut self, rows: Vec<SynthRow>, decide: &Decide) -> ChainOutput {
        let mut output = self.account(rows);
        for row in 0..output.accounted().rows().len() as u32 {
            self.apply(&mut output, row, decide);
        }
        output.verdicts.sort();
        output
    }

    /// Applies a decision, as the chain does.
    pub fn apply(&mut self, output: &mut ChainOutput, row: u32, decide: &Decide) {
        output.decide();
        let accounted = output.accounted().rows()[row as usize];
        if accounted.hidden {
            return;
        }
        if matches!(decide, Decide::Hold) {
            let until = self.now().instant + Duration::from_secs(60);
            let held = output.to_held_row(row).unwrap();
            self.held().hold(accounted.request, &PLUGIN.into(), held, until);
            record(output, row, Verdict::Hold, "", &[], 0);
            output.hold_row(row);
            return;
        }
        let tokens = self.release(output, row);
        let mut forwarded = tokens;
        if let Decide::Replace(ids) | Decide::ReplaceAndFinish(ids) = decide {
            forwarded = ids.len() as u32;
            record(output, row, Verdict::Replace, "", ids, forwarded);
            output.decide()[row as usize].content = RowContent::Delta(ids.clone());
        }
        if matches!(decide, Decide::Drop | Decide::DropAndFinish) {
            forwarded = 0;
            record(output, row, Verdict::Drop, "why", &[], 0);
            output.decide()[row as usize].content = RowContent::Dropped;
        }
        if matches!(decide, Decide::Finish | Decide::ReplaceAndFinish(_) | Decide::DropAndFinish) {
            record(output, row, Verdict::Finish, "enough", &[], forwarded);
            output.decide()[row as usize].finish = Some(FinishReason::Stop("enough".to_owned()));
        }
    }

    /// Releases the held rows of the request with this row. Returns the tokens that the row has then.
    fn release(&mut self, output: &mut ChainOutput, row: u32) -> u32 {
        let accounted = output.accounted().rows()[row as usize];
        if !self.held().has(accounted.number()) {
            return accounted.tokens;
        }
        let own = output.to_held_row(row).unwrap();
        let entries = self.held().entries(accounted.number(), PLUGIN);
        let mut all = self.held().remove(accounted.number(), PLUGIN, usize::MAX);
        all.push(own);
        let held = HeldRow::join(&all).unwrap();
        let tokens = held.tokens;
        record(output, row, Verdict::Release, "", &[entries as i64], tokens);
        output.put_released(ReleasedRow {
            row,
            held,
            in_place: false,
            plugin: PLUGIN.into(),
            why: HoldEnd::Verdict,
        });
        tokens
    }

    /// The rows that are due, in a frame of Afterbay's own. `None` if none is due.
    pub fn begin_release(&mut self) -> Option<ChainOutput> {
        let at = self.now();
        let marker = self.persist(Bytes::from_static(RELEASE_MARKER));
        let (ledger, held, records) = self.all();
        match ledger.release(marker, held, records, at.instant) {
            Ok((output, plugin)) => {
                assert_eq!(plugin.as_str(), PLUGIN);
                Some(output)
            }
            Err(settled) => {
                assert_eq!(sent_rows(settled), []);
                None
            }
        }
    }

    /// Releases the rows that are due.
    pub fn release_due(&mut self) -> Option<Vec<SentRow>> {
        let output = self.begin_release()?;
        Some(sent_rows(self.settle(output)))
    }

    /// The outcomes of all frames, as the journal has them.
    pub fn outcomes(&mut self) -> Vec<Outcome<'static>> {
        let records = &mut self.parts().log.records;
        assert!(records.flush());
        let mut backlog = records.backlog_from(FrameNo(1));
        let mut outcomes = Vec::new();
        while let Some(item) = backlog.next().unwrap() {
            let BacklogItem::Frame(frame) = item else { panic!("a frame is missing") };
            outcomes.extend(frame.outcome.map(|outcome| *outcome));
        }
        outcomes
    }
}

/// A decision for one row.
#[derive(Clone, Debug)]
pub enum Decide {
    Pass,
    Replace(Vec<i64>),
    Drop,
    Finish,
    ReplaceAndFinish(Vec<i64>),
    DropAndFinish,
    Hold,
}

pub fn record(
    output: &mut ChainOutput,
    row: u32,
    verdict: Verdict,
    text: &'static str,
    ids: &[i64],
    forwarded: u32,
) {
    let ids = ids.to_vec().into();
    output.verdicts.push(PluginAction {
        row,
        plugin: PLUGIN.into(),
        verdict,
        text: text.into(),
        ids,
        forwarded,
    });
}
