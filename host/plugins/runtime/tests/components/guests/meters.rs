//! A plugin's own metrics.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use afterbay_runtime::{Grants, Labels, Limits, Meter, MeterError, Terms};

use super::*;

const SETTINGS: &str = r#"{"counter": "rows", "gauge": "last_rows", "histogram": "cost_seconds"}"#;

#[derive(Default)]
struct Recorder(Mutex<Vec<String>>);

impl Recorder {
    fn note(&self, text: String) -> Result<(), MeterError> {
        self.0.lock().unwrap().push(text);
        Ok(())
    }
}

fn shown(labels: Labels<'_>) -> String {
    if labels.is_empty() { String::new() } else { format!("{labels:?}") }
}

impl Meter for Recorder {
    fn add(&self, name: &str, labels: Labels<'_>, delta: u64) -> Result<(), MeterError> {
        self.note(format!("{name}{} + {delta}", shown(labels)))
    }

    fn set(&self, name: &str, labels: Labels<'_>, value: f64) -> Result<(), MeterError> {
        self.note(format!("{name}{} = {value}", shown(labels)))
    }

    fn remove(&self, name: &str, labels: Labels<'_>) {
        _ = self.note(format!("{name}{} removed", shown(labels)));
    }

    fn observe(&self, name: &str, labels: Labels<'_>, value: f64) -> Result<(), MeterError> {
        match value.is_finite() {
            true => self.note(format!("{name}{} saw {value}", shown(labels))),
            false => Err(MeterError::NotFinite { value }),
        }
    }
}

fn started(settings: &str) -> (Arc<Recorder>, Plugin) {
    let recorder = Arc::new(Recorder::default());
    let grants = Grants { metrics: Some(recorder.clone()), ..Grants::default() };
    let component = host().load("meters", &guest("meters"), granted(grants)).unwrap();
    (recorder, component.instantiate(settings).unwrap())
}

#[test]
fn a_plugins_metrics_reach_the_meter() {
    let (recorder, mut plugin) = started(SETTINGS);
    plugin.process(&batch_of(&[4, 9])).unwrap();
    assert_eq!(*recorder.0.lock().unwrap(), ["rows + 2", "last_rows = 2", "cost_seconds saw 0.003"]);
    assert!(!plugin.has_log());
}

#[test]
fn an_invalid_name_is_logged_once_and_not_counted() {
    let (recorder, mut plugin) = started(&SETTINGS.replace("\"rows\"", "\"Rows!\""));
    plugin.process(&batch_of(&[4])).unwrap();
    plugin.process(&batch_of(&[4])).unwrap();
    let lines: Vec<String> = plugin.drain_log().into_iter().map(|line| line.message).collect();
    assert_eq!(lines, ["metric \"Rows!\" is not counted: its name has 'R', only a-z, 0-9 and _ are allowed"]);
    assert_eq!(recorder.0.lock().unwrap().len(), 4);
}

#[test]
fn a_component_with_an_import_that_is_not_granted_is_refused_by_name() {
    let error = host().load("mine", &guest("meters"), limits()).unwrap_err().to_string();
    assert_eq!(error, "plugin \"mine\": wants metrics, which it is not granted: add it to grant");
    let nothing = Grants { log: false, ..Grants::default() };
    let error = host().load("mine", &guest("logs"), granted(nothing)).unwrap_err().to_string();
    assert_eq!(error, "plugin \"mine\": wants log, which it is not granted: add it to grant");
}

#[test]
fn a_call_that_names_a_metric_in_thirty_megabytes_ends_at_its_deadline() {
    let (recorder, deadline) = (Arc::new(Recorder::default()), Duration::from_millis(15));
    let grants = Grants { metrics: Some(recorder.clone()), ..Grants::default() };
    let terms =
        Terms { limits: Limits { deadline, ..Limits::default() }, grants, digest: None, allowed: None };
    let component = host().load("meters", &guest("meters"), terms).unwrap();
    let settings = SETTINGS.replace('}', r#", "times": 7500000}"#);
    let fault = component.instantiate(&settings).unwrap().process(&batch_of(&[4])).unwrap_err();
    assert_eq!(fault.cause, FaultCause::Deadline { limit: deadline });
    assert_eq!(recorder.0.lock().unwrap().len(), 0);
}

#[test]
fn a_metric_name_that_is_too_long_is_logged_with_its_whole_length() {
    let (recorder, mut plugin) = started(&SETTINGS.replace('}', r#", "times": 25}"#));
    plugin.process(&batch_of(&[4])).unwrap();
    let line = &plugin.drain_log()[0].message;
    assert!(line.ends_with("is not counted: its name has 100 bytes, from 1 to 64 are allowed"), "{line}");
    assert_eq!(recorder.0.lock().unwrap().len(), 2);
}

#[test]
fn a_value_that_is_not_a_number_is_logged_once() {
    for value in ["NaN", "inf", "-inf"] {
        let (recorder, mut plugin) =
            started(&SETTINGS.replace('}', &format!(r#", "observed": "{value}"}}"#)));
        plugin.process(&batch_of(&[4])).unwrap();
        plugin.process(&batch_of(&[4])).unwrap();
        let lines: Vec<String> = plugin.drain_log().into_iter().map(|line| line.message).collect();
        let told = format!(
            "metric \"cost_seconds\" is not counted: its value is {value}, a histogram takes finite numbers only"
        );
        assert_eq!(lines, [told]);
        assert_eq!(recorder.0.lock().unwrap().len(), 4);
    }
}
