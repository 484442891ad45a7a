//! Readers of requests in a simulated journal, at any pace, beside a writer.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::Duration;

use afterbay_config::Clients as ClientsConfig;
use afterbay_events::{Events, Health, Metrics};
use afterbay_journal::storage::Disk;
use afterbay_journal::{
    Background, CopiedStream, JournalDirectory, JournalOptions, JournalRequest, JournalWriter, Outcome,
    Passage, RowFinish, SyncPolicy,
};
use afterbay_sim_disk::SimDisk;
use afterbay_wire::BatchKind;
use afterbay_wire::synth::{SynthBatch, SynthFinish, SynthRow, SynthWire};

use afterbay_journal::reader::JournalReader;

use super::*;
use reading::{Part, Reading, ReadingError};

const DIR: &str = "/journal";
const RIDS: [&str; 3] = ["a", "b", "c"];
const KEEP: Duration = Duration::from_secs(1000);

/// A journal with its writer, and the consumer that reads it for clients.
struct World {
    disk: SimDisk,
    directory: JournalDirectory,
    writer: JournalWriter,
    live: BTreeMap<&'static str, JournalRequest>,
    sent: BTreeMap<&'static str, Vec<i64>>,
    clients: Clients,
    stream: Arc<ReadStream>,
    runtime: Runtime,
}

impl World {
    /// A journal of small segments.
    fn new() -> World {
        World::with(16 << 10, INDEX_BYTES_MAX)
    }

    fn with(segment_bytes: u64, index_bytes_max: usize) -> World {
        let disk = SimDisk::new(1);
        let options = JournalOptions {
            sync: SyncPolicy::None,
            segment_bytes,
            abandon_after: KEEP,
            ..JournalOptions::default()
        };
        let directory =
            JournalDirectory::open_on(disk.process(), Path::new(DIR), options, Background::Caller).unwrap();
        let (mut writer, _) = directory.stream("s").unwrap();
        let live = RIDS.map(|rid| (rid, writer.open(rid))).into();
        let config = ClientsConfig {
            listen: "127.0.0.1:0".parse().unwrap(),
            key_file: "/key".into(),
            keep: KEEP,
            connections: 1,
        };
        let telemetry = Telemetry {
            events: Events::new(),
            health: Health::default(),
            metrics: Metrics::of_follower(Events::new(), Health::default()),
        };
        let source = Source::new(disk.process(), DIR.into(), KEEP, HashMap::new(), index_bytes_max);
        let mut clients = Clients::with_source(&config, source, &telemetry);
        let reader = |disk: &SimDisk| {
            JournalReader::open_on(disk.process(), Path::new(DIR)).unwrap().stream("s").unwrap()
        };
        let stream = clients.begin(reader(&disk), None).unwrap().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let sent = RIDS.map(|rid| (rid, Vec::new())).into();
        World { disk, directory, writer, live, sent, clients, stream, runtime }
    }

    /// Writes a frame with a row of one request. The ids of a request count up.
    fn row(&mut self, rid: &'static str, tokens: usize, is_last: bool) {
        let known = self.sent.get_mut(rid).unwrap();
        let first = known.len() as i64;
        let ids: Vec<i64> = (first..first + tokens as i64).collect();
        known.extend(&ids);
        let (count, now) = (known.len() as u64, self.disk.pass_time(1_000_000));
        let row = SynthRow {
            rid: rid.to_owned(),
            ids,
            completion_tokens: count,
            finish: is_last.then_some(SynthFinish::Length(count)),
            ..SynthRow::default()
        };
        let bytes = SynthBatch { rows: vec![row] }.encode(BatchKind::TokenId, SynthWire::Msgpack).unwrap();
        let frame = self.writer.append(&bytes, now).unwrap().frame;
        let reason = RowFinish { row: 0, reason: "length".into(), completion_tokens: Some(count) };
        self.writer.outcome(&Outcome {
            requests: (&[self.live[rid]][..]).into(),
            tokens: (&[tokens as u32][..]).into(),
            finished: if is_last { vec![reason].into() } else { vec![].into() },
            ..Outcome::new(frame, now, Passage::Unchanged)
        });
        if is_last {
            self.writer.close(self.live[rid]);
        }
        self.writer.flush().unwrap();
        self.writer.tend();
    }

