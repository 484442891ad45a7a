//! Sinks that come and go while their stream runs: each request's tokens once, whole, with the reader that has its beginning.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use afterbay_sim::load::Load;
use afterbay_tests::afterbay::verify;
use afterbay_tests::components::guest;
use afterbay_tests::frames::{Ids, Request, batch, frames_of, ids, rows};
use afterbay_tests::stage::Config;
use afterbay_tests::{Afterbay, Reader, Sender, Stage, load, until};
use afterbay_wire::synth::SynthRow;
use afterbay_wire::synth::SynthWire::Msgpack;
use serde_json::Value;

use crate::sinks::share_of;

const OTHER: &str = "second";

fn other_side(stage: &Stage) -> String {
    stage.ipc("out-2")
}

/// The stage's reader, and another beside it.
fn two(stage: &Stage, lines: &str) -> Config {
    let config = stage.config().stream("route = \"crc32\"").sink(lines);
    config.more_sink(OTHER, &other_side(stage), lines)
}

fn reload(afterbay: &Afterbay, stage: &Stage, config: &Config, changed: &str) {
    stage.write(config);
    afterbay.event_where("ConfigReloaded", |told| told["changed"] == changed);
}

/// Reads until it is told that nothing more comes.
fn read_all(mut reader: Reader, told: &Arc<AtomicBool>) -> std::thread::JoinHandle<Vec<Vec<u8>>> {
    let told = told.clone();
    std::thread::spawn(move || {
        let mut had = Vec::new();
        loop {
            // Looked at first, so that what came before it is read.
            let is_over = told.load(Ordering::SeqCst);
            match reader.next_within(Duration::from_millis(20)) {
                Some(frame) => had.push(frame),
                None if is_over => return had,
                None => {}
            }
        }
    })
}

/// Those of some requests.
fn of(all: &Ids, is_it: impl Fn(&str) -> bool) -> Ids {
    all.iter().filter(|(rid, _)| is_it(rid)).map(|(rid, ids)| (rid.clone(), ids.clone())).collect()
}

fn reader_of(rid: &str) -> usize {
    share_of(rid, 2)
}

/// What `/v1/signals` has of a stream's sinks: their names, and whether they leave.
fn sinks(afterbay: &Afterbay) -> Vec<(String, bool)> {
    let told: Value = serde_json::from_str(&afterbay.get("/v1/signals").body).unwrap();
    let sinks = told["streams"][0]["sinks"].as_array().unwrap().iter();
    sinks.map(|it| (it["sink"].as_str().unwrap().to_owned(), it["leaving"].as_bool().unwrap())).collect()
}

/// One more reader under load, and one less, with panics along the path where they are given.
fn changed_under_load(panics: Option<&str>) {
    let stage = Stage::new();
    let over = Arc::new(AtomicBool::new(false));
    let reads = [stage.reader_side(), other_side(&stage)].map(|side| read_all(Reader::bind(&side), &over));
    let lines = "reader = \"tokenizer\"";
    let one = stage.config().sink(lines);
    let afterbay = match panics {
        None => Afterbay::run(&stage, &one),
        Some(when) => Afterbay::run_panicking(&stage, &one, when),
    };
    let frames = frames_of(&Load { max_running: 16, ..Load::new(300, 30) }, Msgpack);
    let mut sender = Sender::connect(&stage.scheduler_side());
    let quarter = frames.len() / 4;
    let changed = |count| until("it has changed", || afterbay.events("ConfigReloaded").len() == count);
    for (index, frame) in frames.iter().enumerate() {
        if index == quarter {
            stage.write(&two(&stage, lines));
        } else if index == 2 * quarter {
            changed(1);
            stage.write(&one);
        } else if index == 3 * quarter {
            changed(2);
        }
        sender.send(&frame.bytes);
        std::thread::sleep(Duration::from_micros(300));
    }
    let had = afterbay.until_metrics("no request is under way", |metrics| {
        metrics.stream("frames_received_total") == frames.len() as u64 && metrics.stream("requests_live") == 0
    });
    assert_eq!(afterbay.event("SinkRemoved")["sink"], OTHER);
    assert_eq!(had.stream("panics_total") > 0, panics.is_some());
    assert_eq!(afterbay.stop(), 0);
    over.store(true, Ordering::SeqCst);
    let [one, other] = reads.map(|reads| ids(reads.join().unwrap()));
    // In the order of their first rows: between two of them each is where its hash says, and all others are with the first.
    let mut begun: Vec<String> = Vec::new();
    for row in frames.iter().flat_map(|frame| rows(&frame.bytes)) {
        if !begun.contains(&row.rid) {
            begun.push(row.rid);
        }
    }
    let is_other = |rid: &String| other.contains_key(rid);
    let since = begun.iter().position(is_other).expect("the other has some");
    let until = begun.iter().rposition(is_other).expect("the other has some");
    assert!(0 < since && until < begun.len() - 20, "{since} to {until}");
    let sent = ids(frames.iter().map(|frame| &frame.bytes));
    let others: BTreeSet<&String> = begun[since..=until].iter().filter(|rid| reader_of(rid) == 1).collect();
    assert_eq!(one, of(&sent, |rid| !others.contains(&rid.to_owned())), "{since} to {until}");
    assert_eq!(other, of(&sent, |rid| others.contains(&rid.to_owned())), "{since} to {until}");
    assert_eq!(verify(&stage).0, 0);
}

