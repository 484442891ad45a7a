//! Tables of small journals, read back by Parquet's own reader, by DuckDB and by Polars.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use afterbay_journal::reader::JournalReader;
use afterbay_journal::{
    JournalDirectory, JournalOptions, JournalRequest, JournalWriter, Outcome, Passage, PluginAction,
    RowFinish, SinkContent, SyncPolicy, Verdict,
};
use afterbay_journal_view::ended::FrameUse;
use afterbay_wire::synth::{SynthBatch, SynthFinish, SynthRow, SynthWire};
use afterbay_wire::{BatchKind, Layouts, RequestRecord, Sampling};
use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::Value;

use super::*;

const MS: u64 = 1_000_000;
/// 2026-11-26 09:58:20 UTC.
const START: u64 = 1_795_687_100_000 * MS;
const TENANTS: [&str; 3] = ["acme", "birch", "cedar"];
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/src/operate/archive.md");

/// A journal of one stream. A frame takes 100 ms.
struct Scene {
    dir: tempfile::TempDir,
    writer: JournalWriter,
    directory: JournalDirectory,
    now: u64,
    frames: u64,
}

impl Scene {
    /// Requests of three tenants over two hours, some of which a plugin changed.
    fn filled(wire: SynthWire) -> Scene {
        let dir = tempfile::tempdir().unwrap();
        let options =
            JournalOptions { sync: SyncPolicy::None, segment_bytes: 16_384, ..JournalOptions::default() };
        let directory = JournalDirectory::open(&dir.path().join("journal"), options).unwrap();
        let (mut writer, _) = directory.stream("s").unwrap();
        writer.set_attributes(Box::new(|rid, _| {
            let tenant = rid.split('-').next().unwrap_or_default();
            [("model", "m-7b"), ("tenant", tenant)].map(|(name, value)| (name.into(), value.into())).to_vec()
        }));
        writer.plugins([("guard", "1.2.0", &[0xab; 32])].into_iter());
        let mut scene = Scene { dir, writer, directory, now: START, frames: 0 };
        for round in 0..60 {
            scene.round(wire, round);
        }
        scene
    }

