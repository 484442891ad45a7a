//! The publisher: outages, restarts and losses, on a journal that the test writes.

use std::time::Duration;

use afterbay_events::event::{FollowerFailed, FollowerRecovered, ReplicaFound, ReplicaLost, ReplicaWeak};
use afterbay_follow::replicate::Filter;
use afterbay_journal::reader::JournalReader;
use afterbay_tests::nats::NatsServer;
use afterbay_tests::until;

use crate::scene::{Scene, assert_copied, copy, problems, segments};

#[test]
fn a_server_that_is_away_delays_nothing_loses_nothing_and_is_reported_once() {
    let mut server = NatsServer::start();
    let mut scene = Scene::new(&[server.url()]);
    let mut stream = scene.stream("decode.0", &[]);
    stream.requests(0..30);
    scene.until_acknowledged(100 << 10);
    server.kill();
    // Three segments and more.
    stream.requests(30..80);
    until("the outage is reported", || !scene.events.of::<FollowerFailed>().is_empty());
    server.start_again();
    stream.requests(80..90);
    until("the end of the outage is reported", || !scene.events.of::<FollowerRecovered>().is_empty());
    stream.requests(90..100);
    stream.finish();
    scene.stop();
    assert_eq!(
        (scene.events.of::<FollowerFailed>().len(), scene.events.of::<FollowerRecovered>().len()),
        (1, 1)
    );
    let found = scene.events.of::<ReplicaFound>();
    assert_eq!((found.len(), found[0].replicas, &*found[0].stream), (1, 1, "afterbay"));
    let weak = scene.events.of::<ReplicaWeak>();
    assert!(weak.len() == 1 && weak[0].why.contains("1 replica"), "{weak:?}");
    let (dir, mirror) = copy(&[server.url()], Filter::default());
    assert_copied(&scene, dir.path());
    assert!(
        mirror.holes().is_empty() && mirror.notes().is_empty(),
        "{:?} {:?}",
        mirror.holes(),
        mirror.notes()
    );
    assert!(problems(dir.path()).is_empty());
}

#[test]
fn a_restart_continues_behind_what_the_server_has_and_repeats_no_byte() {
    let server = NatsServer::start();
    let mut scene = Scene::new(&[server.url()]);
    let mut stream = scene.stream("decode-0", &[]);
    stream.requests(0..20);
    scene.until_acknowledged(60 << 10);
    // The process dies: the last segment has no summary, and the next start adds it.
    scene.kill();
    drop(stream);
    let Scene { dir, directory, .. } = scene;
    drop(directory);
    let mut scene = Scene::without_copy(dir, &[server.url()]);
    let mut stream = scene.stream("decode-0", &[]);
    stream.requests(20..40);
    scene.start();
    stream.finish();
    scene.stop();
    let bytes: usize = segments(scene.dir.path(), "").values().map(Vec::len).sum();
    let (dir, mirror) = copy(&[server.url()], Filter::default());
    assert_copied(&scene, dir.path());
    assert!(mirror.holes().is_empty() && mirror.notes().is_empty());
    assert!(problems(dir.path()).is_empty());
    assert!(scene.counters.bytes.get() < bytes as u64, "a part was published by the process before");
}

#[test]
fn records_that_a_loss_of_power_took_from_the_disk_are_replaced_in_the_copy_by_those_that_follow() {
    let server = NatsServer::start();
    for loses_whole_segment in [false, true] {
        let mut scene = Scene::new(&[server.url()]);
        let mut stream = scene.stream("decode-0", &[]);
        stream.requests(0..50);
        scene.stop();
        drop(stream);
        let Scene { dir, directory, .. } = scene;
        drop(directory);
        let newest = segments(dir.path(), "").into_iter().next_back().unwrap();
        let path = dir.path().join(newest.0);
        match loses_whole_segment {
            true => std::fs::remove_file(path).unwrap(),
            false => std::fs::File::options().write(true).open(path).unwrap().set_len(1000).unwrap(),
        }
        let mut scene = Scene::without_copy(dir, &[server.url()]);
        let mut stream = scene.stream("decode-0", &[]);
        stream.requests(50..70);
        stream.finish();
        scene.start();
        scene.stop();
        let only = Filter { instance: Some(scene.instance()), ..Filter::default() };
        let (copied, mirror) = copy(&[server.url()], only);
        assert_copied(&scene, copied.path());
        assert!(mirror.holes().is_empty(), "{:?}", mirror.holes());
        assert!(!mirror.notes().is_empty(), "the replaced bytes are named");
        assert!(problems(copied.path()).is_empty());
    }
}

#[test]
fn acknowledged_messages_that_a_server_has_lost_are_reported_and_published_again() {
    let mut server = NatsServer::start();
    let mut scene = Scene::new(&[server.url()]);
    let mut stream = scene.stream("decode-0", &[]);
    stream.requests(0..20);
    scene.until_acknowledged(60 << 10);
    server.kill();
    server.lose_store();
    server.start_again();
    stream.requests(20..40);
    until("the loss is reported", || !scene.events.of::<ReplicaLost>().is_empty());
    stream.finish();
    scene.stop();
    let (dir, mirror) = copy(&[server.url()], Filter::default());
    assert_copied(&scene, dir.path());
    assert!(mirror.holes().is_empty());
}

#[test]
fn a_cluster_of_three_keeps_the_copy_while_a_node_is_killed() {
    let mut nodes = NatsServer::cluster();
    let urls: Vec<String> = nodes.iter().map(NatsServer::url).collect();
    // The publisher knows one node: that node names the others.
    nodes[0].until_it_names(&nodes[1..]);
    let mut scene = Scene::new(&urls[..1]);
    let mut stream = scene.stream("decode-0", &[]);
    stream.requests(0..20);
    scene.until_acknowledged(60 << 10);
    nodes[0].kill();
    stream.requests(20..60);
    stream.finish();
    let written: usize = segments(scene.dir.path(), "").values().map(Vec::len).sum();
    scene.until_acknowledged(written as u64);
    scene.stop();
    assert_eq!(scene.events.of::<ReplicaFound>()[0].replicas, 3);
    assert!(scene.events.of::<ReplicaWeak>().is_empty());
    let (dir, mirror) = copy(&urls[1..], Filter::default());
    assert_copied(&scene, dir.path());
    assert!(mirror.holes().is_empty() && problems(dir.path()).is_empty());
}

#[test]
fn a_copy_since_a_time_begins_with_a_whole_segment_and_follows_what_is_published() {
    let server = NatsServer::start();
    let scene = Scene::new(&[server.url()]);
    let mut stream = scene.stream("decode-0", &[]);
    stream.requests(0..50);
    let written: usize = segments(scene.dir.path(), "").values().map(Vec::len).sum();
    scene.until_acknowledged(written as u64 * 9 / 10);
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    stream.requests(50..51);
    scene.until_acknowledged(written as u64 + 1);
    let since_unix_ns = Some(since.as_nanos() as u64);
    let (dir, mut mirror) = copy(&[server.url()], Filter { since_unix_ns, ..Filter::default() });
    assert!(problems(dir.path()).is_empty() && mirror.holes().is_empty());
    let name = format!("{}.decode-0", scene.instance());
    let frames = || {
        let stream = JournalReader::open(dir.path()).unwrap().stream(&name).unwrap();
        stream.last_frame().unwrap().0
    };
    stream.requests(51..60);
    until("the copy has the last row", || {
        mirror.follow(Duration::from_millis(50)).unwrap();
        frames() == 600
    });
}
