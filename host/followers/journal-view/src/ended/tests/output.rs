//! The output of requests of small journals: what left, beside what was received.

use super::*;
use crate::content::{Absent, ContentBounds, ContentReader};
use crate::ending::SCHEDULER;
use crate::leg_view::LegView;
use crate::output::{LegOutput, Part};
use afterbay_journal::StoredReplacement;
use afterbay_text::TokenBytes;
use std::path::Path;

impl Scene {
    fn output(&self, tokens: Option<TokenBytes>) -> LegOutput {
        let stream = JournalReader::open(self.dir.path()).unwrap().stream("s").unwrap();
        let [life] = stream.lives("r").unwrap().try_into().unwrap();
        let layouts = Layouts::builtin();
        let reader = ContentReader::new(&stream, &layouts);
        LegView::read(&reader, ("s", &life), SCHEDULER, tokens, ContentBounds::NONE).output(&reader)
    }
}

/// The parts as received and sent ids; equal ids once.
fn ids(output: &LegOutput) -> Vec<(Vec<i64>, Option<Vec<i64>>)> {
    let parts = output.parts.iter().map(|part| match part {
        Part::Same(text) => (text.ids.clone(), None),
        Part::Other(difference) => (difference.received.ids.clone(), Some(difference.sent.ids.clone())),
        Part::Absent(rows, _) => (vec![UNKNOWN_ID; *rows as usize], None),
    });
    parts.collect()
}

#[test]
fn what_left_is_whole_and_what_was_received_stands_beside_it_only_where_the_two_differ() {
    for wire in WIRES {
        let mut scene = Scene::new(wire, 1 << 20);
        let replace = action(0, Verdict::Replace, &[9], 1);
        let (drop, held) = (action(0, Verdict::Drop, &[], 0), action(0, Verdict::Hold, &[], 0));
        let other: Row<'_> = ("other", &[7], false);
        // Rows of others in the same frames change nothing.
        scene.step(&[("r", &[1], false), other]);
        scene.changed(
            &[("r", &[2, 3], false), other],
            std::slice::from_ref(&replace),
            Some(&[("r", &[9], false), other]),
        );
        scene.changed(&[("r", &[4], false)], std::slice::from_ref(&drop), Some(&[]));
        // Held rows leave with a later row, or with a release marker, as they were received.
        scene.changed(&[("r", &[5], false)], std::slice::from_ref(&held), Some(&[]));
        let release = |tokens| action(0, Verdict::Release, &[1], tokens);
        scene.changed(&[("r", &[6], false)], &[release(2)], Some(&[("r", &[5, 6], false)]));
        scene.changed(&[("r", &[7], false)], std::slice::from_ref(&held), Some(&[]));
        scene.changed(&[("r", &[16], false)], std::slice::from_ref(&held), Some(&[]));
        for id in [7, 16] {
            let frame = scene.append(RELEASE_MARKER);
            scene.outcome(frame, &[("r", &[], false)], &[release(1)], Some(&[("r", &[id], false)]));
        }
        // A held row leaves as another one.
        scene.changed(&[("r", &[10], false)], std::slice::from_ref(&held), Some(&[]));
        scene.changed(&[("r", &[11], false)], &[release(2), replace], Some(&[("r", &[9], false)]));
        scene.step(&[("r", &[12], false)]);
        // The request has ended for the reader, and the scheduler goes on.
        let swallowed = PluginAction { text: SWALLOWED.into(), ..drop };
        let end = action(0, Verdict::Finish, &[], 1);
        scene.changed(&[("r", &[13], false)], &[end], Some(&[("r", &[13], false)]));
        scene.changed(&[("r", &[14], false)], std::slice::from_ref(&swallowed), Some(&[]));
        scene.changed(&[("r", &[15], true)], &[swallowed], Some(&[]));
        let output = scene.output(None);
        assert_eq!(
            ids(&output),
            [
                (vec![1], None),
                (vec![2, 3, 4], Some(vec![9])),
                (vec![5, 6, 7, 16], None),
                (vec![10, 11], Some(vec![9])),
                (vec![12, 13], None),
                (vec![14, 15], Some(vec![])),
            ],
            "{wire:?}"
        );
        let places: Vec<_> = output.differences().map(|it| (it.first.0, it.last.0, it.by())).collect();
        let place = |first, last, by: &str| (first, last, by.to_owned());
        let expected = [
            place(2, 3, "guard: replace, drop"),
            place(10, 11, "guard: hold, release, replace"),
            place(14, 15, "guard: drop"),
        ];
        assert_eq!(places, expected);
        let json = output.json();
        assert_eq!(json["sent"], serde_json::json!({"text": null, "ids": [1, 9, 5, 6, 7, 16, 9, 12, 13]}));
        assert_eq!(json["received"]["ids"].as_array().unwrap().len(), 14);
        assert_eq!((&json["rows_missing"], &json["differences"][0]["last_frame"]), (&0.into(), &3.into()));
    }
}