    fn follow(&mut self) {
        let look = Look { is_last: false, now_unix_ns: 0 };
        while self.clients.step(&mut self.stream, look).unwrap() {}
    }

    /// Does something, and counts the bytes that are read for it.
    fn reading<T>(&self, done: impl FnOnce() -> T) -> (u64, T) {
        let before = self.disk.counts().read_bytes;
        let done = done();
        (self.disk.counts().read_bytes - before, done)
    }

    fn read(&self, rid: &str, from: u64) -> Result<Reading, ReadingError> {
        self.runtime.block_on(self.clients.source.read(rid, None, from))
    }

    fn next_now(&self, reading: &mut Reading) -> Option<Part> {
        self.runtime.block_on(reading.next_now()).unwrap()
    }
}

/// Numbers that look random, from a seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most
    }
}

#[test]
fn a_reader_at_any_pace_from_any_token_gets_each_token_once_and_in_order() {
    for seed in 0..9 {
        // Without an index, with one for some segments, and for all.
        let index_bytes_max = [0, 3000, INDEX_BYTES_MAX][seed as usize % 3];
        let (mut world, mut numbers) = (World::with(16 << 10, index_bytes_max), Numbers(seed));
        RIDS.iter().for_each(|rid| world.row(rid, 1, false));
        let mut readers: Vec<(&str, u64, Reading, Vec<i64>)> = Vec::new();
        for _ in 0..600 {
            match numbers.below(20) {
                0 => world.stream.forget(),
                1 if readers.len() < 12 => {
                    let rid = RIDS[numbers.below(3)];
                    let from = numbers.below(world.sent[rid].len() + 3) as u64;
                    readers.push((rid, from, world.read(rid, from).unwrap(), Vec::new()));
                }
                2..=6 => world.follow(),
                7..=10 if !readers.is_empty() => {
                    let reader = numbers.below(readers.len());
                    let (_, from, reading, got) = &mut readers[reader];
                    if let Some(part) = world.next_now(reading) {
                        assert_eq!(part.from, *from + got.len() as u64, "seed {seed}");
                        got.extend(part.ids);
                    }
                }
                _ => world.row(RIDS[numbers.below(3)], 1 + numbers.below(60), false),
            }
        }
        RIDS.iter().for_each(|rid| world.row(rid, 2, true));
        world.follow();
        for (rid, from, mut reading, mut got) in readers {
            while let Some(part) = world.next_now(&mut reading) {
                got.extend(part.ids);
            }
            assert!(reading.has_ended(), "seed {seed}");
            let sent = &world.sent[rid];
            assert_eq!(got, sent[(from as usize).min(sent.len())..], "seed {seed}, {rid} from {from}");
        }
    }
}

#[test]
fn a_client_that_comes_back_reads_its_rows_and_no_segment() {
    let mut world = World::with(512 << 10, INDEX_BYTES_MAX);
    (0..1500).for_each(|row| world.row(RIDS[row % 3], 1, false));
    world.follow();
    let (bytes, mut reading) = world.reading(|| world.read("a", 497).unwrap());
    assert!(bytes < 10_000, "{bytes} bytes are read to find the request");
    let (bytes, part) = world.reading(|| world.next_now(&mut reading).unwrap());
    assert_eq!((part.from, part.ids), (497, vec![497, 498, 499]));
    assert!(bytes < 50_000, "{bytes} bytes are read for 3 rows");
    // An earlier segment is scanned once.
    while world.disk.segments().len() < 3 {
        world.row("b", 1, false);
    }
    world.stream.forget();
    world.follow();
    let read = || world.next_now(&mut world.read("c", 498).unwrap()).unwrap().ids;
    let ((first, ids), (again, ids_again)) = (world.reading(read), world.reading(read));
    assert_eq!((&ids[..], &ids_again[..]), (&[498, 499][..], &[498, 499][..]));
    assert!(again < 50_000 && first > 10 * again, "{again} bytes are read, {first} before");
}