#[test]
fn readers_that_come_and_go_under_load_share_what_begins_meanwhile_and_what_is_under_way_stays() {
    changed_under_load(None);
}

#[test]
fn what_is_shared_out_anew_is_so_over_panics_too() {
    changed_under_load(Some("5:200"));
}

#[test]
fn a_tokenizer_that_gets_a_sink_of_its_own_has_what_it_begins_from_then_on() {
    let stage = Stage::new();
    let (mut router, mut worker) = (Reader::bind(&stage.reader_side()), Reader::bind(&other_side(&stage)));
    let config = stage.config().sink("reader = \"tokenizer\"");
    let afterbay = Afterbay::run(&stage, &config);
    let mut sender = Sender::connect(&stage.scheduler_side());
    let (mut before, mut since) = (Request::new("before"), Request::new("since"));
    let by = |row: SynthRow| SynthRow { http_worker_ipc: Some(other_side(&stage)), ..row };
    sender.send(&batch(Msgpack, vec![by(before.row(&[1]))]));
    assert_eq!(ids([router.frame()]).len(), 1);
    let with = config.clone().more_sink(OTHER, &other_side(&stage), "kind = \"worker\"");
    reload(&afterbay, &stage, &with, "sink \"second\" of \"test\" added");
    sender.send(&batch(Msgpack, vec![by(before.row(&[2])), by(since.row(&[1]))]));
    assert_eq!(rows(&router.frame())[0].rid, "before");
    assert_eq!(rows(&worker.frame())[0].rid, "since");
    // Without it again: it keeps what it has to the end.
    reload(&afterbay, &stage, &config, "sink \"second\" of \"test\" removed");
    let mut last = Request::new("last");
    let all = vec![by(before.last(&[3])), by(since.row(&[2])), by(last.last(&[1]))];
    sender.send(&batch(Msgpack, all));
    assert_eq!(ids([router.frame()]).into_keys().collect::<Vec<_>>(), ["before", "last"]);
    assert_eq!(rows(&worker.frame())[0].rid, "since");
    assert_eq!(sinks(&afterbay), [("reader".to_owned(), false), (OTHER.to_owned(), true)]);
    sender.send(&batch(Msgpack, vec![by(since.last(&[3]))]));
    assert_eq!(rows(&worker.frame())[0].rid, "since");
    assert_eq!(afterbay.event("SinkRemoved")["sink"], OTHER);
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&stage).0, 0);
}

