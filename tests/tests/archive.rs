//! The archive of the real binary: in moto's S3 server with faults, and beside the records of usage.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use afterbay_journal::reader::JournalReader;
use afterbay_journal::storage::Disk;
use afterbay_journal::{
    Confirmed, Follower, JournalDirectory, JournalOptions, Outcome, Passage, PluginAction, RowFinish,
    SegmentId, SinkContent, Verdict,
};
use afterbay_tests::commands::run_afterbay;
use afterbay_tests::frames::{SynthRequest, batch};
use afterbay_tests::sandbox::{SINK, STREAM};
use afterbay_tests::{Afterbay, Config, Reader, Sandbox, Sender, repository, until};
use afterbay_wire::synth::SynthRow;
use afterbay_wire::synth::SynthWire::Msgpack;
use arrow_array::cast::AsArray as _;
use arrow_array::types::Int64Type;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::{Value, json};

/// Python with moto: the tests' environment, or the machine's.
fn python() -> String {
    std::env::var("AFTERBAY_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned())
}

/// moto's S3 server. It ends with this value.
struct S3 {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    url: String,
    faults: PathBuf,
}

impl S3 {
    /// `None` if this machine has no moto.
    fn start(sandbox: &Sandbox) -> Option<S3> {
        let has_moto =
            Command::new(python()).args(["-c", "import moto.server"]).stderr(Stdio::null()).status();
        if !has_moto.is_ok_and(|status| status.success()) {
            eprintln!("skipped: no Python with moto");
            return None;
        }
        let faults = sandbox.path("faults");
        std::fs::write(&faults, "none").unwrap();
        let mut child = Command::new(python())
            .arg(repository().join("tests/faulty_s3.py"))
            .arg(&faults)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (mut output, mut url) = (BufReader::new(output), String::new());
        output.read_line(&mut url).unwrap();
        Some(S3 { child, input, output, url: url.trim().to_owned(), faults })
    }

    fn set_faults(&self, mode: &str) {
        std::fs::write(&self.faults, mode).unwrap();
    }

    fn environment(&self) -> [(&str, &str); 5] {
        [
            ("AWS_ACCESS_KEY_ID", "test"),
            ("AWS_SECRET_ACCESS_KEY", "test"),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ENDPOINT_URL", &self.url),
            ("AWS_ALLOW_HTTP", "true"),
        ]
    }

    /// Copies all objects to a directory.
    fn copy_to(&mut self, dir: &Path) {
        writeln!(self.input, "{}", dir.display()).unwrap();
        let mut done = String::new();
        self.output.read_line(&mut done).unwrap();
        assert_eq!(done.trim(), "done");
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The files below a directory.
fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files(&path, found) } else { found.push(path) }
    }
}

fn has_files(dir: &Path) -> bool {
    let mut found = Vec::new();
    files(dir, &mut found);
    !found.is_empty()
}

/// The rows and the tokens of each request in all objects of the table, without a look at the manifests.
fn archived(dir: &Path) -> BTreeMap<String, (u64, i64)> {
    let (mut found, mut requests) = (Vec::new(), BTreeMap::new());
    files(&dir.join("requests"), &mut found);
    for file in found.into_iter().filter(|file| file.extension().is_some_and(|it| it == "parquet")) {
        let file = std::fs::File::open(file).unwrap();
        let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap();
        for rows in reader.map(Result::unwrap) {
            let rids = rows.column_by_name("rid").unwrap().as_string::<i32>();
            let tokens = rows.column_by_name("tokens_received").unwrap().as_primitive::<Int64Type>();
            for (rid, tokens) in rids.iter().zip(tokens.iter()) {
                let entry: &mut (u64, i64) = requests.entry(rid.unwrap().to_owned()).or_default();
                *entry = (entry.0 + 1, entry.1 + tokens.unwrap());
            }
        }
    }
    requests
}

fn segments(journal: &Path) -> Vec<SegmentId> {
    JournalReader::open(journal).unwrap().stream(STREAM).unwrap().segments().unwrap()
}

/// A scheduler that sends whole requests in large frames, and a reader that takes them.
struct Traffic {
    sandbox: Sandbox,
    reader: Reader,
    /// The tokens of each request.
    sent: BTreeMap<String, (u64, i64)>,
}

impl Traffic {
    fn new() -> Traffic {
        let sandbox = Sandbox::new();
        let reader = Reader::bind(&sandbox.reader_side());
        Traffic { sandbox, reader, sent: BTreeMap::new() }
    }

