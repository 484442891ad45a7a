//! The commands `afterbay journal …` beside a running Afterbay and after its end.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use afterbay_tests::commands::{afterbay_command, journal, json_lines, run_afterbay, run_command, verify};
use afterbay_tests::frames::{SynthRequest, batch, rows};
use afterbay_tests::{Afterbay, Reader, Sandbox, Sender, until};
use afterbay_wire::RequestRecord;
use afterbay_wire::synth::SynthWire::{Msgpack, Pickle};
use serde_json::{Value, json};

/// A running Afterbay with three requests: `chat-done` has ended, `chat-live` and `other-live` are live.
struct Scene {
    sandbox: Sandbox,
    reader: Reader,
    sender: Sender,
    afterbay: Afterbay,
    requests: [SynthRequest; 3],
    frames: Vec<Vec<u8>>,
}

impl Scene {
    fn set() -> Scene {
        let sandbox = Sandbox::new();
        let reader = Reader::bind(&sandbox.reader_side());
        let afterbay = Afterbay::run(&sandbox, &sandbox.config());
        let sender = Sender::connect(&sandbox.scheduler_side());
        let requests = ["chat-done", "chat-live", "other-live"].map(SynthRequest::new);
        let mut scene = Scene { sandbox, reader, sender, afterbay, requests, frames: Vec::new() };
        scene.step(|[done, live, other]| vec![done.row(&[1, 2]), live.row(&[10]), other.row(&[20])]);
        scene.step(|[done, live, _]| vec![done.row(&[3]), live.row(&[11, 12])]);
        scene.step(|[done, _, other]| vec![other.row(&[21]), done.last(&[4])]);
        scene
    }

    /// Sends a batch, receives it, and waits for its outcome in the journal.
    fn step(&mut self, rows: impl FnOnce(&mut [SynthRequest; 3]) -> Vec<afterbay_wire::synth::SynthRow>) {
        let wire = if self.frames.len().is_multiple_of(2) { Msgpack } else { Pickle };
        let frame = batch(wire, rows(&mut self.requests)).to_vec();
        self.sender.send(&frame);
        assert_eq!(self.reader.frame(), frame);
        self.frames.push(frame);
        let count = self.frames.len();
        until("the journal has its outcome", || {
            journal(&self.sandbox, &["tail", "-n", "1", "--json"])
                .json_lines()
                .iter()
                .any(|row| row["frame"] == count)
        });
    }

    fn ask(&self, args: &[&str]) -> String {
        journal(&self.sandbox, args).success()
    }
}

fn rids(lines: &[Value]) -> Vec<&str> {
    lines.iter().map(|line| line["rid"].as_str().unwrap()).collect()
}