#[test]
fn a_reader_that_is_removed_keeps_its_requests_to_their_end_and_is_closed_then() {
    let stage = Stage::new();
    let (mut one, mut other) = (Reader::bind(&stage.reader_side()), Reader::bind(&other_side(&stage)));
    let page = format!("credit = {:?}", stage.path("page"));
    let config = stage.config().stream("route = \"crc32\"").sink("reader = \"tokenizer\"");
    let config = config.more_sink(OTHER, &other_side(&stage), "reader = \"tokenizer\"");
    let afterbay = Afterbay::run(&stage, &config);
    let mut sender = Sender::connect(&stage.scheduler_side());
    let (mut a, mut b, mut late) = (Request::new("r11"), Request::new("r1"), Request::new("r14"));
    assert_eq!(["r11", "r1", "r14"].map(reader_of), [0, 1, 1]);
    sender.send(&batch(Msgpack, vec![a.row(&[1]), b.row(&[2])]));
    assert_eq!(rows(&one.frame())[0].rid, "r11");
    assert_eq!(rows(&other.frame())[0].rid, "r1");

    let alone = stage.config().sink("reader = \"tokenizer\"");
    let changed = "sink \"second\" of \"test\" removed; route of \"test\" changed";
    reload(&afterbay, &stage, &alone, changed);
    assert_eq!(afterbay.event("SinkLeaving")["sink"], OTHER);
    assert_eq!(afterbay.metrics().sink_named(OTHER, "leaving"), 1);
    assert_eq!(sinks(&afterbay), [("reader".to_owned(), false), (OTHER.to_owned(), true)]);
    // Its name is taken for as long.
    stage.write(&config);
    let refused = afterbay.event("ConfigReloadFailed")["why"].as_str().unwrap().to_owned();
    let why = "stream \"test\": sink \"second\": that of this name that was removed has yet to get the rest of its requests";
    assert!(refused.starts_with(why), "{refused}");
    stage.write(&alone);

    sender.send(&batch(Msgpack, vec![a.row(&[3]), b.row(&[4]), late.row(&[5])]));
    let here: Vec<String> = rows(&one.frame()).into_iter().map(|row| row.rid).collect();
    assert_eq!(here, ["r11", "r14"], "what begins goes to those that stay");
    assert_eq!(ids([other.frame()]), Ids::from([("r1".to_owned(), vec![4])]));
    sender.send(&batch(Msgpack, vec![b.last(&[6])]));
    let rest = other.until_closed();
    assert_eq!(ids(&rest), Ids::from([("r1".to_owned(), vec![6])]), "and the connection is closed");
    assert_eq!(afterbay.event("SinkRemoved")["sink"], OTHER);
    until("nothing shows it", || sinks(&afterbay) == [("reader".to_owned(), false)]);
    assert!(!afterbay.get("/metrics").body.contains("sink=\"second\""));
    afterbay.until_well();

    // Its name is free again, and a page is one sink's at a time.
    let with_page =
        |name: &str| alone.clone().stream("route = \"crc32\"").more_sink(name, &other_side(&stage), &page);
    reload(
        &afterbay,
        &stage,
        &with_page(OTHER),
        "sink \"second\" of \"test\" added; route of \"test\" changed",
    );
    stage.write(&with_page("third"));
    afterbay.event_where("ConfigReloadFailed", |told| {
        told["why"].as_str().unwrap().contains("is the page of sink \"second\" until that is gone")
    });
    sender.send(&batch(Msgpack, vec![a.last(&[7]), late.last(&[8])]));
    assert_eq!(rows(&one.frame()).len(), 2, "those under way stay");
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&stage).0, 0);
}

/// Two readers that are away, for both of which frames wait in the journal, and the second of which is removed. The ids that
/// are theirs.
fn removed_while_away(stage: &Stage) -> (Afterbay, Sender, Config, [Ids; 2]) {
    let lines = "reader = \"tokenizer\"\nqueue = { frames = 4 }";
    let afterbay = Afterbay::run(stage, &two(stage, lines));
    let mut sender = Sender::connect(&stage.scheduler_side());
    let frames = load(30, 20, Msgpack);
    frames.iter().for_each(|frame| sender.send(&frame.bytes));
    afterbay.until_metrics("all wait", |metrics| {
        let spilled = frames.len() as u64 - 4;
        metrics.sink("spilled_frames") == spilled && metrics.sink_named(OTHER, "spilled_frames") == spilled
    });
    let alone = stage.config().sink(lines);
    reload(&afterbay, stage, &alone, "sink \"second\" of \"test\" removed; route of \"test\" changed");
    let sent = ids(frames.iter().map(|frame| &frame.bytes));
    let shares = [0, 1].map(|reader| of(&sent, |rid| reader_of(rid) == reader));
    (afterbay, sender, alone, shares)
}

/// Reads until it has so much.
fn take(reader: &mut Reader, expected: &Ids) {
    let mut had = Vec::new();
    while ids(&had) != *expected {
        had.push(reader.frame());
    }
}

#[test]
fn a_reader_that_is_removed_while_it_is_away_gets_what_waits_in_the_journal_and_the_others_only_theirs() {
    let stage = Stage::new();
    let (afterbay, mut sender, _, shares) = removed_while_away(&stage);
    afterbay.until_degraded("sink:test/second");
    // A request that would have been the other's.
    sender.send(&batch(Msgpack, vec![Request::new("late").last(&[1])]));
    let mut other = Reader::bind(&other_side(&stage));
    other.wait_connected();
    assert_eq!(ids(other.until_closed()), shares[1]);
    afterbay.event("SinkRemoved");
    // What waited for it is in the frames that wait for the first, too.
    let mut expected = shares[0].clone();
    expected.insert("late".to_owned(), vec![1]);
    let mut one = Reader::bind(&stage.reader_side());
    take(&mut one, &expected);
    assert_eq!(one.next_within(Duration::from_millis(50)), None);
    until("how it was is let go of", || !stage.path("journal/test/SHARES").exists());
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&stage).0, 0);
}

