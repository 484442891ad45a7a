//! An hour of simulated load, in this process: the engine's time is divided over the requests, and none is lost or made.

use std::collections::HashMap;
use std::time::Duration;

use afterbay_journal::reader::JournalReader;
use afterbay_journal::{
    JournalDirectory, JournalOptions, JournalRequest, Outcome, Passage, RowFinish, SyncPolicy,
};
use afterbay_journal_view::ended::{EndedReader, FrameUse};
use afterbay_journal_view::usage::{Bucket, Sums, UsageRecord};
use afterbay_sim::load::{Arrivals, EndReason, Endings, Lengths, Load};
use afterbay_sim::steps::Steps;
use afterbay_wire::synth::{SynthBatch, SynthRow, SynthWire};
use afterbay_wire::{BatchKind, Layouts, RequestRecord};

const MS: u64 = 1_000_000;
const HOUR_NS: u64 = 3_600_000 * MS;
const BEGAN_UNIX_NS: u64 = 1_700_000_000_000 * MS;

#[test]
fn the_gpu_seconds_of_an_hour_are_the_time_of_its_steps_to_the_nanosecond() {
    let mut load = Load::new(1300, 60);
    load.arrivals = Arrivals::Rate(0.4);
    load.lengths = Lengths { low: 1, high: 60 };
    load.endings = Endings::MIXED;
    load.max_running = 8;
    let dir = tempfile::tempdir().unwrap();
    let options =
        JournalOptions { sync: SyncPolicy::None, segment_bytes: 1 << 20, ..JournalOptions::default() };
    let directory = JournalDirectory::open(dir.path(), options).unwrap();
    let (mut writer, _) = directory.stream("decode").unwrap();
    writer.set_attributes(Box::new(|rid, _| {
        let tenant = if rid.ends_with(['0', '1', '2']) { "acme" } else { "umbrella" };
        vec![("tenant".to_owned(), tenant.to_owned())]
    }));
    let (mut steps, mut live) = (Steps::new(load), HashMap::<String, JournalRequest>::new());
    let (mut now, mut busy, mut steps_with_rows) = (0, 0, 0);
    while !steps.is_done() {
        let step = steps.next(Duration::from_nanos(now));
        if step.rows.is_empty() {
            now += 7 * MS;
            continue;
        }
        for row in step.rows.iter().filter(|row| row.first) {
            let prompt_tokens = Some(row.prompt_tokens.into());
            let record = RequestRecord { rid: row.rid.clone(), prompt_tokens, ..RequestRecord::default() };
            let frame = writer.append(&record.to_frame(), BEGAN_UNIX_NS + now).unwrap().frame;
            let request = writer.open(&row.rid);
            assert!(live.insert(row.rid.clone(), request).is_none());
            writer.outcome(&Outcome {
                requests: (&[request]).into(),
                tokens: (&[0]).into(),
                ..Outcome::new(frame, BEGAN_UNIX_NS + now, Passage::Barrier("request".into()))
            });
        }
        // A prompt of 512 tokens takes 100 ms, any other row 300 µs.
        let prompts =
            step.rows.iter().filter(|row| row.first).map(|row| u64::from(row.prompt_tokens)).sum::<u64>();
        let took = 20 * MS + prompts * 195_313 + step.rows.len() as u64 * 300_001;
        (now, busy, steps_with_rows) = (now + took, busy + took, steps_with_rows + 1);
        let rows = step.rows.iter().map(|row| SynthRow {
            rid: row.rid.clone(),
            ids: vec![7],
            ..SynthRow::default()
        });
        let frame =
            SynthBatch { rows: rows.collect() }.encode(BatchKind::TokenId, SynthWire::EngineCore).unwrap();
        let frame = writer.append(&frame, BEGAN_UNIX_NS + now).unwrap().frame;
        let requests: Vec<JournalRequest> = step.rows.iter().map(|row| live[&row.rid]).collect();
        let tokens: Vec<u32> = step.rows.iter().map(|row| row.tokens).collect();
        let ends = (0..).zip(&step.rows).filter_map(|(row, it)| Some((row, it.ending?)));
        let finished: Vec<RowFinish<'_>> = ends
            .map(|(row, ending)| {
                let reason = if ending == EndReason::Abort { "abort" } else { "stop" };
                RowFinish { row, reason: reason.into(), completion_tokens: None }
            })
            .collect();
        writer.outcome(&Outcome {
            requests: requests.as_slice().into(),
            tokens: tokens.as_slice().into(),
            finished: finished.as_slice().into(),
            ..Outcome::new(frame, BEGAN_UNIX_NS + now, Passage::Unchanged)
        });
        for row in step.rows.iter().filter(|row| row.ending.is_some()) {
            writer.close(live.remove(&row.rid).unwrap());
        }
    }
    writer.finish().unwrap();
    assert!((HOUR_NS / 2..2 * HOUR_NS).contains(&now) && busy < now / 2, "{now} {busy}");

    let stream = JournalReader::open(dir.path()).unwrap().stream("decode").unwrap();
    let segments = stream.segments().unwrap();
    assert!(segments.len() > 3, "{}", segments.len());
    let mut reader = EndedReader::new(stream, FrameUse::Facts, &Layouts::builtin()).with_settled_frames();
    let mut sums = Sums::new(vec![Bucket::Attribute("tenant".into())]);
    let (mut steps_ns, mut frames) = (0, 0);
    for segment in segments {
        assert!(reader.open(segment).unwrap());
        while reader.read(1000).unwrap() {}
        reader.finish_segment();
        reader.requests().for_each(|ended| sums.add(&UsageRecord::new("i", &ended)));
        for frame in reader.settled_frames().filter(|frame| frame.requests > 0) {
            (steps_ns, frames) = (steps_ns + frame.gpu_ns, frames + 1);
        }
    }
    assert_eq!((sums.total().requests, frames), (1300, steps_with_rows));
    assert_eq!((sums.total().gpu_ns, steps_ns), (busy, busy));
    let of_tenants: Vec<u64> = sums.groups.values().map(|group| group.gpu_ns).collect();
    assert_eq!(of_tenants.iter().sum::<u64>(), busy);
    assert!(of_tenants.len() == 2 && of_tenants.iter().all(|ns| *ns > busy / 10), "{of_tenants:?}");
}
