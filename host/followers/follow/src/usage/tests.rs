//! Records of requests in simulated journals, on a disk that fails, is killed and loses its power.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use afterbay_events::event::{UsageCut, UsageDamaged};
use afterbay_events::{Events, Health, Metrics, Recorder, UsageCounters};
use afterbay_journal::reader::{JournalReader, RequestFilter, RequestInfo, RequestState};
use afterbay_journal::{
    Background, FrameNo, JournalDirectory, JournalOptions, JournalRequest, JournalWriter, OPERATOR, Outcome,
    Passage, PluginAction, RowFinish, SWALLOWED, SyncPolicy, Verdict,
};
use afterbay_journal_view::usage::{Numbers, Records, UsageRecord};
use afterbay_sim_disk::{DiskCall, Faults, SimDisk};

use crate::consumer::Failure;
use crate::following::{Following, Telemetry};
use crate::usage::Usage;

const DIR: &str = "/journal";
const USAGE: &str = "/journal/.usage";
const SECOND: u64 = 1_000_000_000;

fn options() -> JournalOptions {
    JournalOptions {
        sync: SyncPolicy::Always,
        segment_bytes: 4096,
        abandon_after: Duration::from_secs(1000),
        ..JournalOptions::default()
    }
}

/// A process that writes the journal.
struct Process {
    disk: SimDisk,
    directory: JournalDirectory,
    writer: JournalWriter,
    live: BTreeMap<String, JournalRequest>,
}

impl Process {
    fn start(disk: &SimDisk) -> Process {
        let directory =
            JournalDirectory::open_on(disk.process(), Path::new(DIR), options(), Background::Caller).unwrap();
        let (mut writer, recovered) = directory.stream("s").unwrap();
        writer.set_attributes(Box::new(|rid, _| {
            let tenant = rid.split('-').next().unwrap_or_default();
            vec![("tenant".to_owned(), tenant.to_owned()), ("tier".to_owned(), "2".to_owned())]
        }));
        let live = recovered.live.into_iter().map(|live| (live.info.rid, live.request)).collect();
        Process { disk: disk.clone(), directory, writer, live }
    }

    fn open(&mut self, rid: &str) {
        self.live.insert(rid.to_owned(), self.writer.open(rid));
    }

    /// Writes a frame with a row of two tokens of each request; `finish` is the scheduler's reason.
    fn row(&mut self, rids: &[&str], finish: Option<&str>, actions: &[PluginAction<'static>]) -> FrameNo {
        let now = self.disk.pass_time(SECOND);
        let frame = self.writer.append(&[7; 300], now).unwrap().frame;
        let requests: Vec<JournalRequest> = rids.iter().map(|rid| self.live[*rid]).collect();
        let tokens = vec![2; rids.len()];
        let finished: Vec<_> = finish.map_or_else(Vec::new, |reason| {
            let each = 0..rids.len() as u32;
            each.map(|row| RowFinish { row, reason: reason.to_owned().into(), completion_tokens: Some(4) })
                .collect()
        });
        self.writer.outcome(&Outcome {
            requests: (&requests).into(),
            tokens: (&tokens).into(),
            finished: (&finished).into(),
            actions: actions.into(),
            ..Outcome::new(frame, now, Passage::Unchanged)
        });
        if finish.is_some() {
            rids.iter().for_each(|rid| self.close(rid));
        }
        frame
    }

    fn close(&mut self, rid: &str) {
        let request = self.live.remove(rid).unwrap();
        self.writer.close(request);
    }

    fn flush(&mut self) {
        self.writer.flush().unwrap();
        self.writer.tend();
    }
}

fn action(
    plugin: &'static str,
    verdict: Verdict,
    text: &'static str,
    forwarded: u32,
) -> PluginAction<'static> {
    let ids = Vec::new().into();
    PluginAction { row: 0, plugin: plugin.into(), verdict, text: text.into(), ids, forwarded }
}

/// A process that follows, and what it reports.
struct Follower {
    following: Following<Usage>,
    counters: Arc<UsageCounters>,
    recorder: Recorder,
}

fn follower(disk: &SimDisk) -> Follower {
    follower_with(disk, None)
}

fn follower_with(disk: &SimDisk, kept_days: Option<u32>) -> Follower {
    let (events, recorder) = Events::recorded();
    let health = Health::default();
    let metrics = Metrics::new(events.clone(), health.clone());
    let (counters, telemetry) = (metrics.usage(), Telemetry { events, health, metrics });
    let usage = Usage::new(disk.process(), Path::new(USAGE), kept_days, &telemetry);
    let following = Following::new(usage, disk.process(), Path::new(DIR), &telemetry);
    Follower { following, counters, recorder }
}

