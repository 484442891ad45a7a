//! The table of leases, without streams and schedulers.

use super::*;
use afterbay_config::Stream;
use afterbay_events::{Health, Recorder};

const SECOND: Duration = Duration::from_secs(1);

struct Made {
    leases: Leases,
    recorder: Recorder,
    metrics: Metrics,
    send: LeaseSender,
}

/// Leases of at most 10 minutes, with room for `max_count`, and a stream whose rule gives requests "short-…" another lease.
fn leases(max_count: usize) -> Made {
    let (events, recorder) = Events::recorded();
    let metrics = Metrics::new(events.clone(), Health::default());
    let attributes = Attributes::default();
    let endpoint = |name: &str| format!("ipc:///run/{name}").parse().unwrap();
    let mut stream = Stream::new("s".parse().unwrap(), endpoint("in"), endpoint("out"));
    let Ok(serde_json::Value::Object(set)) = serde_json::from_str(r#"{"lease": "2s"}"#) else { panic!() };
    let rids = config::Rids::Prefix("short-".to_owned());
    stream.attributes = vec![config::AttributeRule { rids, set }];
    attributes.follow(&config::Config::new(stream.clone(), "/var/lib/afterbay"));
    let leases = Leases::new(&attributes, &events, &metrics);
    leases.set_bounds(config::Leases { max_time: 600 * SECOND, max_count });
    let send = leases.sender(&stream);
    Made { leases, recorder, metrics, send }
}

impl Made {
    fn leave(&self, rid: &str, number: u64, lease: &str) {
        let of_engine =
            [("lease", lease), ("client_left", "7")].map(|(name, value)| (name.into(), value.into()));
        (self.send)(LeaseChange::Begun { rid, number, of_engine: &of_engine });
    }

    /// The rids of the leases that are over in this time.
    fn over_in(&self, time: Duration) -> Vec<String> {
        let due = lock(&self.leases.0.table).take_due(Instant::now() + time);
        let mut rids: Vec<String> = due.into_iter().map(|(_, rid)| rid).collect();
        rids.sort();
        rids
    }

    /// Live, begun, renewed and refused leases.
    fn counts(&self) -> [u64; 4] {
        let counters = self.metrics.leases("s");
        [counters.live.get(), counters.begun.get(), counters.renewed.get(), counters.refused.get()]
    }
}

#[test]
fn a_lease_is_over_after_its_time_and_a_request_that_ends_has_none() {
    let made = leases(8);
    made.leave("a", 1, "60s");
    made.leave("b", 2, "60s");
    made.leave("short-c", 3, "60s");
    made.leave("long", 4, "5h");
    made.leave("none", 5, "soon");
    assert_eq!(made.over_in(Duration::ZERO), ["none"]);
    (made.send)(LeaseChange::Ended(2));
    assert_eq!(made.over_in(50 * SECOND), ["short-c"], "a rule overrides the engine");
    assert_eq!(made.over_in(65 * SECOND), ["a"]);
    assert_eq!(made.over_in(601 * SECOND), ["long"], "cut to leases.max_time");
    assert_eq!(made.over_in(9_999 * SECOND).len(), 0, "the scheduler is asked once");
    assert_eq!(made.counts(), [4, 5, 0, 0]);
}

#[test]
fn a_renewed_lease_runs_its_whole_time_again() {
    let made = leases(8);
    made.leave("a", 1, "60s");
    {
        let mut table = lock(&made.leases.0.table);
        table.running.values_mut().for_each(|lease| lease.ends = Some(Instant::now() + SECOND));
    }
    let [renewed] = &made.leases.renew("a").unwrap()[..] else { panic!("one lease") };
    assert_eq!((&*renewed.rid, &*renewed.stream, renewed.ends_in_s), ("a", "s", 60.0));
    assert_eq!(made.over_in(55 * SECOND).len(), 0);
    let why = made.leases.renew("b").unwrap_err().to_string();
    assert!(why.starts_with("no lease runs for \"b\": its client has not left"), "{why}");
    assert_eq!(made.over_in(60 * SECOND), ["a"]);
    assert!(made.leases.renew("a").is_err(), "the scheduler is being asked to end it");
    assert_eq!(made.counts(), [1, 1, 1, 0]);
}

#[test]
fn a_request_past_the_bound_is_ended_at_once_with_an_event() {
    let made = leases(2);
    made.leave("a", 1, "60s");
    made.leave("b", 2, "60s");
    made.leave("c", 3, "60s");
    made.leave("a", 1, "60s");
    assert_eq!(made.over_in(Duration::ZERO), ["c"]);
    assert_eq!(made.counts(), [3, 3, 0, 1]);
    let [refused] = &made.recorder.of::<LeaseRefused>()[..] else { panic!("one event") };
    assert_eq!(refused.why, "2 leases run, at most 2 may (leases.max_count)");
    made.leases.set_bounds(config::Leases::default());
    made.leave("d", 4, "60s");
    assert_eq!(made.over_in(Duration::ZERO), ["d"], "there are no leases");
}

#[test]
fn a_scheduler_that_could_not_be_asked_is_asked_again() {
    let made = leases(8);
    made.leave("a", 1, "60s");
    made.leave("b", 2, "60s");
    assert_eq!(made.over_in(60 * SECOND), ["a", "b"]);
    let key = |number| (Arc::from("s"), number);
    let now = Instant::now();
    lock(&made.leases.0.table).asked(&key(1), false, now);
    lock(&made.leases.0.table).asked(&key(2), true, now);
    assert_eq!(made.over_in(RETRY_AFTER - SECOND).len(), 0);
    assert_eq!(made.over_in(RETRY_AFTER), ["a"]);
    made.leases.remove("s");
    assert_eq!(made.counts(), [0, 2, 0, 0]);
}
