//! Component files that change while their plugins run.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use afterbay_runtime::{
    ColumnSet, Digest, LoadError, Plugin, ReloadError, Reloaded, StartError, Watch, Watched,
};
use tempfile::TempDir;

use crate::{guest, host, limits};

const WAIT: Duration = Duration::from_secs(60);

/// A component file, watched under the key "stream/plugin".
struct Scene {
    directory: TempDir,
    reloads: Receiver<Reloaded<&'static str>>,
    _watch: Watch,
}

impl Scene {
    /// The file holds `nothing`, which is running.
    fn new() -> Self {
        Self::with(&guest("nothing"), "{}")
    }

    /// `nothing` is running. The file keeps its content.
    fn with(bytes: &[u8], settings: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("plugin.wasm");
        fs::write(&path, bytes).unwrap();
        let (reloads, watch) = watch(&[path], settings);
        Self { directory, reloads, _watch: watch }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("plugin.wasm")
    }

    /// Replaces the file as an editor or a linker does: writes another file and renames it.
    fn replace(&self, bytes: &[u8]) {
        let aside = self.directory.path().join(".plugin.wasm.tmp");
        fs::write(&aside, bytes).unwrap();
        fs::rename(&aside, self.path()).unwrap();
    }

    fn next(&self) -> Result<Plugin, ReloadError> {
        self.reloads.recv_timeout(WAIT).unwrap().result
    }
}

fn watch(paths: &[PathBuf], settings: &str) -> (Receiver<Reloaded<&'static str>>, Watch) {
    let watched = |(key, path): (&'static str, &PathBuf)| Watched {
        key,
        name: "mine".into(),
        path: path.clone(),
        terms: limits().into(),
        settings: settings.into(),
        digest: Digest::of(&guest("nothing")),
    };
    let keys = ["decode-0/mine", "decode-1/mine"];
    let (send, reloads) = channel();
    let on_ready = move |reloaded| send.send(reloaded).unwrap();
    let watched = keys.into_iter().zip(paths).map(watched).collect();
    let watch = Watch::start(host().clone(), watched, || false, on_ready).unwrap();
    assert!(watch.without_events().is_empty(), "{:?}", watch.without_events());
    (reloads, watch)
}

/// A plugin other than `nothing` that needs no settings and asks for no column.
fn another() -> Vec<u8> {
    guest("panics")
}

const PROCESS: &str = r#"{"in": "process"}"#;

fn is_another(plugin: Plugin) -> bool {
    plugin.wants() == ColumnSet::empty() && plugin.component().digest() == Digest::of(&another())
}

#[test]
fn a_file_replaced_by_rename_is_handed_over_ready_to_run() {
    let scene = Scene::with(&guest("nothing"), PROCESS);
    scene.replace(&another());
    let reloaded = scene.reloads.recv_timeout(WAIT).unwrap();
    assert_eq!((reloaded.key, &reloaded.path), ("decode-0/mine", &scene.path()));
    let mut plugin = reloaded.result.unwrap();
    assert_eq!(plugin.open(&[]), Ok(()));
    assert!(is_another(plugin));
}

