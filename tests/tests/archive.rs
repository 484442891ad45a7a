//! The archive of the real binary, in moto's S3 server with faults.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use afterbay_journal::reader::JournalReader;
use afterbay_tests::frames::{SynthRequest, batch};
use afterbay_tests::{Afterbay, Config, Reader, Sandbox, Sender, repository, until};
use afterbay_wire::synth::SynthWire::Msgpack;
use arrow_array::cast::AsArray as _;
use arrow_array::types::Int64Type;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

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
            assert!(afterbay.event("ArchiveFailed")["why"].as_str().unwrap().contains("503"));
        }
        afterbay.kill();
    }
    s3.set_faults("none");
    let afterbay = Afterbay::run_in(&traffic.sandbox, &config, &s3.environment());
    traffic.send(20);
    afterbay.until_metrics("segments are confirmed", |metrics| {
        metrics.process("archive_segments_confirmed_total") > 0
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
    let segments = || JournalReader::open(&journal).unwrap().stream("test").unwrap().segments().unwrap();
    let before = segments();
    assert!(before.len() > 1);
    let afterbay = Afterbay::run(&traffic.sandbox, &config);
    traffic.send(16);
    until("retention removes what is archived", || segments()[0] > before[0]);
    assert_eq!(afterbay.stop(), 0);
    traffic.check(&archive);
}
