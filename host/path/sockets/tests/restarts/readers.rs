//! Readers with a credit page, in this process: no frame that they had not finished is lost or repeated.

use std::time::Duration;

use crate::support::counting_reader::CountingReader;
use crate::support::{Loop, free_port, ipc, outgoing, settled, with_credit};
use afterbay_sockets::credit::{CreditState, CreditWriter, ReaderKind};
use afterbay_sockets::{CreditPosition, OutgoingFrame, Pending, PullOptions, PushNotice, PushOptions};

#[test]
fn ten_readers_killed_one_after_the_other_get_every_frame_once_and_in_order() {
    let dir = tempfile::tempdir().unwrap();
    for endpoint in [ipc(&dir, "reader"), free_port()] {
        let _ = std::fs::remove_file(dir.path().join("tokenizer"));
        let mut this = Loop::connect(&endpoint, with_credit(&dir, |credit| credit.max_window_frames = 40));
        let (mut finished, mut next) = (Vec::new(), 1);
        for round in 0..10 {
            let mut reader = CountingReader::start(&dir, &endpoint);
            for _ in 0..100_000 {
                if reader.finished.len() >= 40 {
                    break;
                }
                if this.push().pending().frames < 20 {
                    this.send(outgoing(next, 100 + 500 * round));
                    next += 1;
                }
                this.turn(Duration::ZERO);
                reader.this.turn(Duration::ZERO);
                // It dies with some unfinished messages, more of them each time.
                let ready = reader.this.received.len().saturating_sub(round * 2);
                reader.finish(ready.min(3));
            }
            finished.extend(reader.finished);
        }
        let mut reader = CountingReader::start(&dir, &endpoint);
        for _ in 0..100_000 {
            if this.push().is_drained() {
                break;
            }
            this.turn(Duration::from_millis(1));
            reader.this.turn(Duration::ZERO);
            let ready = reader.this.received.len();
            reader.finish(ready);
        }
        finished.extend(reader.finished);
        assert_eq!(finished, (1..next).collect::<Vec<_>>(), "{endpoint}");
        assert_eq!((this.push().taken(), this.push().finished()), (next - 1, Some(next - 1)));
        let settled = settled(&this);
        assert!(settled.iter().all(|(_, unconfirmed)| unconfirmed.is_none()), "{settled:?}");
        assert!(settled.iter().filter(|(resent, _)| *resent > 0).count() >= 5, "{settled:?}");
    }
}

#[test]
fn a_new_reader_gets_nothing_before_the_owner_knows_whose_count_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = ipc(&dir, "new");
    let mut this = Loop::connect(&endpoint, with_credit(&dir, |_| ()));
    let mut first = CountingReader::start(&dir, &endpoint);
    this.send(outgoing(1, 100));
    first.until(&mut this, "the first reader has the frame", |this| this.push().unfinished().frames == 1);
    drop(first);
    let mut second = CountingReader::start(&dir, &endpoint);
    let generation = |this: &mut Loop| this.push().position().map(|position| position.generation);
    for _ in 0..100_000 {
        if this.push().is_connected() && generation(&mut this) == Some(2) {
            break;
        }
        this.turn_without_flush(Duration::from_millis(1));
        second.this.turn(Duration::ZERO);
    }
    for _ in 0..20 {
        this.turn_without_flush(Duration::ZERO);
        second.this.turn(Duration::ZERO);
    }
    assert_eq!((generation(&mut this), second.this.received.len()), (Some(2), 0));
    second.until(&mut this, "the second reader has the frame", |this| this.push().unfinished().frames == 1);
}

#[test]
fn the_window_limits_the_unfinished_frames_of_a_slow_reader() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = ipc(&dir, "slow");
    let mut reader = CountingReader::start(&dir, &endpoint);
    let mut options = with_credit(&dir, |credit| credit.max_window_frames = 5);
    options.max_queue_frames = 3;
    let mut this = Loop::connect(&endpoint, options);
    let turn = |this: &mut Loop, reader: &mut CountingReader| {
        for _ in 0..20 {
            this.turn(Duration::from_millis(1));
            reader.this.turn(Duration::ZERO);
        }
    };
    let mut next = 1;
    for _ in 0..20 {
        turn(&mut this, &mut reader);
        while this.push().room() {
            this.push().send(outgoing(next, 100)).unwrap();
            next += 1;
        }
    }
    assert_eq!((reader.this.received.len(), next), (5, 9));
    assert_eq!(this.push().unfinished(), Pending { frames: 5, bytes: 500 });
    assert_eq!((this.push().written(), this.push().taken(), this.push().finished()), (5, 0, Some(0)));
    reader.finish(2);
    turn(&mut this, &mut reader);
    assert_eq!((reader.this.received.len(), this.push().taken()), (5, 2));
    assert_eq!((this.push().unfinished().frames, this.push().pending().frames), (5, 1));
}