    /// Half of the limit is room for segments that wait for the archive without a hurry.
    fn config(&self, url: &str, limit: &str) -> Config {
        let retain = format!("segment = \"1MiB\"\nretain = {{ bytes = {limit:?}, age = \"unlimited\" }}");
        self.sandbox.config().journal(&retain).archive(url)
    }

    /// Sends requests of 2,000 tokens, 16 in each frame of 160 KB, and waits until the reader has them.
    fn send(&mut self, frames: usize) {
        let mut sender = Sender::connect(&self.sandbox.scheduler_side());
        for _ in 0..frames {
            let ids: Vec<i64> = (0..2000).map(|id| 100_000 + id).collect();
            let first = self.sent.len();
            let rids = (first..first + 16).map(|number| format!("r{number:05}"));
            let rows = rids.map(|rid| {
                self.sent.insert(rid.clone(), (1, ids.len() as i64));
                SynthRequest::new(&rid).last(&ids)
            });
            sender.send(&batch(Msgpack, rows.collect()));
            self.reader.frame();
        }
    }

    /// Compares the archive with what was sent, and with the journal's own requests.
    fn check(&self, archive: &Path) {
        assert_eq!(archived(archive), self.sent);
        let journal = JournalReader::open(&self.sandbox.journal()).unwrap();
        let stream = journal.stream("test").unwrap();
        for request in stream.requests(Default::default()).unwrap() {
            let request = request.unwrap();
            assert_eq!(self.sent.get(&request.rid), Some(&(1, request.received as i64)));
        }
    }
}

#[test]
fn over_kill_9_and_a_failing_s3_each_request_is_archived_once() {
    let mut traffic = Traffic::new();
    let Some(mut s3) = S3::start(&traffic.sandbox) else { return };
    let config = traffic.config("s3://tokens/some/prefix", "24MiB");
    for mode in ["errors", "away", "errors"] {
        s3.set_faults(mode);
        let afterbay = Afterbay::run_in(&traffic.sandbox, &config, &s3.environment());
        traffic.send(6);
        if mode == "away" {
            assert!(afterbay.event("FollowerFailed")["why"].as_str().unwrap().contains("503"));
        }
        afterbay.kill();
    }
    s3.set_faults("none");
    let last = *segments(&traffic.sandbox.journal()).last().unwrap();
    let afterbay = Afterbay::run_in(&traffic.sandbox, &config, &s3.environment());
    traffic.send(20);
    // The follower of the killed process may do it: it outlives its parent by what is left to do.
    let copy = "s3://tokens/some/prefix".to_owned();
    let archive = Follower { name: "archive", copy, needs_ended_segments: true };
    until("a segment of this run is confirmed", || {
        let confirmed = Confirmed::read(&Disk, &traffic.sandbox.journal(), &archive).unwrap();
        confirmed.oldest_needed(STREAM) > Some(last)
    });
    assert_eq!(afterbay.stop(), 0);
    let copy = traffic.sandbox.path("copy");
    s3.copy_to(&copy);
    traffic.check(&copy.join("some/prefix"));
}

#[test]
fn a_directory_gets_each_request_once_over_kills_and_retention_waits_for_it() {
    let mut traffic = Traffic::new();
    let archive = traffic.sandbox.path("archive");
    let config = traffic.config(&format!("file://{}", archive.display()), "6MiB");
    for is_uploading in [false, true, false] {
        let afterbay = Afterbay::run(&traffic.sandbox, &config);
        traffic.send(6);
        if is_uploading {
            // The kill comes between the calls of an upload, or shortly after it.
            until("an object appears", || has_files(&archive));
        }
        afterbay.kill();
    }
    let journal = traffic.sandbox.journal();
    let before = segments(&journal);
    assert!(before.len() > 1);
    let afterbay = Afterbay::run(&traffic.sandbox, &config);
    traffic.send(16);
    until("retention removes what is archived", || segments(&journal)[0] > before[0]);
    assert_eq!(afterbay.stop(), 0);
    traffic.check(&archive);
}

#[test]
fn over_hand_overs_each_request_is_archived_once() {
    let mut traffic = Traffic::new();
    let archive = traffic.sandbox.path("archive");
    let config = traffic.config(&format!("file://{}", archive.display()), "6MiB");
    let mut afterbay = Afterbay::run(&traffic.sandbox, &config);
    for hand_over in 0..2 {
        traffic.send(16);
        if hand_over == 0 {
            // It comes between the calls of an upload, or shortly after it.
            until("an object appears", || has_files(&archive));
        }
        afterbay.upgrade(&[]).success();
    }
    traffic.send(6);
    assert_eq!(afterbay.stop(), 0);
    traffic.check(&archive);
}

