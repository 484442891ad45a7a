//! The bodies of the fuzz targets in `tests/fuzz`: each takes any bytes and asserts what must hold. `tests/tests/fuzz.rs` runs them on a
//! bounded number of seeded inputs. The body of the ZMTP target is in `host/path/sockets/src/zmtp`.

use afterbay_types::Engine;
use std::path::Path;
use std::time::{Duration, Instant};

use afterbay_config::{Builtin, Config, Env, Names};
use afterbay_journal::reader::{JournalReader, ReadFrom, RequestFilter};
use afterbay_journal::{JournalDirectory, JournalOptions, SyncPolicy};
use afterbay_wire::pickle::Tree;
use afterbay_wire::{Batch, BatchPart, DecodedFrame, Edit, FinishReason, Ids, Layouts, TokenEdit, Wrapped};
use bytes::Bytes;

/// The longest time of one input. It only catches an input that never ends.
const INPUT_TIME_MAX: Duration = Duration::from_secs(10);

/// Parses a pickle. A tree that can be written can be parsed and written again. The tests of `host/path/wire/src/pickle` compare the meaning with
/// CPython; the bytes may differ in unused memo entries.
pub fn pickle(bytes: &[u8]) {
    let began = Instant::now();
    if let Ok(tree) = Tree::parse(Bytes::copy_from_slice(bytes)) {
        // A tree that is too deep cannot be written.
        if let Ok(written) = tree.write() {
            let again = Tree::parse(written).expect("a written pickle can be parsed");
            again.write().expect("a parsed pickle can be written again");
        }
    }
    assert!(began.elapsed() < INPUT_TIME_MAX, "{:?}", began.elapsed());
}

/// Decodes a frame of SGLang. A barrier keeps its bytes. A batch answers every question; taking, joining and editing rows gives a
/// readable batch or an error.
pub fn wire_decode(bytes: &[u8]) {
    decode(bytes, &Layouts::builtin());
}

/// Decodes a frame of vLLM, as `wire_decode` one of SGLang.
pub fn vllm_decode(bytes: &[u8]) {
    decode(bytes, &Layouts::of(Engine::Vllm));
}

fn decode(bytes: &[u8], layouts: &Layouts) {
    let began = Instant::now();
    let frame = Bytes::copy_from_slice(bytes);
    match afterbay_wire::decode(frame.clone(), layouts) {
        DecodedFrame::Barrier(barrier) => {
            assert_eq!(barrier.bytes(), &frame);
            barrier.to_json(Wrapped::Open);
            _ = (barrier.load(), barrier.finished_requests().count());
            if let Some(named) = barrier.named_rows() {
                _ = named.ended(&[0], &FinishReason::Length);
            }
        }
        DecodedFrame::Batch(batch) => {
            assert_eq!(batch.bytes(), &frame);
            look_at(&batch);
            let last = batch.rows() - 1;
            let taken = batch.take(&[last]);
            if let Ok(taken) = &taken {
                assert_eq!((taken.rows(), taken.rid(0)), (1, batch.rid(last)));
                look_at(taken);
                if let Ok(joined) =
                    Batch::join(&[BatchPart { batch: &batch, rows: Some(&[0]) }, BatchPart::from(taken)])
                {
                    look_at(&joined);
                }
            }
            if let Ok(past) = batch.without_detokenizing(&[last]) {
                look_at(&past);
            }
            for tokens in [
                TokenEdit::Delta(vec![1, 2]),
                TokenEdit::Cumulative(vec![3]),
                TokenEdit::Empty,
                TokenEdit::Drop,
            ] {
                for finish in [None, Some(FinishReason::Stop("stop".to_owned()))] {
                    if let Ok(Some(edited)) =
                        batch.edit(&[Edit { tokens: tokens.clone(), finish, ..Edit::new(last) }])
                    {
                        look_at(&edited);
                    }
                }
            }
            if let Ok(ended) = batch.ended(&[last], &FinishReason::Length) {
                look_at(&ended);
            }
            _ = (batch.load(), batch.finished_requests().count(), batch.without_rows());
        }
    }
    assert!(began.elapsed() < INPUT_TIME_MAX, "{:?}", began.elapsed());
}

fn look_at(batch: &Batch) {
    let mut ids = Ids::default();
    batch.output_ids(&mut ids);
    assert_eq!(ids.ends.len(), batch.rows() as usize);
    let mut begin = 0;
    for row in 0..batch.rows() {
        let end = ids.ends[row as usize];
        assert_eq!(end - begin, batch.tokens(row));
        begin = end;
        let _looked_at = (batch.rid(row), batch.finish(row), batch.text(row), batch.front_end(row));
    }
    batch.to_json(Wrapped::Open);
}

