//! Segments that are missing or empty although retention did not remove them.

use std::path::PathBuf;
use std::time::Duration;

use crate::support::disk::SimDisk;
use crate::support::*;
use afterbay_journal::*;

const HOUR_NS: u64 = 3_600_000_000_000;

fn small() -> JournalOptions {
    JournalOptions { segment_bytes: 8192, ..options() }
}

/// A journal of many segments whose process was killed or stopped cleanly.
fn many_segments(is_killed: bool) -> SimDisk {
    let disk = SimDisk::new(1);
    let (directory, mut writer, _) = begin(&disk, small());
    for ns in 1..60 {
        step(&mut writer, &[], &[7; 1000], ns);
        writer.tend();
    }
    if is_killed {
        writer.flush().unwrap();
        disk.kill();
        drop(writer);
    } else {
        writer.finish().unwrap();
    }
    drop(directory);
    assert!(disk.segments().len() > 6 && problems(&disk).is_empty());
    disk
}

fn problems(disk: &SimDisk) -> Vec<JournalProblem> {
    stream(disk).verify().unwrap().problems
}

fn missing(disk: &SimDisk) -> Option<u64> {
    problems(disk).iter().find_map(|problem| match &problem.what {
        ProblemKind::MissingSegments(missing) => Some(missing.missing),
        _ => None,
    })
}

fn remove(disk: &SimDisk, which: impl Fn(&[PathBuf]) -> Vec<PathBuf>) {
    which(&disk.segments()).iter().for_each(|path| disk.remove_file(path));
}

#[test]
fn verify_and_a_start_report_a_missing_last_segment() {
    for is_killed in [false, true] {
        let disk = many_segments(is_killed);
        remove(&disk, |segments| vec![segments.last().unwrap().clone()]);
        assert_eq!(missing(&disk), Some(1));
        let (_directory, mut writer, recovered) = begin(&disk, small());
        assert_eq!(recovered.missing.map(|missing| missing.missing), Some(1));
        // Reported once as a problem. From then on the loss is a note.
        step(&mut writer, &[], b"on", 100);
        writer.flush().unwrap();
        let report = stream(&disk).verify().unwrap();
        assert!(report.notes.contains(&VerifyNote::SegmentsLost { count: 1 }), "{report:?}");
        assert_eq!(missing(&disk), None);
    }
}

#[test]
fn missing_segments_are_reported_wherever_they_were() {
    type Which = fn(&[PathBuf]) -> Vec<PathBuf>;
    let ends: [Which; 3] =
        [|all| all[..2].to_vec(), |all| all[2..4].to_vec(), |all| all[all.len() - 2..].to_vec()];
    for which in ends {
        let disk = many_segments(true);
        remove(&disk, which);
        assert_eq!(missing(&disk), Some(2));
        let (_directory, _writer, recovered) = begin(&disk, small());
        assert_eq!(recovered.missing.map(|missing| missing.missing), Some(2));
    }
}

#[test]
fn segments_unlinked_while_a_process_writes_are_reported() {
    let disk = SimDisk::new(1);
    let (_directory, mut writer, _) = begin(&disk, small());
    for ns in 1..60 {
        step(&mut writer, &[], &[7; 1000], ns);
        writer.tend();
    }
    remove(&disk, <[PathBuf]>::to_vec);
    // No segment is left to compare with.
    step(&mut writer, &[], &[7; 1000], 60);
    writer.flush().unwrap();
    assert!(missing(&disk).unwrap() > 6);
}

#[test]
fn verify_and_a_start_report_emptied_segments() {
    for is_killed in [false, true] {
        for at in [0, 3, usize::MAX] {
            let disk = many_segments(is_killed);
            let segments = disk.segments();
            let path = &segments[at.min(segments.len() - 1)];
            disk.edit(path, Vec::clear);
            let is_told = |disk: &SimDisk| {
                problems(disk).iter().any(|problem| problem.what == ProblemKind::Emptied { bytes: 0 })
            };
            assert!(is_told(&disk), "segment {at}");
            let (_directory, mut writer, recovered) = begin(&disk, small());
            let id = SegmentId::parse(path.file_name().unwrap().to_str().unwrap());
            assert_eq!(
                recovered.corrupt.iter().map(|corrupt| Some(corrupt.segment)).collect::<Vec<_>>(),
                [id]
            );
            step(&mut writer, &[], b"on", 100);
            writer.flush().unwrap();
            assert!(is_told(&disk), "it is told for as long as it is there");
        }
    }
}

