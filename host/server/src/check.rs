//! The validation before a start or a reload: every plugin and every tokenizer of a configuration is tried.

use crate::{admin, grants, loading};
use afterbay_config as config;
use afterbay_plugin_loader::Tokenizers;
use afterbay_runtime::{Host, IdShape};
use std::sync::Arc;

/// Compiles every plugin, tries its settings, and reads every tokenizer. `busy` makes a guard that shows what takes long.
/// Returns a line for each plugin and tokenizer. `awaits_builds`: a plugin whose component file is missing is no problem.
///
/// # Errors
/// Every problem, each a sentence for the operator.
pub fn check_files<B>(
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
    if let Some(replicate) = &config.replicate
        && let Err(error) = afterbay_replicate::check_credentials(replicate)
    {
        problems.push(error.to_string());
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
        for plugin in &stream.plugins {
            let from_rendezvous = stream.sinks.iter().any(|sink| sink.connect.is_none());
            let model = match grants::model(stream, plugin, None, tokenizers) {
                Ok(model) => model,
                Err(_) if from_rendezvous => {
                    lines.push(format!(
                        "stream {}: plugin {}: is tried at the start, with the tokenizer that the rendezvous file names",
                        stream.name, plugin.name
                    ));
                    continue;
                }
                Err(why) => {
                    problems.push(format!(
                        "stream {}: plugin {:?}: {why}",
                        stream.name,
                        plugin.name.as_str()
                    ));
                    continue;
                }
            };
            if awaits_builds && loading::unbuilt(plugin).is_some() {
                lines.push(format!("stream {}: plugin {}: is not built yet", stream.name, plugin.name));
                continue;
            }
            let terms = grants::terms(plugin, Arc::new(()), grants::store_of_check(plugin), model);
            let _busy = busy(format!("plugin {}: is compiled and started", plugin.name));
            let tried = loading::load(host, plugin, terms).map_err(|error| format!("{error:#}")).and_then(|(component, _)| {
                component.instantiate(&loading::settings(plugin)).map_err(|error| error.to_string())?;
                match next_leg(config, stream) {
                    Some(next) if component.description().writes == IdShape::Cumulative => Err(format!(
                        "plugin {}: writes cumulative ids, and stream {next} after it counts each token once: give \
                         the plugin to {next}",
                        plugin.name
                    )),
                    _ => Ok(component),
                }
            });
            match tried {
                Ok(component) => lines.push(format!(
                    "stream {}: plugin {}: {} {}, sha256 {}, {}",
                    stream.name,
                    plugin.name,
                    component.description().name,
                    component.description().version,
                    component.digest(),
                    terms_in_words(plugin)
                )),
                Err(problem) => problems.push(format!("stream {}: {problem}", stream.name)),
            }
        }
    }
    if problems.is_empty() { Ok(lines) } else { Err(problems) }
}

/// The grants and limits of a plugin, which a bundled plugin may have by its own defaults.
fn terms_in_words(plugin: &config::Plugin) -> String {
    let granted: Vec<&str> = plugin.grant.iter().map(|grant| grant.word()).collect();
    let granted = if granted.is_empty() { "nothing".to_owned() } else { granted.join(" ") };
    format!("granted {granted}, {}", plugin.limits)
}

/// The stream that is configured to be after this one.
fn next_leg<'c>(config: &'c config::Config, stream: &config::Stream) -> Option<&'c config::Name> {
    let next = config.streams.iter().find(|next| next.after.contains(&stream.name))?;
    Some(&next.name)
}
