//! The journal of a stream on a failing disk against a model, over thousands of seeded schedules.
//!
//! A failure prints its seed; `AFTERBAY_SEED=n` runs that one alone.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::support::disk::{Faults, SimDisk};
use crate::support::*;
use afterbay_journal::reader::{JournalReader, ReadFrom, RequestFilter, RequestState};
use afterbay_journal::*;

/// A request as the model counts it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Counted {
    rid: String,
    rows: u64,
    received: u64,
    forwarded: u64,
    dropped: u64,
    first_frame: u64,
    finish: bool,
}

/// Expected content of the journal.
#[derive(Clone, Debug, Default)]
struct Model {
    /// Appended frames by number.
    frames: BTreeMap<u64, Vec<u8>>,
    open: BTreeMap<u64, Counted>,
    closed: BTreeMap<u64, Counted>,
    unfinished: BTreeSet<u64>,
    taken: u64,
}

struct Run {
    disk: SimDisk,
    random: Random,
    options: JournalOptions,
    directory: JournalDirectory,
    writer: JournalWriter,
    model: Model,
    /// Model at the last successful write, which a killed process leaves.
    written: Model,
    /// Whether a write failed since: a part of it may be stored.
    uncertain: bool,
    requests: BTreeMap<u64, JournalRequest>,
    /// Since the process started.
    has_appended: bool,
    /// Frame of the last failed append.
    refused: Option<(u64, Vec<u8>)>,
    keep_from: Option<u64>,
    request_numbers: BTreeSet<u64>,
    skipped: BTreeSet<u64>,
    /// A summary was neither written nor cut off: `verify` may find half of it.
    summary_failed: bool,
}

fn sim_options(random: &mut Random, sync: SyncPolicy) -> JournalOptions {
    JournalOptions {
        sync,
        segment_bytes: 4096 + random.below(12_000),
        retain_bytes: random.once_in(2).then(|| 8_000 + random.below(60_000)),
        abandon_after: Duration::from_secs(1 << 31),
        ..JournalOptions::default()
    }
}

fn open_sim(disk: &SimDisk, options: &JournalOptions) -> (JournalDirectory, JournalWriter, RecoveredStream) {
    let storage = disk.process();
    let directory =
        JournalDirectory::open_on(storage, Path::new(DIR), options.clone(), Background::Caller).unwrap();
    let (writer, recovered) = directory.stream("s").unwrap();
    (directory, writer, recovered)
}

impl Run {
    fn new(seed: u64, sync: SyncPolicy) -> Run {
        let mut random = Random(seed);
        let disk = SimDisk::new(seed ^ 0xD15C);
        disk.set_reserves(!seed.is_multiple_of(3));
        let options = sim_options(&mut random, sync);
        let (directory, writer, _) = open_sim(&disk, &options);
        Run {
            disk,
            random,
            options,
            directory,
            writer,
            model: Model::default(),
            written: Model::default(),
            uncertain: false,
            requests: BTreeMap::new(),
            has_appended: false,
            refused: None,
            keep_from: None,
            request_numbers: BTreeSet::new(),
            skipped: BTreeSet::new(),
            summary_failed: false,
        }
    }

    fn step(&mut self) {
        self.disk.pass_time(1_000_000);
        match self.random.below(20) {
            0..8 => self.append(),
            8..13 => self.outcome(),
            13 => self.open(),
            14 => self.close(),
            15 => self.taken(),
            16 => self.flush(),
            17 => self.keep_from(),
            18 => self.writer.tend(),
            _ => self.directory.tend(),
        }
        while let Some(notice) = self.writer.next_notice() {
            if std::env::var("AFTERBAY_SEED").is_ok() {
                eprintln!("{notice:?}");
            }
            self.summary_failed |= matches!(notice, BackgroundNotice::SummaryFailed { .. });
        }
    }

