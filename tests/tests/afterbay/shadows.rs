//! Shadow plugins: they see live traffic, and their verdicts are counted and compared but not applied.

use afterbay_tests::admin::{self, Address, JSON};
use afterbay_tests::commands::run_afterbay;
use afterbay_tests::components::guest;
use afterbay_tests::frames::{SynthRequest, batch, rows};
use afterbay_tests::{Afterbay, Reader, Sandbox, Sender, load};
use afterbay_wire::synth::SynthWire::Msgpack;
use serde_json::Value;

#[test]
fn a_shadows_verdicts_are_counted_and_change_no_byte_even_if_it_faults() {
    for (guest_name, settings, faults) in
        [("judges", "action = \"drop\"", false), ("panics", "in = \"process\"", true)]
    {
        let sandbox = Sandbox::new();
        let mut reader = Reader::bind(&sandbox.reader_side());
        let config = sandbox.config().plugin("candidate", &guest(guest_name), settings);
        let afterbay =
            Afterbay::run(&sandbox, &config.plugin_line("mode = \"shadow\"\nquarantine = { faults = 0 }"));
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        let frames = load(3, 4, Msgpack);
        let mut shown = 0;
        for frame in &frames {
            sender.send(&frame.bytes);
            assert_eq!(reader.frame(), frame.bytes, "{guest_name}");
            shown += rows(&frame.bytes).len() as u64;
        }
        let all = frames.len() as u64;
        let metrics =
            afterbay.until_metrics("every frame is taken", |metrics| metrics.sink("taken_frame") == all);
        let compared = metrics.plugin_by("candidate", "rows_compared_total", "result", "only_shadow");
        let trapped = metrics.plugin_by("candidate", "faults_total", "kind", "trap");
        assert_eq!((compared, trapped), if faults { (0, all) } else { (shown, 0) }, "{guest_name}");
        assert_eq!(metrics.stream("tokens_dropped_total"), 0);
        if !faults {
            let differs = afterbay.event("ShadowDiffers");
            let verdicts = (&differs["live"], &differs["shadow"]);
            assert_eq!(verdicts, (&"nothing".into(), &"drop \"dropped by judges\"".into()));
        }
        assert_eq!(afterbay.stop(), 0);
    }
}