#[test]
fn ls_lists_and_filters_requests_of_a_running_stream() {
    let scene = Scene::set();
    let all = json_lines(&scene.ask(&["ls", "--json"]));
    assert_eq!(rids(&all), ["chat-done", "chat-live", "other-live"]);
    let done = &all[0];
    for (name, expected) in [
        ("state", Value::from("finished")),
        ("rows", 3.into()),
        ("tokens_received", 4.into()),
        ("tokens_forwarded", 4.into()),
        ("completion_tokens", 4.into()),
        ("finish_reason", "length".into()),
        ("first_frame", 1.into()),
        ("last_frame", 3.into()),
    ] {
        assert_eq!(done[name], expected, "{name}: {done}");
    }
    let filtered = |args: &[&str]| {
        let lines = json_lines(&scene.ask(&[&["ls", "--json"], args].concat()));
        rids(&lines).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(filtered(&["--state", "live"]), ["chat-live", "other-live"]);
    assert_eq!(filtered(&["--state", "finished"]), ["chat-done"]);
    assert_eq!(filtered(&["--rid", "chat-"]), ["chat-done", "chat-live"]);
    assert_eq!(filtered(&["--last", "1"]), ["other-live"]);
    assert_eq!(filtered(&["--since", "10m"]).len(), 3);
    assert_eq!(filtered(&["--until", "10m"]).len(), 0);
    assert_eq!(filtered(&["--since", "2100-01-01T00:00:00Z"]).len(), 0);
    assert_eq!(filtered(&["--stream", "test"]).len(), 3);
    let table = scene.ask(&["ls"]);
    let heads = table.lines().next().unwrap();
    assert!(heads.starts_with("RID") && heads.contains("TOKENS"), "{table}");
    assert_eq!(table.lines().count(), 4, "{table}");
    let unknown = journal(&scene.sandbox, &["ls", "--stream", "tset"]);
    assert_eq!(unknown.code, 1);
    assert!(unknown.stderr.contains("\"tset\"") && unknown.stderr.contains("\"test\""), "{}", unknown.stderr);
    assert_eq!(scene.afterbay.stop(), 0);
}

#[test]
fn show_prints_a_request_row_by_row() {
    let scene = Scene::set();
    let [life] = json_lines(&scene.ask(&["show", "chat-done", "--json"])).try_into().unwrap();
    let rows = life["rows_seen"].as_array().unwrap();
    let seen: Vec<_> =
        rows.iter().map(|row| (row["frame"].as_u64().unwrap(), row["ids"].to_string())).collect();
    assert_eq!(seen, [(1, "[1,2]".to_owned()), (2, "[3]".to_owned()), (3, "[4]".to_owned())]);
    assert!(rows.iter().all(|row| row["passage"] == "unchanged" && row["gap"].is_null()), "{life}");
    assert_eq!(rows[2]["finish_reason"], "length");
    assert_eq!(rows[0]["taken_by"][0], "reader", "{life}");
    let table = scene.ask(&["show", "chat-done"]);
    for words in ["chat-done", "finished", "the scheduler counted 4", "sent unchanged", "finish: length"] {
        assert!(table.contains(words), "{words} is not in\n{table}");
    }
    // A prefix of a rid is enough if it is unique.
    assert!(scene.ask(&["show", "oth"]).contains("other-live"));
    let several = journal(&scene.sandbox, &["show", "chat-"]);
    assert_eq!(several.code, 1);
    assert!(
        several.stderr.contains("chat-done") && several.stderr.contains("chat-live"),
        "{}",
        several.stderr
    );
    let none = journal(&scene.sandbox, &["show", "nobody"]);
    assert_eq!(none.code, 1);
    assert!(none.stderr.contains("\"nobody\""), "{}", none.stderr);
    assert_eq!(scene.afterbay.stop(), 0);
}

#[test]
fn tail_prints_the_last_rows_and_follows_new_ones() {
    let mut scene = Scene::set();
    let last = json_lines(&scene.ask(&["tail", "-n", "2", "--json"]));
    assert_eq!(rids(&last), ["chat-done", "chat-live", "other-live", "chat-done"]);
    let only = json_lines(&scene.ask(&["tail", "--rid", "chat-l", "--json"]));
    assert_eq!(rids(&only), ["chat-live", "chat-live"]);
    assert!(scene.ask(&["tail"]).lines().last().unwrap().contains("finish: length"));

    let dir = scene.sandbox.journal();
    let mut follows = afterbay_command(&["journal", "tail", "-f", "-n", "0", "--json", "--from"])
        .arg(&dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(follows.stdout.take().unwrap()).lines();
    // The command follows from the journal's end at its start.
    std::thread::sleep(std::time::Duration::from_millis(300));
    for ids in 30..33 {
        scene.step(|[_, live, _]| vec![live.row(&[ids])]);
        let line: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert_eq!(
            (&line["rid"], &line["frame"]),
            (&"chat-live".into(), &(scene.frames.len()).into()),
            "{line}"
        );
    }
    follows.kill().unwrap();
    follows.wait().unwrap();
    assert_eq!(scene.afterbay.stop(), 0);
}

#[test]
fn export_writes_decoded_fields_or_the_received_bytes() {
    let scene = Scene::set();
    let all = json_lines(&scene.ask(&["export"]));
    assert_eq!(all.len(), 3);
    assert!(all[0]["wire"].as_str().unwrap().contains("msgpack"), "{}", all[0]);
    assert!(all[1]["wire"].as_str().unwrap().contains("pickle"), "{}", all[1]);
    assert_eq!(all[0]["message"]["rids"], serde_json::json!(["chat-done", "chat-live", "other-live"]));
    let one = json_lines(&scene.ask(&["export", "--rid", "chat-live"]));
    assert_eq!(one.len(), 2);
    assert!(one.iter().all(|line| line["message"]["rids"] == serde_json::json!(["chat-live"])), "{one:?}");
    assert_eq!(one[1]["message"]["output_ids"][0]["v"], serde_json::json!([11, 12]), "{}", one[1]);
    assert_eq!(scene.ask(&["export", "--until", "1h"]), "");

    let raw = scene.sandbox.path("raw");
    scene.ask(&["export", "--raw", raw.to_str().unwrap(), "--rid", "chat-done"]);
    let mut files: Vec<_> = std::fs::read_dir(&raw).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let bytes: Vec<_> = files.iter().map(|file| std::fs::read(file).unwrap()).collect();
    assert_eq!(bytes, scene.frames);
    assert_eq!(scene.afterbay.stop(), 0);
}

#[test]
fn verify_accepts_a_journal_under_write_and_finds_a_flipped_bit() {
    let mut scene = Scene::set();
    let (code, report) = verify(&scene.sandbox);
    assert_eq!((code, &report["clean"], &report["frames"]), (0, &true.into(), &3.into()), "{report}");
    assert!(scene.ask(&["verify"]).contains("test: clean: "));
    scene.step(|[_, live, other]| vec![live.last(&[13]), other.last(&[22])]);
    let Scene { sandbox, afterbay, frames, .. } = scene;
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&sandbox).0, 0);
    let segment =
        std::fs::read_dir(sandbox.journal().join("test")).unwrap().map(|entry| entry.unwrap().path());
    let flipped = segment.filter(|path| path.is_file()).find(|path| {
        let mut bytes = std::fs::read(path).unwrap();
        let found = bytes.windows(frames[1].len()).position(|window| window == frames[1]);
        if let Some(at) = found {
            bytes[at + 40] ^= 1;
            std::fs::write(path, bytes).unwrap();
        }
        found.is_some()
    });
    assert!(flipped.is_some());
    let (code, report) = verify(&sandbox);
    assert_eq!((code, &report["clean"]), (1, &false.into()));
    let problems = report["problems"].to_string();
    assert!(problems.contains("corrupt") && problems.contains("2"), "{problems}");
    let plain = journal(&sandbox, &["verify"]);
    assert_eq!(plain.code, 1);
    assert!(plain.stdout.contains("corrupt") && plain.stdout.contains("problem"), "{}", plain.stdout);
    // The undamaged rest can be read.
    assert_eq!(rids(&journal(&sandbox, &["ls", "--json"]).json_lines()).len(), 3);
}