/// Records all that the journal has.
fn catch_up(follower: &mut Follower) -> Result<(), Failure> {
    while follower.following.look(false)? {}
    Ok(())
}

/// The lines of all files, in their order.
fn lines(disk: &SimDisk) -> Vec<String> {
    let mut paths: Vec<_> =
        disk.paths().into_iter().filter(|path| path.extension().is_some_and(|it| it == "jsonl")).collect();
    paths.sort();
    let mut lines = Vec::new();
    for path in paths {
        disk.edit(&path, |bytes| {
            let text = std::str::from_utf8(bytes).unwrap();
            lines.extend(text.split_inclusive('\n').map(str::to_owned));
        });
    }
    lines
}

fn records(disk: &SimDisk) -> Vec<UsageRecord> {
    let record =
        |line: &String| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
    lines(disk).iter().map(record).collect()
}

/// The requests of the journal that have ended.
fn ended(disk: &SimDisk) -> Vec<RequestInfo> {
    let stream = JournalReader::open_on(Arc::new(disk.clone()), Path::new(DIR)).unwrap().stream("s").unwrap();
    let all = stream.requests(RequestFilter::default()).unwrap().map(Result::unwrap);
    all.filter(|info| info.state != RequestState::Live).collect()
}

/// Each request that has ended has one record, with its figures.
fn assert_whole(disk: &SimDisk) {
    let (records, ended) = (records(disk), ended(disk));
    let keys: BTreeSet<&str> = records.iter().map(|record| record.key.as_str()).collect();
    assert_eq!(keys.len(), records.len(), "no key twice");
    assert_eq!(records.len(), ended.len(), "{records:#?}\n{ended:#?}");
    for info in ended {
        let record = records.iter().find(|record| record.request == info.number.0).unwrap();
        assert_eq!(
            (record.tokens_received, record.tokens_forwarded, record.tokens_dropped, record.rows),
            (info.received, info.forwarded, info.dropped, info.rows),
            "{record:?}"
        );
    }
}

#[test]
fn each_way_to_end_has_a_record_that_names_it() {
    let disk = SimDisk::new(1);
    let mut process = Process::start(&disk);
    let mut follower = follower(&disk);
    for rid in [
        "acme-finish",
        "acme-abort",
        "acme-left",
        "other-stop",
        "other-fault",
        "other-operator",
        "x-crash",
        "x-live",
    ] {
        process.open(rid);
    }
    process.row(&["acme-finish"], None, &[]);
    process.row(&["acme-finish"], Some("stop"), &[]);
    process.row(&["acme-abort"], Some("abort"), &[]);
    process.row(&["acme-left"], None, &[]);
    process.close("acme-left");
    process.row(&["other-stop"], None, &[action("guard", Verdict::Drop, "words", 0)]);
    process.row(&["other-stop"], None, &[action("guard", Verdict::Finish, "", 1)]);
    process.row(&["other-stop"], Some("abort"), &[action("guard", Verdict::Drop, SWALLOWED, 0)]);
    process.row(
        &["other-fault"],
        None,
        &[action("guard", Verdict::Error, "500 afterbay: plugin \"guard\" failed", 0)],
    );
    process.close("other-fault");
    process.row(&["other-operator"], None, &[action(OPERATOR, Verdict::Abort, "", 2)]);
    process.close("other-operator");
    process.row(&["x-crash", "x-live"], None, &[]);
    process.flush();
    catch_up(&mut follower).unwrap();
    assert_eq!(follower.counters.records.get(), 6);
    // The process dies. Nothing more comes for one request, and the next start gives it up.
    disk.kill();
    drop((process, follower));
    disk.pass_time(900 * SECOND);
    let mut process = Process::start(&disk);
    process.row(&["x-live"], None, &[]);
    process.flush();
    disk.kill();
    drop(process);
    disk.pass_time(900 * SECOND);
    let mut process = Process::start(&disk);
    assert_eq!(process.live.keys().collect::<Vec<_>>(), ["x-live"]);
    process.row(&["x-live"], Some("length"), &[]);
    process.flush();
    catch_up(&mut self::follower(&disk)).unwrap();
    assert_whole(&disk);
    let told: BTreeMap<String, String> = records(&disk)
        .into_iter()
        .map(|record| {
            let dropped: Vec<String> = record
                .dropped
                .iter()
                .map(|it| format!("{} {} {}", it.plugin, it.reason, it.tokens))
                .collect();
            let told = format!(
                "{} {}|{}|{}/{}/{}|{}",
                record.ended_by,
                record.plugin.unwrap_or_default(),
                record.finish_reason.unwrap_or_default(),
                record.tokens_received,
                record.tokens_forwarded,
                record.tokens_swallowed,
                dropped.join(",")
            );
            assert_eq!(record.tenant.as_deref(), record.rid.split('-').next());
            assert_eq!(record.attributes["tier"], "2");
            (record.rid, told)
        })
        .collect();
    let expected = [
        ("acme-abort", "client |abort|2/2/0|"),
        ("acme-finish", "model |stop|4/4/0|"),
        ("acme-left", "lost ||2/2/0|"),
        ("other-fault", "fault guard||2/0/0|"),
        ("other-operator", "operator ||2/2/0|"),
        ("other-stop", "plugin guard|abort|6/1/2|guard words 2"),
        ("x-crash", "lost ||2/2/0|"),
        ("x-live", "limit |length|6/6/0|"),
    ];
    let expected = expected.map(|(rid, told)| (rid.to_owned(), told.to_owned()));
    assert_eq!(told, BTreeMap::from(expected));
}

