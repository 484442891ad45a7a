//! After a kill, the journal still knows row by row what each sink was sent and has taken.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::disk::SimDisk;
use crate::support::*;
use afterbay_journal::reader::JournalRow;
use afterbay_journal::*;

/// Rows of one sink in the plainest form: (frame, request), with request 0 for a frame without rows.
#[derive(Clone, Debug, Default)]
struct Model {
    rows: BTreeSet<(u64, u64)>,
    /// Last sequence number of each row.
    sent: BTreeMap<(u64, u64), u64>,
    last_sent: u64,
    /// The kernel has accepted what was sent up to `handed_over`.
    credit: Option<Credit>,
    taken: u64,
    last_frame: u64,
    through: u64,
}

impl Model {
    fn is_taken(&self, row: &(u64, u64)) -> bool {
        self.sent.get(row).is_some_and(|sequence| *sequence <= self.taken)
    }

    /// Frames before the first with a row that is not taken.
    fn prefix(&self) -> u64 {
        let first = self.rows.iter().find(|row| !self.is_taken(row));
        first.map_or(self.last_frame, |(frame, _)| frame - 1)
    }

    fn check(&self, sink: &SinkProgress) {
        assert_eq!((sink.sequence(), sink.last_sent()), (self.taken, self.last_sent));
        assert_eq!(sink.through().0, self.through);
        assert_eq!(sink.credit(), self.credit);
        for row @ (frame, request) in &self.rows {
            let said = match request {
                0 => sink.has_taken(FrameNo(*frame)),
                _ => sink.has_taken_row(FrameNo(*frame), RequestNo(*request)),
            };
            assert_eq!(said, self.is_taken(row), "row {row:?}");
        }
        let numbers: Vec<u64> = sink.sent().map(|sent| sent.sequence).collect();
        let expected: BTreeSet<u64> =
            self.sent.values().copied().filter(|sequence| *sequence > self.taken).collect();
        assert!(numbers.iter().copied().eq(expected), "{numbers:?}");
        assert!(sink.sent().all(|sent| sent.unix_ns == sent.sequence), "the times survive");
    }
}

struct Run {
    random: Random,
    model: Model,
    requests: Vec<JournalRequest>,
}

impl Run {
    fn step(&mut self, writer: &mut JournalWriter) {
        match self.random.below(10) {
            0..4 => self.frame(writer),
            4 => self.send_whole(writer),
            5..7 => self.send_rows(writer),
            7 => self.hand(writer),
            _ => self.take(writer),
        }
    }

    fn frame(&mut self, writer: &mut JournalWriter) {
        if self.requests.len() < 6 || self.random.once_in(10) {
            self.requests.push(writer.open("r"));
        }
        let random = &mut self.random;
        let rows: Vec<JournalRequest> = self.requests.iter().copied().filter(|_| random.once_in(3)).collect();
        let length = random.below(300) as usize;
        let frame = step(writer, &rows, &random.bytes(length), 1).0;
        self.model.last_frame = frame;
        self.model.rows.extend(rows.iter().map(|request| (frame, request.number().0)));
        if rows.is_empty() {
            self.model.rows.insert((frame, 0));
        }
    }

    /// Sends the first unsent frame whole, unless an earlier row still waits.
    fn send_whole(&mut self, writer: &mut JournalWriter) {
        let waits = |row: &&(u64, u64)| !self.model.sent.contains_key(row);
        let Some(&(frame, _)) = self.model.rows.iter().find(waits) else { return };
        let rows: Vec<_> = self.model.rows.range((frame, 0)..=(frame, u64::MAX)).copied().collect();
        if rows.iter().any(|row| self.model.sent.contains_key(row)) {
            return;
        }
        let sequence = self.model.last_sent + 1;
        writer.sent("sink", sequence, SinkContent::Whole(FrameNo(frame)), sequence);
        self.model.sent.extend(rows.into_iter().map(|row| (row, sequence)));
        self.model.last_sent = sequence;
    }