#[test]
fn replay_sends_one_request_or_every_frame_to_a_reader() {
    let scene = Scene::set();
    let to = scene.sandbox.ipc("replay");
    let mut reader = Reader::bind(&to);
    let reads = std::thread::spawn(move || (reader.take(3), reader.take(2)));
    let output = scene.ask(&["replay", "--all", "--to", &to, "--speed", "max"]);
    assert!(output.contains("3 frames"), "{output}");
    scene.ask(&["replay", "chat-live", "--to", &to, "--speed", "max"]);
    let (all, one) = reads.join().unwrap();
    assert_eq!(all, scene.frames);
    let replayed: Vec<_> = one.iter().flat_map(|frame| rows(frame)).collect();
    let ids: Vec<_> = replayed.iter().map(|row| (row.rid.as_str(), row.ids.clone())).collect();
    assert_eq!(ids, [("chat-live", vec![10]), ("chat-live", vec![11, 12])]);
    // The reader has gone.
    let none = journal(&scene.sandbox, &["replay", "--all", "--to", &to, "--timeout", "100ms"]);
    assert_eq!(none.code, 1);
    assert!(none.stderr.contains(&to), "{}", none.stderr);
    assert_eq!(scene.afterbay.stop(), 0);
}

#[test]
fn replay_prints_the_length_of_a_long_pause() {
    let scene = Scene::set();
    let to = scene.sandbox.ipc("replay");
    let _reader = Reader::bind(&to);
    let mut replays =
        afterbay_command(&["journal", "replay", "--all", "--speed", "0.000001", "--to", &to, "--from"])
            .arg(scene.sandbox.journal())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
    let line = BufReader::new(replays.stderr.take().unwrap()).lines().next().unwrap().unwrap();
    assert!(line.starts_with("frames sent: 1; the next is due in "), "{line}");
    replays.kill().unwrap();
    replays.wait().unwrap();
    assert_eq!(scene.afterbay.stop(), 0);
}