/// One step of a process: requests begin, have rows, and end, over several segments.
fn step(process: &mut Process, number: usize) {
    let rids = [0, 1, 2].map(|each| format!("t{each}-{number}"));
    rids.iter().for_each(|rid| process.open(rid));
    let rids: Vec<&str> = rids.iter().map(String::as_str).collect();
    process.row(&rids, None, &[]);
    process.row(&rids[..1], Some("stop"), &[]);
    process.row(&rids[1..2], None, &[action("guard", Verdict::Finish, "", 1)]);
    process.close(rids[1]);
    // The third one of the step before ends, two segments later.
    let before = number.checked_sub(2).map(|number| format!("t2-{number}"));
    if let Some(before) = before.filter(|before| process.live.contains_key(before)) {
        process.row(&[&before], Some("length"), &[]);
    }
}

/// The process and the follower die at a call of the follower to the disk, for each call. `is_cut`: the power is cut.
fn dies_at_each_call(is_cut: bool) {
    const STEPS: usize = 6;
    let mut deaths = 0;
    // The calls of all looks, counted over their whole sequence.
    for call in 0.. {
        let disk = SimDisk::new(call);
        let (mut process, mut follower) = (Process::start(&disk), follower(&disk));
        let mut left = call;
        let mut has_died = false;
        for number in 0..STEPS {
            step(&mut process, number);
            process.writer.flush().unwrap();
            // A record may be older on disk than the journal's own.
            let is_synced = number % 3 != 1;
            if is_synced {
                process.writer.tend();
            }
            let calls = Arc::new(std::sync::atomic::AtomicU64::new(left));
            let counted = calls.clone();
            disk.set_hook(Some(Box::new(move |_: DiskCall| {
                let left = counted.load(std::sync::atomic::Ordering::Relaxed);
                if left == 0 && !has_died {
                    // Unwinds without the words of a panic.
                    resume_unwind(Box::new("dies here"));
                }
                counted.store(left.saturating_sub(1), std::sync::atomic::Ordering::Relaxed);
                usize::MAX
            })));
            let looked = catch_unwind(AssertUnwindSafe(|| catch_up(&mut follower)));
            disk.set_hook(None);
            left = calls.load(std::sync::atomic::Ordering::Relaxed);
            match looked {
                Ok(looked) => looked.unwrap(),
                Err(_) => {
                    (has_died, deaths) = (true, deaths + 1);
                    if is_cut {
                        disk.cut_power()
                    } else {
                        disk.kill()
                    }
                    let _ = catch_unwind(AssertUnwindSafe(|| drop((process, follower))));
                    (process, follower) = (Process::start(&disk), self::follower(&disk));
                }
            }
            process.writer.tend();
            process.directory.tend();
        }
        let rest: Vec<String> = process.live.keys().cloned().collect();
        for rid in rest {
            process.row(&[&rid], Some("stop"), &[]);
        }
        process.writer.finish().unwrap();
        catch_up(&mut follower).unwrap();
        // Further starts record nothing again.
        for _ in 0..2 {
            drop(follower);
            follower = self::follower(&disk);
            catch_up(&mut follower).unwrap();
        }
        match is_cut {
            false => assert_whole(&disk),
            // The journal may have lost rows of requests whose records are on disk.
            true => {
                let records = records(&disk);
                let keys: BTreeSet<u64> = records.iter().map(|record| record.request).collect();
                assert_eq!(keys.len(), records.len(), "call {call}: no key twice");
                for info in ended(&disk) {
                    assert!(keys.contains(&info.number.0), "call {call}: {info:?}");
                }
            }
        }
        if !has_died {
            break;
        }
    }
    assert!(deaths > 30, "{deaths} deaths");
}

