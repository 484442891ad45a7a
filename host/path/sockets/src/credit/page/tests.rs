//! Valid and invalid pages, and a writer beside the reader.

use super::super::CreditWriter;
use super::*;

fn page_of(look: PageStatus) -> Page {
    match look {
        PageStatus::Page(page) => page,
        other => panic!("{other:?}"),
    }
}

fn bytes(version: u32, generation: u64, count: u64, last_generation: u64) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend(77u32.to_le_bytes());
    for word in [generation, count, last_generation, 5, 6, 1] {
        bytes.extend(word.to_le_bytes());
    }
    bytes
}

#[test]
fn a_page_is_read_and_every_other_file_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("page");
    let look = |content: Option<&[u8]>| {
        if let Some(content) = content {
            std::fs::write(&path, content).unwrap();
        }
        PageReader::new(&path).look()
    };
    assert_eq!(look(None), PageStatus::Absent);
    assert_eq!(look(Some(&[])), PageStatus::Unsettled(Invalid::Unfilled));
    assert_eq!(look(Some(&[0; 64])), PageStatus::Unsettled(Invalid::Unfilled), "the magic is not there yet");
    assert_eq!(look(Some(b"ABCREDIT")), PageStatus::Invalid(Invalid::Short(8)));
    assert_eq!(look(Some(&[b'x'; 64])), PageStatus::Invalid(Invalid::Magic([b'x'; 8])));
    assert_eq!(look(Some(&bytes(2, 1, 0, 0))), PageStatus::Invalid(Invalid::Version(2)));
    let opening = PageStatus::Unsettled(Invalid::Generation { generation: 3, last: 3 });
    assert_eq!(look(Some(&bytes(1, 3, 9, 3))), opening, "it is being opened");
    let page = page_of(look(Some(&bytes(1, 3, 9, 2))));
    assert_eq!((page.pid, page.generation, page.count), (77, 3, 9));
    assert_eq!((page.last_generation, page.last_count, page.changed_unix_ns), (2, 5, 6));
    assert!(matches!(PageReader::new(dir.path()).look(), PageStatus::Invalid(Invalid::Io { .. })));
}

#[test]
fn a_page_says_who_reads_and_one_that_does_not_is_invalid() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("page");
    let look = || PageReader::new(&path).look();
    for word in [0, 3, u64::MAX] {
        let mut page = bytes(1, 3, 9, 2);
        page[56..].copy_from_slice(&word.to_le_bytes());
        std::fs::write(&path, page).unwrap();
        assert_eq!(look(), PageStatus::Invalid(Invalid::Reader(word)));
        for (generation, reader) in [(4, ReaderKind::Tokenizer), (5, ReaderKind::Detokenizer)] {
            drop(CreditWriter::open(&path, reader).unwrap());
            let page = page_of(look());
            assert_eq!((page.generation, page.reader), (generation, reader), "by the next reader");
        }
    }
    std::fs::remove_file(&path).unwrap();
    let _first = CreditWriter::open(&path, ReaderKind::Detokenizer).unwrap();
    let page = page_of(look());
    assert_eq!((page.generation, page.reader), (1, ReaderKind::Detokenizer));
}

#[test]
fn each_writer_is_a_generation_and_leaves_its_count_to_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("page");
    let mut reader = PageReader::new(&path);
    for generation in 1..=3 {
        let mut writer = CreditWriter::open(&path, ReaderKind::Tokenizer).unwrap();
        assert_eq!((writer.path(), writer.generation(), writer.count()), (&*path, generation, 0));
        let page = page_of(reader.look());
        assert_eq!((page.generation, page.count, page.pid), (generation, 0, std::process::id()));
        let last = if generation == 1 { (0, 0) } else { (generation - 1, 10 + generation - 1) };
        assert_eq!((page.last_generation, page.last_count), last);
        for _ in 0..10 + generation {
            writer.finished().unwrap();
        }
        let page = page_of(reader.look());
        assert_eq!(page.count, 10 + generation);
        assert!(page.changed_unix_ns > 0);
    }
}

#[test]
fn a_second_writer_takes_another_name_and_a_strange_file_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("page");
    let first = CreditWriter::open(&path, ReaderKind::Tokenizer).unwrap();
    let second = CreditWriter::open(&path, ReaderKind::Tokenizer).unwrap();
    assert_eq!(second.path(), dir.path().join(format!("page.{}", std::process::id())));
    assert_eq!(page_of(PageReader::new(&path).look()).generation, first.generation());
    let strange = dir.path().join("notes");
    std::fs::write(&strange, "my notes").unwrap();
    assert!(
        CreditWriter::open(&strange, ReaderKind::Tokenizer)
            .unwrap_err()
            .to_string()
            .contains("file of something else")
    );
    assert_eq!(std::fs::read(&strange).unwrap(), b"my notes");
}

#[test]
fn a_writer_that_died_while_it_opened_the_page_does_not_lose_the_last_count() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("page");
    // A writer died while it opened generation 3 with count 9: last generation and last count are set, count is 0
    // already.
    let mut cut = bytes(1, 3, 0, 3);
    cut[40..48].copy_from_slice(&9u64.to_le_bytes());
    std::fs::write(&path, cut).unwrap();
    let writer = CreditWriter::open(&path, ReaderKind::Tokenizer).unwrap();
    assert_eq!(writer.generation(), 4);
    let page = page_of(PageReader::new(&path).look());
    assert_eq!((page.last_generation, page.last_count), (3, 9));
}

#[test]
fn a_file_made_anew_is_read_once_it_is_noticed_and_one_that_is_gone_is_still_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("page");
    let mut reader = PageReader::new(&path);
    let mut writer = CreditWriter::open(&path, ReaderKind::Tokenizer).unwrap();
    writer.finished().unwrap();
    let old = page_of(reader.look());
    std::fs::remove_file(&path).unwrap();
    reader.check_file();
    writer.finished().unwrap();
    assert_eq!(
        page_of(reader.look()),
        Page { count: 2, changed_unix_ns: page_of(reader.look()).changed_unix_ns, ..old }
    );
    let _new = CreditWriter::open(&path, ReaderKind::Tokenizer).unwrap();
    reader.check_file();
    let new = page_of(reader.look());
    assert_ne!(new.file, old.file);
    assert_eq!((new.generation, new.count), (1, 0));
}

#[test]
fn a_page_that_is_written_all_the_time_is_never_read_torn() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("page");
    drop(CreditWriter::open(&path, ReaderKind::Tokenizer).unwrap());
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Every generation finishes three frames.
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let mut writer = CreditWriter::open(&path, ReaderKind::Tokenizer).unwrap();
                for _ in 0..3 {
                    writer.finished().unwrap();
                }
            }
        });
        let mut reader = PageReader::new(&path);
        let mut pages = 0;
        let mut last = 0;
        while pages < 2_000 {
            if let PageStatus::Page(page) = reader.look() {
                pages += 1;
                assert!(page.generation >= last && page.count <= 3, "{page:?}");
                assert_eq!(page.last_generation, page.generation - 1, "{page:?}");
                assert!(page.last_count == 3 || page.generation <= 2, "{page:?}");
                last = page.generation;
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}
