//! Sealing with the command and keys of OpenSSL, and seals of the frames that real engines wrote.

use super::erase::{nobody_answers, run_from};
use super::{STREAM, Scene};
use afterbay_journal::reader::{ErasedBy, JournalReader, StreamReader};
use afterbay_journal::{
    Background, JournalDirectory, JournalOptions, JournalRequest, Outcome, Passage, SealReport, Sealer,
};
use afterbay_journal_view::erase::FrameEraser;
use afterbay_wire::{DecodedFrame, Engine, Layouts, RequestRecord, decode};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// Keys as OpenSSL writes them: of the operator, its public half, and the public half of another key.
const KEY: &str = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIMyBUpbVMQ+169wdWfcSLBjTijnuVbxOoYiteDMfcnyf\n-----END PRIVATE KEY-----";
const PUBLIC: &str = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA9iJxvhwLOFwMdrdgLdyvsAU20mtPb170I7f2Kl4V2YI=\n-----END PUBLIC KEY-----";
const OTHER: &str = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAtGa807YZeuF/n3r/uhPNFq68dTDXIn22Gh0xGITP7WY=\n-----END PUBLIC KEY-----";

fn key(dir: &Path, name: &str, text: &str) -> String {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn a_journal_that_was_sealed_verifies_with_the_public_key_and_with_no_other() {
    let mut scene = Scene::new();
    let keys = tempfile::tempdir().unwrap();
    scene.directory.instance().unwrap();
    let request = scene.request("r");
    scene.row(request, &[11, 12], "stop", &[]);
    let Scene { dir, directory, writer, .. } = scene;
    writer.finish().unwrap();
    drop(directory);
    let [private, public, other] =
        [("key", KEY), ("public", PUBLIC), ("other", OTHER)].map(|(name, text)| key(keys.path(), name, text));
    let run = |args: &[&str]| run_from(dir.path(), args, nobody_answers);
    let verify = |key: &str, more: &[&str]| run(&[&["verify", "--seal", key], more].concat()).unwrap();
    assert_eq!(verify(&public, &[]), ExitCode::FAILURE, "nothing is sealed");
    assert_eq!(run(&["seal", "--key", &private]).unwrap(), ExitCode::SUCCESS);
    assert_eq!((verify(&public, &[]), verify(&other, &[])), (ExitCode::SUCCESS, ExitCode::FAILURE));
    let stream = JournalReader::open(dir.path()).unwrap().stream(STREAM).unwrap();
    let key = crate::seal::PublicKey::read(Path::new(&public)).unwrap();
    let report = key.verify(&stream, None).unwrap();
    let head = report.head.clone().unwrap();
    let known = ["--stream", STREAM, "--head", &head];
    assert_eq!(verify(&public, &known), ExitCode::SUCCESS);
    let unknown = ["--stream", STREAM, "--head", &"0".repeat(64)];
    assert_eq!(verify(&public, &unknown), ExitCode::FAILURE);
    assert_eq!(run(&["erase", "r", "--yes"]).unwrap(), ExitCode::SUCCESS);
    assert_eq!(verify(&public, &known), ExitCode::SUCCESS);
    let after = key.verify(&stream, None).unwrap();
    assert_eq!((after.erased, after.head.as_ref()), (1, Some(&head)));
    let said = crate::seal::sentence(&after);
    assert!(said.starts_with("1 sealed segment of ") && said.ends_with("; 1 request erased since"), "{said}");
    assert_eq!(crate::seal::json(&after)["erased"], 1);
    let refused = run(&["seal", "--key", &public]).unwrap_err().to_string();
    assert!(refused.ends_with("no Ed25519 key as PEM (openssl genpkey -algorithm ed25519)"), "{refused}");
    let refused = run(&["verify", "--seal", &private]).unwrap_err().to_string();
    assert!(refused.ends_with("no public Ed25519 key as PEM (openssl pkey -pubout)"), "{refused}");
}

/// The fixtures below a directory with one of these extensions, in order.
fn fixtures(dir: &str, extensions: &[&str]) -> Vec<Bytes> {
    fn collect(dir: &Path, extensions: &[&str], found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            match path.extension().and_then(|extension| extension.to_str()) {
                _ if path.is_dir() => collect(&path, extensions, found),
                Some(extension) if extensions.contains(&extension) => found.push(path),
                _ => {}
            }
        }
    }
    let mut found = Vec::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/fixtures");
    collect(&root.join(dir), extensions, &mut found);
    found.sort();
    found.iter().map(|path| std::fs::read(path).unwrap().into()).collect()
}