#[test]
fn a_file_written_in_place_is_used_once_it_is_complete() {
    let scene = Scene::with(&guest("nothing"), PROCESS);
    let bytes = another();
    let mut file = fs::File::create(scene.path()).unwrap();
    for part in bytes.chunks(bytes.len() / 8) {
        file.write_all(part).unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(file);
    // On a slow machine a part may look complete. It is reported as bad, and the complete file follows.
    let plugin = std::iter::from_fn(|| Some(scene.next())).find_map(Result::ok).unwrap();
    assert!(is_another(plugin));
}

#[test]
fn a_truncated_file_is_reported_once_and_its_repair_is_used() {
    let scene = Scene::with(&guest("nothing"), PROCESS);
    let bytes = another();
    scene.replace(&bytes[..bytes.len() / 2]);
    let error = scene.next().unwrap_err();
    assert!(matches!(error, ReloadError::Load(LoadError::NotAComponent { .. })), "{error}");
    // The same bad bytes are not reported again.
    scene.replace(&bytes[..bytes.len() / 2]);
    std::thread::sleep(Duration::from_millis(200));
    scene.replace(&bytes);
    assert!(is_another(scene.next().unwrap()));
}

#[test]
fn a_build_for_another_world_or_with_refused_settings_is_reported_and_not_used() {
    let scene = Scene::with(&guest("nothing"), "{}");
    scene.replace(&guest("other-world"));
    let error = scene.next().unwrap_err();
    assert!(matches!(error, ReloadError::Load(LoadError::OtherWorld { .. })), "{error}");
    scene.replace(&another());
    let error = scene.next().unwrap_err();
    assert!(matches!(error, ReloadError::Start(StartError::Refused { .. })), "{error}");
    // Back to the running component: no report. The next report is of the change after it.
    scene.replace(&guest("nothing"));
    std::thread::sleep(Duration::from_millis(200));
    scene.replace(&guest("logs")[..100]);
    let error = scene.next().unwrap_err();
    assert!(matches!(error, ReloadError::Load(LoadError::NotAComponent { .. })), "{error}");
}

#[test]
fn the_same_bytes_are_no_reload() {
    let scene = Scene::with(&guest("nothing"), PROCESS);
    scene.replace(&guest("nothing"));
    std::thread::sleep(Duration::from_millis(200));
    fs::write(scene.path(), guest("nothing")).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    scene.replace(&another());
    assert!(is_another(scene.next().unwrap()), "the first to come is the first that differs");
}

#[test]
fn a_pipe_in_a_components_place_is_reported_without_waiting() {
    let scene = Scene::with(&guest("nothing"), PROCESS);
    let pipe = scene.directory.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    // In one step: a look in between would find no file and report that.
    fs::rename(pipe, scene.path()).unwrap();
    let error = scene.next().unwrap_err();
    assert!(error.to_string().contains("it is not a regular file"), "{error}");
}

#[test]
fn a_removed_file_is_reported_and_used_when_it_returns_changed() {
    let scene = Scene::with(&guest("nothing"), PROCESS);
    fs::remove_file(scene.path()).unwrap();
    let error = scene.next().unwrap_err();
    assert!(matches!(error, ReloadError::Load(LoadError::Read { .. })), "{error}");
    fs::write(scene.path(), another()).unwrap();
    assert!(is_another(scene.next().unwrap()));
}

#[test]
fn a_file_that_changed_before_it_was_watched_is_used() {
    let scene = Scene::with(&another(), PROCESS);
    assert!(is_another(scene.next().unwrap()));
}

/// Kubernetes changes a mounted config map so: the file is a link through a directory that is swapped.
#[test]
fn a_link_with_another_target_is_a_change() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    for (version, bytes) in [("v1", guest("nothing")), ("v2", another())] {
        fs::create_dir(at(version)).unwrap();
        fs::write(at(version).join("plugin.wasm"), bytes).unwrap();
    }
    let link = |target: &Path, name: &str| std::os::unix::fs::symlink(target, at(name)).unwrap();
    link(Path::new("v1"), "data");
    link(Path::new("data/plugin.wasm"), "plugin.wasm");
    let (reloads, _watch) = watch(&[at("plugin.wasm")], PROCESS);
    link(Path::new("v2"), "data.tmp");
    fs::rename(at("data.tmp"), at("data")).unwrap();
    assert!(is_another(reloads.recv_timeout(WAIT).unwrap().result.unwrap()));
}

#[test]
fn streams_that_share_a_file_get_an_instance_each() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("plugin.wasm");
    fs::write(&path, guest("nothing")).unwrap();
    let (reloads, _watch) = watch(&[path.clone(), path.clone()], PROCESS);
    fs::write(&path, another()).unwrap();
    let mut keys: Vec<&str> = (0..2).map(|_| reloads.recv_timeout(WAIT).unwrap().key).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["decode-0/mine", "decode-1/mine"]);
}

#[test]
fn a_directory_that_cannot_be_watched_is_reported_and_its_files_are_still_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("later/plugin.wasm");
    let watched = Watched {
        key: (),
        name: "mine".into(),
        path: path.clone(),
        terms: limits().into(),
        settings: PROCESS.into(),
        digest: Digest::of(&guest("nothing")),
    };
    let (send, reloads) = channel();
    let watch =
        Watch::start(host().clone(), vec![watched], || false, move |reloaded| send.send(reloaded).unwrap())
            .unwrap();
    assert_eq!(watch.without_events().len(), 1);
    assert!(reloads.recv_timeout(WAIT).unwrap().result.is_err(), "the file is not there");
    fs::create_dir(directory.path().join("later")).unwrap();
    fs::write(&path, another()).unwrap();
    assert!(is_another(reloads.recv_timeout(WAIT).unwrap().result.unwrap()));
}

#[test]
fn a_watch_ends_when_it_is_dropped() {
    let scene = Scene::new();
    let Scene { directory, reloads, _watch } = scene;
    drop(_watch);
    fs::write(directory.path().join("plugin.wasm"), another()).unwrap();
    assert!(reloads.recv_timeout(WAIT).is_err(), "the sender is gone, and nothing was sent");
}
