//! The end of a request that crosses a detokenizer: one answer for both legs.

use super::*;
use afterbay_journal_view::life;
use serde_json::Value;

struct NoTokenizer;

impl life::Streams for NoTokenizer {
    fn layouts(&self, _stream: &str) -> Layouts {
        Layouts::builtin()
    }

    fn tokens(&self, _stream: &str) -> Option<TokenBytes> {
        None
    }
}

/// A scene whose further rows are on the detokenizer's stream.
fn next_leg(mut scene: Scene) -> Scene {
    scene.writer.flush().unwrap();
    let (writer, _) = scene.directory.stream("text").unwrap();
    scene.directory.set_after("text", &[STREAM.to_owned()]).unwrap();
    scene.writer = writer;
    scene
}

/// The end as the dashboard and `top` get it.
fn ended(scene: &mut Scene) -> (Vec<String>, Value) {
    scene.writer.flush().unwrap();
    let journal = JournalReader::open(scene.dir.path()).unwrap();
    let streams =
        journal.streams().unwrap().iter().map(|name| journal.stream(name).unwrap()).collect::<Vec<_>>();
    let life = life::of_rid(&streams, "a", &NoTokenizer).unwrap().unwrap();
    assert!(life["legs"].as_array().unwrap().iter().all(|leg| leg["ended"].is_null()), "{life}");
    let sentences = life["ended"]["sentences"].as_array().unwrap().iter();
    (sentences.map(|it| it.as_str().unwrap().to_owned()).collect(), life["ended"].clone())
}

#[test]
fn an_operators_abort_on_the_first_leg_is_the_end_and_not_the_stop_of_the_detokenizer() {
    let mut scene = Scene::new();
    let request = scene.request("a");
    scene.row(request, &[1], "", &[(OPERATOR, Verdict::Abort, "")]);
    scene.row(request, &[2], "abort", &swallowed(OPERATOR));
    let mut scene = next_leg(scene);
    let request = scene.request("a");
    scene.row_of(BatchKind::Str, "x", request, &[1], "stop", &[]);
    let (sentences, json) = ended(&mut scene);
    let by = "An operator ended the request with row 0 of frame 1 of stream decode (`afterbay abort`): ";
    assert!(sentences[0].starts_with(by), "{sentences:?}");
    assert!(sentences[1].ends_with("and then aborted the request."), "{sentences:?}");
    assert_eq!(sentences.last().unwrap(), UNACKNOWLEDGED);
    assert!(!sentences.iter().any(|it| it.contains("detokenizer")), "{sentences:?}");
    assert_eq!((&json["by"], &json["stream"]), (&"operator".into(), &STREAM.into()), "{json}");
}

#[test]
fn a_plugin_on_the_second_leg_is_the_end_of_a_request_that_the_scheduler_ended_later() {
    let mut scene = Scene::new();
    let request = scene.request("a");
    scene.row(request, &[1], "", &[]);
    scene.now += 3 * NS;
    scene.row(request, &[2], "length", &[]);
    scene.now -= 5 * NS;
    let mut scene = next_leg(scene);
    let request = scene.request("a");
    scene.row_of(BatchKind::Str, "x", request, &[1], "", &[("words", Verdict::Finish, "no")]);
    let (sentences, json) = ended(&mut scene);
    assert!(sentences[0].starts_with("Plugin \"words\" ended the request"), "{sentences:?}");
    assert_eq!((&json["by"], &json["stream"]), (&"plugin".into(), &"text".into()), "{json}");
}

#[test]
fn the_scheduler_ends_a_request_whose_text_has_not_been_received() {
    let mut scene = Scene::new();
    let request = scene.request("a");
    scene.row(request, &[1], "length", &[]);
    let mut scene = next_leg(scene);
    let request = scene.request("a");
    scene.row_of(BatchKind::Str, "x", request, &[1], "", &[]);
    let (sentences, json) = ended(&mut scene);
    assert!(sentences[0].starts_with("The scheduler ended the request with row 0"), "{sentences:?}");
    assert!(sentences[1].starts_with("The last row of stream text has not been received."), "{sentences:?}");
    assert_eq!(json["by"], "limit", "{json}");
}
