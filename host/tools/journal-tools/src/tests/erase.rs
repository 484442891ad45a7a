//! Erasing a request with the command, and how the other commands show it.

use super::{STREAM, Scene};
use afterbay_journal::Verdict;
use afterbay_journal::reader::{ErasedBy, JournalReader};
use afterbay_journal_view::content::{Absent, ContentBounds, ContentReader};
use afterbay_journal_view::legs;
use afterbay_wire::Layouts;
use clap::Parser;
use serde_json::{Value, json};
use std::path::Path;
use std::process::ExitCode;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: crate::Args,
}

fn run(dir: &Path, args: &[&str], call: crate::CallServer) -> anyhow::Result<ExitCode> {
    run_from(dir, args, call)
}

/// Runs `afterbay journal ARGS --from SOURCE`.
pub(super) fn run_from(source: &Path, args: &[&str], call: crate::CallServer) -> anyhow::Result<ExitCode> {
    let line = [&["journal"], args, &["--from", source.to_str().unwrap()]].concat();
    let Cli { args } = Cli::parse_from(line);
    crate::run(args, |_| Err(Vec::new()), call)
}

pub(super) fn nobody_answers(
    _: &Path,
    _: Option<&afterbay_config::Config>,
    _: &str,
    _: &Value,
) -> anyhow::Result<(bool, Value)> {
    anyhow::bail!("no Afterbay runs")
}

fn filled() -> Scene {
    let mut scene = Scene::new();
    let request = scene.request("r");
    scene.row(request, &[11, 12], "", &[("notes", Verdict::Annotate, "private")]);
    scene.row(request, &[13], "stop", &[]);
    scene
}

#[test]
fn an_erased_request_says_so_and_when_in_every_view_and_has_no_content() {
    let Scene { dir, directory, writer, .. } = filled();
    writer.finish().unwrap();
    drop(directory);
    assert_eq!(run(dir.path(), &["erase", "r", "--yes"], nobody_answers).unwrap(), ExitCode::SUCCESS);
    let stream = JournalReader::open(dir.path()).unwrap().stream(STREAM).unwrap();
    let life = stream.lives("r").unwrap().remove(0);
    let erased = life.request.erased.unwrap();
    assert_eq!(erased.by, ErasedBy::this_user());
    assert!(crate::show::erased_line(&erased).starts_with("erased 20"));
    let layouts = Layouts::builtin();
    let contents = ContentReader::new(&stream, &layouts).contents(&life, ContentBounds::NONE);
    assert!(contents.iter().all(|content| matches!(content, Err(Absent::Erased))), "{contents:?}");
    assert_eq!(life.rows[0].actions[0].text, "");
    let listed = legs::requests(&[stream], &Default::default()).unwrap();
    assert!(afterbay_journal_view::json::whole(&listed[0])["erased"]["time"].is_string());
    assert_eq!(run(dir.path(), &["verify"], nobody_answers).unwrap(), ExitCode::SUCCESS);
    for command in [&["ls"][..], &["show", "r"], &["neighbours", "r"], &["show", "r", "--json"]] {
        assert_eq!(run(dir.path(), command, nobody_answers).unwrap(), ExitCode::SUCCESS, "{command:?}");
    }
    // Once more: nothing is left to erase.
    assert_eq!(
        run(dir.path(), &["erase", "r", "--yes", "--json"], nobody_answers).unwrap(),
        ExitCode::SUCCESS
    );
}

#[test]
fn a_rid_that_is_not_there_and_a_beginning_of_a_rid_erase_nothing() {
    let Scene { dir, directory, writer, .. } = filled();
    writer.finish().unwrap();
    drop(directory);
    assert!(run(dir.path(), &["erase", "unknown", "--yes"], nobody_answers).is_err());
    let mut scene = Scene::new();
    let request = scene.request("longer");
    scene.row(request, &[1], "stop", &[]);
    let Scene { dir, directory, writer, .. } = scene;
    writer.finish().unwrap();
    drop(directory);
    assert!(run(dir.path(), &["erase", "long", "--yes"], nobody_answers).is_err());
}

#[test]
fn the_afterbay_that_has_the_journal_open_is_asked_to_erase() {
    fn answers(
        dir: &Path,
        config: Option<&afterbay_config::Config>,
        path: &str,
        body: &Value,
    ) -> anyhow::Result<(bool, Value)> {
        assert!(dir.join("LOCK").exists() && config.is_none());
        assert_eq!((path, body), ("/v1/requests/r/erase", &json!({"stream": STREAM})));
        Ok((true, json!({"is_complete": true, "streams": []})))
    }
    let mut scene = filled();
    scene.writer.flush().unwrap();
    let erase = ["erase", "r", "--yes", "--stream", STREAM];
    assert_eq!(run(scene.dir.path(), &erase, answers).unwrap(), ExitCode::SUCCESS);
    assert!(run(scene.dir.path(), &erase, nobody_answers).is_err());
}
