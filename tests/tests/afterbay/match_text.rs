//! match-text in a stream before a detokenizer: a match is masked wherever it is cut into rows.

use afterbay_tests::commands::{journal, verify};
use afterbay_tests::frames::{ReaderRow, SynthRequest, WIRES, batch, rows};
use afterbay_tests::{Afterbay, Reader, Sandbox, Sender, repository};
use afterbay_wire::synth::SynthRow;

const TEXT: &str = "ask anna.lee@example.com, or +49 30 1234567 é";
const MASKED: &str = "ask [#], or [#] é";

fn model() -> String {
    repository().join("host/path/text/tests/fixtures/byte-level/tokenizer.json").display().to_string()
}

fn ids(text: &str) -> Vec<i64> {
    afterbay_text::Encoder::load(model().as_ref()).unwrap().encode(text).unwrap()
}

fn text(ids: &[i64]) -> String {
    let tokens = afterbay_text::TokenBytes::load(model().as_ref()).unwrap();
    let bytes: Vec<u8> = ids.iter().flat_map(|id| tokens.bytes(*id).to_vec()).collect();
    String::from_utf8(bytes).unwrap()
}

#[test]
fn match_text_masks_private_data_in_any_rows_and_text_ids_and_counts_agree() {
    for wire in WIRES {
        let sandbox = Sandbox::new();
        let mut reader = Reader::bind(&sandbox.reader_side());
        let settings = "presets = [\"email\", \"phone\"], mask = \"[#]\"";
        let config = sandbox.config().sink(&format!("tokenizer = {:?}", model()));
        let config = config.plugin_with("private", "builtin:match-text", settings, "deadline = \"10s\"");
        let afterbay = Afterbay::run(&sandbox, &config);
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        let all = ids(TEXT);
        for rows_of in [1, 3, all.len()] {
            let rid = format!("r-{rows_of}");
            let mut request = SynthRequest::new(&rid);
            let parts: Vec<&[i64]> = all.chunks(rows_of).collect();
            let (last, before) = parts.split_last().unwrap();
            let mut parts: Vec<SynthRow> = before.iter().map(|ids| request.row(ids)).collect();
            parts.push(request.last(last));
            parts.into_iter().for_each(|row| sender.send(&batch(wire, vec![row])));
            let mut read: Vec<ReaderRow> = Vec::new();
            while read.last().is_none_or(|row| row.finish.is_none()) {
                read.extend(rows(&reader.frame()));
            }
            let received: Vec<i64> = read.iter().flat_map(|row| row.ids.clone()).collect();
            assert_eq!(text(&received), MASKED, "{wire:?}, rows of {rows_of} tokens");
            assert_eq!(read.last().unwrap().completion_tokens, received.len() as u64);
        }
        let metrics = afterbay.metrics();
        assert_eq!(metrics.stream("request_imbalances_total"), 0);
        assert_eq!(metrics.plugin("private", "held_rows"), 0);
        assert_eq!(metrics.plugin_by("private", "own_matches_total", "pattern", "email"), 3);
        assert_eq!(metrics.plugin_by("private", "own_matches_total", "pattern", "phone"), 3);
        assert_eq!(afterbay.stop(), 0);
        assert_eq!(verify(&sandbox).0, 0);
        let shown = journal(&sandbox, &["show", "r-3"]).success();
        assert!(shown.contains("private: "), "{shown}");
        let shown = journal(&sandbox, &["show", "r-3", "--text", "--tokenizer", &model()]).success();
        assert!(shown.contains(&format!("\n\n{MASKED}\n\nSomething else was received in ")), "{shown}");
        assert!(shown.contains("anna.lee@example.com") && shown.contains("[#]"), "{shown}");
    }
}