#[test]
fn a_stop_sends_what_waits_for_a_reader_that_leaves() {
    let stage = Stage::new();
    let (mut afterbay, _sender, _, shares) = removed_while_away(&stage);
    afterbay.terminate();
    let over = Arc::new(AtomicBool::new(false));
    let reads = [stage.reader_side(), other_side(&stage)].map(|side| read_all(Reader::bind(&side), &over));
    assert_eq!(afterbay.wait(), 0);
    over.store(true, Ordering::SeqCst);
    assert_eq!(reads.map(|reads| ids(reads.join().unwrap())), shares);
    assert_eq!(verify(&stage).0, 0);
}

#[test]
fn kill_9_while_a_reader_leaves_takes_nothing_of_what_it_was_to_get() {
    let stage = Stage::new();
    let (afterbay, _, alone, [mut first, second]) = removed_while_away(&stage);
    afterbay.kill();
    let afterbay = Afterbay::run(&stage, &alone);
    assert_eq!(afterbay.event("SinkLeaving")["sink"], OTHER);
    let mut sender = Sender::connect(&stage.scheduler_side());
    sender.send(&batch(Msgpack, vec![Request::new("late").last(&[1])]));
    first.insert("late".to_owned(), vec![1]);
    let mut other = Reader::bind(&other_side(&stage));
    other.wait_connected();
    assert_eq!(ids(other.until_closed()), second);
    afterbay.event("SinkRemoved");
    take(&mut Reader::bind(&stage.reader_side()), &first);
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&stage).0, 0);
}

#[test]
fn where_a_sink_is_not_to_be_found_any_more_a_start_is_by_the_configuration_alone() {
    let stage = Stage::new();
    let (afterbay, _, alone, _) = removed_while_away(&stage);
    assert!(stage.path("journal/test/SHARES").exists());
    afterbay.kill();
    let renamed = alone.to_toml().replace("name = \"reader\"", "name = \"renamed\"");
    let afterbay = Afterbay::run_toml(&stage, &renamed, &[]);
    assert_eq!(sinks(&afterbay), [("renamed".to_owned(), false)]);
    assert!(!stage.path("journal/test/SHARES").exists());
    let mut sender = Sender::connect(&stage.scheduler_side());
    sender.send(&batch(Msgpack, vec![Request::new("late").last(&[1])]));
    take(&mut Reader::bind(&stage.reader_side()), &Ids::from([("late".to_owned(), vec![1])]));
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn kill_9_leaves_requests_with_the_readers_that_have_their_beginnings() {
    let stage = Stage::new();
    let lines = "reader = \"tokenizer\"";
    let alone = stage.config().sink(lines);
    let afterbay = Afterbay::run(&stage, &alone);
    let mut sender = Sender::connect(&stage.scheduler_side());
    // The hash of two says the other; no reader is there.
    let (mut old, mut new) = (Request::new("r1"), Request::new("r14"));
    sender.send(&batch(Msgpack, vec![old.row(&[1])]));
    afterbay.until_metrics("it is received", |metrics| metrics.stream("requests_live") == 1);
    reload(
        &afterbay,
        &stage,
        &two(&stage, lines),
        "sink \"second\" of \"test\" added; route of \"test\" changed",
    );
    sender.send(&batch(Msgpack, vec![old.row(&[2]), new.row(&[3])]));
    afterbay.until_metrics("it is received", |metrics| metrics.stream("requests_live") == 2);
    afterbay.kill();

    let afterbay = Afterbay::run(&stage, &two(&stage, lines));
    let mut sender = Sender::connect(&stage.scheduler_side());
    sender.send(&batch(Msgpack, vec![old.row(&[4]), new.row(&[5])]));
    let mut one = Reader::bind(&stage.reader_side());
    take(&mut one, &Ids::from([("r1".to_owned(), vec![1, 2, 4])]));
    let mut other = Reader::bind(&other_side(&stage));
    take(&mut other, &Ids::from([("r14".to_owned(), vec![3, 5])]));

    // The same where they leave, but for one that has nothing.
    let config = two(&stage, lines).more_sink("third", &stage.ipc("out-3"), lines);
    reload(&afterbay, &stage, &config, "sink \"third\" of \"test\" added");
    reload(
        &afterbay,
        &stage,
        &alone,
        "sink \"second\" of \"test\" removed; sink \"third\" of \"test\" removed; route of \"test\" changed",
    );
    afterbay.event_where("SinkRemoved", |gone| gone["sink"] == "third");
    afterbay.kill();
    let afterbay = Afterbay::run(&stage, &alone);
    let mut sender = Sender::connect(&stage.scheduler_side());
    sender.send(&batch(Msgpack, vec![old.last(&[6]), new.last(&[7])]));
    assert_eq!(ids([one.frame()]), Ids::from([("r1".to_owned(), vec![6])]));
    other.wait_connected();
    assert_eq!(ids(other.until_closed()), Ids::from([("r14".to_owned(), vec![7])]));
    afterbay.event("SinkRemoved");
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&stage).0, 0);
}

