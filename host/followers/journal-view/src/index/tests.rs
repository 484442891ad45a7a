//! The index on small journals, and its bounds.

use super::*;
use crate::parse_time;
use crate::tests as sample;
use afterbay_journal::reader::RequestInfo;
use afterbay_journal::{
    JournalDirectory, JournalOptions, JournalRequest, JournalWriter, Outcome, Passage, PluginAction,
    RowFinish, SyncPolicy, Verdict,
};
use std::collections::HashMap;
use std::sync::Mutex;

const SECOND: u64 = 1_000_000_000;

/// The writer of a stream, and its open requests by rid.
struct Written {
    writer: JournalWriter,
    open: HashMap<String, JournalRequest>,
}

/// A journal.
struct Scene {
    dir: tempfile::TempDir,
    directory: JournalDirectory,
    now: u64,
}

impl Scene {
    fn new(segment_bytes: u64) -> Scene {
        let dir = tempfile::tempdir().unwrap();
        let options = JournalOptions { sync: SyncPolicy::None, segment_bytes, ..JournalOptions::default() };
        let directory = JournalDirectory::open(dir.path(), options).unwrap();
        Scene { dir, directory, now: 1_700_000_000 * SECOND }
    }

    fn stream(&self, name: &str, after: &[&str]) -> Written {
        let (writer, _) = self.directory.stream(name).unwrap();
        let after: Vec<String> = after.iter().map(|name| (*name).to_owned()).collect();
        self.directory.set_after(name, &after).unwrap();
        Written { writer, open: HashMap::new() }
    }

    /// One row of a request, with a token. A finish ends the request.
    fn row(&mut self, written: &mut Written, rid: &str, finish: &str, plugin: Option<&str>) {
        self.now += SECOND;
        let Written { writer, open } = written;
        let request = *open.entry(rid.to_owned()).or_insert_with(|| writer.open(rid));
        let frame = writer.append(&[b'x'; 500], self.now).unwrap().frame;
        let finished = [RowFinish { row: 0, reason: finish.into(), completion_tokens: None }];
        let action = plugin.map(|plugin| PluginAction {
            row: 0,
            plugin: plugin.into(),
            verdict: Verdict::Annotate,
            text: "".into(),
            ids: vec![].into(),
            forwarded: 1,
        });
        let actions: Vec<_> = action.into_iter().collect();
        writer.outcome(&Outcome {
            requests: (&[request]).into(),
            tokens: (&[1]).into(),
            finished: (&finished[usize::from(finish.is_empty())..]).into(),
            actions: (&*actions).into(),
            ..Outcome::new(frame, self.now, Passage::Unchanged)
        });
        if !finish.is_empty() {
            writer.close(request);
            open.remove(rid);
        }
        writer.flush().unwrap();
    }

    /// Follows the journal until the index has everything.
    fn followed(follower: &mut Follower, index: &Mutex<RequestIndex>) {
        while follower.advance(index).unwrap() {}
    }
}

fn search() -> Search {
    Search { limit: PAGE_MAX, ..Search::default() }
}

