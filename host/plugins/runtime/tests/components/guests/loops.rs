//! Endless calls.

use std::time::{Duration, Instant};

use afterbay_runtime::{Call, Limits, StartError};

use super::*;

#[test]
fn an_endless_call_ends_at_its_deadline() {
    let component = host().load("loops", &guest("loops"), Limits::default()).unwrap();
    for call in ["open", "process", "close"] {
        let mut plugin = component.instantiate(&format!(r#"{{"in": "{call}"}}"#)).unwrap();
        let began = Instant::now();
        let fault = provoke(&mut plugin, call);
        assert_eq!(fault.cause, FaultCause::Deadline { limit: Duration::from_millis(2) });
        let place = "examples/loops.rs:4 in loops::Misbehaves::at";
        assert_eq!(fault.to_string(), format!("plugin \"loops\": {call} exceeded 2ms: {place}"));
        assert!(began.elapsed() < Duration::from_secs(60), "took {:?}", began.elapsed());
    }
}

#[test]
fn an_endless_configure_ends_at_the_deadline_for_starts() {
    let limits = Limits { start_deadline: Duration::from_millis(30), ..Limits::default() };
    let component = host().load("loops", &guest("loops"), limits).unwrap();
    let error = component.instantiate(r#"{"in": "configure"}"#).unwrap_err();
    let StartError::Fault(fault) = &error else { panic!("{error}") };
    let limit = Duration::from_millis(30);
    assert_eq!((fault.call, &fault.cause), (Call::Configure, &FaultCause::Deadline { limit }));
}

#[test]
fn endless_calls_on_one_thread_do_not_affect_another() {
    let looping = host().load("loops", &guest("loops"), Limits::default()).unwrap();
    let mut healthy = start("nothing", "{}");
    std::thread::scope(|scope| {
        let storm = scope.spawn(|| {
            for _ in 0..50 {
                let mut plugin = looping.instantiate(r#"{"in": "process"}"#).unwrap();
                assert_eq!(provoke(&mut plugin, "process").cause.kind().word(), "deadline");
            }
        });
        while !storm.is_finished() {
            assert_eq!(healthy.process(&batch_of(&[1, 2, 3])), Ok(vec![]));
        }
    });
}