#[test]
fn a_count_that_others_move_is_reported_and_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = ipc(&dir, "shared");
    let mut reader = CountingReader::start(&dir, &endpoint);
    let mut this = Loop::connect(&endpoint, with_credit(&dir, |_| ()));
    this.send(outgoing(1, 100));
    reader.until(&mut this, "written", |this| this.push().written() == 1);
    for _ in 0..3 {
        reader.page.finished().unwrap();
    }
    this.until("reported", |this| this.push().credit() == CreditState::RanAhead { by: 2 });
    assert!(
        this.pushed
            .iter()
            .any(|notice| matches!(notice, PushNotice::Credit { state: CreditState::RanAhead { by: 2 } }))
    );
    assert_eq!((this.push().taken(), this.push().finished(), this.push().position()), (1, None, None));
    this.send(outgoing(2, 100));
    this.until("taken without credit", |this| this.push().taken() == 2);
}

#[test]
fn a_page_of_any_kind_or_none_does_not_stop_the_stream() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("tokenizer");
    let endpoint = ipc(&dir, "reader");
    let mut reader = Loop::bind(&endpoint, PullOptions::default());
    let mut this = Loop::connect(&endpoint, with_credit(&dir, |_| ()));
    let mut send = |this: &mut Loop, sequence: u64| {
        this.send(outgoing(sequence, 100));
        this.until("taken", |this| {
            reader.turn(Duration::ZERO);
            this.push().taken() == sequence
        });
    };
    send(&mut this, 1);
    assert_eq!(this.push().credit(), CreditState::Absent);
    std::fs::write(&page, "not a page, and not as long as one").unwrap();
    this.until("seen", |this| matches!(this.push().credit(), CreditState::Invalid(_)));
    send(&mut this, 2);
    std::fs::write(&page, [0x20; 64]).unwrap();
    this.until("seen", |this| this.pushed.iter().any(|notice| format!("{notice:?}").contains("Magic")));
    send(&mut this, 3);
    std::fs::remove_file(&page).unwrap();
    let mut writer = CreditWriter::open(&page, ReaderKind::Tokenizer).unwrap();
    this.until("seen", |this| matches!(this.push().credit(), CreditState::Usable { generation: 1, .. }));
    this.send(outgoing(4, 100));
    this.until("written", |this| {
        reader.turn(Duration::ZERO);
        this.push().written() == 4
    });
    // The frames before the page are counted first, if at all. This reader counts only later ones.
    writer.finished().unwrap();
    this.run(Duration::from_millis(100));
    assert!(this.push().taken() <= 4);
    assert!(!matches!(this.push().credit(), CreditState::RanAhead { .. }));
}

#[test]
fn our_own_restart_continues_where_the_reader_is() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = ipc(&dir, "reader");
    let mut reader = CountingReader::start(&dir, &endpoint);
    let mut this = Loop::connect(&endpoint, with_credit(&dir, |_| ()));
    for i in 1..=10 {
        this.send(outgoing(i, 1000));
    }
    reader.until(&mut this, "written", |this| this.push().written() == 10);
    reader.this.receive(10);
    reader.finish(4);
    this.until("finished", |this| this.push().taken() == 4);
    let (written, position) = (this.push().written(), this.push().position());
    assert_eq!((written, position), (10, Some(CreditPosition { generation: 1, count: 4 })));
    drop(this);
    // The reader has the other frames, and finishes them while nobody is connected.
    reader.finish(6);
    let mut this = Loop::connect(&endpoint, PushOptions { taken: 10, ..with_credit(&dir, |_| ()) });
    assert_eq!((this.push().taken(), this.push().written()), (10, 10));
    for i in 11..=15 {
        this.send(outgoing(i, 1000));
    }
    this.until("finished", |this| {
        reader.this.turn(Duration::ZERO);
        let ready = reader.this.received.len();
        reader.finish(ready);
        this.push().taken() == 15
    });
    assert_eq!(reader.finished, (1..=15).collect::<Vec<_>>());
    assert_eq!(this.push().position(), Some(CreditPosition { generation: 1, count: 15 }));
}

#[test]
fn uncounted_frames_are_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = ipc(&dir, "reader");
    let mut reader = CountingReader::start(&dir, &endpoint);
    let mut this = Loop::connect(&endpoint, with_credit(&dir, |credit| credit.max_window_frames = 4));
    for i in 1..=50 {
        this.send(OutgoingFrame { counted: false, ..outgoing(i, 100) });
    }
    reader.until(&mut this, "drained", |this| this.push().is_drained());
    reader.this.receive(50);
    assert_eq!(this.push().taken(), 50);
}
