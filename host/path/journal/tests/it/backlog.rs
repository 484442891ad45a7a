//! Backlog readers return stored frames in order, each once, while the writer appends.

use crate::support::disk::{Faults, SimDisk};
use crate::support::*;
use afterbay_journal::*;

fn small() -> JournalOptions {
    JournalOptions { segment_bytes: 4096, ..options() }
}

fn frame(read: Option<BacklogItem>) -> (u64, Vec<u8>, u64) {
    let Some(BacklogItem::Frame(frame)) = read else { panic!("{read:?}") };
    (frame.frame.0, frame.bytes.to_vec(), frame.received_unix_ns)
}

#[test]
fn frames_come_back_in_order_across_segments_while_more_are_written() {
    let disk = SimDisk::new(1);
    let (_directory, mut writer, _) = begin(&disk, small());
    let request = writer.open("r");
    step(&mut writer, &[request], b"before", 1);
    let mut random = Random(5);
    let mut backlog = writer.backlog(FrameNo(2));
    assert_eq!(backlog.next().unwrap(), None);
    let (mut sent, mut read) = (vec![(1, b"before".to_vec(), 1)], 2);
    for ns in 2..600 {
        let length = if random.once_in(50) { 9000 } else { random.below(700) };
        let bytes = random.bytes(length as usize);
        let at = writer.append(&bytes, ns).unwrap();
        if random.once_in(3) {
            writer.outcome(&plain_outcome(at.frame, &[request], &[1]));
        }
        sent.push((at.frame.0, bytes, ns));
        if random.once_in(5) {
            writer.flush().unwrap();
        }
        if random.once_in(7) {
            writer.tend();
        }
        for _ in 0..random.below(3) {
            match backlog.next().unwrap() {
                None => assert_eq!(read, ns + 1, "all that was written had been read"),
                some => {
                    assert_eq!(frame(some), sent[read as usize - 1]);
                    read += 1;
                }
            }
        }
        // A reader made now begins at the given frame.
        if random.once_in(40) {
            let from = 1 + random.below(sent.len() as u64);
            assert_eq!(frame(writer.backlog(FrameNo(from)).next().unwrap()), sent[from as usize - 1]);
            assert_eq!(frame(writer.backlog_at(at).next().unwrap()), sent[ns as usize - 1]);
        }
    }
    while let Some(next) = backlog.next().unwrap() {
        assert_eq!(frame(Some(next)), sent[read as usize - 1]);
        read += 1;
    }
    assert_eq!((read, backlog.position()), (600, FrameNo(600)));
    assert!(disk.segments().len() > 20);
}

#[test]
fn frames_that_were_not_stored_are_reported_in_their_place() {
    let disk = SimDisk::new(1);
    let (_directory, mut writer, _) = begin(&disk, small());
    let mut backlog = writer.backlog(FrameNo(1));
    step(&mut writer, &[], b"one", 1);
    assert_eq!(writer.skipped(3, 2), FrameNo(2));
    assert_eq!(frame(backlog.next().unwrap()).0, 1);
    assert_eq!(backlog.next().unwrap(), None, "nothing of them is written yet");
    step(&mut writer, &[], b"five", 3);
    assert_eq!(backlog.next().unwrap(), Some(BacklogItem::Skipped(FrameNo(2), 3)));
    assert_eq!(frame(backlog.next().unwrap()).0, 5);
    // A reader that begins inside the range returns the rest of it.
    let mut backlog = writer.backlog(FrameNo(3));
    assert_eq!(backlog.next().unwrap(), Some(BacklogItem::Skipped(FrameNo(3), 2)));
    assert_eq!(frame(backlog.next().unwrap()).0, 5);
}