#[test]
fn a_kill_at_any_call_to_the_disk_leaves_each_request_with_one_record() {
    dies_at_each_call(false);
}

#[test]
fn a_power_cut_at_any_call_to_the_disk_leaves_each_request_with_one_record() {
    dies_at_each_call(true);
}

#[test]
fn starts_that_are_killed_while_they_catch_up_reach_the_end_together() {
    let disk = SimDisk::new(1);
    let mut process = Process::start(&disk);
    for number in 0..30 {
        let rid = format!("acme-{number}");
        process.open(&rid);
        process.row(&[&rid], Some("stop"), &[]);
    }
    process.flush();
    let segments = JournalReader::open_on(disk.process(), Path::new(DIR)).unwrap().stream("s").unwrap();
    let segments = segments.segments().unwrap().len();
    assert!(segments > 2, "{segments} segments");
    let mut starts = 0;
    loop {
        let mut follower = follower(&disk);
        // A start reads the last segment of the start before again, and one more.
        let is_killed = follower.following.look(false).unwrap() && follower.following.look(false).unwrap();
        starts += 1;
        assert!(starts < segments, "{starts} starts, {} records", records(&disk).len());
        if !is_killed {
            break;
        }
    }
    assert_whole(&disk);
}

#[test]
fn a_stream_is_recorded_while_another_one_has_much_to_catch_up() {
    let disk = SimDisk::new(1);
    let mut process = Process::start(&disk);
    for number in 0..10 {
        step(&mut process, number);
    }
    process.flush();
    let (mut other, _) = process.directory.stream("z").unwrap();
    let request = other.open("of-z");
    other.close(request);
    other.flush().unwrap();
    assert!(follower(&disk).following.look(false).unwrap(), "there is more to read");
    assert!(records(&disk).iter().any(|record| record.rid == "of-z"));
}

#[test]
fn a_disk_that_fails_delays_records_and_loses_none() {
    for seed in 0..20 {
        let disk = SimDisk::new(seed);
        let (mut process, mut follower) = (Process::start(&disk), follower(&disk));
        let mut failures = 0;
        for number in 0..20 {
            step(&mut process, number);
            process.flush();
            disk.set_faults(Faults { write: 3, create: 3, sync: 3, rename: 3, ..Faults::default() });
            failures += u32::from(catch_up(&mut follower).is_err());
            disk.set_faults(Faults::default());
        }
        process.writer.finish().unwrap();
        catch_up(&mut follower).unwrap();
        assert!(failures > 2, "{failures} failures");
        assert_whole(&disk);
        assert_eq!(follower.counters.records.get(), records(&disk).len() as u64);
    }
}

#[test]
fn a_full_disk_is_an_error_and_the_records_come_once_there_is_room() {
    let disk = SimDisk::new(1);
    let (mut process, mut follower) = (Process::start(&disk), follower(&disk));
    catch_up(&mut follower).unwrap();
    step(&mut process, 0);
    process.flush();
    disk.set_capacity(disk.used());
    for _ in 0..3 {
        assert!(catch_up(&mut follower).unwrap_err().to_string().contains("/journal/.usage"));
    }
    disk.set_capacity(usize::MAX);
    catch_up(&mut follower).unwrap();
    assert_whole(&disk);
}

#[test]
fn a_torn_last_line_is_cut_and_its_record_is_written_again() {
    let disk = SimDisk::new(1);
    let mut process = Process::start(&disk);
    let mut first = follower(&disk);
    step(&mut process, 0);
    process.flush();
    catch_up(&mut first).unwrap();
    let whole = lines(&disk);
    disk.kill();
    drop((process, first));
    let path =
        disk.paths().into_iter().find(|path| path.extension().is_some_and(|it| it == "jsonl")).unwrap();
    disk.edit(&path, |bytes| bytes.truncate(bytes.len() - 10));
    let mut next = follower(&disk);
    catch_up(&mut next).unwrap();
    assert_eq!(lines(&disk), whole);
    let cut = whole.last().unwrap().len() as u64 - 10;
    assert!(matches!(&next.recorder.of::<UsageCut>()[..], [UsageCut { cut_bytes, .. }] if *cut_bytes == cut));
}

