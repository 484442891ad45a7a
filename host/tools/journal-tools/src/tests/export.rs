//! Exported frames of small journals: what was received, and what was sent in its place.

use super::{STREAM, Scene, action};
use crate::export::{each, line};
use afterbay_journal::reader::{JournalReader, StreamReader};
use afterbay_journal::{JournalRequest, Outcome, Passage, RELEASE_MARKER, Verdict};
use afterbay_wire::synth::{SynthBatch, SynthRow, SynthWire};
use afterbay_wire::{BatchKind, Decoder, Layouts, RequestRecord};
use bytes::Bytes;
use serde_json::{Value, json};

type Rows<'a> = &'a [(&'a str, &'a [i64])];

fn message(rows: Rows<'_>) -> Bytes {
    let row = |(rid, ids): &(&str, &[i64])| SynthRow {
        rid: (*rid).to_owned(),
        ids: ids.to_vec(),
        ..SynthRow::default()
    };
    let rows = rows.iter().map(row).collect();
    SynthBatch { rows }.encode(BatchKind::TokenId, SynthWire::Msgpack).unwrap()
}

impl Scene {
    /// Stores a frame of these bytes. `sent` left in its place; without rows nothing did.
    fn passed(&mut self, bytes: &[u8], requests: &[JournalRequest], verdict: Verdict, sent: Rows<'_>) {
        let frame = self.writer.append(bytes, self.now).unwrap().frame;
        let passage = if sent.is_empty() { Passage::Dropped } else { Passage::Changed };
        self.writer.outcome(&Outcome {
            changed: (!sent.is_empty()).then(|| message(sent)),
            requests: requests.into(),
            tokens: vec![1; requests.len()].into(),
            actions: vec![action(("guard", verdict, ""))].into(),
            ..Outcome::new(frame, self.now, passage)
        });
        self.writer.flush().unwrap();
    }

    fn stream(&self) -> StreamReader {
        JournalReader::open(self.dir.path()).unwrap().stream(STREAM).unwrap()
    }

    fn exported(&self, rid: Option<&str>) -> Vec<Value> {
        let (mut lines, mut decoder) = (Vec::new(), Decoder::new(Layouts::builtin()));
        each(&self.stream(), rid, (None, None), |exported| {
            lines.extend(line(STREAM, &exported, rid, &mut decoder));
            Ok(())
        })
        .unwrap();
        lines
    }
}

/// The ids of each row of the messages in this field, by rid.
fn ids(lines: &[Value], field: &str) -> Vec<Value> {
    let of = |message: &Value| {
        let rows = message["rids"].as_array()?.iter().zip(message["output_ids"].as_array()?);
        Some(rows.map(|(rid, ids)| json!([rid, ids["v"]])).collect::<Value>())
    };
    lines.iter().map(|line| of(&line[field]).unwrap_or_default()).collect()
}

#[test]
fn a_line_has_what_was_received_and_what_was_sent_in_its_place_also_for_one_request() {
    let mut scene = Scene::new();
    let record = RequestRecord { rid: "a".into(), ..RequestRecord::default() };
    let (a, b) = (scene.asked(record, &[5]), scene.request("b"));
    scene.row(a, &[1], "", &[]);
    let received = message(&[("a", &[2]), ("b", &[3])]);
    scene.passed(&received, &[a, b], Verdict::Replace, &[("a", &[9, 9]), ("b", &[3])]);
    scene.passed(&received, &[a, b], Verdict::Hold, &[("b", &[3])]);
    scene.passed(&message(&[("a", &[4])]), &[a], Verdict::Drop, &[]);
    scene.passed(RELEASE_MARKER, &[a], Verdict::Release, &[("a", &[2])]);
    let all = scene.exported(None);
    let passages: Vec<&Value> = all.iter().map(|line| &line["passage"]).collect();
    assert_eq!(passages, ["barrier", "unchanged", "changed", "changed", "dropped", "changed"]);
    assert_eq!((&all[0]["request"]["rid"], &all[5]["barrier"]), (&json!("a"), &json!("release marker")));
    let none = Value::Null;
    let both = json!([["a", [2]], ["b", [3]]]);
    let sent = [json!([["a", [9, 9]], ["b", [3]]]), json!([["b", [3]]])];
    assert_eq!(ids(&all, "message")[2..], [both.clone(), both, json!([["a", [4]]]), none.clone()]);
    assert_eq!(ids(&all, "sent")[2..], [sent[0].clone(), sent[1].clone(), none.clone(), json!([["a", [2]]])]);
    // The row of `a` in the frame 3 is held: nothing of it left with that frame.
    let one = scene.exported(Some("a"));
    let a = |ids: &[i64]| json!([["a", ids]]);
    assert_eq!(ids(&one, "message")[1..], [a(&[2]), a(&[2]), a(&[4]), none.clone()]);
    assert_eq!(ids(&one, "sent")[1..], [a(&[9, 9]), none.clone(), none, a(&[2])]);
    assert!(one[2]["sent"].is_null() && one[2].as_object().unwrap().contains_key("sent"), "{}", one[2]);
    assert!(!one[3].as_object().unwrap().contains_key("sent"), "{}", one[3]);
    let other = scene.exported(Some("b"));
    assert_eq!(ids(&other, "sent"), [json!([["b", [3]]]), json!([["b", [3]]])]);
}