/// A sealed journal of these frames, from which some requests were erased. Returns its seals before and after, and the number of
/// its frames with more than one request.
fn sealed_and_erased(frames: &[Bytes], layouts: &Layouts) -> (SealReport, SealReport, u64) {
    let dir = tempfile::tempdir().unwrap();
    let options = JournalOptions::default();
    let directory = JournalDirectory::open_on(
        Arc::new(afterbay_journal::storage::Disk),
        dir.path(),
        options,
        Background::Caller,
    )
    .unwrap();
    let (mut writer, _) = directory.stream(STREAM).unwrap();
    let mut requests: BTreeMap<Vec<u8>, JournalRequest> = BTreeMap::new();
    let mut shared = 0;
    for (at, frame) in frames.iter().enumerate() {
        let rids: BTreeSet<Vec<u8>> = match decode(frame.clone(), layouts) {
            DecodedFrame::Batch(batch) => {
                (0..batch.rows()).filter_map(|row| Some(batch.rid_of(row)?.to_vec())).collect()
            }
            DecodedFrame::Barrier(_) => {
                let record = RequestRecord::of_frame(frame);
                record.into_iter().flatten().map(|record| record.rid.into_bytes()).collect()
            }
        };
        shared += u64::from(rids.len() > 1);
        let number = writer.append(frame, 1 + at as u64).unwrap().frame;
        let rids: Vec<&Vec<u8>> = rids.iter().collect();
        let open = |rid: &&Vec<u8>| *requests.entry((*rid).clone()).or_insert_with(|| writer.open(rid));
        let of_frame: Vec<JournalRequest> = rids.iter().map(open).collect();
        let tokens = vec![1; of_frame.len()];
        writer.outcome(&Outcome {
            requests: (&of_frame).into(),
            tokens: (&tokens).into(),
            ..Outcome::new(number, 1, Passage::Unchanged)
        });
    }
    requests.values().for_each(|request| writer.close(*request));
    writer.finish().unwrap();
    let stream = JournalReader::open(dir.path()).unwrap().stream(STREAM).unwrap();
    let mut rows = FrameEraser::new(|_: &str| layouts.clone());
    let mut sealer = Sealer {
        instance: "host-1",
        program: "test",
        rows: &mut rows,
        secret: [3; 32],
        sign: &|bytes| bytes.to_vec(),
    };
    assert_eq!(stream.seal(&mut sealer).unwrap().segments.len(), 1);
    let check = |stream: &StreamReader| {
        let mut rows = FrameEraser::new(|_: &str| layouts.clone());
        stream.verify_seals(&mut rows, &|bytes, signature| bytes == signature, None).unwrap()
    };
    let before = check(&stream);
    for rid in requests.keys().step_by(requests.len().div_ceil(8)) {
        let mut rows = FrameEraser::new(|_: &str| layouts.clone());
        let rid = String::from_utf8_lossy(rid);
        directory.erase(&[STREAM.to_owned()], &rid, ErasedBy::Remote, &mut rows).unwrap();
    }
    (before, check(&stream), shared)
}

#[test]
fn frames_of_every_engine_stay_proven_when_requests_are_erased() {
    let sglang = ["frames", "versions", "real"].map(|dir| fixtures(dir, &["msgpack", "bin"])).concat();
    let vllm = fixtures("vllm", &["frame"]);
    let smg = fixtures("smg", &["frame"]);
    for (engine, frames, layouts) in [
        ("sglang", sglang, Layouts::builtin()),
        ("vllm", vllm, Layouts::of(Engine::Vllm)),
        ("smg", smg, Layouts::of(Engine::Smg)),
    ] {
        let (before, after, shared) = sealed_and_erased(&frames, &layouts);
        assert_eq!((before.problems, before.erased), (vec![], 0), "{engine}");
        assert_eq!(after.problems, vec![], "{engine}");
        assert!(after.erased > 3 && shared > 1, "{engine}: {} erased, {shared} frames", after.erased);
        assert!(after.rewritten_frames * 4 <= shared, "{engine}: {} of {shared}", after.rewritten_frames);
    }
}

#[test]
fn a_prompt_is_sealed_and_an_erased_one_leaves_the_others_proven() {
    let record = |rid: &str| {
        let line = format!("{{\"afterbay\":\"request\",\"rid\":\"{rid}\",\"prompt_tokens\":2}}\n");
        Bytes::from([line.as_bytes(), &[7, 0, 0, 0, 8, 0, 0, 0]].concat())
    };
    let frames: Vec<Bytes> = (0..20).map(|at| record(&format!("rid-{at}"))).collect();
    let (before, after, _) = sealed_and_erased(&frames, &Layouts::builtin());
    assert_eq!((before.problems, before.erased), (vec![], 0));
    assert_eq!((after.problems, after.rewritten_frames), (vec![], 0));
    assert!(after.erased > 5, "{} prompts were erased", after.erased);
}

#[test]
fn a_pickled_frame_of_several_requests_is_no_longer_proven_once_one_is_erased() {
    let frames = ["frames", "versions", "real"].map(|dir| fixtures(dir, &["pickle"])).concat();
    let (before, after, shared) = sealed_and_erased(&frames, &Layouts::builtin());
    assert_eq!((before.problems, before.rewritten_frames), (vec![], 0));
    assert_eq!(after.problems, vec![]);
    assert!((1..=shared).contains(&after.rewritten_frames), "{} of {shared}", after.rewritten_frames);
}