    /// One request of each tenant, of three frames.
    fn round(&mut self, wire: SynthWire, round: u64) {
        let rids = TENANTS.map(|tenant| format!("{tenant}-{round}"));
        let requests: Vec<JournalRequest> = rids.iter().map(|rid| self.writer.open(rid)).collect();
        for step in 0..3_u64 {
            let rows = rids.iter().zip(0..).map(|(rid, at)| SynthRow {
                rid: rid.clone(),
                ids: vec![(round * 1000 + step * 10 + at) as i64, 150_000],
                finish: (step == 2).then_some(SynthFinish::Length(6)),
                completion_tokens: 2 * (step + 1),
                prompt_tokens: 10 + at,
                // Times that a clock in seconds has exactly.
                first_token_ns: (step == 0).then_some((1 + (round * (at + 1)) % 16) * 31_250_000),
                ..SynthRow::default()
            });
            let batch = SynthBatch { rows: rows.collect() };
            // A plugin drops the second row of every fourth round's second frame, and replaces the first.
            let acts = step == 1 && round % 4 == 3;
            let changed = acts.then(|| {
                let mut rows = batch.rows.clone();
                rows[0].ids = vec![7];
                rows.remove(1);
                SynthBatch { rows }.encode(BatchKind::TokenId, wire).unwrap()
            });
            let action = |row, verdict, text: &'static str, forwarded| PluginAction {
                row,
                plugin: "guard".into(),
                verdict,
                text: text.into(),
                ids: Vec::new().into(),
                forwarded,
            };
            let actions = [action(0, Verdict::Replace, "", 1), action(1, Verdict::Drop, "not allowed", 0)];
            self.now += 100 * MS;
            let bytes = batch.encode(BatchKind::TokenId, wire).unwrap();
            let frame = self.writer.append(&bytes, self.now).unwrap().frame;
            self.frames += 1;
            let finished =
                (0..3).map(|row| RowFinish { row, reason: "length".into(), completion_tokens: Some(6) });
            let finished: Vec<_> = finished.filter(|_| step == 2).collect();
            self.writer.outcome(&Outcome {
                changed,
                requests: requests.as_slice().into(),
                tokens: (&[2, 2, 2]).into(),
                finished: finished.into(),
                actions: if acts { actions.to_vec() } else { Vec::new() }.into(),
                ..Outcome::new(frame, self.now, if acts { Passage::Changed } else { Passage::Unchanged })
            });
            self.writer.sent("reader", frame.0, SinkContent::Whole(frame), self.now);
            self.writer.taken("reader", frame.0, frame, None, self.now);
        }
        requests.into_iter().for_each(|request| self.writer.close(request));
        self.writer.flush().unwrap();
        self.now += 2000 * MS;
    }

    fn reader(&self) -> EndedReader {
        let journal = JournalReader::open(&self.dir.path().join("journal")).unwrap();
        let reader = EndedReader::new(journal.stream("s").unwrap(), FrameUse::Contents, &Layouts::builtin());
        reader.with_settled_frames()
    }

    fn segments(&self) -> Vec<SegmentId> {
        self.directory.segments("s").unwrap().into_iter().map(|(id, _)| id).collect()
    }

    fn ended(&self) -> Vec<EndedRequest> {
        let mut reader = self.reader();
        let mut all = Vec::new();
        for id in self.segments() {
            assert!(reader.open(id).unwrap());
            while reader.read(1000).unwrap() {}
            reader.finish_segment();
            all.extend(reader.requests());
        }
        all
    }

    /// Writes these segments as two files of one partition of `archive`.
    fn archive(&self) -> (Vec<ClosedFile>, SegmentCounts) {
        let facts = StreamFacts { instance: "host-1".into(), stream: "s".into() };
        let mut tables = SegmentTables::new(self.reader());
        let (mut closed, mut sum) = (Vec::new(), SegmentCounts::default());
        let segments = self.segments();
        for (part, segments) in segments.chunks(segments.len().div_ceil(2)).enumerate() {
            let dir = self.dir.path().join(format!("part-{part}"));
            std::fs::create_dir(&dir).unwrap();
            let mut files = TableFiles::create(&dir, &facts).unwrap();
            for id in segments {
                let counts = tables.read(*id, Some(&mut files)).unwrap().unwrap();
                sum.requests += counts.requests;
                sum.tokens += counts.tokens;
                sum.batches += counts.batches;
            }
            let files = files.close().unwrap();
            for file in &files {
                let partition = format!("archive/{}/date=2026-11-26/hour=09", file.table.name());
                let partition = self.dir.path().join(partition);
                std::fs::create_dir_all(&partition).unwrap();
                std::fs::copy(&file.path, partition.join(format!("host-1.s.{}.parquet", segments[0])))
                    .unwrap();
            }
            closed.extend(files);
        }
        (closed, sum)
    }
}

fn read(path: &Path) -> Vec<RecordBatch> {
    let builder = ParquetRecordBatchReaderBuilder::try_new(File::open(path).unwrap()).unwrap();
    let metadata = builder.metadata().file_metadata().key_value_metadata().unwrap();
    let version = metadata.iter().find(|entry| entry.key == SCHEMA_VERSION_KEY).unwrap();
    assert_eq!(version.value, Some(SCHEMA_VERSION.to_string()));
    builder.build().unwrap().map(Result::unwrap).collect()
}