    fn send_rows(&mut self, writer: &mut JournalWriter) {
        let mut by_request: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for row @ (frame, request) in &self.model.rows {
            if *request != 0 && !self.model.sent.contains_key(row) {
                by_request.entry(*request).or_default().push(*frame);
            }
        }
        let sequence = self.model.last_sent + 1;
        let mut content = Vec::new();
        for (request, frames) in by_request {
            if self.random.once_in(2) {
                let count = 1 + self.random.below(frames.len() as u64) as usize;
                content.push((RequestNo(request), FrameNo(frames[count - 1])));
                self.model.sent.extend(frames[..count].iter().map(|frame| ((*frame, request), sequence)));
            }
        }
        if !content.is_empty() {
            writer.sent("sink", sequence, SinkContent::Rows((&content).into()), sequence);
            self.model.last_sent = sequence;
        }
    }

    fn hand(&mut self, writer: &mut JournalWriter) {
        let Model { taken, through, last_sent, .. } = self.model;
        self.model.credit = Some(Credit { generation: 1, sent: taken, handed_over: last_sent });
        writer.taken("sink", taken, FrameNo(through), self.model.credit, taken);
    }

    fn take(&mut self, writer: &mut JournalWriter) {
        self.model.taken += self.random.below(self.model.last_sent - self.model.taken + 1);
        if self.random.once_in(2) {
            self.model.through = self.model.prefix();
        }
        let Model { taken, through, credit, .. } = self.model;
        writer.taken("sink", taken, FrameNo(through), credit, taken);
    }

    /// The reader's count says what was taken; later frames are void.
    fn resume(&mut self, writer: &mut JournalWriter) {
        self.model.taken += self.random.below(self.model.last_sent - self.model.taken + 1);
        let taken = self.model.taken;
        self.model.sent.retain(|_, sequence| *sequence <= taken);
        self.model.credit = None;
        writer.resume("sink", taken, None);
    }
}

#[test]
fn a_killed_process_leaves_the_rows_sent_and_taken() {
    for seed in seeds(75) {
        println!("seed {seed}");
        let disk = SimDisk::new(seed);
        let retain_bytes = (seed % 2 == 0).then_some(6_000);
        let options = || JournalOptions { segment_bytes: 4096, retain_bytes, ..options() };
        let mut run = Run { random: Random(seed), model: Model::default(), requests: Vec::new() };
        let (mut directory, mut writer, _) = begin(&disk, options());
        let mut numbered = false;
        for _ in 0..6 {
            for _ in 0..run.random.below(120) {
                run.step(&mut writer);
                if run.random.once_in(5) {
                    writer.flush().unwrap();
                    writer.tend();
                    directory.tend();
                }
            }
            writer.flush().unwrap();
            numbered |= run.model.last_sent > 0;
            if numbered {
                // Retention kept every frame with a row that is not taken.
                let mut backlog = writer.backlog(FrameNo(run.model.through + 1)).with_outcomes();
                for _ in run.model.through..run.model.last_frame {
                    assert!(matches!(backlog.next(), Ok(Some(BacklogItem::Frame(_)))));
                }
            }
            disk.kill();
            drop((directory, writer));
            let recovered;
            (directory, writer, recovered) = begin(&disk, options());
            if let Some(sink) = recovered.sinks.first() {
                run.model.check(sink);
                let mut all = sink.clone();
                all.take(sink.last_sent());
                let model = Model { taken: run.model.last_sent, ..run.model.clone() };
                model.check(&all);
            }
            run.resume(&mut writer);
            run.requests = recovered.live.iter().map(|live| live.request).collect();
            let problems = directory.reader("s").unwrap().verify().unwrap().problems;
            assert!(problems.is_empty(), "{problems:?}");
        }
        writer.finish().unwrap();
        drop(directory);
        let (directory, _writer, recovered) = begin(&disk, options());
        run.model.check(&recovered.sinks[0]);
        assert!(directory.reader("s").unwrap().verify().unwrap().problems.is_empty());
    }
}

