//! Packs: what is in one, that every command reads it, and that a hostile one does no harm.

use super::erase::{nobody_answers, run_from};
use super::{NS, STREAM};
use crate::pack::pack;
use crate::pack_file::{self, unpack};
use crate::place::Selected;
use crate::source::Source;
use afterbay_journal::reader::JournalRow;
use afterbay_journal::{
    JournalDirectory, JournalOptions, JournalRequest, JournalWriter, Outcome, Passage, PluginAction,
    Position, RowFinish, SegmentId, SyncPolicy, Verdict,
};
use afterbay_wire::BatchKind;
use afterbay_wire::synth::{SynthBatch, SynthRow, SynthWire};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tar::{EntryType, Header};

/// The tokens of the other requests, which no pack has.
const PRIVATE: i64 = 1_234_567;
const PRIVATE_TEXT: &str = "private text";

/// Writes a batch of these requests. Row 0 has a note of a plugin. The last rows end their requests.
fn batch(
    writer: &mut JournalWriter,
    (kind, wire): (BatchKind, SynthWire),
    rows: &[(JournalRequest, &str, i64)],
    (number, is_last): (u64, bool),
) {
    let now = 1_700_000_000 * NS + number * NS / 100;
    let synth = rows.iter().map(|(_, rid, id)| SynthRow {
        rid: (*rid).to_owned(),
        ids: vec![*id],
        text: if *id == PRIVATE { PRIVATE_TEXT.to_owned() } else { format!("w{id} ") },
        completion_tokens: number,
        ..SynthRow::default()
    });
    let frame = SynthBatch { rows: synth.collect() }.encode(kind, wire).unwrap();
    let frame = writer.append(&frame, now).unwrap().frame;
    let requests: Vec<JournalRequest> = rows.iter().map(|(request, ..)| *request).collect();
    let ends = (0..rows.len() as u32).filter(|_| is_last);
    let finished: Vec<RowFinish<'_>> =
        ends.map(|row| RowFinish { row, reason: "stop".into(), completion_tokens: Some(number) }).collect();
    let note = |row| PluginAction {
        row,
        plugin: "notes".into(),
        verdict: Verdict::Annotate,
        text: if row == 0 { "note" } else { PRIVATE_TEXT }.into(),
        ids: (&[]).into(),
        forwarded: 1,
    };
    writer.outcome(&Outcome {
        requests: (&requests).into(),
        tokens: vec![1; rows.len()].into(),
        finished: finished.into(),
        actions: (0..rows.len() as u32).map(note).collect(),
        ..Outcome::new(frame, now, Passage::Unchanged)
    });
    if is_last {
        requests.iter().for_each(|request| writer.close(*request));
    }
}

/// A journal with the request `mine` on two streams, whose frames it shares with `theirs`.
fn filled() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let directory = JournalDirectory::open(
        dir.path(),
        JournalOptions { sync: SyncPolicy::None, ..JournalOptions::default() },
    )
    .unwrap();
    for (stream, kind) in [(STREAM, BatchKind::TokenId), ("text", BatchKind::Str)] {
        let (mut writer, _) = directory.stream(stream).unwrap();
        writer.plugins([("notes", "1.2.0", &[0xab; 32])].into_iter());
        let (mine, theirs) = (writer.open("mine"), writer.open("theirs"));
        for number in 1..=4 {
            let wire = if number == 2 { SynthWire::Pickle } else { SynthWire::Msgpack };
            let rows = [(mine, "mine", number as i64), (theirs, "theirs", PRIVATE)];
            batch(&mut writer, (kind, wire), &rows, (number, number == 4));
        }
        writer.finish().unwrap();
    }
    directory.set_after("text", &[STREAM.to_owned()]).unwrap();
    dir
}

fn selected(dir: &Path) -> Selected {
    let source = Source::of(dir.to_owned()).open().unwrap();
    let journal = source.journal().unwrap();
    let streams = journal.streams().unwrap();
    let streams = streams.iter().map(|name| journal.stream(name).unwrap()).collect();
    Selected { source, journal, streams, config: None }
}

/// Packs `mine` into a file in this directory.
fn packed(dir: &Path, to: &Path) -> PathBuf {
    let file = to.join("mine.tar.zst");
    pack(&selected(dir), "min", 7, std::fs::File::create(&file).unwrap()).unwrap();
    file
}

