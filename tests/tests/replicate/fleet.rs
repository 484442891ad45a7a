//! The copies of several instances beside each other, and holes.

use afterbay_follow::replicate::Filter;
use afterbay_journal::reader::{JournalReader, RequestFilter, RequestState, StreamReader};
use afterbay_journal_view::legs;
use afterbay_tests::nats::NatsServer;
use afterbay_tests::until;

use crate::scene::{Scene, assert_copied, copy, problems};

#[test]
fn the_streams_of_two_instances_stand_beside_each_other_and_a_rid_on_both_is_one_request() {
    let server = NatsServer::start();
    let scenes = [0, 1].map(|at: u64| {
        let mut scene = Scene::new(&[server.url()]);
        let (mut decode, mut text) = (scene.stream("decode-0", &[]), scene.stream("text", &["decode-0"]));
        for stream in [&mut decode, &mut text] {
            stream.request(&format!("only-{at}"), 3);
        }
        let mut retried = decode.at((1 + at) * 1_000_000_000);
        retried.request("retried", 4);
        retried.finish();
        text.finish();
        scene.stop();
        scene
    });
    let (dir, _) = copy(&[server.url()], Filter::default());
    scenes.iter().for_each(|scene| assert_copied(scene, dir.path()));
    assert!(problems(dir.path()).is_empty());
    let journal = JournalReader::open(dir.path()).unwrap();
    let streams: Vec<StreamReader> =
        journal.streams().unwrap().iter().map(|name| journal.stream(name).unwrap()).collect();
    assert_eq!(streams.len(), 4);
    let requests = legs::requests(&streams, &RequestFilter::default()).unwrap();
    let mut shown: Vec<String> = requests
        .iter()
        .map(|request| {
            assert_eq!(request.state(), RequestState::Finished);
            let legs = request.0.iter().map(|leg| leg.stream.as_str()).collect::<Vec<_>>().join("+");
            format!("{} {legs}", request.first().of.rid)
        })
        .collect();
    shown.sort();
    let [one, other] = scenes.each_ref().map(Scene::instance);
    assert_eq!(
        shown,
        [
            format!("only-0 {one}.decode-0+{one}.text"),
            format!("only-1 {other}.decode-0+{other}.text"),
            format!("retried {one}.decode-0+{other}.decode-0"),
        ]
    );
    let only = Filter { instance: Some(other.clone()), stream: Some("text".into()), since_unix_ns: None };
    let (dir, _) = copy(&[server.url()], only);
    assert_eq!(JournalReader::open(dir.path()).unwrap().streams().unwrap(), [format!("{other}.text")]);
}

#[test]
fn a_deleted_message_is_a_hole_that_is_named_and_that_verify_finds() {
    let server = NatsServer::start();
    let mut scene = Scene::new(&[server.url()]);
    let mut stream = scene.stream("decode-0", &[]);
    // One message at least for each step.
    for rid in 0..6 {
        let before = scene.counters.messages.get();
        stream.requests(rid..rid + 1);
        until("a message is acknowledged", || scene.counters.messages.get() > before);
    }
    stream.finish();
    scene.stop();
    let copied = || copy(&[server.url()], Filter::default());
    let (dir, mirror) = copied();
    assert!(mirror.holes().is_empty() && problems(dir.path()).is_empty());
    server.delete_message("afterbay", 3);
    let (dir, mirror) = copied();
    let holes: Vec<String> = mirror.holes().iter().map(|hole| format!("{}: {hole}", hole.stream)).collect();
    let named = format!("{}.decode-0: bytes ", scene.instance());
    assert!(holes.len() == 1 && holes[0].starts_with(&named), "{holes:?}");
    assert!(!problems(dir.path()).is_empty());
}