#[test]
fn a_journal_cut_at_any_byte_knows_what_was_taken_before() {
    let disk = SimDisk::new(1);
    let mut run = Run { random: Random(3), model: Model::default(), requests: Vec::new() };
    let (directory, mut writer, _) = begin(&disk, options());
    let mut after = Vec::new();
    for _ in 0..80 {
        run.step(&mut writer);
        writer.flush().unwrap();
        if let [path] = &disk.segments()[..] {
            disk.edit(path, |data| after.push((data.len(), run.model.clone())));
        }
    }
    disk.kill();
    drop((directory, writer));
    let path = disk.segments()[0].clone();
    let mut whole = Vec::new();
    disk.edit(&path, |data| whole.clone_from(data));
    for at in 0..=whole.len() {
        disk.edit(&path, |data| *data = whole[..at].to_vec());
        // A step writes at most one record of a sink, so a cut is before it or after it.
        let known = after.partition_point(|(end, _)| *end <= at);
        let (_directory, writer, recovered) = begin(&disk, options());
        let before = known.checked_sub(1).map(|known| &after[known].1);
        match (recovered.sinks.first(), before) {
            (Some(sink), Some(model))
                if model.last_sent == sink.last_sent() && model.taken == sink.sequence() =>
            {
                model.check(sink);
            }
            (Some(sink), _) => after[known].1.check(sink),
            (None, model) => assert!(model.is_none_or(|model| model.last_sent == 0 && model.through == 0)),
        }
        drop(writer);
        for path in disk.segments() {
            afterbay_journal::storage::Storage::remove(&disk, &path).unwrap();
        }
        disk.kill();
        afterbay_journal::storage::Storage::create(&disk, &path).unwrap();
    }
}

#[test]
fn a_row_has_the_times_at_which_it_was_sent_and_taken() {
    let disk = SimDisk::new(1);
    let (_directory, mut writer, _) = begin(&disk, options());
    let request = writer.open("r");
    let first = step(&mut writer, &[request], b"one", 1_000);
    writer.sent("sink", 1, SinkContent::Whole(first), 1_100);
    step(&mut writer, &[request], b"two", 2_000);
    let third = step(&mut writer, &[request], b"three", 3_000);
    let joined = [(request.number(), third)];
    writer.sent("sink", 2, SinkContent::Rows((&joined).into()), 3_100);
    writer.taken("sink", 1, first, None, 3_200);
    writer.flush().unwrap();
    let times = || {
        let rows = stream(&disk).lives("r").unwrap().remove(0).rows;
        let only = |row: &JournalRow| {
            let [delivery] = &row.deliveries[..] else { panic!("{row:?}") };
            (delivery.sent_unix_ns, delivery.taken_unix_ns)
        };
        rows.iter().map(only).collect::<Vec<_>>()
    };
    assert_eq!(times(), [(1_100, 3_200), (3_100, 0), (3_100, 0)]);
    writer.taken("sink", 2, third, None, 4_000);
    writer.flush().unwrap();
    // A later record of the same progress changes no time.
    writer.taken("sink", 2, third, Some(Credit { generation: 1, sent: 2, handed_over: 0 }), 5_000);
    writer.flush().unwrap();
    assert_eq!(times(), [(1_100, 3_200), (3_100, 4_000), (3_100, 4_000)]);
    // The clock was read before the last frame was received.
    let last = step(&mut writer, &[request], b"last", 6_000);
    writer.sent("sink", 3, SinkContent::Whole(last), 5_900);
    writer.flush().unwrap();
    assert_eq!(times().last(), Some(&(6_000, 0)));
}

