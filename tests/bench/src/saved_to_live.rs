//! The time from saving a plugin's source until its new version runs, under `afterbay run --dev`.

use crate::proxy::{JournalStorage, RunningProxy, run, stream};
use anyhow::{Context, ensure};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

const NAME: &str = "saved";
const LIVE_MAX: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Times in milliseconds.
pub(crate) struct SavedToLive {
    /// From the save until the component is built.
    pub(crate) built: f64,
    /// From the save until the new version runs.
    pub(crate) live: f64,
}

/// Saves the source of a new project `saves` times, each time with another verdict. `target` caches the compiled dependencies between
/// runs.
pub(crate) fn measure(binary: &Path, target: &Path, saves: usize) -> anyhow::Result<Vec<SavedToLive>> {
    let dir = tempfile::Builder::new().prefix("afb").tempdir_in("/tmp")?;
    // Always the same directory: cargo compiles a project at another path again.
    let project = target.join(NAME);
    if project.exists() {
        std::fs::remove_dir_all(&project)?;
    }
    let made = Command::new(binary)
        .args(["plugin", "new", NAME, "--lang", "rust", "--dir"])
        .arg(&project)
        .output()
        .context("afterbay plugin new")?;
    ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let [ingress, reader] = ["in", "out"].map(|name| format!("ipc://{}/{name}", dir.path().display()));
    let plugin =
        format!("[[stream.plugin]]\nname = {NAME:?}\ncomponent = {project:?}\nsettings = {{ stop = [2] }}\n");
    let streams = stream("bench", &ingress, &reader, &plugin);
    // The cargo that builds this bench is not the one that builds the project.
    let mut dev = run(binary);
    dev.arg("--dev").env_remove("CARGO").env("CARGO_TARGET_DIR", target.join("target"));
    let running = RunningProxy::afterbay(&mut dev, dir.path(), JournalStorage::OnDisk, &streams, &ingress)?;
    let component = target.join(format!("target/wasm32-wasip2/release/{NAME}.wasm"));
    let source = project.join("src/lib.rs");
    let text = std::fs::read_to_string(&source)?;
    let answer = format!("verdicts.finish(row, {NAME:?})");
    ensure!(text.contains(&answer), "{}: has no {answer}", source.display());
    let saved = (1..=saves).map(|number| {
        let other = format!("verdicts.finish(row, \"{NAME}-{number}\")");
        save(&running, &source, &text.replace(&answer, &other), &component, number)
    });
    running.explain(saved.collect())
}

fn save(
    running: &RunningProxy,
    source: &Path,
    text: &str,
    component: &Path,
    number: usize,
) -> anyhow::Result<SavedToLive> {
    let modified = || component.metadata().and_then(|file| file.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    let before = modified();
    let aside = source.with_extension("new");
    std::fs::write(&aside, text)?;
    let begun = Instant::now();
    std::fs::rename(aside, source)?;
    let until = |is_so: &dyn Fn() -> anyhow::Result<bool>| -> anyhow::Result<f64> {
        while !is_so()? {
            ensure!(begun.elapsed() < LIVE_MAX, "the saved version does not run after {LIVE_MAX:?}");
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(begun.elapsed().as_secs_f64() * 1e3)
    };
    let built = until(&|| Ok(modified() != before))?;
    let reloads = format!("afterbay_plugin_reloads_total{{stream=\"bench\",plugin={NAME:?},result=\"ok\"}}");
    let live = until(&|| Ok(running.figure(&reloads)? >= number as f64))?;
    Ok(SavedToLive { built, live })
}