const TENANTS: [&str; 2] = ["acme", "birch"];
const HOUR_NS: u64 = 3_600_000_000_000;
/// 2026-11-20 06:30:00 UTC.
const PAST_UNIX_NS: u64 = 1_795_156_200_000_000_000;

/// A frame with the only rows of a request of each tenant: so many tokens, and times to the first token.
fn rows_of(round: u64) -> Vec<SynthRow> {
    let rows = TENANTS.iter().zip(1_u64..).map(|(tenant, at)| {
        let ids: Vec<i64> = (0..2 + (round + at) % 5).map(|id| 100 + id as i64).collect();
        let row = SynthRequest::new(&format!("{tenant}-{round}")).last(&ids);
        // The scheduler says no time of some requests. The others have times that a clock in seconds has exactly.
        let first_token_ns = (round % 7 != 6).then_some((1 + round * at % 16) * 31_250_000);
        SynthRow { first_token_ns, prompt_tokens: 10 + round, ..row }
    });
    rows.collect()
}

/// Writes the journal of an earlier run: 30 requests of each tenant in three hours. A plugin dropped tokens of some.
fn write_past_hours(dir: &Path) {
    let directory = JournalDirectory::open(dir, JournalOptions::default()).unwrap();
    let (mut writer, _) = directory.stream(STREAM).unwrap();
    writer.set_attributes(Box::new(|rid, _| {
        let tenant = rid.split('-').next().unwrap_or_default();
        vec![("tenant".to_owned(), tenant.to_owned())]
    }));
    for round in 0..30 {
        let now = PAST_UNIX_NS + round * HOUR_NS / 12;
        let rows = rows_of(round);
        let requests: Vec<_> = rows.iter().map(|row| writer.open(&row.rid)).collect();
        let tokens: Vec<u32> = rows.iter().map(|row| row.ids.len() as u32).collect();
        let finish = |(row, tokens): (u32, &u32)| RowFinish {
            row,
            reason: "length".into(),
            completion_tokens: Some(u64::from(*tokens)),
        };
        let finished: Vec<_> = (0..).zip(&tokens).map(finish).collect();
        let drop = PluginAction {
            row: 0,
            plugin: "guard".into(),
            verdict: Verdict::Drop,
            text: "not allowed".into(),
            ids: Vec::new().into(),
            forwarded: 0,
        };
        let drops = round % 4 == 3;
        let kept = batch(Msgpack, rows.iter().skip(1).cloned().collect());
        let frame = writer.append(&batch(Msgpack, rows), now).unwrap().frame;
        writer.outcome(&Outcome {
            changed: drops.then_some(kept),
            requests: requests.as_slice().into(),
            tokens: tokens.as_slice().into(),
            finished: finished.into(),
            actions: if drops { vec![drop] } else { Vec::new() }.into(),
            ..Outcome::new(frame, now, if drops { Passage::Changed } else { Passage::Unchanged })
        });
        writer.sent(SINK, frame.0, SinkContent::Whole(frame), now);
        writer.taken(SINK, frame.0, frame, None, now);
        requests.into_iter().for_each(|request| writer.close(request));
    }
    writer.finish().unwrap();
}

/// Requests, prompt, received and forwarded tokens, and quantiles of the first token by tenant and hour, of the lines of usage.
fn summed(lines: &[Value]) -> Vec<Value> {
    type Sums = ([u64; 4], Vec<f64>);
    let mut groups: BTreeMap<(&str, &str), Sums> = BTreeMap::new();
    for line in lines {
        let text = |name: &str| line[name].as_str().unwrap();
        let hour = &text("last_time")[.."2026-11-20T06".len()];
        let (sums, first_tokens) = groups.entry((text("tenant"), hour)).or_default();
        sums[0] += 1;
        for (sum, name) in sums[1..].iter_mut().zip(["prompt_tokens", "tokens_received", "tokens_forwarded"])
        {
            *sum += line[name].as_u64().unwrap();
        }
        first_tokens.extend(line["first_token_ns"].as_f64());
    }
    let rows = groups.into_iter().map(|((tenant, hour), (sums, mut times))| {
        times.sort_by(f64::total_cmp);
        let quantile = |at: f64| {
            let place = at * (times.len() - 1) as f64;
            let (low, high) = (times[place.floor() as usize], times[place.ceil() as usize]);
            (low + (high - low) * place.fract()) / 1e6
        };
        json!([tenant, hour, sums[0], sums[1], sums[2], sums[3], quantile(0.5), quantile(0.95)])
    });
    rows.collect()
}