#[test]
fn every_request_is_one_row_with_its_values() {
    for wire in [SynthWire::Msgpack, SynthWire::Pickle, SynthWire::EngineCore] {
        let scene = Scene::filled(wire);
        assert!(scene.segments().len() > 2);
        let (files, sum) = scene.archive();
        assert_eq!((sum.requests, sum.tokens, sum.batches), (180, 180 * 6, scene.frames));
        let ended = scene.ended();
        let of_requests = files.iter().filter(|file| file.table == Table::Requests);
        let rows: Vec<RecordBatch> = of_requests.flat_map(|file| read(&file.path)).collect();
        assert_eq!(rows.iter().map(RecordBatch::num_rows).sum::<usize>(), ended.len());
        let mut of_ended = ended.iter();
        for batch in &rows {
            assert_eq!(batch.schema(), Table::Requests.schema());
            let ints = |name: &str| batch.column_by_name(name).unwrap().as_primitive::<Int64Type>().clone();
            let texts = |name: &str| batch.column_by_name(name).unwrap().as_string::<i32>().clone();
            let lists = |name: &str, row| batch.column_by_name(name).unwrap().as_list::<i32>().value(row);
            for row in 0..batch.num_rows() {
                let request = of_ended.next().unwrap();
                let info = &request.info;
                assert_eq!(texts("rid").value(row), info.rid);
                assert_eq!(ints("number").value(row), info.number.0 as i64);
                assert_eq!(texts("model").value(row), "m-7b");
                assert_eq!(texts("sink").value(row), "reader");
                assert_eq!(texts("ended_by").value(row), "limit");
                assert_eq!(ints("tokens_forwarded").value(row), info.forwarded as i64);
                assert_eq!(ints("first_unix_ns").value(row), info.first_unix_ns as i64);
                let facts = request.facts.as_ref().unwrap();
                assert_eq!(ints("first_token_ns").value(row), facts.first_token_ns.unwrap() as i64);
                let contents = request.contents.as_ref().unwrap();
                let ids = lists("ids", row);
                assert_eq!(ids.as_primitive::<Int64Type>().values(), &contents.received);
                let tokens = lists("row_tokens", row);
                assert_eq!(tokens.as_primitive::<Int32Type>().values(), &[2, 2, 2]);
                let deltas = lists("row_delta_ns", row);
                let deltas = deltas.as_primitive::<Int64Type>().values().to_vec();
                assert_eq!(deltas, [0, 100 * MS as i64, 100 * MS as i64]);
                let sent = batch.column_by_name("ids_sent").unwrap().as_list::<i32>();
                assert_eq!(arrow_array::Array::is_null(sent, row), contents.sent.is_none());
                let verdicts = lists("verdicts", row);
                assert_eq!(arrow_array::Array::len(&verdicts), request.verdicts.len());
                let verdicts = verdicts.as_struct();
                let of = |name: &str, verdict| {
                    verdicts.column_by_name(name).unwrap().as_string::<i32>().value(verdict).to_owned()
                };
                for verdict in 0..request.verdicts.len() {
                    assert_eq!(
                        (of("version", verdict), of("digest", verdict)),
                        ("1.2.0".into(), "ab".repeat(32))
                    );
                }
            }
        }
        let batches = files.iter().filter(|file| file.table == Table::Batches).map(|file| file.rows);
        assert_eq!(batches.sum::<u64>(), scene.frames);
    }
}

#[test]
fn a_request_with_a_record_has_its_prompt_and_what_it_asked_for() {
    let mut scene = Scene::filled(SynthWire::Msgpack);
    let record = RequestRecord {
        rid: "asked".into(),
        arrived_unix_ns: Some(scene.now),
        session: Some("s-1".into()),
        sampling: Some(Sampling { max_tokens: Some(64), ..Sampling::default() }),
        ..RequestRecord::default()
    };
    let record = record.with_prompt(&[5, 6, 7]);
    let request = scene.writer.open("asked");
    let append = |scene: &mut Scene, bytes: &[u8], passage, finished: &[RowFinish<'static>]| {
        scene.now += MS;
        let frame = scene.writer.append(bytes, scene.now).unwrap().frame;
        scene.writer.outcome(&Outcome {
            requests: (&[request]).into(),
            tokens: vec![u32::from(!finished.is_empty())].into(),
            finished: finished.to_vec().into(),
            ..Outcome::new(frame, scene.now, passage)
        });
    };
    append(&mut scene, &record.to_frame(), Passage::Barrier("request".into()), &[]);
    let row = SynthRow {
        rid: "asked".into(),
        ids: vec![9],
        completion_tokens: 1,
        prompt_tokens: 3,
        ..SynthRow::default()
    };
    let frame = SynthBatch { rows: vec![row] }.encode(BatchKind::TokenId, SynthWire::Msgpack).unwrap();
    let finish = RowFinish { row: 0, reason: "stop".into(), completion_tokens: Some(1) };
    append(&mut scene, &frame, Passage::Unchanged, &[finish]);
    scene.writer.close(request);
    scene.writer.flush().unwrap();
    let (files, _) = scene.archive();
    let batches = files.iter().filter(|file| file.table == Table::Requests).flat_map(|file| read(&file.path));
    let mut found = 0;
    for batch in batches {
        let column = |name: &str| batch.column_by_name(name).unwrap();
        let texts = |name: &str| column(name).as_string::<i32>().clone();
        for row in (0..batch.num_rows()).filter(|row| texts("rid").value(*row) == "asked") {
            found += 1;
            let list = |name: &str| {
                column(name).as_list::<i32>().value(row).as_primitive::<Int64Type>().values().to_vec()
            };
            assert_eq!((list("prompt_ids"), list("ids")), (vec![5, 6, 7], vec![9]));
            let int = |name: &str| column(name).as_primitive::<Int64Type>().value(row);
            assert_eq!((int("rows"), int("prompt_tokens")), (1, 3));
            assert_eq!(int("arrived_unix_ns") as u64, scene.now - 2 * MS);
            assert_eq!(texts("session").value(row), "s-1");
            let asked: Value = serde_json::from_str(texts("request").value(row)).unwrap();
            assert_eq!(asked["sampling"]["max_tokens"], 64);
        }
    }
    assert_eq!(found, 1);
}

