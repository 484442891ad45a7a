//! The validation before a start or a reload: every plugin and every tokenizer of a configuration is tried.

use crate::{admin, config_file, grants, loading};
use afterbay_config as config;
use afterbay_http::CapabilityKeys;
use afterbay_plugin_loader::Tokenizers;
use afterbay_runtime::{Host, IdShape};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Reads and checks a configuration file, and tries its plugins and tokenizers as `check_files` does, also if something else in
/// the file is wrong.
///
/// # Errors
/// Every problem, each a sentence for the operator.
pub fn load_and_check<B>(
    file: &Path,
    has_rendezvous: bool,
    host: &Host,
    tokenizers: &Tokenizers,
    awaits_builds: bool,
    busy: impl Fn(String) -> B,
) -> Result<(config::Config, Vec<String>), Vec<String>> {
    match config_file::read(file, has_rendezvous) {
        Ok(config) => {
            let lines = check_files(&config, host, tokenizers, awaits_builds, busy)?;
            Ok((config, lines))
        }
        Err(mut problems) => {
            // A component that is wrong already is not tried.
            let wrong: Vec<String> = problems.iter().map(|problem| problem.key.clone()).collect();
            for stream in &mut problems.drafts {
                stream.plugins.retain(|plugin| !wrong.contains(&format!("{}.component", plugin.place.key)));
            }
            let Tried { wrong, .. } = try_plugins(&problems.drafts, host, tokenizers, awaits_builds, busy);
            Err(config_file::sentences(&problems.with(wrong)))
        }
    }
}

/// Compiles every plugin, tries its settings, and reads every tokenizer. `busy` makes a guard that shows what takes long.
/// Returns a line for each plugin and tokenizer. `awaits_builds`: a plugin whose component file is missing is no problem.
///
/// # Errors
/// Every problem, each a sentence for the operator.
pub(crate) fn check_files<B>(
    config: &config::Config,
    host: &Host,
    tokenizers: &Tokenizers,
    awaits_builds: bool,
    busy: impl Fn(String) -> B,
) -> Result<Vec<String>, Vec<String>> {
    let (mut lines, mut problems) = (Vec::new(), Vec::new());
    if let Some(file) = &config.admin.token_file
        && let Err(why) = admin::token(file)
    {
        problems.push(format!("admin.token_file: {} {why}", file.display()));
    }
    if let Some(clients) = &config.clients
        && let Err(why) = CapabilityKeys::read(&clients.key_file)
    {
        problems.push(format!("clients.key_file: {} {why}", clients.key_file.display()));
    }
    if let Some(replicate) = &config.replicate
        && let Err(why) = check_nats_credentials(replicate)
    {
        problems.push(why);
    }
    for stream in &config.streams {
        for sink in &stream.sinks {
            match sink.tokenizer.as_deref().map(|path| tokenizers.vocabulary(path)) {
                Some(Ok(vocabulary)) => lines.push(format!(
                    "stream {}: sink {}: {} tokens ({})",
                    stream.name,
                    sink.name,
                    vocabulary.tokens(),
                    vocabulary.kind()
                )),
                Some(Err(error)) => {
                    problems.push(format!("stream {}: sink {}: tokenizer: {error}", stream.name, sink.name));
                }
                None => {}
            }
        }
    }
    let tried = try_plugins(&config.streams, host, tokenizers, awaits_builds, busy);
    lines.extend(tried.lines);
    problems.extend(tried.wrong.iter().map(config_file::sentence));
    if problems.is_empty() { Ok(lines) } else { Err(problems) }
}

/// Checks that the credentials file of NATS has credentials. `afterbay-follow` reads them.
fn check_nats_credentials(replicate: &config::Replicate) -> Result<(), String> {
    let of_environment = || std::env::var_os("NATS_CREDS").filter(|file| !file.is_empty()).map(PathBuf::from);
    let Some(file) = replicate.credentials.clone().or_else(of_environment) else { return Ok(()) };
    let text = std::fs::read_to_string(&file);
    let text = text.map_err(|error| format!("replicate: {}: {error}", file.display()))?;
    match text.contains("-----BEGIN NATS USER JWT-----") && text.contains("-----BEGIN USER NKEY SEED-----") {
        true => Ok(()),
        false => Err(format!("replicate: {}: has no NATS credentials", file.display())),
    }
}

/// The plugins that work, a line for each, and the problems of the others.
#[derive(Default)]
struct Tried {
    lines: Vec<String>,
    wrong: Vec<config::Problem>,
}

fn try_plugins<B>(
    streams: &[config::Stream],
    host: &Host,
    tokenizers: &Tokenizers,
    awaits_builds: bool,
    busy: impl Fn(String) -> B,
) -> Tried {
    let mut tried = Tried::default();
    for stream in streams {
        for plugin in &stream.plugins {
            let named = |why: String| format!("plugin {:?}: {why}", plugin.name.as_str());
            let from_rendezvous = stream.sinks.iter().any(|sink| sink.connect.is_none());
            let model = match grants::model(stream, plugin, None, tokenizers) {
                Ok(model) => model,
                Err(_) if from_rendezvous => {
                    tried.lines.push(format!(
                        "stream {}: plugin {}: is tried at the start, with the tokenizer that the rendezvous file names",
                        stream.name, plugin.name
                    ));
                    continue;
                }
                Err(why) => {
                    tried.wrong.push(plugin.place.problem(named(why)));
                    continue;
                }
            };
            if awaits_builds && loading::unbuilt(plugin).is_some() {
                tried.lines.push(format!("stream {}: plugin {}: is not built yet", stream.name, plugin.name));
                continue;
            }
            let terms = grants::terms(plugin, Arc::new(()), grants::store_of_check(plugin), model);
            let _busy = busy(format!("plugin {}: is compiled and started", plugin.name));
            let component = match loading::load(host, plugin, terms) {
                Ok((component, _)) => component,
                // The error names the plugin.
                Err(error) => {
                    tried.wrong.push(plugin.place.problem(format!("{error:#}")));
                    continue;
                }
            };
            if let Err(error) = component.instantiate(&loading::settings(plugin)) {
                tried.wrong.push(plugin.settings_place.problem(error.to_string()));
                continue;
            }
            if component.description().writes == IdShape::Cumulative
                && let Some(next) = next_leg(streams, stream)
            {
                tried.wrong.push(plugin.place.problem(named(format!(
                    "writes cumulative ids, and stream {next} after it counts each token once: give the plugin to {next}"
                ))));
                continue;
            }
            tried.lines.push(format!(
                "stream {}: plugin {}: {} {}, sha256 {}, {}",
                stream.name,
                plugin.name,
                component.description().name,
                component.description().version,
                component.digest(),
                terms_in_words(plugin)
            ));
        }
    }
    tried
}

/// The grants and limits of a plugin, which a bundled plugin may have by its own defaults.
fn terms_in_words(plugin: &config::Plugin) -> String {
    let granted: Vec<&str> = plugin.grant.iter().map(|grant| grant.word()).collect();
    let granted = if granted.is_empty() { "nothing".to_owned() } else { granted.join(" ") };
    format!("granted {granted}, {}", plugin.limits)
}

/// The stream that is configured to be after this one.
fn next_leg<'c>(streams: &'c [config::Stream], stream: &config::Stream) -> Option<&'c config::Name> {
    let next = streams.iter().find(|next| next.after.contains(&stream.name))?;
    Some(&next.name)
}
