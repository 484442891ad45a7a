//! Traces of requests with a record.

use afterbay_journal::{JournalRequest, Outcome, Passage};
use afterbay_wire::{RequestRecord, Sampling};

use super::{Collector, MS, START, Scene, Writer, attribute, named, shape};

impl Writer {
    /// Opens a request at its record, a millisecond later.
    fn asked(&mut self, record: &RequestRecord) -> JournalRequest {
        self.now += MS;
        let request = self.open(&record.rid);
        let frame = self.writer.append(&record.to_frame(), self.now).unwrap().frame;
        self.writer.outcome(&Outcome {
            requests: (&[request]).into(),
            tokens: (&[0]).into(),
            ..Outcome::new(frame, self.now, Passage::Barrier("request".into()))
        });
        request
    }
}

#[test]
fn the_wait_for_the_first_row_is_a_span_of_a_request_with_a_record_and_its_parameters_are_attributes() {
    let collector = Collector::new(&[200]);
    let mut scene = Scene::new(&collector.endpoint, 1.0, &[]);
    let mut writer = scene.stream("decode", &[]);
    let record = RequestRecord {
        rid: "r".into(),
        model: Some("m-7b".into()),
        sampling: Some(Sampling { max_tokens: Some(64), seed: Some(7), ..Sampling::default() }),
        ..RequestRecord::default()
    };
    let request = writer.asked(&record.with_prompt(&[4711; 3]));
    writer.now += 20 * MS;
    let frame = writer.row(request, "stop", &[]);
    writer.send(request, frame);
    writer.take(frame);
    scene.finish();
    let spans = collector.spans();
    assert_eq!(
        shape(&named(&spans, "first row").into_iter().cloned().collect::<Vec<_>>()),
        ["first row 1..22"]
    );
    let root = named(&spans, "text_completion decode")[0];
    assert_eq!(root.start_time_unix_nano, START + MS);
    let of = |key: &str| attribute(root, key);
    assert_eq!(of("gen_ai.request.model").as_deref(), Some("m-7b"));
    assert_eq!(
        (of("gen_ai.request.max_tokens"), of("gen_ai.request.seed")),
        (Some("64".into()), Some("7".into()))
    );
    assert!(!format!("{spans:?}").contains("4711"));
}