#[test]
fn a_damaged_frame_is_an_error_that_names_it_and_the_next_call_continues_after_it() {
    for flipped in [30, 60] {
        let disk = SimDisk::new(1);
        let (_directory, mut writer, _) = begin(&disk, options());
        let mut places = Vec::new();
        for ns in 1..6 {
            places.push(writer.append(&[ns as u8; 100], ns).unwrap());
        }
        let path = disk.segments()[0].clone();
        for damaged in [2, 4] {
            // Damages the payload, or the head, whose frame number is then known from the next frame only.
            let byte = places[damaged].offset as usize + if flipped == 60 { flipped } else { 9 };
            disk.edit(&path, |data| data[byte] ^= 1);
        }
        let mut backlog = writer.backlog(FrameNo(1));
        assert_eq!(frame(backlog.next().unwrap()).0, 1);
        assert_eq!(frame(backlog.next().unwrap()).0, 2);
        let error = backlog.next().unwrap_err();
        let ReadError::Missing { from: FrameNo(3), through: FrameNo(3), damage: Some((file, byte)) } = &error
        else {
            panic!("{error:?}")
        };
        assert_eq!((file, *byte), (&path, u64::from(places[2].offset)));
        assert_eq!(frame(backlog.next().unwrap()).0, 4);
        let error = backlog.next().unwrap_err();
        assert!(error.to_string().starts_with("journal frames 5 to 5: not in the journal"), "{error}");
        assert_eq!(backlog.next().unwrap(), None);
        writer.append(b"six", 6).unwrap();
        assert_eq!(frame(backlog.next().unwrap()), (6, b"six".to_vec(), 6));
    }
}

#[test]
fn frames_that_retention_removed_are_reported_and_the_others_are_read() {
    let disk = SimDisk::new(1);
    let (directory, mut writer, _) = begin(&disk, JournalOptions { retain_bytes: Some(10_000), ..small() });
    let mut removed = writer.backlog(FrameNo(1));
    for ns in 0..20 {
        step(&mut writer, &[], &[0; 400], ns);
    }
    writer.keep_from(Some(FrameNo(21)));
    let mut kept = writer.backlog(FrameNo(21));
    for ns in 20..400 {
        step(&mut writer, &[], &[ns as u8; 400], ns);
        writer.tend();
        directory.tend();
    }
    let ReadError::Missing { from: FrameNo(1), through, damage: None } = removed.next().unwrap_err() else {
        panic!()
    };
    assert!((1..21).contains(&through.0), "{through}");
    assert_eq!(frame(removed.next().unwrap()).0, through.0 + 1);
    for number in 21..=400 {
        if number % 10 == 0 {
            // Frames that were read may be removed, whether the reader still exists or not.
            writer.keep_from(Some(FrameNo(number)));
            writer.flush().unwrap();
            directory.tend();
        }
        assert_eq!(frame(kept.next().unwrap()).0, number);
    }
    assert_eq!(kept.next().unwrap(), None);
}

#[test]
fn a_failing_disk_neither_hides_frames_from_a_reader_nor_repeats_them() {
    for seed in seeds(100) {
        println!("seed {seed}");
        let disk = SimDisk::new(seed);
        let mut random = Random(seed);
        let sync = if seed % 2 == 0 { SyncPolicy::None } else { SyncPolicy::Always };
        let (_directory, mut writer, _) = begin(&disk, JournalOptions { sync, ..small() });
        let mut backlog = writer.backlog(FrameNo(1));
        let (mut sent, mut read) = (Vec::new(), 0);
        for ns in 1..300 {
            if random.once_in(20) {
                let faults = Faults { write: 3, truncate: 2, create: 3, ..Faults::default() };
                let sync = if seed % 2 == 0 { 0 } else { 4 };
                disk.set_faults(Faults { sync, ..faults });
            }
            if random.once_in(10) {
                disk.set_faults(Faults::default());
            }
            let length = random.below(500);
            let bytes = random.bytes(length as usize);
            match writer.append(&bytes, ns) {
                Ok(at) => sent.push((at.frame.0, bytes)),
                Err(_) if random.once_in(2) => drop(writer.skipped(1, ns)),
                Err(_) => {}
            }
            writer.tend();
            if random.once_in(3) {
                continue;
            }
            read_on(&mut backlog, &sent, &mut read, &disk);
        }
        disk.set_faults(Faults::default());
        writer.flush().unwrap();
        read_on(&mut backlog, &sent, &mut read, &disk);
        assert_eq!(read, sent.len(), "seed {seed}");
    }
}