#[test]
fn a_journal_is_found_by_its_configuration_and_a_missing_journal_is_an_error() {
    let scene = Scene::set();
    let by_config = run_afterbay(&["journal", "ls", "--config", &scene.sandbox.text("afterbay.toml")]);
    assert_eq!(by_config.success().lines().count(), 4);
    let journal = scene.sandbox.text("journal");
    let mut beside = afterbay_command(&["journal", "ls", "--from", &journal]);
    run_command(beside.env("AFTERBAY_CONFIG", "/nowhere.toml")).success();
    let none = run_afterbay(&["journal", "ls", "--from", &scene.sandbox.text("nowhere")]);
    assert_eq!(none.code, 1);
    assert!(none.stderr.contains("nowhere"), "{}", none.stderr);
    assert_eq!(scene.afterbay.stop(), 0);
}

const EVERY_COMMAND: [&[&str]; 6] =
    [&["verify"], &["ls"], &["tail"], &["export"], &["show", "chat-done"], &["neighbours", "chat-done"]];

#[test]
fn every_journal_command_refuses_a_directory_that_is_no_journal() {
    let sandbox = Sandbox::new();
    for folder in ["photos/2026", "music"] {
        std::fs::create_dir_all(sandbox.path("any").join(folder)).unwrap();
    }
    std::fs::write(sandbox.path("any").join("music/a.flac"), b"a song").unwrap();
    std::fs::create_dir(sandbox.path("empty")).unwrap();
    for (dir, says) in
        [("any", "none of its folders holds a stream: \"music\", \"photos\""), ("empty", "it has no folders")]
    {
        for command in EVERY_COMMAND {
            let ended = run_afterbay(&[&["journal"], command, &["--from", &sandbox.text(dir)]].concat());
            assert_eq!((ended.code, ended.stdout.as_str()), (1, ""), "{command:?}: {ended:?}");
            let place = format!("{}: no journal: ", sandbox.text(dir));
            assert!(ended.stderr.contains(&place) && ended.stderr.contains(says), "{}", ended.stderr);
        }
    }
}

#[test]
fn a_streams_folder_is_no_journal_and_a_foreign_folder_is_no_stream() {
    let scene = Scene::set();
    for command in EVERY_COMMAND {
        let inside =
            run_afterbay(&[&["journal"], command, &["--from", &scene.sandbox.text("journal/test")]].concat());
        assert_eq!(inside.code, 1, "{inside:?}");
        assert!(
            inside.stderr.contains("a stream's folder, the journal is the directory above"),
            "{}",
            inside.stderr
        );
    }
    std::fs::create_dir(scene.sandbox.journal().join("lost+found")).unwrap();
    std::fs::write(scene.sandbox.journal().join("lost+found/x"), b"x").unwrap();
    let verified = journal(&scene.sandbox, &["verify"]);
    assert_eq!((verified.code, verified.stdout.lines().count()), (0, 1), "{verified:?}");
    assert!(verified.stdout.starts_with("test: clean: "), "{verified:?}");
    assert!(verified.stderr.contains("lost+found: ignored, it is no directory of a stream"), "{verified:?}");
    assert_eq!(scene.ask(&["ls"]).lines().count(), 4);
    let asked = journal(&scene.sandbox, &["ls", "--stream", "lost+found"]);
    assert_eq!(asked.code, 1, "{asked:?}");
    assert_eq!(scene.afterbay.stop(), 0);
}