#[test]
fn a_shadow_is_compared_with_its_plugin_row_by_row_and_replaces_it_when_promoted() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let judges = guest("judges");
    let config = sandbox
        .config()
        .plugin("live", &judges, "action = \"annotate\"")
        .plugin("alike", &judges, "action = \"annotate\"")
        .plugin_line("mode = \"shadow\"\nshadow_of = \"live\"")
        .plugin("other", &judges, "action = \"drop\"")
        .plugin_line("mode = \"shadow\"\nshadow_of = \"live\"")
        .plugin("echoes", &judges, "action = \"echo\"")
        .plugin_line("mode = \"shadow\"\nshadow_of = \"live\"");
    let afterbay = Afterbay::run(&sandbox, &config);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let mut request = SynthRequest::new("a");
    for _ in 0..3 {
        let frame = batch(Msgpack, vec![request.row(&[1])]);
        sender.send(&frame);
        assert_eq!(reader.frame(), frame);
    }
    let differs = afterbay.event_where("ShadowDiffers", |event| event["plugin"] == "echoes");
    assert_eq!(differs["shadow"], "replace by 1 ids", "ids are for the level debug: {differs}");
    let metrics = afterbay.until_metrics("every frame is taken", |metrics| metrics.sink("taken_frame") == 3);
    assert_eq!(metrics.plugin_by("alike", "rows_compared_total", "result", "same"), 3);
    assert_eq!(metrics.plugin_by("other", "rows_compared_total", "result", "other"), 3);
    let listed = afterbay.plugins();
    let differences = listed["plugins"][2]["differences"].as_array().unwrap();
    let frames: Vec<_> = differences.iter().map(|it| it["frame"].as_u64().unwrap()).collect();
    assert_eq!(frames, [3, 2, 1], "the newest first: {listed}");
    let row = ["rid", "live", "shadow"].map(|key| differences[0][key].as_str().unwrap());
    assert_eq!(row, ["a", "annotate \"seen by judges\"", "drop \"dropped by judges\""], "{listed}");
    assert_eq!(listed["plugins"][1]["differences"].as_array().unwrap().len(), 0, "{listed}");
    assert!(!listed["plugins"][3]["differences"].to_string().contains("[1]"), "no ids: {listed}");
    let states = [0, 1, 2].map(|at| listed["plugins"][at]["state"].as_str());
    assert_eq!(states, ["live", "shadow", "shadow"].map(Some), "{listed}");
    let shown = run_afterbay(&["plugins", "--admin", &afterbay.admin().to_string()]);
    assert_eq!(shown.code, 0, "nothing is wrong with a shadow: {shown:?}");

    let promote = |plugin: &str| afterbay.post(&format!("/v1/plugins/{plugin}/promote"), &[JSON], "{}");
    let promoted = promote("other");
    assert_eq!(promoted.status, 200, "{}", promoted.body);
    assert_eq!(afterbay.event("PluginPromoted")["of"], "plugin \"live\" has left the chain");
    // The last row of the request is still sent, without tokens.
    sender.send(&batch(Msgpack, vec![request.row(&[2])]));
    sender.send(&batch(Msgpack, vec![request.last(&[3])]));
    let last = rows(&reader.frame());
    assert_eq!((last[0].ids.len(), last[0].finish.as_deref()), (0, Some("length")), "{last:?}");
    let metrics = afterbay.until_metrics("every frame is taken", |metrics| metrics.sink("taken_frame") == 5);
    assert_eq!(metrics.plugin("live", "batch_seconds_count"), 3);

    assert_eq!(promote("other").status, 409, "it is live");
    assert_eq!(promote("live").status, 404, "the subscriber is gone");
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn the_rows_on_which_a_shadow_differs_are_shown_over_tcp_only_with_the_token() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path("token"), "s3cret\n").unwrap();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let judges = guest("judges");
    let config = sandbox
        .config()
        .admin("token_file = \"token\"")
        .plugin("live", &judges, "action = \"annotate\"")
        .plugin("next", &judges, "action = \"drop\"")
        .plugin_line("mode = \"shadow\"\nshadow_of = \"live\"");
    let afterbay = Afterbay::run(&sandbox, &config);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let frame = batch(Msgpack, vec![SynthRequest::new("private-rid").row(&[1])]);
    sender.send(&frame);
    assert_eq!(reader.frame(), frame);
    afterbay.event("ShadowDiffers");
    let asked = |address: &Address, path: &str, headers: &[&str]| -> Value {
        let answer = admin::ask(address, &format!("GET {path}"), headers, "");
        assert_eq!(answer.status, 200, "{}", answer.body);
        serde_json::from_str(&answer.body).unwrap()
    };
    let tcp = afterbay.tcp();
    for (address, headers) in [(&tcp, &["Authorization: Bearer s3cret"][..]), (afterbay.admin(), &[])] {
        let listed = asked(address, "/v1/plugins", headers);
        assert_eq!(listed["plugins"][1]["differences"][0]["rid"], "private-rid", "{listed}");
        assert_eq!(listed["differences_refused"], Value::Null, "{listed}");
    }
    for (headers, why) in [
        (&[][..], "this call needs the token of admin.token_file"),
        (&["Authorization: Bearer other"], "the token is not that of admin.token_file"),
    ] {
        let listed = asked(&tcp, "/v1/plugins", headers);
        assert_eq!(listed["plugins"][1]["differences"], Value::Null, "{listed}");
        assert!(listed["differences_refused"].as_str().unwrap().starts_with(why), "{listed}");
        assert!(!listed.to_string().contains("private-rid"), "{listed}");
    }
    let status = asked(&tcp, "/v1/status", &[]);
    assert_eq!(status["plugins"][1]["plugin"], "next", "{status}");
    assert!(!status.to_string().contains("private-rid"), "{status}");
    assert_eq!(afterbay.stop(), 0);
}
