//! The example plugin of a user, in `examples/`, in the real runtime.

use afterbay_runtime::{Action, Columns, Ending, FinishReason, Opened, Verdict};

use crate::{build, file_name, host, limits};

fn component() -> afterbay_runtime::Component {
    let bytes = std::fs::read(build("examples").join(file_name("stop-on-loop"))).unwrap();
    host().load("guard", &bytes, limits()).unwrap()
}

#[test]
fn stop_on_loop_finishes_the_request_that_loops_and_no_other() {
    let mut plugin = component().instantiate(r#"{"window": 8, "repeats": 4}"#).unwrap();
    let opened = |request| Opened {
        request,
        rid: "r",
        front_end: "",
        sink: "",
        arrived_ms: 0,
        prompt_tokens: 0,
        received_tokens: 0,
        resumed: false,
    };
    plugin.open(&[opened(1), opened(2)]).unwrap();
    for step in 0..8 {
        let columns = Columns {
            requests: &[1, 2],
            output_ids: &[step * step, 40 + step % 2],
            output_ends: &[1, 2],
            ..Columns::default()
        };
        let verdicts = plugin.process(&columns).unwrap();
        let ending = Ending { reason: FinishReason::Stop("stop-on-loop".into()), replacement: None };
        let expected = match step {
            7 => vec![Verdict { row: 1, action: Action::Finish(ending) }],
            _ => vec![],
        };
        assert_eq!(verdicts, expected, "step {step}");
    }
    plugin.close(&[2, 1]).unwrap();
    let lines = plugin.drain_log();
    assert_eq!((lines.len(), lines[0].request), (1, Some(2)), "{lines:?}");
}

#[test]
fn stop_on_loop_describes_its_settings_and_refuses_wrong_ones() {
    let component = component();
    let schema = component.description().settings_schema.as_ref().unwrap();
    assert_eq!(schema["properties"]["window"]["default"], 64);
    assert_eq!(
        component.instantiate(r#"{"repeats": 1}"#).unwrap_err().to_string(),
        "plugin \"guard\": refuses its settings: /repeats: is 1, must be 2 or more"
    );
}