#[test]
fn segments_removed_by_retention_are_not_missing() {
    let disk = SimDisk::new(1);
    let options = JournalOptions { retain_bytes: Some(30_000), ..small() };
    let (directory, mut writer, _) = begin(&disk, options.clone());
    for ns in 1..200 {
        step(&mut writer, &[], &[7; 1000], ns);
        writer.taken("sink", 0, FrameNo(ns), None, 0);
        writer.tend();
        directory.tend();
        assert_eq!(missing(&disk), None, "after frame {ns}");
    }
    assert!(disk.segments().len() < 10);
    disk.kill();
    drop((writer, directory));
    let (_directory, _writer, recovered) = begin(&disk, options);
    assert_eq!(recovered.missing, None);
}

#[test]
fn setting_the_clock_forward_makes_nothing_old_even_over_a_restart() {
    for is_running in [true, false] {
        let disk = SimDisk::new(1);
        let options = JournalOptions { retain_age: Some(Duration::from_secs(24 * 3600)), ..small() };
        let (mut directory, mut writer, _) = begin(&disk, options.clone());
        let write = |writer: &mut JournalWriter, from: u64| {
            for frame in from..from + 30 {
                step(writer, &[], &[7; 1000], disk.pass_time(1));
                writer.taken("sink", 0, FrameNo(frame), None, 0);
                writer.flush().unwrap();
                writer.tend();
            }
        };
        write(&mut writer, 1);
        let before = disk.segments().len();
        if is_running {
            directory.tend();
            disk.set_clock_forward(400 * 24 * HOUR_NS);
        } else {
            disk.kill();
            drop((writer, directory));
            disk.set_clock_forward(400 * 24 * HOUR_NS);
            (directory, writer, _) = begin(&disk, options);
        }
        directory.tend();
        assert_eq!(disk.segments().len(), before, "nothing is a day old");
        write(&mut writer, 31);
        disk.pass_time(25 * HOUR_NS);
        directory.tend();
        assert!(disk.segments().len() <= 2, "all is old now: {:?}", disk.segments());
        assert_eq!(missing(&disk), None);
    }
}

#[test]
fn a_segment_cut_between_two_records_is_reported() {
    let disk = many_segments(true);
    let path = &disk.segments()[2];
    // Cuts where the first frame begins.
    disk.edit(path, |bytes| bytes.truncate(bytes.windows(1000).position(|at| at == [7; 1000]).unwrap() - 28));
    let told = problems(&disk);
    assert!(told.iter().any(|problem| matches!(problem.what, ProblemKind::Cut { .. })), "{told:?}");
}

#[test]
fn one_kind_of_problem_in_many_requests_is_one_line() {
    let disk = SimDisk::new(1);
    let mut number = 0;
    for run in 0..2 {
        let (directory, mut writer, _) = begin(&disk, small());
        let requests: Vec<JournalRequest> = (0..95).map(|at| writer.open(format!("{run}-{at}"))).collect();
        number += 1;
        let frame = writer.append(b"frame", number).unwrap().frame;
        let gaps: Vec<TokenGap> = (0..95).map(|row| TokenGap { row, expected: 1, got: 3 }).collect();
        writer.outcome(&Outcome { gaps: (&gaps).into(), ..plain_outcome(frame, &requests, &[1; 95]) });
        requests.into_iter().for_each(|request| writer.close(request));
        writer.finish().unwrap();
        drop(directory);
    }
    let report = stream(&disk).verify().unwrap();
    assert_eq!(report.problems.len(), 190);
    let [line] = &report.kinds()[..] else { panic!("{:?}", report.kinds()) };
    let first = "request 1 \"0-0\": frame 1 row 0 has 3 tokens, expected 1";
    assert!(line.ends_with(&format!("{first}, and 189 more of this kind")), "{line}");
}