#[test]
fn a_sink_with_too_many_records_has_no_room_and_with_too_much_ahead_takes_the_oldest_rows_only() {
    let disk = SimDisk::new(1);
    let (_directory, mut writer, _) = begin(&disk, options());
    let frame = step(&mut writer, &[], b"", 1);
    assert_eq!(writer.send_room("sink"), SendRoom::Any, "nothing was sent");
    let most = bounds::SENT_FRAMES_MAX as u64;
    for sequence in 1..=most {
        assert_eq!(writer.send_room("sink"), SendRoom::Any);
        writer.sent("sink", sequence, SinkContent::Whole(frame), 0);
    }
    assert_eq!(writer.send_room("sink"), SendRoom::Full);
    writer.taken("sink", 1, FrameNo(0), None, 0);
    assert_eq!(writer.send_room("sink"), SendRoom::Any);
    writer.taken("sink", most, frame, None, 0);
    // Half of the bound is for rows that are not taken, and half for what is ahead.
    let half = bounds::AHEAD_MAX as u64 / 2;
    let ahead: Vec<_> = (1..=half).map(|request| (RequestNo(request), FrameNo(frame.0 + 1))).collect();
    writer.sent("sink", most + 1, SinkContent::Rows((&ahead).into()), 0);
    assert_eq!(writer.send_room("sink"), SendRoom::Full);
    writer.taken("sink", most + 1, frame, None, 0);
    assert_eq!(writer.send_room("sink"), SendRoom::InOrder);
    // The frame is complete, so nothing is ahead. The entries go with the next frame that is taken.
    writer.sent("sink", most + 2, SinkContent::Whole(FrameNo(frame.0 + 2)), 0);
    writer.taken("sink", most + 2, FrameNo(frame.0 + 1), None, 0);
    assert_eq!(writer.send_room("sink"), SendRoom::Any);
}

#[test]
fn a_removed_sink_keeps_no_segments() {
    let disk = SimDisk::new(1);
    let options = || JournalOptions { segment_bytes: 4096, retain_bytes: Some(6_000), ..options() };
    let (directory, mut writer, _) = begin(&disk, options());
    let frame = step(&mut writer, &[], b"", 1);
    writer.sent("gone", 1, SinkContent::Whole(frame), 0);
    let fill = |writer: &mut JournalWriter| {
        for _ in 0..100 {
            step(writer, &[], &[0; 400], 1);
            writer.tend();
        }
        writer.flush().unwrap();
        directory.tend();
        disk.used()
    };
    assert!(fill(&mut writer) > 40_000);
    writer.forget("gone");
    assert!(fill(&mut writer) < 12_000);
    disk.kill();
    drop((directory, writer));
    assert!(begin(&disk, options()).2.sinks.is_empty());
}

/// A process may die within the write of a summary.
#[test]
fn a_summary_torn_at_any_byte_changes_nothing_of_what_a_sink_was_sent() {
    for requests in [0, 2] {
        let disk = SimDisk::new(1);
        let (directory, mut writer, _) = begin(&disk, options());
        let live: Vec<JournalRequest> = (0..requests).map(|_| writer.open("r")).collect();
        for sequence in 1..=3 {
            let frame = step(&mut writer, &live, b"frame", 1);
            writer.sent("sink", sequence, SinkContent::Whole(frame), 0);
        }
        writer.taken("sink", 1, FrameNo(1), Some(Credit { generation: 1, sent: 1, handed_over: 0 }), 0);
        writer.flush().unwrap();
        let path = disk.segments().remove(0);
        let mut records = Vec::new();
        disk.edit(&path, |bytes| records.clone_from(bytes));
        disk.kill();
        drop((directory, writer));
        let (directory, writer, expected) = begin(&disk, options());
        drop((directory, writer));
        let mut sealed = Vec::new();
        disk.edit(&path, |bytes| sealed.clone_from(bytes));
        assert!(sealed.len() > records.len() && sealed.starts_with(&records));
        for length in records.len()..sealed.len() {
            disk.edit(&path, |bytes| *bytes = sealed[..length].to_vec());
            let (_directory, _writer, recovered) = begin(&disk, options());
            assert_eq!(recovered.sinks, expected.sinks, "{requests} requests, cut at {length}");
            let mut repaired = Vec::new();
            disk.edit(&path, |bytes| repaired.clone_from(bytes));
            assert!(repaired.starts_with(&records), "{requests} requests, cut at {length}");
            disk.kill();
        }
    }
}
