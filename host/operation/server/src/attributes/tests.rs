//! Attributes by rid and by rules, and their bounds.

use super::*;
use serde_json::json;
use std::ops::Range;

const ME: Caller = Caller::User(1000);
const OTHER: Caller = Caller::Host(IpAddr::V4(Ipv4Addr::LOCALHOST));

fn object(value: Value) -> Map<String, Value> {
    let Value::Object(object) = value else { panic!("{value}") };
    object
}

fn rule(rids: config::Rids, set: Value) -> config::AttributeRule {
    config::AttributeRule { rids, set: object(set) }
}

fn stream(engine: config::Engine, rules: &[config::AttributeRule]) -> config::Stream {
    let endpoint = |end: &str| format!("ipc:///run/{end}").parse().unwrap();
    let mut stream = config::Stream::new("s".parse().unwrap(), endpoint("in"), endpoint("out"));
    (stream.engine, stream.attributes) = (engine, rules.to_vec());
    stream
}

/// The attributes of requests that begin on a stream of SGLang with these rules.
fn of(attributes: &Attributes, rules: &[config::AttributeRule]) -> AttributesOf {
    attributes.of(&stream(config::Engine::Sglang, rules))
}

#[test]
fn later_rules_override_earlier_ones_and_what_is_set_for_the_rid_overrides_all() {
    let attributes = Attributes::default();
    let rules = [
        rule(config::Rids::All, json!({"tenant": "any", "tier": 1})),
        rule(config::Rids::Prefix("batch-".into()), json!({"tenant": "batch"})),
        rule(config::Rids::Pattern("-eu-[0-9]+$".parse().unwrap()), json!({"region": "eu"})),
    ];
    let of = of(&attributes, &rules);
    let of = |rid| serde_json::from_str::<Value>(&of(rid, &[]).unwrap()).unwrap();
    assert_eq!(of("a"), json!({"tenant": "any", "tier": 1}));
    assert_eq!(of("batch-eu-7"), json!({"tenant": "batch", "tier": 1, "region": "eu"}));
    attributes.set(ME, "batch-eu-7", object(json!({"tenant": "mine", "grammar": {"regex": "a+"}}))).unwrap();
    assert_eq!(
        of("batch-eu-7"),
        json!({"tenant": "mine", "tier": 1, "region": "eu", "grammar": {"regex": "a+"}})
    );
    attributes.forget("batch-eu-7").unwrap();
    assert_eq!(of("batch-eu-7")["tenant"], "batch");
}