#[test]
fn a_segment_that_is_in_the_archive_is_read_and_not_written_again() {
    let scene = Scene::filled(SynthWire::EngineCore);
    let segments = scene.segments();
    let dir = tempfile::tempdir().unwrap();
    let facts = StreamFacts { instance: "host-1".into(), stream: "s".into() };
    let mut files = TableFiles::create(dir.path(), &facts).unwrap();
    let mut tables = SegmentTables::new(scene.reader());
    let before = tables.read(segments[0], None).unwrap().unwrap();
    let mut after = 0;
    for id in &segments[1..] {
        after += tables.read(*id, Some(&mut files)).unwrap().unwrap().requests;
    }
    assert!(before.requests > 0);
    assert_eq!(before.requests + after, 180);
    let closed = files.close().unwrap();
    assert_eq!(closed[0].rows, after);
    assert_eq!(closed[0].bytes, std::fs::metadata(&closed[0].path).unwrap().len());
    assert_eq!(tables.needs(), None);
}

#[test]
fn a_file_without_rows_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let facts = StreamFacts { instance: "host-1".into(), stream: "s".into() };
    let files = TableFiles::create(dir.path(), &facts).unwrap();
    assert!(files.bytes() < 100);
    assert_eq!(files.close().unwrap(), []);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn the_page_has_the_columns_of_the_tables() {
    let mut page = std::fs::read_to_string(PAGE).unwrap();
    let before = page.clone();
    for table in Table::ALL {
        let (open, close) = (format!("<!-- {} -->\n", table.name()), format!("<!-- /{} -->", table.name()));
        let start = page.find(&open).unwrap() + open.len();
        let end = page.find(&close).unwrap();
        page.replace_range(start..end, &format!("\n{}\n", table.markdown()));
    }
    if std::env::var_os("AFTERBAY_BLESS").is_some() {
        std::fs::write(PAGE, &page).unwrap();
    } else {
        assert_eq!(before, page, "AFTERBAY_BLESS=1 cargo test -p afterbay-follow writes the page again");
    }
}

/// The results of a query as the script gives them.
fn results<'a>(all: &'a Value, engine: &str, query: usize) -> (&'a Vec<Value>, &'a Vec<Value>) {
    let result = &all[engine][query];
    (result["columns"].as_array().unwrap(), result["rows"].as_array().unwrap())
}

/// Whether two values are equal, numbers up to the last bits of a double.
fn alike(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| alike(one, other))
        }
        (Value::Number(one), Value::Number(other)) => {
            let (one, other) = (one.as_f64().unwrap(), other.as_f64().unwrap());
            (one - other).abs() <= 1e-9 * one.abs().max(1.0)
        }
        (one, other) => one == other,
    }
}

/// The quantile between the two nearest values.
fn quantile(values: &mut [u64], at: f64) -> f64 {
    values.sort_unstable();
    let place = at * (values.len() - 1) as f64;
    let (low, high) = (values[place.floor() as usize] as f64, values[place.ceil() as usize] as f64);
    low + (high - low) * place.fract()
}