#[test]
fn two_processes_never_write_at_once_and_the_second_continues_behind_the_first() {
    let disk = SimDisk::new(1);
    let (mut process, mut first) = (Process::start(&disk), follower(&disk));
    step(&mut process, 0);
    process.flush();
    catch_up(&mut first).unwrap();
    let mut second = follower(&disk);
    let refused = catch_up(&mut second).unwrap_err().to_string();
    assert!(refused.contains("in use by process"), "{refused}");
    step(&mut process, 1);
    process.flush();
    drop(first);
    catch_up(&mut second).unwrap();
    assert_whole(&disk);
}

#[test]
fn a_damaged_line_is_reported_and_a_start_reads_no_segment_before_those_of_live_requests() {
    let disk = SimDisk::new(1);
    let (mut process, mut follower) = (Process::start(&disk), follower(&disk));
    for number in 0..30 {
        step(&mut process, number);
        process.flush();
        catch_up(&mut follower).unwrap();
    }
    drop(follower);
    // The segments of requests that ended long ago are needed no more.
    let path =
        disk.paths().into_iter().find(|path| path.extension().is_some_and(|it| it == "jsonl")).unwrap();
    let before = lines(&disk);
    disk.edit(&path, |bytes| bytes[..before[0].len() - 1].fill(b'x'));
    let mut next = self::follower(&disk);
    step(&mut process, 30);
    process.flush();
    catch_up(&mut next).unwrap();
    assert!(matches!(&next.recorder.of::<UsageDamaged>()[..], [UsageDamaged { lines: 1, .. }]));
    assert_eq!(next.counters.records.get(), 3);
    assert_eq!(lines(&disk)[..before.len()][1..], before[1..]);
}

#[test]
fn a_file_ends_with_its_day() {
    let disk = SimDisk::new(1);
    let (mut process, mut follower) = (Process::start(&disk), follower(&disk));
    for number in 0..3 {
        step(&mut process, number);
        process.flush();
        catch_up(&mut follower).unwrap();
        disk.pass_time(24 * 3600 * SECOND);
    }
    let names = disk.paths().into_iter().filter(|path| path.extension().is_some_and(|it| it == "jsonl"));
    let names: Vec<String> =
        names.map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect();
    assert_eq!(
        names,
        ["usage-1970-01-01-000001.jsonl", "usage-1970-01-02-000001.jsonl", "usage-1970-01-03-000001.jsonl"]
    );
    let days = records(&disk).into_iter().map(|record| record.last_time.unwrap()[..10].to_owned());
    assert_eq!(days.collect::<BTreeSet<_>>().len(), 3);
}

#[test]
fn files_of_days_that_are_not_kept_are_removed_and_the_records_say_since_when_they_are_complete() {
    let disk = SimDisk::new(1);
    let mut process = Process::start(&disk);
    let mut follower = follower_with(&disk, Some(3));
    let complete_since = || {
        let records = Records::open(Arc::new(disk.clone()), Path::new(USAGE)).unwrap().unwrap();
        records.complete_since_unix_ns("s").unwrap()
    };
    let mut since = Vec::new();
    for number in 0..5 {
        step(&mut process, number);
        process.flush();
        catch_up(&mut follower).unwrap();
        since.push(complete_since() / (24 * 3600 * SECOND));
        disk.pass_time(24 * 3600 * SECOND);
    }
    assert_eq!(since, [0, 0, 0, 1, 2]);
    let days = records(&disk).into_iter().map(|record| record.last_time.unwrap()[..10].to_owned());
    assert_eq!(
        days.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>(),
        ["1970-01-03", "1970-01-04", "1970-01-05"]
    );
}

#[test]
fn numbers_are_kept_as_runs() {
    let mut numbers = Numbers::default();
    for number in [5, 3, 4, 9, 0, u64::MAX] {
        assert!(numbers.insert(number) && !numbers.insert(number), "{number}");
    }
    assert_eq!(numbers.runs().collect::<Vec<_>>(), [(0, 0), (3, 5), (9, 9), (u64::MAX, u64::MAX)]);
}
