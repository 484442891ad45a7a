//! Several tokenizers, each with its own sink and pace.

use std::time::Duration;

use afterbay_sockets::credit::{CreditWriter, ReaderKind};
use afterbay_tests::commands::{show, verify};
use afterbay_tests::frames::{SynthRequest, WIRES, batch, fixtures, row, rows};
use afterbay_tests::{Afterbay, Reader, Sandbox, Sender};
use afterbay_wire::synth::SynthRow;

const STEPS: i64 = 10;

/// A row of a request of this tokenizer.
fn by(worker: &str, row: SynthRow) -> SynthRow {
    SynthRow { http_worker_ipc: Some(worker.to_owned()), ..row }
}

#[test]
fn each_tokenizer_gets_its_own_rows_by_its_own_credit_and_other_rows_go_to_the_reader() {
    for wire in WIRES {
        let sandbox = Sandbox::new();
        let ipcs = ["w-0", "w-1"].map(|name| sandbox.ipc(name));
        let pages = ["page-0", "page-1"].map(|name| sandbox.path(name));
        let config = (0..2).fold(
            sandbox.config().sink("reader = \"tokenizer\"\ntool_calls = \"joined\""),
            |config, at| {
                let lines = format!("kind = \"front-end\"\ncredit = {:?}", pages[at]);
                config.another_sink(["w-0", "w-1"][at], &ipcs[at], &lines)
            },
        );
        let mut router = Reader::bind(&sandbox.reader_side());
        let mut workers = ipcs.each_ref().map(|ipc| Reader::bind(ipc));
        let mut credits =
            pages.each_ref().map(|page| CreditWriter::open(page, ReaderKind::Tokenizer).unwrap());
        let afterbay = Afterbay::run(&sandbox, &config);
        for sink in ["w-0", "w-1"] {
            afterbay.event_where("CreditSeen", |seen| seen["sink"] == sink);
        }
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        let mut requests = ["slow", "keeps-up", "another", "nobody"].map(SynthRequest::new);
        let [slow, keeps_up, another, nobody] = &mut requests;
        for step in 1..=STEPS {
            sender.send(&batch(
                wire,
                vec![
                    by(&ipcs[0], slow.row(&[step])),
                    by(&ipcs[1], keeps_up.row(&[step])),
                    by("ipc:///attached", another.row(&[step])),
                    nobody.row(&[step]),
                ],
            ));
            let count = step as u64;
            if step == 1 {
                // The slow tokenizer reads this frame and finishes none.
                assert_eq!(rows(&workers[0].frame()), [row("slow", &[1], 1, None)], "{wire:?}");
            }
            // The fast tokenizer gets all of its rows at once.
            assert_eq!(rows(&workers[1].frame()), [row("keeps-up", &[step], count, None)], "{wire:?}");
            credits[1].finished().unwrap();
            let rest = [row("another", &[step], count, None), row("nobody", &[step], count, None)];
            assert_eq!(rows(&router.frame()), rest, "{wire:?}");
        }
        // The slow tokenizer has two unfinished frames. The rest waits and arrives as one row.
        assert_eq!(rows(&workers[0].frame()), [row("slow", &[2], 2, None)], "{wire:?}");
        assert_eq!(workers[0].next_within(Duration::from_millis(50)), None);
        (0..2).for_each(|_| credits[0].finished().unwrap());
        let joined: Vec<i64> = (3..=STEPS).collect();
        assert_eq!(rows(&workers[0].frame()), [row("slow", &joined, STEPS as u64, None)], "{wire:?}");
        credits[0].finished().unwrap();

        // A message without rows goes to the reader.
        let (_, control) = fixtures().into_iter().find(|(name, _)| name.contains("freeze")).unwrap();
        sender.send(&control);
        assert_eq!(router.frame(), control);
        sender.send(&batch(wire, requests.iter_mut().map(|request| request.last(&[99])).collect()));
        // None of these rows names a tokenizer.
        assert_eq!(rows(&router.frame()).len(), 4);
        for worker in &mut workers {
            assert_eq!(worker.next_within(Duration::from_millis(20)), None);
        }
        afterbay
            .until_metrics("every frame is taken", |metrics| metrics.sink_named("w-0", "taken_frame") == 12);
        assert_eq!(afterbay.stop(), 0);
        assert_eq!(verify(&sandbox).0, 0);
        let shown = show(&sandbox, "slow");
        assert_eq!(shown["rows_seen"][4]["taken_by"], serde_json::json!(["w-0"]), "{shown}");
    }
}