    fn append(&mut self) {
        let now = self.disk.pass_time(1);
        let bytes = match self.refused.take() {
            Some((_, bytes)) => bytes,
            None => {
                let length = if self.random.once_in(30) { 5000 } else { self.random.below(600) };
                self.random.bytes(length as usize)
            }
        };
        match self.writer.append(&bytes, now) {
            Ok(position) => {
                let number = position.frame.0;
                assert!(self.model.frames.last_key_value().is_none_or(|(&last, _)| last < number));
                self.model.frames.insert(number, bytes);
                self.model.unfinished.insert(number);
                self.has_appended = true;
                self.wrote();
            }
            Err(WriteError::Io(_)) => {
                self.uncertain = true;
                if self.random.once_in(3) {
                    // Forwarded without being stored.
                    let number = self.writer.skipped(1, now).0;
                    self.skipped.insert(number);
                    self.refused = None;
                } else {
                    self.refused = Some((0, bytes));
                }
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn wrote(&mut self) {
        self.written = self.model.clone();
        self.uncertain = false;
    }

    fn outcome(&mut self) {
        let waiting: Vec<u64> = self.model.unfinished.iter().copied().collect();
        if waiting.is_empty() {
            return;
        }
        let at = if self.random.once_in(4) { self.random.below(waiting.len() as u64) as usize } else { 0 };
        let frame = waiting[at];
        let chosen: Vec<u64> = self.requests.keys().copied().filter(|_| self.random.once_in(2)).collect();
        let requests: Vec<JournalRequest> = chosen.iter().map(|number| self.requests[number]).collect();
        let tokens: Vec<u32> = chosen.iter().map(|_| self.random.below(9) as u32).collect();
        let (mut actions, mut finished) = (Vec::new(), Vec::new());
        for (row, number) in chosen.iter().enumerate() {
            let counted = self.model.open.get_mut(number).unwrap();
            let came = u64::from(tokens[row]);
            if counted.rows == 0 {
                counted.first_frame = frame;
            }
            counted.rows += 1;
            counted.received += came;
            let row = row as u32;
            let action = PluginAction {
                row,
                plugin: "p".into(),
                verdict: Verdict::Drop,
                text: "".into(),
                ids: (&[]).into(),
                forwarded: 0,
            };
            if self.random.once_in(5) {
                actions.push(action);
                counted.dropped += came;
            } else if self.random.once_in(5) {
                let forwarded = self.random.below(5) as u32;
                actions.push(PluginAction {
                    verdict: Verdict::Replace,
                    ids: (&[1, 2]).into(),
                    forwarded,
                    ..action
                });
                counted.forwarded += u64::from(forwarded);
            } else {
                counted.forwarded += came;
            }
            if self.random.once_in(8) && !counted.finish {
                counted.finish = true;
                finished.push(RowFinish {
                    row,
                    reason: "stop".into(),
                    completion_tokens: Some(counted.received),
                });
            }
        }
        self.model.unfinished.remove(&frame);
        self.writer.outcome(&Outcome {
            passage: Passage::Changed,
            finished: (&finished).into(),
            actions: (&actions).into(),
            ..plain_outcome(FrameNo(frame), &requests, &tokens)
        });
        let ended: Vec<u64> = chosen.into_iter().filter(|number| self.model.open[number].finish).collect();
        for number in ended {
            self.end(number);
        }
    }

    fn open(&mut self) {
        // A request is in a stored frame, so a segment exists.
        if !self.has_appended {
            return;
        }
        let rid = format!("rid-{}", self.random.below(50));
        let request = self.writer.open(&rid);
        let number = request.number().0;
        assert!(self.request_numbers.insert(number), "request number {number} came twice");
        self.requests.insert(number, request);
        self.model.open.insert(number, Counted { rid, ..Counted::default() });
    }

    fn close(&mut self) {
        let open: Vec<u64> = self.requests.keys().copied().collect();
        if !open.is_empty() {
            let at = self.random.below(open.len() as u64) as usize;
            self.end(open[at]);
        }
    }

    fn end(&mut self, number: u64) {
        self.writer.close(self.requests.remove(&number).unwrap());
        let counted = self.model.open.remove(&number).unwrap();
        self.model.closed.insert(number, counted);
    }

    fn taken(&mut self) {
        self.model.taken = self.model.frames.last_key_value().map_or(0, |(&last, _)| last);
        self.writer.taken("sink", 0, FrameNo(self.model.taken), None, 0);
    }

    fn flush(&mut self) {
        match self.writer.flush() {
            Ok(()) => self.wrote(),
            Err(_) => self.uncertain = true,
        }
    }

    fn keep_from(&mut self) {
        let last = self.model.frames.last_key_value().map_or(1, |(&last, _)| last);
        self.keep_from = self.random.once_in(2).then_some(last);
        self.writer.keep_from(self.keep_from.map(FrameNo));
    }

    fn heal(&mut self) {
        self.disk.set_faults(Faults::default());
        self.disk.set_capacity(usize::MAX);
    }

    /// First frame that retention must have kept.
    fn floor(&self, model: &Model) -> u64 {
        let live = model.open.values().filter(|each| each.rows > 0).map(|each| each.first_frame);
        let kept = model.unfinished.first().copied().into_iter().chain(self.keep_from).chain(live);
        kept.min().unwrap_or(u64::MAX)
    }

    /// Reads everything and compares: `must` has to be there, `may` is allowed to be.
    fn check_reading(&self, must: &Model, may: &Model) {
        let stream =
            JournalReader::open_on(Arc::new(self.disk.clone()), Path::new(DIR)).unwrap().stream("s").unwrap();
        let read: BTreeMap<u64, Vec<u8>> = stream
            .frames(ReadFrom::Start)
            .unwrap()
            .map(Result::unwrap)
            .map(|(frame, _)| (frame.position.frame.0, frame.bytes))
            .collect();
        if std::env::var("AFTERBAY_SEED").is_ok() {
            let waits = (&self.model.unfinished, self.keep_from);
            eprintln!("read {:?}, {waits:?}, {:?}", read.keys().collect::<Vec<_>>(), self.model.open);
        }
        let first = read.first_key_value().map_or(u64::MAX, |(&first, _)| first);
        let removable = self.options.retain_bytes.is_some();
        // A partial write may have let retention remove more.
        let floor = if self.uncertain { self.floor(may) } else { self.floor(must) };
        for (number, bytes) in &must.frames {
            match read.get(number) {
                Some(found) => assert!(found == bytes, "frame {number} is another"),
                None => assert!(
                    removable && *number < first && *number < floor,
                    "frame {number} is lost: {first} is the first, {floor} the floor"
                ),
            }
        }
        for (number, bytes) in &read {
            let refused = self.refused.as_ref().map(|(_, bytes)| bytes);
            let known = may.frames.get(number).is_some_and(|known| known == bytes);
            let attempt = self.uncertain && (refused == Some(bytes) || self.skipped.contains(number));
            assert!(known || attempt, "frame {number} was never appended");
        }
        if self.uncertain {
            return;
        }
        let listed: BTreeMap<u64, _> = stream
            .requests(RequestFilter::default())
            .unwrap()
            .map(|info| info.map(|info| (info.number.0, info)).unwrap())
            .collect();
        for (number, counted) in &must.open {
            let info = listed.get(number).unwrap_or_else(|| panic!("open request {number} is not listed"));
            let found = (&info.rid, info.rows, info.received, info.forwarded, info.dropped);
            let expected = (&counted.rid, counted.rows, counted.received, counted.forwarded, counted.dropped);
            assert_eq!(found, expected, "request {number}");
            assert_ne!(info.state, RequestState::Abandoned);
            // A request that has ended no longer keeps its segments.
            if !removable || !may.open.contains_key(number) || number % 4 != 0 {
                continue;
            }
            let lives = stream.lives(&info.rid).unwrap();
            let life = lives.iter().find(|life| life.request.number.0 == *number).unwrap();
            assert_eq!(life.rows.len() as u64, counted.rows, "rows of the open request {number}");
        }
        for (number, info) in &listed {
            let Some(counted) = must.closed.get(number) else { continue };
            assert_eq!((info.rows, info.received), (counted.rows, counted.received), "request {number}");
            assert_eq!(info.state == RequestState::Finished, counted.finish, "request {number}");
        }
        let mut report = stream.verify().unwrap();
        let half = ProblemKind::Summary { detail: "it is damaged".into() };
        report.problems.retain(|problem| !(self.summary_failed && problem.what == half));
        assert!(report.problems.is_empty(), "{:#?}", report.problems);
    }

    /// Kills the process and starts the next one.
    fn restart(&mut self) {
        self.disk.kill();
        self.heal();
        let (directory, writer, recovered) = open_sim(&self.disk, &self.options);
        (self.directory, self.writer) = (directory, writer);
        let must = self.written.clone();
        // Records that may have been written by a failed write.
        let may = std::mem::replace(&mut self.model, must.clone());
        self.keep_from = None;
        self.check_reading(&must, &may);
        if std::env::var("AFTERBAY_SEED").is_ok() {
            eprintln!("restart: {recovered:?}");
        }
        assert!(recovered.corrupt.is_empty(), "{:?}", recovered.corrupt);
        let recovered_live: BTreeMap<u64, &LiveRequest> =
            recovered.live.iter().map(|live| (live.request.number().0, live)).collect();
        if !self.uncertain {
            let expected: Vec<u64> =
                must.open.iter().filter(|(_, each)| !each.finish).map(|(&number, _)| number).collect();
            assert_eq!(recovered_live.keys().copied().collect::<Vec<_>>(), expected);
            for (number, live) in &recovered_live {
                let counted = &must.open[number];
                assert_eq!((live.info.rows, live.info.received), (counted.rows, counted.received));
            }
            let unfinished: BTreeSet<u64> = recovered.unfinished.iter().map(|each| each.0).collect();
            assert_eq!(unfinished, must.unfinished);
            assert_eq!(recovered.sinks.first().map_or(0, |sink| sink.through().0), must.taken);
        } else {
            for number in must.open.keys().filter(|number| !self.closed_meanwhile(**number, &may)) {
                assert!(recovered_live.contains_key(number), "request {number} is lost");
            }
        }
        self.adopt(&recovered);
    }

    fn closed_meanwhile(&self, number: u64, may: &Model) -> bool {
        may.closed.contains_key(&number)
    }

    /// Continues the model from what recovery found.
    fn adopt(&mut self, recovered: &RecoveredStream) {
        let reader = self.directory.reader("s").unwrap();
        let frames: BTreeMap<u64, Vec<u8>> = reader
            .frames(ReadFrom::Start)
            .unwrap()
            .map(Result::unwrap)
            .map(|(frame, _)| (frame.position.frame.0, frame.bytes))
            .collect();
        self.requests = recovered.live.iter().map(|live| (live.request.number().0, live.request)).collect();
        let open = recovered.live.iter().map(|live| {
            let info = &live.info;
            let counted = Counted {
                rid: info.rid.clone(),
                rows: info.rows,
                received: info.received,
                forwarded: info.forwarded,
                dropped: info.dropped,
                first_frame: info.first_frame.0,
                finish: false,
            };
            (info.number.0, counted)
        });
        self.model = Model {
            frames,
            open: open.collect(),
            closed: BTreeMap::new(),
            unfinished: recovered.unfinished.iter().map(|each| each.0).collect(),
            taken: recovered.sinks.first().map_or(0, |sink| sink.through().0),
        };
        (self.refused, self.uncertain, self.has_appended) = (None, false, false);
        self.written = self.model.clone();
    }
}

fn faults(random: &mut Random, sync: bool) -> Faults {
    let mut rate = || if random.once_in(2) { 0 } else { 2 + random.below(20) };
    Faults {
        write: rate(),
        truncate: rate(),
        create: rate(),
        remove: rate(),
        rename: rate(),
        sync: if sync { rate() } else { 0 },
    }
}

#[test]
fn a_killed_process_leaves_everything_that_was_written() {
    let (mut restarts, mut failed, mut full) = (0, 0, 0);
    for seed in seeds(100) {
        let run = std::panic::catch_unwind(|| {
            let sync = if seed % 2 == 0 { SyncPolicy::None } else { SyncPolicy::Always };
            let mut run = Run::new(seed, sync);
            let mut restarts = 0;
            for _ in 0..300 {
                if run.random.once_in(40) {
                    let faults = faults(&mut run.random, false);
                    run.disk.set_faults(faults);
                    let room = run.random.below(3000) as usize;
                    let capacity = if run.random.once_in(3) { run.disk.used() + room } else { usize::MAX };
                    run.disk.set_capacity(capacity);
                }
                if run.random.once_in(20) {
                    run.heal();
                }
                run.step();
                if run.random.once_in(25) {
                    run.check_reading(&run.written, &run.model);
                }
                if run.random.once_in(80) {
                    run.restart();
                    restarts += 1;
                }
            }
            run.heal();
            run.flush();
            run.writer.probe().unwrap();
            assert!(!run.uncertain && run.writer.is_healthy(), "a healed disk heals the journal");
            run.check_reading(&run.written, &run.model);
            (restarts, run.disk.counts())
        });
        let Ok((times, counts)) = run else { panic!("seed {seed}: AFTERBAY_SEED={seed} runs it alone") };
        restarts += times;
        failed += counts.failed_writes;
        full += counts.full;
    }
    if std::env::var("AFTERBAY_SEED").is_err() {
        assert!(restarts > 300 && failed > 300 && full > 300, "{restarts} {failed} {full}");
    }
}

#[test]
fn a_power_cut_loses_nothing_durable() {
    let (mut cuts, mut failed) = (0, 0);
    for seed in seeds(100) {
        let run = std::panic::catch_unwind(|| {
            let mut run = Run::new(seed, SyncPolicy::Always);
            run.options.retain_bytes = None;
            let mut ever: BTreeMap<u64, BTreeSet<Vec<u8>>> = BTreeMap::new();
            let mut lost_from = u64::MAX;
            let mut cuts = 0;
            for _ in 0..300 {
                if run.random.once_in(30) {
                    let faults = faults(&mut run.random, true);
                    run.disk.set_faults(faults);
                }
                if run.random.once_in(15) {
                    run.heal();
                }
                run.step_told(&mut lost_from);
                for (number, bytes) in &run.model.frames {
                    ever.entry(*number).or_default().insert(bytes.clone());
                }
                if let Some((_, bytes)) = &run.refused {
                    ever.entry(run.next_number()).or_default().insert(bytes.clone());
                }
                if run.random.once_in(60) {
                    let durable = run.writer.durable().0;
                    run.cut_power(durable, lost_from, &ever);
                    lost_from = u64::MAX;
                    cuts += 1;
                }
            }
            (cuts, run.disk.counts().failed_syncs)
        });
        let Ok((times, syncs)) = run else { panic!("seed {seed}: AFTERBAY_SEED={seed} runs it alone") };
        cuts += times;
        failed += syncs;
    }
    if std::env::var("AFTERBAY_SEED").is_err() {
        assert!(cuts > 150 && failed > 50, "{cuts} {failed}");
    }
}

impl Run {
    fn next_number(&self) -> u64 {
        self.model.frames.last_key_value().map_or(1, |(&last, _)| last + 1)
    }

    fn step_told(&mut self, lost_from: &mut u64) {
        self.disk.pass_time(1_000_000);
        match self.random.below(12) {
            0..5 => self.append(),
            5..8 => self.outcome(),
            8 => self.open(),
            9 => self.flush(),
            _ => self.writer.tend(),
        }
        while let Some(notice) = self.writer.next_notice() {
            if std::env::var("AFTERBAY_SEED").is_ok() {
                eprintln!("{notice:?}, durable {}", self.writer.durable());
            }
            if let BackgroundNotice::FramesLost { from, .. } = notice {
                *lost_from = (*lost_from).min(from.0);
            }
        }
    }

    fn cut_power(&mut self, durable: u64, lost_from: u64, ever: &BTreeMap<u64, BTreeSet<Vec<u8>>>) {
        self.disk.cut_power();
        self.heal();
        let (directory, writer, recovered) = open_sim(&self.disk, &self.options);
        (self.directory, self.writer) = (directory, writer);
        let frames = std::mem::take(&mut self.model.frames);
        if std::env::var("AFTERBAY_SEED").is_ok() {
            eprintln!("power cut, durable {durable}: {recovered:?}");
        }
        self.keep_from = None;
        // A number that the disk never saw may repeat.
        self.request_numbers.clear();
        self.adopt(&recovered);
        if std::env::var("AFTERBAY_SEED").is_ok() {
            let numbers = self.model.frames.keys().collect::<Vec<_>>();
            eprintln!("read {numbers:?}");
            eprintln!("{:#?}", self.directory.reader("s").unwrap().verify().unwrap().problems);
        }
        for (number, bytes) in frames.range(..=durable) {
            match self.model.frames.get(number) {
                Some(found) => assert!(found == bytes, "durable frame {number} is another"),
                None => assert!(*number >= lost_from, "durable frame {number} is lost, durable {durable}"),
            }
        }
        for (number, bytes) in &self.model.frames {
            assert!(
                ever.get(number).is_some_and(|known| known.contains(bytes)),
                "frame {number} is no frame"
            );
        }
    }
}