fn rids(index: &Mutex<RequestIndex>, search: &Search) -> Vec<String> {
    let page = index.lock().unwrap().page(search);
    page.requests.iter().map(|request| request["rid"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn the_index_has_the_totals_of_requests_over_several_segments_and_goes_on_as_they_are_written() {
    let mut scene = Scene::new(4096);
    let mut writer = scene.stream("decode", &[]);
    for round in 0..20 {
        scene.row(&mut writer, "long", "", (round == 3).then_some("early"));
        scene.row(&mut writer, &format!("short-{round}"), "stop", (round % 2 == 0).then_some("even"));
    }
    let (mut follower, index) = (Follower::new(scene.dir.path()), Mutex::default());
    Scene::followed(&mut follower, &index);
    let segments = scene.directory.segments("decode").unwrap().len();
    assert!(segments > 3, "{segments}");
    let page = index.lock().unwrap().page(&search());
    assert_eq!((page.requests.len(), page.kept, page.known, page.is_complete), (21, 21, 21, true));
    assert_eq!(page.requests[0]["rid"], "short-19", "newest first");
    let long = page.requests.last().unwrap();
    assert_eq!((&long["rid"], &long["rows"], &long["state"]), (&"long".into(), &20.into(), &"live".into()));
    assert_eq!(long["plugins"], serde_json::json!(["early"]), "also of the oldest segment");
    // The same totals as those of `journal ls`.
    let journal = afterbay_journal::reader::JournalReader::open(scene.dir.path()).unwrap();
    let streams = [journal.stream("decode").unwrap()];
    for request in legs::requests(&streams, &afterbay_journal::reader::RequestFilter::default()).unwrap() {
        let listed = json::whole(&request);
        let mut found = page.requests.iter().find(|it| it["rid"] == listed["rid"]).unwrap().clone();
        found.as_object_mut().unwrap().remove("plugins");
        assert_eq!(found, listed);
    }

    scene.row(&mut writer, "long", "length", None);
    scene.row(&mut writer, "next", "", None);
    Scene::followed(&mut follower, &index);
    let page = index.lock().unwrap().page(&search());
    assert_eq!((page.requests[0]["rid"].as_str(), page.known), (Some("next"), 22));
    assert_eq!(page.requests.last().unwrap()["finish_reason"], "length");
}

#[test]
fn a_search_combines_its_conditions_and_pages_meet_without_gap_or_repetition() {
    let mut scene = Scene::new(1 << 20);
    let mut writer = scene.stream("decode", &[]);
    for number in 0..10 {
        let finish = ["stop", "length", ""][number % 3];
        scene.row(&mut writer, &format!("a-{number}"), finish, (number % 2 == 0).then_some("even"));
    }
    let index = Mutex::default();
    Scene::followed(&mut Follower::new(scene.dir.path()), &index);
    let found = |search: Search| rids(&index, &search).join(" ");
    assert_eq!(found(Search { finish: Some("length".into()), ..search() }), "a-7 a-4 a-1");
    assert_eq!(found(Search { state: Some(RequestState::Live), ..search() }), "a-8 a-5 a-2");
    let both = Search { finish: Some("length".into()), plugin: Some("even".into()), ..search() };
    assert_eq!(found(both), "a-4");
    assert_eq!(found(Search { rid_prefix: Some("a-3".into()), ..search() }), "a-3");
    assert_eq!(found(Search { stream: Some("other".into()), ..search() }), "");
    let page = index.lock().unwrap().page(&search());
    let time = |at: usize| parse_time(page.requests[at]["first_time"].as_str().unwrap()).ok();
    assert_eq!(found(Search { since_unix_ns: time(1), ..search() }), "a-9 a-8");
    assert_eq!(found(Search { since_unix_ns: time(3), until_unix_ns: time(1), ..search() }), "a-7 a-6");
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let page = index.lock().unwrap().page(&Search { limit: 3, after, ..search() });
        all.extend(page.requests.iter().map(|request| request["rid"].as_str().unwrap().to_owned()));
        let Some(next) = page.next else { break };
        assert_eq!(next.to_string().parse(), Ok(next.clone()));
        after = Some(next);
        // A new request does not move the later pages.
        scene.row(&mut writer, "new", "stop", None);
    }
    let expected: Vec<String> = (0..10).rev().map(|number| format!("a-{number}")).collect();
    assert_eq!(all, expected);
    for wrong in ["", "1", "1.2", "a.b.c", "1.-2.c", "99999999999999999999999.1.c"] {
        assert_eq!(wrong.parse::<Cursor>(), Err(()), "{wrong:?}");
    }
}

#[test]
fn requests_are_found_by_attributes_of_any_leg_and_listed_with_them() {
    let mut scene = Scene::new(1 << 20);
    let (mut first, mut second) = (scene.stream("decode", &[]), scene.stream("text", &["decode"]));
    first.writer.set_attributes(Box::new(|rid, _| {
        let of = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        vec![of("lora", if rid == "a" { "sql" } else { "law" }), of("tenant", "acme")]
    }));
    for rid in ["a", "b"] {
        scene.row(&mut first, rid, "stop", None);
        scene.row(&mut second, rid, "stop", None);
    }
    let index = Mutex::default();
    Scene::followed(&mut Follower::new(scene.dir.path()), &index);
    let found = |attributes: &[(&str, &str)]| {
        let of = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        rids(&index, &Search { attributes: attributes.iter().map(of).collect(), ..search() }).join(" ")
    };
    assert_eq!(found(&[("tenant", "acme")]), "b a");
    assert_eq!(found(&[("tenant", "acme"), ("lora", "sql")]), "a");
    assert_eq!(found(&[("tenant", "sql")]), "");
    let page = index.lock().unwrap().page(&search());
    assert_eq!(page.requests[0]["attributes"], serde_json::json!({"lora": "law", "tenant": "acme"}));
}

#[test]
fn the_legs_of_a_request_are_one_line_also_if_its_rid_is_used_again() {
    let mut scene = Scene::new(1 << 20);
    let mut first = scene.stream("decode", &[]);
    let mut second = scene.stream("text", &["decode"]);
    for plugin in ["one", "two"] {
        scene.row(&mut first, "r", "stop", Some(plugin));
        scene.row(&mut second, "r", if plugin == "one" { "stop" } else { "" }, Some("reads"));
    }
    // The first leg is not in the journal.
    scene.row(&mut second, "alone", "stop", None);
    let index = Mutex::default();
    Scene::followed(&mut Follower::new(scene.dir.path()), &index);
    let page = index.lock().unwrap().page(&search());
    let line = |request: &Value| {
        let legs = request["legs"].as_array().map_or(1, Vec::len);
        format!("{} {} {} {legs} {}", request["rid"], request["stream"], request["state"], request["plugins"])
    };
    let lines: Vec<String> = page.requests.iter().map(line).collect();
    assert_eq!(
        lines,
        [
            r#""alone" "text" "finished" 1 []"#,
            r#""r" "decode" "live" 2 ["reads","two"]"#,
            r#""r" "decode" "finished" 2 ["one","reads"]"#,
        ]
    );
    let on = |stream: &str| rids(&index, &Search { stream: Some(stream.into()), ..search() });
    assert_eq!((on("decode").len(), on("text").len()), (2, 3));
}

fn change(number: u64, rid: &str) -> RequestChange {
    let request = RequestInfo { finish: "stop".to_owned(), ..sample::request(number, rid) };
    RequestChange { request, plugins: BTreeSet::new() }
}

#[test]
fn past_either_bound_the_oldest_requests_leave() {
    let mut index = RequestIndex::with_bounds(100, TEXT_BYTES_MAX);
    let stream = index.stream("decode", &[]);
    assert!((1..=105).all(|number| index.apply(stream, &change(number, &format!("r{number}")), false)));
    assert!(!index.apply(stream, &change(0, "too-old"), true));
    let page = index.page(&Search { limit: 1, ..search() });
    assert_eq!((page.kept, page.known, page.requests[0]["request"].as_u64()), (100, 106, Some(105)));
    assert_eq!(index.requests.first_key_value().unwrap().0.2, 6);

    let mut index = RequestIndex::with_bounds(REQUESTS_MAX, 10_000);
    let stream = index.stream("decode", &[]);
    // 1000 bytes with the finish reason "stop".
    let long = "r".repeat(996);
    (1..=20).for_each(|number| _ = index.apply(stream, &change(number, &long), false));
    assert_eq!((index.requests.len(), index.text_bytes), (10, 10_000));
}

/// `cargo test --release -p afterbay-journal-view -- --ignored --nocapture`
#[test]
#[ignore = "prints figures"]
fn how_fast_a_page_and_a_search_of_100_000_requests_are() {
    let mut index = RequestIndex::default();
    let stream = index.stream("decode", &[]);
    let resident = || {
        let status = std::fs::read_to_string("/proc/self/statm").unwrap();
        status.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    };
    let before = resident();
    let rid = |number: u64| format!("{number:032x}");
    (1..=REQUESTS_MAX as u64)
        .for_each(|number| _ = index.apply(stream, &change(number, &rid(number)), false));
    println!("{} bytes a request", (resident() - before) / REQUESTS_MAX as u64);
    let none = || Some("none".to_owned());
    for (what, search) in [
        ("first page of 100", Search { limit: 100, ..search() }),
        ("first page of 1000", search()),
        ("rid of the oldest", Search { rid_prefix: Some(rid(1)), ..search() }),
        ("finish that no request has", Search { finish: none(), ..search() }),
        ("plugin that no request has", Search { plugin: none(), ..search() }),
    ] {
        let begun = std::time::Instant::now();
        let page = index.page(&search);
        println!("{what}: {} requests in {:?}", page.requests.len(), begun.elapsed());
    }
}