#[test]
fn a_sink_is_added_with_the_plugin_that_routes_to_it_and_removed_with_it() {
    let stage = Stage::new();
    let (mut reader, mut audit) = (Reader::bind(&stage.reader_side()), Reader::bind(&stage.ipc("audit")));
    let afterbay = Afterbay::run(&stage, &stage.config());
    let mut sender = Sender::connect(&stage.scheduler_side());
    let mut request = Request::new("r-TO-audit");
    let mut send = |sender: &mut Sender| sender.send(&batch(Msgpack, vec![request.row(&[1])]));
    send(&mut sender);
    assert_eq!(rows(&reader.frame()).len(), 1);
    let both = stage.config().more_sink("audit", &stage.ipc("audit"), "kind = \"routed\"");
    let both = both.plugin("routes", &guest("routes"), "");
    let added = "plugin \"routes\" of \"test\" added; sink \"audit\" of \"test\" added";
    reload(&afterbay, &stage, &both, added);
    send(&mut sender);
    assert_eq!(rows(&audit.frame())[0].completion_tokens, 2);
    let removed = "plugin \"routes\" of \"test\" removed; sink \"audit\" of \"test\" removed";
    reload(&afterbay, &stage, &stage.config(), removed);
    assert!(audit.until_closed().is_empty(), "nothing is left, so it is closed");
    send(&mut sender);
    assert_eq!(rows(&reader.frame())[0].completion_tokens, 3);
    assert_eq!(afterbay.events("VerdictFailed").len(), 0);
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&stage).0, 0);
}

#[test]
fn what_skips_the_detokenizer_does_so_to_its_end_where_the_sink_for_it_is_removed() {
    let stage = Stage::new();
    let mut detokenizer = Reader::bind(&stage.reader_side());
    let mut tokenizer = Reader::bind(&stage.ipc("tokenizer"));
    let without = stage.config().plugin("routes", &guest("routes"), "");
    let with = without.clone().more_sink("tokenizer", &stage.ipc("tokenizer"), "kind = \"skipped\"");
    let afterbay = Afterbay::run(&stage, &with);
    let mut sender = Sender::connect(&stage.scheduler_side());
    let (mut skips, mut late) = (Request::new("a-skip"), Request::new("b-skip"));
    sender.send(&batch(Msgpack, vec![skips.row(&[1])]));
    assert_eq!(ids([tokenizer.frame()]), Ids::from([("a-skip".to_owned(), vec![1])]));
    reload(&afterbay, &stage, &without, "sink \"tokenizer\" of \"test\" removed");
    sender.send(&batch(Msgpack, vec![skips.row(&[2]), late.row(&[3])]));
    assert_eq!(ids([detokenizer.frame()]), Ids::from([("b-skip".to_owned(), vec![3])]));
    let failed = afterbay.event("VerdictFailed");
    assert_eq!(failed["why"], "the stream has no sink of kind \"skipped\"", "{failed}");
    sender.send(&batch(Msgpack, vec![skips.last(&[4]), late.last(&[5])]));
    assert_eq!(ids(tokenizer.until_closed()), Ids::from([("a-skip".to_owned(), vec![2, 4])]));
    assert_eq!(ids([detokenizer.frame()]), Ids::from([("b-skip".to_owned(), vec![5])]));
    afterbay.event("SinkRemoved");
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&stage).0, 0);
}

#[test]
fn a_sink_s_queue_changes_while_it_runs() {
    let stage = Stage::new();
    let afterbay = Afterbay::run(&stage, &stage.config());
    reload(&afterbay, &stage, &stage.config().sink("queue = { frames = 4 }"), "queue of \"test\" changed");
    let mut sender = Sender::connect(&stage.scheduler_side());
    let frames = load(5, 20, Msgpack);
    frames.iter().for_each(|frame| sender.send(&frame.bytes));
    afterbay.until_metrics("past the new bound they wait in the journal", |metrics| {
        metrics.sink("spilled_frames") == frames.len() as u64 - 4
    });
}