#[test]
fn a_request_takes_no_lock_of_the_process_while_nobody_gives_requests_attributes() {
    let attributes = Attributes::default();
    let rules = [rule(config::Rids::All, json!({"tenant": "any"}))];
    let (of, journaled) = (of(&attributes, &rules), attributes.journaled("s"));
    attributes.set(ME, "a", object(json!({"tenant": "mine"}))).unwrap();
    assert_eq!(&*of("a", &[]).unwrap(), r#"{"tenant":"mine"}"#);
    attributes.forget("a").unwrap();
    // A look that takes the lock would not return.
    let _locked = attributes.lock();
    assert_eq!(&*of("a", &[]).unwrap(), r#"{"tenant":"any"}"#);
    assert_eq!(journaled("a", &[]), []);
}

#[test]
fn the_journal_gets_texts_numbers_and_booleans_and_the_model_that_nobody_sets() {
    let attributes = Attributes::default();
    let rules = [
        rule(config::Rids::All, json!({"tenant": "any", "tier": 2})),
        rule(config::Rids::Prefix("own-".into()), json!({"model": "mine"})),
    ];
    let journaled = attributes.journaled("s");
    let of = |rid: &str| {
        let mut of = journaled(rid, &[]);
        of.sort();
        of.into_iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
    };
    attributes.set_model("s", Some("qwen3"));
    assert_eq!(of("a"), "model=qwen3");
    attributes.follow(&config::Config::new(stream(config::Engine::Sglang, &rules), "/var/lib/afterbay"));
    assert_eq!(of("a"), "model=qwen3 tenant=any tier=2");
    let set = json!({"tenant": "acme", "vip": true, "grammar": {"regex": "a+"}, "none": null});
    attributes.set(ME, "own-1", object(set)).unwrap();
    assert_eq!(of("own-1"), "model=mine tenant=acme tier=2 vip=true");
}

#[test]
fn attributes_of_the_engine_are_below_those_of_rules_and_of_a_rid() {
    let attributes = Attributes::default();
    let of_engine = [("lora", "sql"), ("tier", "1")].map(|(name, value)| (name.into(), value.into()));
    let rules = [rule(config::Rids::Prefix("own-".into()), json!({"tier": 2}))];
    let get = |rid: &str, of_engine: &[(String, String)]| {
        let of = of(&attributes, &rules)(rid, of_engine)?;
        Some(serde_json::from_str::<Value>(&of).unwrap())
    };
    assert_eq!(get("own-1", &of_engine), Some(json!({"lora": "sql", "tier": 2})));
    assert_eq!(get("other", &[]), None);
    let mut journaled = attributes.journaled("s")("own-1", &of_engine);
    journaled.sort();
    assert_eq!(journaled, of_engine);
    attributes.set(ME, "own-1", object(json!({"lora": "mine"}))).unwrap();
    assert_eq!(get("own-1", &of_engine).unwrap()["lora"], "mine");
}

#[test]
fn a_stream_without_rules_knows_nothing_of_a_rid_that_nobody_has_set() {
    assert_eq!(of(&Attributes::default(), &[])("a", &[]), None);
}

#[test]
fn the_attributes_of_a_clients_id_reach_each_sample_of_its_request_and_name_it() {
    let attributes = Attributes::default();
    let vllm = attributes.of(&stream(config::Engine::Vllm, &[]));
    attributes.set(ME, "chatcmpl-gw-7", object(json!({"tenant": "a"}))).unwrap();
    assert!(attributes.get("chatcmpl-gw-7").unwrap().applied_to.is_empty());
    let samples = ["0_chatcmpl-gw-7-aaaabbbb", "1_chatcmpl-gw-7-aaaabbbb"];
    for rid in samples {
        assert_eq!(vllm(rid, &[]).as_deref(), Some(r#"{"tenant":"a"}"#));
        vllm(rid, &[]).unwrap();
    }
    assert_eq!(vllm("chatcmpl-gw-70-aaaabbbb", &[]), None);
    // Those of the rid are next to it.
    attributes.set(ME, samples[1], object(json!({"tenant": "b"}))).unwrap();
    assert_eq!(vllm(samples[1], &[]).as_deref(), Some(r#"{"tenant":"b"}"#));
    assert_eq!(attributes.get("chatcmpl-gw-7").unwrap().applied_to, samples);
    (0..20).for_each(|sample| _ = vllm(&format!("{sample}_chatcmpl-gw-7-ccccdddd"), &[]));
    assert_eq!(attributes.get("chatcmpl-gw-7").unwrap().applied_to.len(), NAMED_MAX);
}

#[test]
fn a_rule_looks_at_the_clients_id_and_a_named_group_of_its_pattern_is_an_attribute() {
    let pattern = |pattern: &str| config::Rids::Pattern(pattern.parse().unwrap());
    let rules = [
        rule(config::Rids::Prefix("chatcmpl-".into()), json!({"chat": true})),
        rule(pattern("^(?<tenant>[a-z]+)~(?<user>.+)?"), json!({"tier": 1})),
    ];
    let attributes = Attributes::default();
    let vllm = attributes.of(&stream(config::Engine::Vllm, &rules));
    let of = |rid| serde_json::from_str::<Value>(&vllm(rid, &[]).unwrap()).unwrap();
    let acme = json!({"chat": true, "tenant": "acme", "user": "7", "tier": 1});
    assert_eq!(of("chatcmpl-acme~7-1a2b3c4d"), acme);
    assert_eq!(of("3_chatcmpl-acme~7-1a2b3c4d"), acme);
    assert_eq!(of("cmpl-acme~-0-1a2b3c4d"), json!({"tenant": "acme", "tier": 1}));
    assert_eq!(of("chatcmpl-~acme~7-1a2b3c4d"), json!({"chat": true}));
    assert_eq!(vllm("cmpl-~acme~7-0-1a2b3c4d", &[]), None);
}

#[test]
fn attributes_that_no_request_gets_are_named_when_they_expire() {
    let attributes = Attributes::default();
    for id in ["claimed", "unclaimed", "young"] {
        attributes.set(ME, id, Map::new()).unwrap();
    }
    of(&attributes, &[])("claimed", &[]).unwrap();
    let expired = Instant::now().checked_sub(KEEP).unwrap();
    for id in ["claimed", "unclaimed"] {
        attributes.lock().by_id.get_mut(id).unwrap().set = expired;
    }
    assert_eq!(attributes.lock().expire(), ["unclaimed"]);
    assert_eq!(attributes.lock().by_id.keys().collect::<Vec<_>>(), ["young"]);
}

#[test]
fn what_is_too_large_is_refused_with_its_size_and_the_limit() {
    let attributes = Attributes::default();
    let fits = "x".repeat(BYTES_MAX - r#"{"a":""}"#.len());
    attributes.set(ME, "a", object(json!({"a": fits}))).unwrap();
    let error = attributes.set(ME, "b", object(json!({"a": format!("{fits}x")}))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the attributes of \"b\" have 16385 bytes as JSON, at most 16384 are allowed"
    );
    assert!(attributes.get("b").is_err());
    assert!(attributes.set(ME, "", Map::new()).unwrap_err().to_string().contains("empty"));
    assert!(
        attributes.set(ME, &"r".repeat(4097), Map::new()).unwrap_err().to_string().contains("4097 bytes")
    );
}

#[test]
fn attributes_go_over_to_the_next_process_with_their_age_and_their_callers_room() {
    let earlier = Attributes::default();
    earlier.set(ME, "waits", object(json!({"a": 1}))).unwrap();
    earlier.set(OTHER, "begun", object(json!({"b": {"c": [2]}}))).unwrap();
    of(&earlier, &[])("begun", &[]).unwrap();
    let expired = Instant::now().checked_sub(KEEP).unwrap();
    earlier.set(ME, "expired", Map::new()).unwrap();
    earlier.lock().by_id.get_mut("expired").unwrap().set = expired;
    let handed = serde_json::to_value(earlier.hand_over()).unwrap();
    let next = Attributes::default();
    next.take_over(serde_json::from_value(handed).unwrap());
    assert_eq!(next.get("waits").unwrap().attributes, object(json!({"a": 1})));
    assert_eq!(next.get("begun").unwrap().attributes, object(json!({"b": {"c": [2]}})));
    assert!(next.get("expired").is_err());
    let store = next.lock();
    let only_mine = HashMap::from([(ME, Usage { rids: 1, bytes: 7 })]);
    assert_eq!((store.all.rids, &store.callers), (2, &only_mine));
}

#[test]
fn handed_attributes_past_a_bound_are_left_out() {
    let handed = |rid: &str, bytes: usize| HandedEntry {
        rid: rid.to_owned(),
        attributes: object(json!({"a": "x".repeat(bytes)})),
        age_ms: 0,
        awaited_by: None,
        applied_to: Vec::new(),
    };
    let next = Attributes::default();
    let by_id = vec![handed("", 1), handed(&"r".repeat(4097), 1), handed("a", BYTES_MAX), handed("b", 1)];
    next.take_over(by_id);
    assert_eq!(next.lock().by_id.keys().collect::<Vec<_>>(), ["b"]);
}

/// Sets attributes for each of these requests, which then begin.
fn begun(attributes: &Attributes, rids: Range<usize>, set: &Map<String, Value>) {
    let begins = of(attributes, &[]);
    for rid in rids.map(|rid| rid.to_string()) {
        attributes.set(ME, &rid, set.clone()).unwrap();
        begins(&rid, &[]).unwrap();
    }
}

#[test]
fn one_rid_more_than_there_may_be_is_refused_and_one_that_is_known_is_not() {
    let attributes = Attributes::default();
    begun(&attributes, 0..RIDS_MAX, &Map::new());
    let refused = attributes.set(OTHER, "one more", Map::new()).unwrap_err().to_string();
    assert!(refused.starts_with("65536 rids have attributes of 131072 bytes"), "{refused}");
    attributes.set(ME, "7", object(json!({"a": 1}))).unwrap();
    attributes.forget("8").unwrap();
    attributes.set(ME, "one more", Map::new()).unwrap();
}

#[test]
fn all_attributes_together_are_bounded_too() {
    let attributes = Attributes::default();
    let large = object(json!({"a": "x".repeat(BYTES_MAX - 8)}));
    begun(&attributes, 0..ALL_BYTES_MAX / BYTES_MAX, &large);
    let refused = attributes.set(OTHER, "one more", large.clone()).unwrap_err();
    assert!(refused.code == "full" && !refused.why.contains("this caller"), "{refused}");
    attributes.set(ME, "0", large.clone()).unwrap();
    attributes.forget("0").unwrap();
    attributes.set(OTHER, "one more", large).unwrap();
}

#[test]
fn a_caller_that_floods_is_refused_at_half_of_the_room_and_the_others_are_not() {
    for (many, set) in
        [(RIDS_MAX, Map::new()), (ALL_BYTES_MAX / BYTES_MAX, object(json!({"a": "x".repeat(BYTES_MAX - 8)})))]
    {
        let attributes = Attributes::default();
        let set_by = |caller, rid: &str| attributes.set(caller, rid, set.clone());
        set_by(OTHER, "the other's").unwrap();
        for rid in 0..many / CALLER_PART {
            set_by(ME, &rid.to_string()).unwrap();
        }
        let refused = set_by(ME, "one more").unwrap_err();
        assert!(refused.code == "full" && refused.why.contains("this caller"), "{refused}");
        set_by(ME, "0").unwrap();
        set_by(OTHER, "one more").unwrap();
        assert!(attributes.get("the other's").is_ok(), "nothing is pushed out");
        // A request that begins makes room for the next one.
        of(&attributes, &[])("0", &[]).unwrap();
        set_by(ME, "another").unwrap();
        assert!(set_by(ME, "yet another").is_err());
        attributes.forget("1").unwrap();
        set_by(ME, "yet another").unwrap();
    }
}
