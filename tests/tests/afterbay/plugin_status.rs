//! The plugins' status in `/v1/plugins` and `afterbay plugins`.

use afterbay_tests::commands::run_afterbay;
use afterbay_tests::components::{example, guest, install};
use afterbay_tests::frames::{SynthRequest, batch, rows};
use afterbay_tests::{Afterbay, Reader, Sandbox, Sender};
use afterbay_wire::synth::SynthWire::Msgpack;
use serde_json::{Value, json};

#[test]
fn plugins_are_shown_with_component_state_cost_and_verdicts() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let component = sandbox.path("plugin.wasm");
    install(&example("stop-on-loop"), 0, &component);
    let config = sandbox.config().plugin("loops", &component, "window = 8");
    let config = config.plugin("bad", &guest("panics"), "in = \"process\"");
    let afterbay = Afterbay::run(&sandbox, &config.plugin_line("quarantine = { faults = 2 }"));
    let admin = afterbay.admin().to_string();
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let (mut looped, mut other) = (SynthRequest::new("looped"), SynthRequest::new("other"));
    for step in 0..3 {
        sender.send(&batch(Msgpack, vec![looped.row(&[7; 4]), other.row(&[step])]));
        reader.frame();
    }
    let asked = || afterbay.plugins()["plugins"].take();
    let plugins = asked();
    let [loops, bad] = &plugins.as_array().unwrap()[..] else { panic!("{plugins}") };
    assert_eq!((&loops["stream"], &loops["plugin"]), (&"test".into(), &"loops".into()), "{loops}");
    assert_eq!((&loops["state"], &loops["why"]), (&"live".into(), &Value::Null));
    assert_eq!(loops["source"], component.to_str().unwrap());
    assert_eq!((&loops["component"], &loops["version"]), (&"stop-on-loop".into(), &"0.1.0".into()));
    assert_eq!(loops["digest"].as_str().unwrap().len(), 64);
    // The looped request has ended for its reader, so no plugin sees its third row.
    assert_eq!((&loops["rows"], &loops["verdicts"]), (&5.into(), &json!({"finish": 1})), "{loops}");
    assert_eq!((&loops["requests_open"], &loops["faults"]), (&1.into(), &json!({})), "{loops}");
    assert!(loops["ns_per_row"].as_f64().unwrap() > 0.0 && loops["memory_bytes"].as_u64().unwrap() > 0);
    assert_eq!((&loops["last_reload"], &loops["on_fault"]), (&Value::Null, &"bypass".into()));
    assert_eq!((&bad["state"], &bad["faults"]), (&"quarantined".into(), &json!({"trap": 2})), "{bad}");
    assert!(bad["why"].as_str().unwrap().contains("quarantined after 2 faults"), "{bad}");

    // On a pipe the table has tabs and no colour.
    let shown = run_afterbay(&["plugins", "--admin", &admin]);
    assert_eq!(shown.code, 1, "a plugin that is not live exits 1: {shown:?}");
    let lines: Vec<Vec<&str>> = shown.stdout.lines().map(|line| line.split('\t').collect()).collect();
    assert_eq!(
        lines[0][..6],
        ["STREAM", "PLUGIN", "COMPONENT", "VERSION", "DIGEST", "STATE"],
        "{}",
        shown.stdout
    );
    assert_eq!(lines[1][..4], ["test", "loops", "stop-on-loop", "0.1.0"]);
    assert_eq!((lines[1][5], lines[1][10], lines[1][12]), ("live", "finish 1", "-"), "{}", shown.stdout);
    assert_eq!((lines[2][5], lines[2][11]), ("quarantined", "trap 2"), "{}", shown.stdout);
    assert!(!shown.stdout.contains('\u{1b}'), "{}", shown.stdout);

    // An invalid component, then a valid one.
    sandbox.replace("plugin.wasm", "half a comp");
    afterbay.event("PluginReloadFailed");
    let refused = &asked()[0]["last_reload"]["refused"];
    assert!(refused.as_str().unwrap().contains("do not begin as webassembly does"), "{refused}");
    install(&example("stop-on-loop"), 1, &component);
    afterbay.event("PluginReloaded");
    let plugins = asked();
    assert_eq!(plugins[0]["last_reload"]["refused"], Value::Null);
    assert_ne!(plugins[0]["digest"], loops["digest"]);
    // The history has both, the newest first.
    let reloads = plugins[0]["reloads"].as_array().unwrap();
    let shown: Vec<_> =
        reloads.iter().map(|it| (&it["from_digest"], &it["to_digest"], &it["version"])).collect();
    let (old, new, version) = (&loops["digest"], &plugins[0]["digest"], "0.1.0".into());
    assert_eq!(shown, [(old, new, &version), (old, &Value::Null, &Value::Null)], "{reloads:?}");
    assert_eq!(reloads[0]["refused"], Value::Null);
    assert!(reloads[1]["refused"].as_str().unwrap().contains("do not begin as webassembly does"));
    assert!(reloads[0]["time"].as_str() > reloads[1]["time"].as_str(), "{reloads:?}");
    assert_eq!(plugins[0]["differences"], json!([]));

    let reinstate = |name: &str, args: &[&str]| {
        run_afterbay(&[&["plugins", "reinstate", name, "--admin", &admin], args].concat())
    };
    assert_eq!(reinstate("bad", &[]).success(), "bad: reinstated, stream test\n");
    let shown = run_afterbay(&["plugins", "--json", "--admin", &admin]).success();
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["plugins"][1]["state"], "live", "{shown}");
    for (name, args, why) in [
        ("bad", &[][..], "plugin \"bad\" is not quarantined"),
        ("worse", &[], "there is no plugin \"worse\""),
        ("bad", &["--stream", "other"], "there is no plugin \"bad\" of stream \"other\""),
    ] {
        let refused = reinstate(name, args);
        assert_eq!((refused.code, refused.stderr), (1, format!("afterbay: {why}\n")));
    }
    sender.send(&batch(Msgpack, vec![other.last(&[4])]));
    assert_eq!(rows(&reader.frame()).len(), 1);
    assert_eq!(afterbay.stop(), 0);
}