/// Reads everything. Only frames that a failed sync may have damaged are missing.
fn read_on(backlog: &mut BacklogReader, sent: &[(u64, Vec<u8>)], read: &mut usize, disk: &SimDisk) {
    loop {
        match backlog.next() {
            Ok(None) => return,
            Ok(Some(BacklogItem::Skipped(..))) => {}
            Ok(Some(BacklogItem::Frame(next))) => {
                assert_eq!((next.frame.0, next.bytes.to_vec()), sent[*read]);
                *read += 1;
            }
            Err(ReadError::Missing { from, through, .. }) => {
                assert!(disk.counts().failed_syncs > 0, "{from} to {through}");
                *read += sent[*read..].iter().take_while(|(number, _)| *number <= through.0).count();
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn frames_without_an_outcome_are_one_run_and_are_read_back_after_a_kill() {
    const FRAMES: u64 = 250_000;
    let disk = SimDisk::new(1);
    let options = || JournalOptions { segment_bytes: 1 << 20, retain_bytes: Some(1 << 20), ..options() };
    let (directory, mut writer, _) = begin(&disk, options());
    for ns in 1..=FRAMES {
        writer.append(&ns.to_le_bytes(), ns).unwrap();
        if ns % 25_000 == 0 {
            writer.tend();
            directory.tend();
        }
        if ns <= 10 {
            writer.outcome(&plain_outcome(FrameNo(ns), &[], &[]));
        }
    }
    disk.kill();
    drop((directory, writer));
    let (directory, mut writer, recovered) = begin(&disk, options());
    let runs: Vec<_> = recovered.unfinished.runs().collect();
    assert_eq!(runs, [(FrameNo(11), FRAMES - 10)]);
    let mut backlog = writer.backlog(recovered.unfinished.first().unwrap());
    for number in 11..=FRAMES {
        assert_eq!(frame(backlog.next().unwrap()), (number, number.to_le_bytes().to_vec(), number));
        writer.outcome(&plain_outcome(FrameNo(number), &[], &[]));
        if number % 25_000 == 0 {
            writer.tend();
            directory.tend();
        }
    }
    assert_eq!(backlog.next().unwrap(), None);
    writer.flush().unwrap();
    writer.tend();
    directory.tend();
    assert!(disk.used() < 10 << 20, "all may go but the last segments: {}", disk.used());
    writer.finish().unwrap();
}

#[test]
fn verify_accepts_a_backlog_at_the_end_and_reports_a_frame_that_was_skipped() {
    let disk = SimDisk::new(1);
    let (directory, mut writer, _) = begin(&disk, small());
    for ns in 1..=5000 {
        writer.append(b"", ns).unwrap();
    }
    writer.outcome(&plain_outcome(FrameNo(1), &[], &[]));
    writer.outcome(&plain_outcome(FrameNo(3), &[], &[]));
    writer.finish().unwrap();
    let report = directory.reader("s").unwrap().verify().unwrap();
    let whats: Vec<_> = report.problems.iter().map(|problem| problem.what.to_string()).collect();
    assert_eq!(whats, ["frame 2 has no outcome"]);
    assert_eq!(report.notes, [VerifyNote::Unfinished { frames: 4997 }]);
}

#[test]
fn outcomes_alone_are_written_in_time_and_end_a_segment() {
    let disk = SimDisk::new(1);
    let (_directory, mut writer, _) = begin(&disk, JournalOptions { segment_bytes: 1 << 20, ..options() });
    let requests: Vec<_> = (0..1000).map(|_| writer.open("r")).collect();
    let tokens: Vec<u32> = (0..1000).collect();
    for ns in 0..600 {
        writer.append(b"", ns).unwrap();
    }
    for number in 1..=600 {
        writer.outcome(&plain_outcome(FrameNo(number), &requests, &tokens));
        if number % 50 == 0 {
            writer.tend();
        }
    }
    assert!(disk.used() > 4_000_000, "5 MB of outcomes, but for the last: {}", disk.used());
    assert!(disk.segments().len() >= 4);
    writer.flush().unwrap();
    disk.kill();
    let (_directory, _writer, recovered) = begin(&disk, options());
    assert!(recovered.unfinished.is_empty());
}

#[test]
fn frames_are_read_back_with_their_outcomes_and_changed_bytes() {
    for seed in seeds(20) {
        println!("seed {seed}");
        let (disk, mut random) = (SimDisk::new(seed), Random(seed));
        let (directory, mut writer, _) = begin(&disk, small());
        let request = writer.open("r");
        let (mut made, mut waiting) = (Vec::new(), Vec::new());
        for ns in 1..=2000 {
            waiting.push(writer.append(&random.bytes(20), ns).unwrap().frame.0);
            made.push(None);
            // Mostly in order. Some outcomes are very late, more than fit into the early store, and some are
            // missing.
            while !waiting.is_empty() && random.once_in(2) {
                let at = if random.once_in(300) { random.below(waiting.len() as u64) as usize } else { 0 };
                let frame = waiting.remove(at);
                if random.once_in(50) {
                    waiting.push(frame);
                    break;
                }
                let bytes = random.bytes(300);
                let outcome = plain_outcome(FrameNo(frame), std::slice::from_ref(&request), &[1]);
                let passage = match random.below(3) {
                    0 => Passage::Unchanged,
                    1 => Passage::Changed,
                    _ => Passage::Dropped,
                };
                writer.outcome(&Outcome {
                    passage: passage.clone(),
                    changed: Some(bytes.clone().into()),
                    ..outcome
                });
                made[frame as usize - 1] = Some((passage, bytes));
            }
            writer.tend();
        }
        writer.flush().unwrap();
        disk.kill();
        drop((directory, writer));

        let (_directory, mut writer, recovered) = begin(&disk, small());
        let mut backlog = writer.backlog(FrameNo(1)).with_outcomes();
        for (at, made) in made.iter().enumerate() {
            let Some(BacklogItem::Frame(read)) = backlog.next().unwrap() else { panic!() };
            assert_eq!(read.frame.0, at as u64 + 1);
            assert_eq!(recovered.unfinished.contains(read.frame), made.is_none());
            let Some((passage, bytes)) = made else {
                assert_eq!(read.outcome, None);
                writer.outcome(&plain_outcome(read.frame, &[], &[]));
                continue;
            };
            let outcome = *read.outcome.unwrap();
            let (expected, changed) = match passage {
                Passage::Unchanged => (Passage::Unchanged, None),
                Passage::Changed => (Passage::Changed, Some(&bytes[..])),
                _ => (Passage::Dropped, None),
            };
            assert_eq!((outcome.passage, outcome.changed.as_deref()), (expected, changed));
            assert_eq!(outcome.requests[..], [request.number()]);
        }
        assert_eq!(backlog.next().unwrap(), None);
    }
}

#[test]
fn a_reader_that_skips_frames_reads_what_a_reader_that_begins_there_reads() {
    for seed in seeds(10) {
        println!("seed {seed}");
        let (disk, mut random) = (SimDisk::new(seed), Random(seed));
        let (_directory, mut writer, _) = begin(&disk, small());
        let request = writer.open("r");
        for ns in 1..=400 {
            let length = if random.once_in(40) { 9000 } else { random.below(700) };
            let at = writer.append(&random.bytes(length as usize), ns).unwrap();
            if !random.once_in(10) {
                writer.outcome(&plain_outcome(at.frame, &[request], &[1]));
            }
            writer.tend();
        }
        writer.flush().unwrap();
        assert!(disk.segments().len() > 10);
        let mut backlog = writer.backlog(FrameNo(1)).with_outcomes();
        let mut next = 1;
        while next <= 400 {
            backlog.pass_to(FrameNo(next)).unwrap();
            // A frame before the current one changes nothing.
            backlog.pass_to(FrameNo(random.below(next))).unwrap();
            for _ in 0..=random.below(3) {
                let anew = writer.backlog(FrameNo(next)).with_outcomes().next().unwrap();
                assert_eq!(backlog.next().unwrap(), anew);
                next += 1;
            }
            let most = if random.once_in(5) { 100 } else { 4 };
            next += random.below(most);
        }
    }
}