/// Panics unless the rows are equal, quantiles up to the last bits of a double.
fn assert_equal(what: &str, rows: &[Value], expected: &[Value]) {
    assert_eq!(rows.len(), expected.len(), "{what}: {rows:?} is not {expected:?}");
    for (row, expected) in rows.iter().zip(expected) {
        let values = row.as_array().unwrap().iter().zip(expected.as_array().unwrap());
        for (value, expected) in values {
            let is_equal = match (value.as_f64(), expected.as_f64()) {
                (Some(value), Some(expected)) => (value - expected).abs() <= 1e-9 * expected.max(1.0),
                // A query gives an hour as a time, of which usage has the beginning.
                _ => value.as_str().unwrap().starts_with(expected.as_str().unwrap()),
            };
            assert!(is_equal, "{what}: {row} is not {expected}");
        }
    }
}

#[test]
fn tokens_and_first_token_by_tenant_and_hour_are_equal_in_duckdb_polars_usage_records_and_afterbay_usage() {
    let has_readers =
        Command::new(python()).args(["-c", "import duckdb, polars"]).stderr(Stdio::null()).status();
    if !has_readers.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no Python with duckdb and polars");
        return;
    }
    let mut traffic = Traffic::new();
    write_past_hours(&traffic.sandbox.journal());
    let archive = traffic.sandbox.path("archive");
    let rules =
        TENANTS.map(|tenant| format!("{{ pattern = \"^{tenant}\", set = {{ tenant = {tenant:?} }} }}"));
    let config = traffic.config(&format!("file://{}", archive.display()), "1GiB").usage();
    let config = config.stream(&format!("attribute = [{}]", rules.join(", ")));
    let afterbay = Afterbay::run(&traffic.sandbox, &config);
    let mut sender = Sender::connect(&traffic.sandbox.scheduler_side());
    for round in 30..50 {
        sender.send(&batch(Msgpack, rows_of(round)));
        traffic.reader.frame();
    }
    // It archives and records what has ended.
    assert_eq!(afterbay.stop(), 0);

    let mut found = Vec::new();
    files(&traffic.sandbox.journal().join(".usage"), &mut found);
    found.retain(|file| file.extension().is_some_and(|it| it == "jsonl"));
    let records: String = found.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect();
    let records: Vec<Value> = records.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let expected = summed(&records);
    let of = |column: usize| expected.iter().map(|row| row[column].as_u64().unwrap()).sum::<u64>();
    assert_eq!(of(2), 100);
    // Three hours before, and one or two now.
    assert!(expected.len() >= 8, "{expected:?}");
    let tokens: usize = (0..50).flat_map(rows_of).map(|row| row.ids.len()).sum();
    let dropped: usize = (3..30).step_by(4).map(|round| rows_of(round)[0].ids.len()).sum();
    assert_eq!((of(4), of(5)), (tokens as u64, (tokens - dropped) as u64));

    let usage = run_afterbay(&[
        "usage",
        "--from",
        &traffic.sandbox.text("journal"),
        "--by",
        "tenant",
        "--by",
        "hour",
        "--json",
    ]);
    let usage: Value = serde_json::from_str(&usage.success()).unwrap();
    assert_eq!(usage["reconciliation"]["equal"], 100);
    let usage = usage["groups"].as_array().unwrap().iter().map(|group| {
        json!([
            group["by"]["tenant"],
            group["by"]["hour"],
            group["requests"],
            group["prompt_tokens"],
            group["tokens_received"],
            group["tokens_forwarded"],
            group["first_token_ms_p50"],
            group["first_token_ms_p95"],
        ])
    });
    assert_equal("afterbay usage", &usage.collect::<Vec<_>>(), &expected);

    let output = Command::new(python())
        .arg(repository().join("host/followers/follow/tests/queries.py"))
        .arg(repository().join("docs/src/operate/archive.md"))
        .current_dir(traffic.sandbox.path("."))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    for engine in ["duckdb", "polars"] {
        assert_equal(engine, results[engine][0]["rows"].as_array().unwrap(), &expected);
    }
}