#[test]
fn the_queries_of_the_page_give_the_same_in_duckdb_and_polars_and_what_the_requests_sum_up_to() {
    let given = std::env::var_os("AFTERBAY_TEST_PYTHON");
    let python = given.clone().unwrap_or_else(|| "python3".into());
    let imports = Command::new(&python).args(["-c", "import duckdb, polars"]).output();
    if given.is_none() && !imports.is_ok_and(|imports| imports.status.success()) {
        eprintln!("SKIPPED: python3 has no duckdb and polars (tests/queries.txt)");
        return;
    }
    let scene = Scene::filled(SynthWire::Msgpack);
    scene.archive();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/queries.py");
    let output = Command::new(&python).arg(script).arg(PAGE).current_dir(scene.dir.path()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let all: Value = serde_json::from_slice(&output.stdout).unwrap();
    let queries = all["duckdb"].as_array().unwrap().len();
    assert_eq!((queries, all["polars"].as_array().unwrap().len()), (6, 6));
    for query in 0..queries {
        let (duckdb, polars) = (results(&all, "duckdb", query), results(&all, "polars", query));
        assert_eq!(duckdb.0, polars.0, "columns of query {query}");
        assert!(!duckdb.1.is_empty(), "query {query}");
        assert!(
            duckdb.1.len() == polars.1.len()
                && duckdb.1.iter().zip(polars.1).all(|(one, other)| alike(one, other)),
            "query {query}: {:?} is not {:?}",
            duckdb.1,
            polars.1
        );
    }
    // Tokens and first-token latency by tenant and hour.
    let mut sums: BTreeMap<(String, u64), ([u64; 4], Vec<u64>)> = BTreeMap::new();
    let ended = scene.ended();
    for request in &ended {
        let tenant = request.info.attribute("tenant").unwrap();
        let hour = request.info.last_unix_ns / (3_600_000 * MS);
        let facts = request.facts.as_ref().unwrap();
        let ([requests, prompt, received, forwarded], times) =
            sums.entry((tenant.to_owned(), hour)).or_default();
        *requests += 1;
        *prompt += facts.prompt_tokens.unwrap();
        *received += request.info.received;
        *forwarded += request.info.forwarded;
        times.push(facts.first_token_ns.unwrap());
    }
    assert_eq!(sums.len(), 6, "three tenants in two hours");
    let (_, rows) = results(&all, "duckdb", 0);
    assert_eq!(rows.len(), sums.len());
    for (((tenant, hour), (counts, mut times)), row) in sums.into_iter().zip(rows) {
        assert_eq!(row[0], tenant.as_str());
        // The archive's first hour is 09:00 of 2026-11-26.
        let hour = hour - START / (3_600_000 * MS) + 9;
        assert_eq!(row[1], format!("2026-11-26T{hour:02}:00:00+00:00"));
        let known = counts.map(Value::from);
        assert!((2..6).zip(&known).all(|(at, known)| alike(&row[at], known)), "{row} is not {known:?}");
        let quantiles = [0.5, 0.95].map(|at| quantile(&mut times, at) / 1e6);
        assert!(alike(&row[6], &quantiles[0].into()) && alike(&row[7], &quantiles[1].into()), "{row}");
    }
    // Dropped tokens by plugin and reason.
    let dropped: u64 = ended.iter().map(|request| request.ledger.dropped).sum();
    assert!(dropped > 0);
    let (_, rows) = results(&all, "duckdb", 1);
    assert_eq!((rows.len(), &rows[0][0], &rows[0][1]), (1, &"guard".into(), &"not allowed".into()));
    assert!(alike(&rows[0][2], &dropped.into()));
    // The ids that a reader got.
    let acme = ended.iter().find(|request| request.info.rid == "acme-3").unwrap();
    let sent = acme.contents.as_ref().unwrap().sent.clone().unwrap();
    assert!(alike(&results(&all, "duckdb", 3).1[0][3], &sent.into()));
    // Batches.
    let (_, rows) = results(&all, "duckdb", 5);
    let batches: f64 = rows.iter().map(|row| row[1].as_f64().unwrap()).sum();
    assert_eq!(batches as u64, scene.frames);
}
