//! Torn ends at every byte and flipped bits anywhere: complete records are read, damage is reported, and
//! nothing else is returned.

use std::collections::BTreeMap;
use std::path::Path;

use crate::support::disk::SimDisk;
use crate::support::*;
use afterbay_journal::reader::{ReadFrom, RequestFilter, StreamReader};
use afterbay_journal::*;

fn frames(stream: &StreamReader) -> BTreeMap<u64, Vec<u8>> {
    let frames = stream.frames(ReadFrom::Start).unwrap().map(Result::unwrap);
    frames.map(|(frame, _)| (frame.position.frame.0, frame.bytes)).collect()
}

/// Frames that a stream wrote, and the end of each write.
struct Written {
    frames: BTreeMap<u64, Vec<u8>>,
    /// Size of the last segment after each write, and the number of frames in it.
    ends: Vec<(usize, u64)>,
}

/// Writes frames with every other kind of record, and drops the writer.
fn write(disk: &SimDisk, options: &JournalOptions, seed: u64, count: u64, size: u64) -> Written {
    let mut random = Random(seed);
    let (directory, mut writer, _) = begin(disk, options.clone());
    let mut written = Written { frames: BTreeMap::new(), ends: Vec::new() };
    let requests: Vec<_> = (0..3).map(|each| writer.open(format!("rid-{each}"))).collect();
    for round in 0..count {
        let length = random.below(size) as usize;
        let mut bytes = random.bytes(length);
        if random.once_in(3) {
            // A frame may contain the bytes of a journal.
            let path = disk.segments().pop();
            disk.edit(&path.unwrap_or_else(|| Path::new(DIR).join("LOCK")), |data| {
                bytes.extend_from_slice(&data[data.len().saturating_sub(200)..]);
            });
        }
        let frame = step(&mut writer, &requests[..1 + round as usize % 3], &bytes, round);
        written.frames.insert(frame.0, bytes);
        writer.taken("sink", 0, frame, None, 0);
        if random.once_in(4) {
            writer.flush().unwrap();
        }
        let path = disk.segments().pop().unwrap();
        disk.edit(&path, |data| written.ends.push((data.len(), frame.0)));
    }
    disk.kill();
    drop((directory, writer));
    written
}

fn only_segment(disk: &SimDisk) -> std::path::PathBuf {
    let segments = disk.segments();
    assert_eq!(segments.len(), 1);
    segments[0].clone()
}

fn bytes_of(disk: &SimDisk, path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    disk.edit(path, |data| bytes.clone_from(data));
    bytes
}

/// Cuts a copy of the journal at `at` and starts on it.
fn cut_and_start(written: &Written, whole: &[u8], path: &Path, at: usize) {
    let disk = SimDisk::new(0);
    let (directory, writer, _) = begin(&disk, options());
    drop((writer, directory));
    afterbay_journal::storage::Storage::create(&disk, path).unwrap();
    disk.edit(path, |data| data.extend_from_slice(&whole[..at]));

    // A reader returns complete records and takes the rest for not written yet.
    let kept = written.ends.iter().take_while(|(end, _)| *end <= at).last().map_or(0, |end| end.1);
    let seen = frames(&stream(&disk));
    let expected: BTreeMap<_, _> = written.frames.range(..=kept).map(|(k, v)| (*k, v.clone())).collect();
    // A frame is complete before the flush that may follow it.
    let more = kept + 1;
    assert!(
        seen == expected || seen.len() == expected.len() + 1 && seen.get(&more) == written.frames.get(&more),
        "cut at {at}: {:?} instead of {:?}",
        seen.keys(),
        expected.keys()
    );

    let (_directory, mut writer, recovered) = begin(&disk, options());
    assert_eq!(recovered.last_frame.0, seen.len() as u64, "cut at {at}");
    assert!(recovered.corrupt.is_empty(), "cut at {at}: {:?}", recovered.corrupt);
    let next = writer.append(b"goes on", 99).unwrap();
    assert_eq!(next.frame.0, seen.len() as u64 + 1);
    writer.outcome(&plain_outcome(next.frame, &[], &[]));
    let mut backlog = writer.backlog(recovered.unfinished.first().unwrap_or(next.frame));
    while let Some(read) = backlog.next().unwrap() {
        let BacklogItem::Frame(read) = read else { panic!("{read:?}") };
        if recovered.unfinished.contains(read.frame) {
            assert_eq!(read.bytes, written.frames[&read.frame.0]);
            writer.outcome(&plain_outcome(read.frame, &[], &[]));
        }
    }
    assert_eq!(backlog.position().0, next.frame.0 + 1);
    writer.flush().unwrap();
    let mut now = seen;
    now.insert(next.frame.0, b"goes on".into());
    assert_eq!(frames(&stream(&disk)), now, "cut at {at}");
    let report = stream(&disk).verify().unwrap();
    assert!(report.problems.is_empty(), "cut at {at}: {:?}", report.problems);
}

#[test]
fn a_journal_cut_at_any_byte_keeps_every_complete_record() {
    let disk = SimDisk::new(1);
    let written = write(&disk, &options(), 1, 12, 60);
    let path = only_segment(&disk);
    let whole = bytes_of(&disk, &path);
    for at in 0..=whole.len() {
        cut_and_start(&written, &whole, &path, at);
    }
}

#[test]
fn larger_journals_cut_anywhere_keep_every_complete_record() {
    for seed in seeds(4) {
        println!("seed {seed}");
        let disk = SimDisk::new(seed);
        let written = write(&disk, &options(), seed, 60, 3000);
        let path = only_segment(&disk);
        let whole = bytes_of(&disk, &path);
        let mut random = Random(seed);
        for _ in 0..25 {
            cut_and_start(&written, &whole, &path, random.below(whole.len() as u64) as usize);
        }
    }
}