/// Checks a configuration. It is accepted, or each problem has a place in the file and a sentence.
pub fn config(bytes: &[u8]) {
    let began = Instant::now();
    let text = String::from_utf8_lossy(bytes);
    let env = Env {
        var: &|name| (name == "SET").then(|| "a-value".to_owned()),
        names: Names::FromConfig,
        builtins: &[Builtin { name: "delta-to-cumulative", defaults: "grant = [\"log\"]" }],
        reference: &|reference| {
            reference.contains("@sha256:").then_some(()).ok_or("is not pinned".to_owned())
        },
        tokenizer: &|_| Ok(()),
    };
    match Config::parse(&text, Path::new("/dev/shm/afterbay.toml"), &env) {
        Ok(config) => assert!(!config.streams.is_empty(), "a configuration has a stream"),
        Err(problems) => {
            let words = problems.to_string();
            let has_place =
                |line: &str| line.starts_with("/dev/shm/afterbay.toml:") || line.starts_with("and ");
            assert!(words.lines().all(has_place), "{words}");
        }
    }
    assert!(began.elapsed() < INPUT_TIME_MAX, "{:?}", began.elapsed());
}

/// Reads a segment file. Every query gives an answer or an error. A start recovers a journal that takes a frame, which can be read.
pub fn journal_reader(bytes: &[u8]) {
    let began = Instant::now();
    let place = tempfile::Builder::new().prefix("ab-fuzz-").tempdir_in("/dev/shm").expect("a directory");
    let dir = place.path().join("journal");
    segment(&dir, bytes);
    read_all(&dir);
    recover(&dir);
    assert!(began.elapsed() < INPUT_TIME_MAX, "{:?}", began.elapsed());
}

/// The bytes of a segment with a few frames, from which inputs are made.
pub fn a_segment() -> Vec<u8> {
    let place = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let dir = place.path().join("journal");
    let directory = JournalDirectory::open(&dir, options()).expect("a journal");
    let (mut writer, _) = directory.stream("s").expect("a stream");
    for number in 0..6_u8 {
        let frame = writer.append(&[number; 50], 1 + u64::from(number)).expect("a frame is stored").frame;
        let request = writer.open(format!("rid-{}", number / 2));
        writer.outcome(&afterbay_journal::Outcome {
            frame,
            received_unix_ns: 1 + u64::from(number),
            passage: afterbay_journal::Passage::Changed,
            changed: Some(vec![number; 40].into()),
            requests: (&[request]).into(),
            tokens: (&[3]).into(),
            finished: Vec::new().into(),
            gaps: Vec::new().into(),
            actions: Vec::new().into(),
        });
        writer.taken("sink", 0, frame, None, 0);
        if number % 2 == 1 {
            writer.close(request);
        }
    }
    writer.finish().expect("it ends");
    std::fs::read(first_file(&dir.join("s"))).expect("its segment")
}

fn segment(dir: &Path, bytes: &[u8]) {
    // The name of a new journal's first segment.
    static NAME: std::sync::OnceLock<std::ffi::OsString> = std::sync::OnceLock::new();
    let name = NAME.get_or_init(|| {
        let place = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let dir = place.path().join("journal");
        let directory = JournalDirectory::open(&dir, options()).expect("a journal");
        let (mut writer, _) = directory.stream("s").expect("a stream");
        writer.append(b"x", 1).expect("a frame is stored");
        first_file(&dir.join("s")).file_name().expect("a name").to_owned()
    });
    std::fs::create_dir_all(dir.join("s")).expect("a directory");
    std::fs::write(dir.join("s").join(name), bytes).expect("a file");
}

fn first_file(dir: &Path) -> std::path::PathBuf {
    let files = std::fs::read_dir(dir).expect("a directory");
    let mut files: Vec<_> = files.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    files.into_iter().next().expect("a segment")
}

fn options() -> JournalOptions {
    // The journal preallocates a whole segment, which on tmpfs is memory.
    JournalOptions { sync: SyncPolicy::None, segment_bytes: 64 << 10, ..JournalOptions::default() }
}

fn read_all(dir: &Path) {
    let stream =
        JournalReader::open(dir).and_then(|journal| journal.stream("s")).expect("the directory is there");
    // Damage gives an error, here and below.
    let _checked = stream.verify();
    let mut rids = Vec::new();
    if let Ok(requests) = stream.requests(RequestFilter::default()) {
        rids.extend(requests.filter_map(Result::ok).map(|request| request.rid).take(100));
    }
    for rid in rids {
        let _lives = stream.lives(&rid);
    }
    if let Ok(frames) = stream.frames(ReadFrom::Start) {
        for frame in frames.map_while(Result::ok) {
            let (frame, _) = frame;
            if let Ok(again) = stream.frame(&frame.position) {
                assert_eq!(again.bytes, frame.bytes);
            }
        }
    }
}

fn recover(dir: &Path) {
    let directory = JournalDirectory::open(dir, options()).expect("no other process has the journal");
    let Ok((mut writer, _)) = directory.stream("s") else { return };
    // The append fails only when the frame number overflows.
    let Ok(position) = writer.append(b"after", 7) else { return };
    writer.finish().expect("it ends");
    drop(directory);
    let stream =
        JournalReader::open(dir).and_then(|journal| journal.stream("s")).expect("the stream is there");
    assert_eq!(stream.frame(&position).expect("the frame is there").bytes, b"after");
}