#[test]
fn an_empty_stream_is_in_the_journal() {
    let sandbox = Sandbox::new();
    let afterbay = Afterbay::run(&sandbox, &sandbox.config());
    let (code, report) = verify(&sandbox);
    assert_eq!((code, &report["stream"], &report["frames"]), (0, &"test".into(), &0.into()), "{report}");
    for command in [&["ls"][..], &["tail"], &["export"]] {
        journal(&sandbox, command).success();
    }
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn an_unknown_rid_is_an_error_with_the_most_similar_rid_and_an_ambiguous_one_with_two() {
    let scene = Scene::set();
    let to = scene.sandbox.ipc("replay");
    for command in [&["show"][..], &["neighbours"], &["export", "--rid"], &["replay", "--to", &to]] {
        let slip = journal(&scene.sandbox, &[command, &["chat-doen"]].concat());
        assert_eq!((slip.code, slip.stdout.as_str()), (1, ""), "{command:?}: {slip:?}");
        let says = "rid \"chat-doen\": not in the journal, did you mean \"chat-done\"?";
        assert!(slip.stderr.contains(says), "{command:?}: {}", slip.stderr);
        let none = journal(&scene.sandbox, &[command, &["nosuch"]].concat());
        assert_eq!(none.code, 1, "{command:?}: {none:?}");
        let reach = format!("{}: stream \"test\" reaches back to ", scene.sandbox.text("journal"));
        let says = format!("rid \"nosuch\": not in the journal\n  {reach}");
        assert!(none.stderr.contains(&says), "{}", none.stderr);
    }
    for command in ["show", "neighbours"] {
        for (beginning, count) in [("chat-", 2), ("", 3)] {
            let several = journal(&scene.sandbox, &[command, beginning]);
            assert_eq!((several.code, several.stdout.as_str()), (1, ""), "{command}: {several:?}");
            let says = format!(
                "rid {beginning:?}: {count} requests begin with it, among them \"chat-done\" and \"chat-live\""
            );
            assert!(several.stderr.contains(&says), "{command}: {}", several.stderr);
        }
    }
    // The request exists, but has no row in that time.
    assert_eq!(scene.ask(&["export", "--rid", "chat-done", "--until", "1h"]), "");
    assert_eq!(scene.afterbay.stop(), 0);
}

#[test]
fn the_turns_of_a_session_are_trajectories_as_lines_and_as_parquet_and_a_timed_trace() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run(&sandbox, &sandbox.config());
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let mut prompt: Vec<u32> = vec![5, 6, 7];
    for turn in 0..5_u64 {
        let rid = format!("turn-{turn}");
        let record = RequestRecord {
            rid: rid.clone(),
            session: Some("s-1".into()),
            arrived_unix_ns: Some((1_700_000_000 + turn) * 1_000_000_000),
            ..RequestRecord::default()
        };
        sender.send(&record.with_prompt(&prompt).to_frame());
        let mut request = SynthRequest::new(&rid);
        let frames = [vec![request.row(&[40 + turn as i64])], vec![request.last(&[50])]];
        for frame in frames {
            sender.send(&batch(Msgpack, frame));
            // The record is forwarded to nobody.
            assert_eq!(rows(&reader.frame()).len(), 1);
        }
        // The third turn's prompt is the second one tokenised again.
        prompt.extend([40 + turn as u32, if turn == 1 { 51 } else { 50 }, 9]);
    }
    assert_eq!(afterbay.stop(), 0);
    let [session] = journal(&sandbox, &["trajectories"]).json_lines_of(0);
    assert_eq!(session["session"], "s-1");
    let turns = session["turns"].as_array().unwrap();
    let kept: Vec<_> = turns.iter().map(|turn| turn["prefix"]["is_kept"].as_bool()).collect();
    assert_eq!(kept, [None, Some(true), Some(false), Some(true), Some(true)], "{session}");
    assert_eq!(
        (&turns[2]["prefix"]["equal"], &turns[2]["prefix"]["got"]),
        (&json!(7), &json!(51)),
        "{session}"
    );
    assert_eq!(
        (&turns[0]["prompt_ids"], &turns[0]["ids"]),
        (&json!([5, 6, 7]), &json!([40, 50])),
        "{session}"
    );
    assert!(turns.iter().all(|turn| turn["missing"] == json!([])), "{session}");
    let file = sandbox.text("sessions.parquet");
    assert_eq!(journal(&sandbox, &["trajectories", "--parquet", &file]).code, 0);
    let bytes = std::fs::read(&file).unwrap();
    assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"));
    let trace = journal(&sandbox, &["timed-trace", "--block-tokens", "2"]).json_lines();
    let lengths: Vec<_> =
        trace.iter().map(|it| (it["timestamp"].as_f64(), it["input_length"].as_u64())).collect();
    let expected =
        [(0.0, 3), (1.0, 6), (2.0, 9), (3.0, 12), (4.0, 15)].map(|(at, tokens)| (Some(at), Some(tokens)));
    assert_eq!(lengths, expected);
    assert!(trace.iter().all(|it| it["hash_ids"][0] == trace[0]["hash_ids"][0]));
}