#[test]
fn a_torn_end_names_its_frame() {
    let disk = SimDisk::new(1);
    write(&disk, &options(), 3, 5, 400);
    let path = only_segment(&disk);
    disk.edit(&path, |data| data.truncate(data.len() - 1));
    let (_directory, _writer, recovered) = begin(&disk, options());
    let [cut] = recovered.cut[..] else { panic!("{:?}", recovered.cut) };
    assert!(cut.bytes > 0);
    assert_eq!((cut.frame, recovered.last_frame), (Some(FrameNo(5)), FrameNo(4)));
}

/// Flips bits of a journal of several segments and reads it in every way.
fn flip(seed: u64) {
    let mut random = Random(seed);
    let disk = SimDisk::new(seed);
    let small = JournalOptions { segment_bytes: 4096, ..options() };
    let written = write(&disk, &small, seed, 60, 600);
    // Seals all but the last segment and writes on, so that both kinds exist.
    let (directory, mut writer, _) = begin(&disk, small.clone());
    let mut all = written.frames.clone();
    for round in 0..20 {
        let bytes = random.bytes(300);
        let frame = step(&mut writer, &[], &bytes, round);
        all.insert(frame.0, bytes);
        writer.tend();
    }
    writer.flush().unwrap();
    disk.kill();
    drop((directory, writer));
    assert!(stream(&disk).verify().unwrap().problems.is_empty());

    let segments = disk.segments();
    let at = random.below(segments.len() as u64) as usize;
    let (path, last) = (&segments[at], at + 1 == segments.len());
    let mut where_ = 0;
    let mut in_tail = false;
    disk.edit(path, |data| {
        where_ = random.below(data.len() as u64) as usize;
        for _ in 0..1 + random.below(3) {
            let bit = random.below(8);
            let byte = (where_ + random.below(4) as usize).min(data.len() - 1);
            data[byte] ^= 1 << bit;
        }
        in_tail = last;
    });
    // Flipping the same bit twice changes nothing.
    let stream = stream(&disk);
    let seen = frames(&stream);
    let wrong = seen.iter().filter(|(number, bytes)| all.get(number) != Some(bytes)).count();
    assert_eq!(wrong, 0, "a wrong frame came out, byte {where_} of {}", path.display());
    let report = stream.verify().unwrap();
    let lost = all.len() - seen.len();
    let told = !report.problems.is_empty()
        || in_tail && report.notes.iter().any(|note| matches!(note, VerifyNote::TornTail { .. }));
    assert!(lost == 0 || told, "{lost} frames are lost and nothing says so");
    assert!(
        lost <= 4 || report.problems.iter().any(|each| each.what == ProblemKind::Header),
        "{lost} frames lost"
    );
    for request in stream.requests(RequestFilter::default()).unwrap() {
        request.unwrap();
    }
    stream.lives("rid-0").unwrap();

    // The next writer begins a new segment, and what was read is still read.
    let (_directory, mut writer, recovered) = begin(&disk, small.clone());
    let next = writer.append(b"goes on", 1).unwrap();
    assert!(next.frame > recovered.last_frame && seen.keys().all(|&number| number < next.frame.0));
    let mut now = frames(&self::stream(&disk));
    assert_eq!(now.remove(&next.frame.0), Some(b"goes on".to_vec()));
    assert_eq!(now, seen);
}

#[test]
fn a_flipped_bit_never_returns_a_wrong_frame() {
    for seed in seeds(60) {
        if std::panic::catch_unwind(|| flip(seed)).is_err() {
            panic!("seed {seed}: AFTERBAY_SEED={seed} runs it alone");
        }
    }
}

#[test]
fn every_flipped_bit_of_a_small_journal_is_reported() {
    let disk = SimDisk::new(5);
    let (directory, mut writer, _) = begin(&disk, options());
    let request = writer.open("rid");
    let mut all = BTreeMap::new();
    for round in 0..4 {
        let bytes = vec![round as u8; 20];
        let frame = step(&mut writer, &[request], &bytes, round);
        all.insert(frame.0, bytes);
    }
    all.insert(5, b"last".to_vec());
    last_step(&mut writer, &[request], 5, 9);
    writer.finish().unwrap();
    drop(directory);
    let path = only_segment(&disk);
    let whole = bytes_of(&disk, &path);
    assert!(stream(&disk).verify().unwrap().problems.is_empty());
    for bit in 0..whole.len() * 8 {
        disk.edit(&path, |data| {
            data.clone_from(&whole);
            data[bit / 8] ^= 1 << (bit % 8);
        });
        let stream = stream(&disk);
        let seen = frames(&stream);
        assert!(seen.iter().all(|(number, bytes)| all.get(number) == Some(bytes)), "bit {bit}");
        let report = stream.verify().unwrap();
        // One valid copy of the header is enough.
        assert_eq!(report.problems.is_empty(), bit < 128 * 8 && seen == all, "bit {bit}: {report:?}");
    }
}

#[test]
fn random_bytes_are_refused_without_harm() {
    for seed in seeds(30) {
        println!("seed {seed}");
        let mut random = Random(seed);
        let disk = SimDisk::new(seed);
        let written = write(&disk, &options(), seed, 3, 50);
        let path = only_segment(&disk);
        disk.edit(&path, |data| {
            let at = 128 + random.below((data.len() - 128) as u64) as usize;
            let count = random.below(3000) as usize;
            let noise = random.bytes(count);
            data.splice(at.., noise);
        });
        let seen = frames(&stream(&disk));
        assert!(seen.iter().all(|(number, bytes)| written.frames.get(number) == Some(bytes)));
        begin(&disk, options()).1.append(b"on", 1).unwrap();
    }
}