fn rows(selected: &Selected, rid: &str) -> Vec<JournalRow> {
    let lives = selected.streams.iter().flat_map(|stream| stream.lives(rid).unwrap());
    let rows = lives.flat_map(|life| life.rows);
    rows.map(|row| {
        let placeless = |place: Option<Position>| {
            place.map(|it| Position { segment: SegmentId::default(), offset: 0, ..it })
        };
        JournalRow { position: placeless(row.position), changed: placeless(row.changed), ..row }
    })
    .collect()
}

/// The bytes of all files.
fn all_bytes(dir: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        bytes.extend(if path.is_dir() { all_bytes(&path) } else { std::fs::read(path).unwrap() });
    }
    bytes
}

fn says(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[test]
fn every_command_reads_a_pack_which_has_both_legs_and_nothing_that_others_said() {
    let (dir, to, open) = (filled(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let pack = packed(dir.path(), to.path());
    assert_eq!(rows(&selected(&pack), "mine"), rows(&selected(dir.path()), "mine"));
    assert_eq!(rows(&selected(&pack), "mine").len(), 8);
    for command in [
        &["ls"][..],
        &["show", "mine"],
        &["show", "mine", "--json"],
        &["neighbours", "mine"],
        &["tail"],
        &["export", "--rid", "mine"],
        &["export"],
        &["verify"],
    ] {
        assert_eq!(run_from(&pack, command, nobody_answers).unwrap(), ExitCode::SUCCESS, "{command:?}");
    }
    unpack(&pack, open.path()).unwrap();
    let bytes = all_bytes(open.path());
    let private: [&[u8]; 2] = [PRIVATE_TEXT.as_bytes(), &(PRIVATE as u32).to_le_bytes()];
    let source = all_bytes(dir.path());
    assert!(private.iter().all(|part| says(&source, part)));
    assert_eq!(private.map(|part| says(&bytes, part)), [false; 2]);
    assert!(says(&bytes, b"theirs"), "the rids of neighbours stay");
    let manifest: serde_json::Value =
        serde_json::from_slice(&std::fs::read(open.path().join("manifest.json")).unwrap()).unwrap();
    assert_eq!(manifest["rid"], "mine");
    assert_eq!(manifest["streams"][1]["stream"], "text");
    assert_eq!(selected(&pack).journal.stream("text").unwrap().after().unwrap(), [STREAM]);
}

#[test]
fn a_pack_can_be_packed_again_and_neither_erased_nor_followed() {
    let (dir, to, again) = (filled(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = packed(dir.path(), to.path());
    let none = pack(&selected(&file), "nobody", 7, Vec::new()).unwrap_err();
    assert!(none.to_string().contains("not in the journal"), "{none}");
    for (command, why) in
        [(&["erase", "mine", "--yes"][..], "this is a copy"), (&["tail", "-f"], "a pack does not grow")]
    {
        let refused = run_from(&file, command, nobody_answers).unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
    }
    let again = packed(&file, again.path());
    assert_eq!(rows(&selected(&again), "mine"), rows(&selected(dir.path()), "mine"));
}

#[test]
fn a_pack_of_copied_streams_with_the_longest_names_is_read_back() {
    let (dir, to) = (filled(), tempfile::tempdir().unwrap());
    // The names that a copy from NATS has: an instance, a dot, and a stream.
    let name = |stream: char| format!("{}.{}", "i".repeat(64), stream.to_string().repeat(128));
    for (stream, name) in [(STREAM, name('d')), ("text", name('t'))] {
        std::fs::rename(dir.path().join(stream), dir.path().join(name)).unwrap();
    }
    let pack = packed(dir.path(), to.path());
    let open = selected(&pack);
    assert_eq!(open.journal.streams().unwrap(), [name('d'), name('t')]);
    assert_eq!(rows(&open, "mine"), rows(&selected(dir.path()), "mine"));
    assert_eq!(rows(&open, "mine").len(), 8);
}

/// A tar file of these entries, compressed.
fn tar_zst(entries: &[(&[u8], EntryType, &[u8])]) -> Vec<u8> {
    let mut tar = tar::Builder::new(zstd::Encoder::new(Vec::new(), 1).unwrap());
    for (name, kind, content) in entries {
        let mut header = Header::new_ustar();
        header.as_old_mut().name[..name.len()].copy_from_slice(name);
        header.set_entry_type(*kind);
        header.set_size(content.len() as u64);
        if kind.is_symlink() || kind.is_hard_link() {
            header.set_link_name("/etc/passwd").unwrap();
        }
        header.set_mode(0o777);
        header.set_cksum();
        tar.append(&header, *content).unwrap();
    }
    tar.into_inner().unwrap().finish().unwrap()
}

/// The error of unpacking this file. Nothing may be outside of the directory.
fn refused(bytes: &[u8]) -> String {
    let around = tempfile::tempdir().unwrap();
    let (file, to) = (around.path().join("x.tar.zst"), around.path().join("to"));
    std::fs::write(&file, bytes).unwrap();
    std::fs::create_dir(&to).unwrap();
    let error = format!("{:#}", unpack(&file, &to).unwrap_err());
    assert!(error.starts_with(&file.display().to_string()), "{error}");
    assert_eq!(std::fs::read_dir(around.path()).unwrap().count(), 2);
    error
}

#[test]
fn a_pack_with_anything_else_in_it_is_refused() {
    let segment: &[u8] = b"journal/decode/00000000000000000001-0000000000.seg";
    let names: [&[u8]; 9] = [
        b"../evil",
        b"/etc/evil",
        b"journal/../evil/AFTER",
        b"journal/.hidden/AFTER",
        b"journal/decode/evil.seg",
        b"journal/decode/x/AFTER",
        b"journal//AFTER",
        b"evil",
        b"journal/\xff/AFTER",
    ];
    for name in names {
        let error = refused(&tar_zst(&[(name, EntryType::Regular, b"x")]));
        assert!(error.contains("not written by `afterbay journal pack`: it has an entry"), "{error}");
    }
    for kind in [
        EntryType::Symlink,
        EntryType::Link,
        EntryType::Directory,
        EntryType::Fifo,
        EntryType::Char,
        EntryType::GNULongName,
        EntryType::XHeader,
        EntryType::GNUSparse,
    ] {
        let error = refused(&tar_zst(&[(segment, kind, b"")]));
        assert!(error.contains("it has an entry"), "{kind:?}: {error}");
    }
    // A name in an entry of its own is checked like any other, and has a bound.
    let long =
        |name: &[u8]| tar_zst(&[(b"@", EntryType::GNULongName, name), (segment, EntryType::Regular, b"x")]);
    let evil = format!("journal/{}/{}", "..", "x".repeat(100));
    for name in [evil.as_bytes(), &[b'x'; 100], &[b'x'; 513]] {
        let error = refused(&long(name));
        assert!(error.contains("it has an entry"), "{error}");
    }
    let twice = (segment, EntryType::Regular, &b"x"[..]);
    assert!(refused(&tar_zst(&[twice, twice])).contains("cannot unpack"));
    assert!(refused(&tar_zst(&[twice])).contains("no manifest.json"));
    let manifest = |text: &'static [u8]| tar_zst(&[(b"manifest.json", EntryType::Regular, text)]);
    assert!(refused(&manifest(b"{\"pack\": 2}")).contains("version 2 of a pack"));
    assert!(refused(&manifest(b"{}")).contains("manifest.json has no version"));
    assert!(refused(&manifest(b"no json")).contains("not written by `afterbay journal pack`"));
    let many: Vec<Vec<u8>> = (0..1100).map(|n| format!("journal/s{n}/AFTER").into_bytes()).collect();
    let many: Vec<(&[u8], EntryType, &[u8])> =
        many.iter().map(|name| (&**name, EntryType::Regular, &b""[..])).collect();
    assert!(refused(&tar_zst(&many)).contains("more than 1024 files"));
}

#[test]
fn a_pack_that_is_damaged_or_too_large_is_refused() {
    let (dir, to) = (filled(), tempfile::tempdir().unwrap());
    let whole = std::fs::read(packed(dir.path(), to.path())).unwrap();
    for bytes in [&b""[..], b"no pack", &whole[..whole.len() / 2], &whole[..whole.len() - 1]] {
        let error = refused(bytes);
        assert!(error.contains("damaged") || error.contains("no manifest.json"), "{error}");
    }
    let mut flipped = whole.clone();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    assert!(refused(&flipped).contains("damaged"));
    // The head says more bytes than there may be. No byte is written.
    let mut header = Header::new_ustar();
    header.set_path("journal/decode/00000000000000000001-0000000000.seg").unwrap();
    header.set_entry_type(EntryType::Regular);
    header.set_size(pack_file::UNPACKED_BYTES_MAX + 1);
    header.set_cksum();
    let error = refused(&zstd::encode_all(&header.as_bytes()[..], 1).unwrap());
    assert!(error.contains("more than 1073741824 bytes unpacked"), "{error}");
    let nowhere = Source::of("/nowhere/x.tar.zst".into()).open().err().unwrap();
    assert!(format!("{nowhere:#}").starts_with("/nowhere/x.tar.zst: "));
}