#[test]
fn the_numbers_of_tokens_stay_after_retention_has_removed_the_first_rows() {
    for index_bytes_max in [0, INDEX_BYTES_MAX] {
        let mut world = World::with(16 << 10, index_bytes_max);
        while world.disk.segments().len() < 4 {
            world.row("a", 10, false);
        }
        world.follow();
        let oldest = world.disk.segments().remove(0);
        world.disk.remove_file(&oldest);
        let mut reading = world.read("a", 0).unwrap();
        let part = world.next_now(&mut reading).unwrap();
        assert!(part.from > 100 && part.from < world.sent["a"].len() as u64, "{}", part.from);
        assert_eq!(part.ids[0], part.from as i64);
    }
}

#[test]
fn a_request_of_a_stream_that_nobody_followed_yet_is_found() {
    let world = World::new();
    let (mut writer, _) = world.directory.stream("new").unwrap();
    let request = writer.open("n");
    let now = world.disk.pass_time(1);
    let frame = writer.append(b"not a batch", now).unwrap().frame;
    writer.outcome(&Outcome {
        requests: (&[request][..]).into(),
        tokens: (&[2][..]).into(),
        ..Outcome::new(frame, now, Passage::Unchanged)
    });
    writer.flush().unwrap();
    let part = world.next_now(&mut world.read("n", 0).unwrap()).unwrap();
    assert_eq!((part.missing, part.ids.len()), (2, 0), "the frame is no batch");
}

/// Copies what a stream has that its copy lacks.
fn copy(world: &World, copied: &mut CopiedStream, offsets: &mut BTreeMap<SegmentId, u64>) {
    let journal = JournalReader::open_on(world.disk.process(), Path::new(DIR)).unwrap();
    let stream = journal.stream("s").unwrap();
    for segment in stream.segments().unwrap() {
        let mut bytes = stream.segment_bytes(segment).unwrap().unwrap();
        let offset = offsets.entry(segment).or_default();
        bytes.continue_at(*offset);
        while let Some(part) = bytes.next(1 << 20).unwrap() {
            copied.write(segment, *offset, &part).unwrap();
            *offset += part.len() as u64;
        }
        copied.show(segment).unwrap();
    }
}

#[test]
fn a_request_is_read_from_a_copy_of_its_journal_while_the_copy_grows() {
    let mut world = World::new();
    let dir = tempfile::tempdir().unwrap();
    let mut copied = CopiedStream::make(dir.path(), "node.s", "node").unwrap();
    let mut offsets = BTreeMap::new();
    world.row("a", 7, false);
    copy(&world, &mut copied, &mut offsets);
    let disk: Arc<dyn Storage> = Arc::new(Disk);
    let source = Arc::new(Source::new(disk, dir.path().into(), KEEP, HashMap::new(), INDEX_BYTES_MAX));
    let mut reading = world.runtime.block_on(source.read("a", None, 3)).unwrap();
    let stream = source.open(JournalReader::open(dir.path()).unwrap().stream("node.s").unwrap());
    let mut got = Vec::new();
    for row in 0..400 {
        world.row(RIDS[row % 2], 20, row == 398);
        copy(&world, &mut copied, &mut offsets);
        stream.advance_to_end().unwrap();
        while let Some(part) = world.next_now(&mut reading) {
            got.extend(part.ids);
        }
    }
    assert!(reading.has_ended() && offsets.len() > 2, "{} segments", offsets.len());
    assert_eq!(got, world.sent["a"][3..]);
}

#[test]
fn a_request_can_be_read_for_its_time_after_its_end() {
    let mut world = World::new();
    world.row("a", 3, true);
    assert_eq!(world.next_now(&mut world.read("a", 0).unwrap()).unwrap().ids, [0, 1, 2]);
    let unknown = world.read("absent", 0).err().unwrap();
    assert_eq!(unknown.to_string(), "the journal has no such request");
    world.disk.pass_time(KEEP.as_nanos() as u64 + 1_000_000_000);
    let over = world.read("a", 0).err().unwrap().to_string();
    assert_eq!(over, "the request ended 1001s ago, it can be read for 1000s");
}
