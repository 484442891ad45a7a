//! The records of requests in the commands: the prompt, filters, exports and packs.

use super::erase::{nobody_answers, run_from};
use super::{NS, STREAM, Scene};
use crate::pack::pack;
use crate::place::Selected;
use crate::source::Source;
use afterbay_journal::reader::{JournalReader, RequestFilter};
use afterbay_journal_view::content::{Absent, ContentBounds, ContentReader};
use afterbay_journal_view::ending::SCHEDULER;
use afterbay_journal_view::leg_view::LegView;
use afterbay_journal_view::legs;
use afterbay_text::TokenBytes;
use afterbay_wire::{Layouts, RequestRecord, Sampling};
use serde_json::{Value, json};
use std::path::Path;
use std::process::ExitCode;

fn record(rid: &str, session: &str, lora: &str) -> RequestRecord {
    RequestRecord {
        rid: rid.into(),
        arrived_unix_ns: Some(1_700_000_000 * NS),
        session: Some(session.into()),
        lora: Some(lora.into()),
        sampling: Some(Sampling { temperature: Some(0.5), ..Sampling::default() }),
        ..RequestRecord::default()
    }
}

/// A journal with the attributes of the engine.
fn scene() -> Scene {
    let mut scene = Scene::new();
    scene.writer.set_attributes(Box::new(|_, of_engine| of_engine.to_vec()));
    scene
}

/// The record of the only request with this rid as JSON.
fn shown(source: &Path, rid: &str, tokens: Option<&TokenBytes>) -> Value {
    let source = Source::of(source.to_owned()).open().unwrap();
    let stream = source.journal().unwrap().stream(STREAM).unwrap();
    let [life] = stream.lives(rid).unwrap().try_into().unwrap();
    let layouts = Layouts::builtin();
    let reader = ContentReader::new(&stream, &layouts);
    let leg = LegView::read(&reader, (STREAM, &life), SCHEDULER, tokens.cloned(), ContentBounds::NONE);
    assert_eq!(leg.contents.len() as u64, life.request.rows, "the record is no row");
    leg.record_json(usize::MAX)
}

#[test]
fn a_request_shows_what_it_asked_for_and_its_prompt_as_text_if_the_tokenizer_is_known() {
    let mut scene = scene();
    let request = scene.asked(record("r", "s-1", "sql"), &[75, 108, 111]);
    scene.row(request, &[1], "stop", &[]);
    scene.writer.flush().unwrap();
    let without = shown(scene.dir.path(), "r", None);
    assert_eq!((&without["prompt_ids"], &without["prompt"]), (&json!([75, 108, 111]), &Value::Null));
    assert_eq!((&without["sampling"]["temperature"], &without["lora"]), (&json!(0.5), &json!("sql")));
    assert_eq!(without["arrived"], "2023-11-14T22:13:20.000000000Z");
    let tokenizer =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../path/text/tests/fixtures/byte-fallback");
    let with = shown(scene.dir.path(), "r", Some(&TokenBytes::load(&tokenizer).unwrap()));
    assert_eq!(with["prompt"], "Hil");
    for command in [
        &["show", "r"][..],
        &["show", "r", "--ids"],
        &["show", "r", "--json"],
        &["export", "--rid", "r"],
        &["tail"],
    ] {
        assert_eq!(run_from(scene.dir.path(), command, nobody_answers).unwrap(), ExitCode::SUCCESS);
    }
}

#[test]
fn a_live_request_without_a_row_is_listed_and_shown() {
    let mut scene = scene();
    scene.asked(record("waits", "s", "a"), &[1, 2]);
    scene.writer.flush().unwrap();
    assert_eq!(shown(scene.dir.path(), "waits", None)["prompt_tokens"], 2);
    for command in [&["ls"][..], &["show", "waits"]] {
        assert_eq!(run_from(scene.dir.path(), command, nobody_answers).unwrap(), ExitCode::SUCCESS);
    }
}

#[test]
fn requests_are_listed_by_the_attributes_that_their_records_say() {
    let mut scene = scene();
    for (rid, session, lora) in [("a", "s-1", "sql"), ("b", "s-2", "sql"), ("c", "s-2", "law")] {
        let request = scene.asked(record(rid, session, lora), &[1]);
        scene.row(request, &[1], "stop", &[]);
    }
    scene.writer.flush().unwrap();
    let streams = [JournalReader::open(scene.dir.path()).unwrap().stream(STREAM).unwrap()];
    let listed = |wanted: &[(&str, &str)]| {
        let attributes = wanted.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let filter = RequestFilter { attributes: attributes.collect(), ..RequestFilter::default() };
        let found = legs::newest(&streams, &filter, 10).unwrap();
        found.iter().map(|request| request.first().of.rid.clone()).collect::<Vec<_>>()
    };
    assert_eq!(listed(&[("lora", "sql")]), ["a", "b"]);
    assert_eq!(listed(&[("session", "s-2"), ("lora", "sql")]), ["b"]);
    assert!(listed(&[("session", "other")]).is_empty());
    let line = ["ls", "--session", "s-2", "--lora", "sql", "--json"];
    assert_eq!(run_from(scene.dir.path(), &line, nobody_answers).unwrap(), ExitCode::SUCCESS);
}

#[test]
fn a_pack_has_the_prompt_of_its_request_and_nothing_that_others_asked_for() {
    const SECRET: u32 = 0x5ec4e700;
    let mut scene = scene();
    let mine = scene.asked(record("mine", "s-1", "sql"), &[1, 2, 3]);
    let theirs = scene.asked(record("theirs", "secret-session", "law"), &[SECRET; 4]);
    for (request, finish) in [(mine, ""), (theirs, "stop"), (mine, "stop")] {
        scene.row(request, &[1], finish, &[]);
    }
    scene.writer.flush().unwrap();
    let to = tempfile::tempdir().unwrap();
    let file = to.path().join("mine.tar.zst");
    let source = Source::of(scene.dir.path().to_owned()).open().unwrap();
    let journal = source.journal().unwrap();
    let streams = vec![journal.stream(STREAM).unwrap()];
    let selected = Selected { source, journal, streams, config: None };
    let excerpts = pack(&selected, "mine", 7, std::fs::File::create(&file).unwrap()).unwrap();
    assert_eq!(excerpts[0].1.left.count, 0, "{:?}", excerpts[0].1.left.first);
    assert_eq!(shown(&file, "mine", None)["prompt_ids"], json!([1, 2, 3]));
    let unpacked = zstd::decode_all(std::fs::File::open(&file).unwrap()).unwrap();
    for secret in [&SECRET.to_le_bytes()[..], b"secret-session"] {
        assert!(!unpacked.windows(secret.len()).any(|bytes| bytes == secret));
    }
}

#[test]
fn an_erased_request_has_no_prompt_any_more() {
    let mut scene = scene();
    let request = scene.asked(record("r", "s-1", "sql"), &[4711; 3]);
    scene.row(request, &[1], "stop", &[]);
    let Scene { dir, directory, writer, .. } = scene;
    writer.finish().unwrap();
    drop(directory);
    assert_eq!(run_from(dir.path(), &["erase", "r", "--yes"], nobody_answers).unwrap(), ExitCode::SUCCESS);
    assert_eq!(shown(dir.path(), "r", None), json!({"missing": Absent::Erased.words()}));
    let files = std::fs::read_dir(dir.path().join(STREAM)).unwrap().map(|file| file.unwrap().path());
    for file in files {
        let bytes = std::fs::read(&file).unwrap();
        assert!(!bytes.windows(4).any(|bytes| bytes == 4711_u32.to_le_bytes()), "{}", file.display());
    }
}