#[test]
fn a_character_of_several_tokens_is_whole_on_both_sides_and_ids_of_the_same_text_are_no_difference() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../path/text/tests/fixtures/byte-fallback");
    let tokens = TokenBytes::load(&fixture).unwrap();
    let id = |bytes: &[u8]| (0..i64::from(tokens.size())).find(|id| tokens.bytes(*id) == bytes).unwrap();
    let (first, second, letter) = (id(&[0xc3]), id(&[0xa9]), id(b"H"));
    let mut scene = Scene::new(SynthWire::Msgpack, 1 << 20);
    // `é` begins in a row that passes and ends in one that is replaced.
    scene.step(&[("r", &[letter, first], false)]);
    let replace = action(0, Verdict::Replace, &[second, letter], 2);
    scene.changed(&[("r", &[second], false)], &[replace], Some(&[("r", &[second, letter], false)]));
    // A special token has no text.
    let replace = action(0, Verdict::Replace, &[letter, 0], 2);
    scene.changed(&[("r", &[letter], true)], &[replace], Some(&[("r", &[letter, 0], false)]));
    let output = scene.output(Some(tokens));
    let [Part::Same(first), Part::Other(difference), Part::Same(last)] = &output.parts[..] else {
        panic!("{output:?}")
    };
    assert_eq!((&*first.text(), &*last.text(), &*output.sent().text()), ("Hé", "H", "HéHH"));
    assert_eq!((&*difference.received.text(), &*difference.sent.text()), ("", "H"));
}

#[test]
fn a_row_with_all_ids_so_far_is_a_difference_only_if_it_changes_them() {
    let mut scene = Scene::new(SynthWire::Msgpack, 1 << 20);
    let all = |ids: usize| PluginAction {
        text: StoredReplacement::cumulative(ids).into(),
        ..action(0, Verdict::Replace, &[], ids as u32)
    };
    scene.changed(&[("r", &[1], false)], &[all(1)], Some(&[("r", &[1], false)]));
    scene.changed(&[("r", &[2], false)], &[all(2)], Some(&[("r", &[1, 2], false)]));
    assert_eq!(ids(&scene.output(None)), [(vec![1, 2], None)]);
    scene.changed(&[("r", &[3], true)], &[all(2)], Some(&[("r", &[8, 9], false)]));
    assert_eq!(ids(&scene.output(None)), [(vec![1, 2, 3], Some(vec![8, 9]))]);
}

#[test]
fn rows_that_the_journal_does_not_have_are_counted_where_they_were() {
    let mut scene = Scene::new(SynthWire::Msgpack, 1 << 20);
    scene.step(&[("r", &[1], false)]);
    let skipped = scene.writer.skipped(1, scene.now);
    scene.outcome(skipped, &[("r", &[2], false)], &[], None);
    scene.step(&[("r", &[3], true)]);
    let output = scene.output(None);
    assert_eq!(ids(&output), [(vec![1], None), (vec![UNKNOWN_ID], None), (vec![3], None)]);
    assert!(matches!(output.parts[1], Part::Absent(1, Absent::NotStored)), "{output:?}");
    assert_eq!((output.rows_missing, output.json()["sent"]["ids"].clone()), (1, serde_json::json!([1, 3])));
}
