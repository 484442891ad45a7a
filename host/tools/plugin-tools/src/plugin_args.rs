//! The options that name a plugin, its settings and its limits.

use afterbay_config::{PluginDefaults, bounds, duration_argument, read_files, size_argument};
use afterbay_plugin_loader::{ModelTokens, PluginStore, Source};
use afterbay_runtime::{Component, EncodeError, Grants, Host, Limits, StartError, Terms, TokenId, Tokens};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const NO_SETTINGS: &str = "{}";

/// A plugin on the command line.
#[derive(clap::Args)]
pub(crate) struct PluginArgs {
    /// A component file, builtin:NAME, oci://HOST/REPOSITORY@sha256:DIGEST, or the directory of a project that was built
    #[arg(value_name = "PLUGIN")]
    plugin: String,
    #[command(flatten)]
    pub(crate) terms: TermArgs,
}

/// Settings and limits, as in a configuration.
#[derive(clap::Args)]
pub(crate) struct TermArgs {
    /// The plugin's settings: JSON, or a table as in a configuration, or @FILE with either. `{ schema = { file = "schema.json" } }`
    /// stands for the text of that file
    #[arg(long, value_name = "SETTINGS|@FILE", default_value = NO_SETTINGS)]
    settings: String,
    /// The model's tokenizer.json, or its directory, for a plugin that uses the tokenizer (everything else is granted)
    #[arg(long, value_name = "PATH")]
    tokenizer: Option<PathBuf>,
    /// Most memory of an instance [default: 64MiB, or that of a builtin]
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    memory: Option<u64>,
    /// Most processor time of a call [default: 2ms, or that of a builtin]
    #[arg(long, value_name = "DURATION", value_parser = parse_deadline)]
    deadline: Option<Duration>,
}

/// Parses a size within the bounds of `plugin.limits.memory`.
pub(crate) fn parse_memory(text: &str) -> Result<u64, String> {
    let (least, most) = bounds::PLUGIN_MEMORY_BYTES;
    let bytes = size_argument(text)?;
    match (least..=most).contains(&bytes) {
        true => Ok(bytes),
        false => Err(format!("{text} is not from {}MiB to {}GiB", least >> 20, most >> 30)),
    }
}

/// Parses a duration within the bounds of `plugin.limits.deadline`.
pub(crate) fn parse_deadline(text: &str) -> Result<Duration, String> {
    let (least, most) = bounds::PLUGIN_DEADLINE;
    let deadline = duration_argument(text)?;
    match (least..=most).contains(&deadline) {
        true => Ok(deadline),
        false => Err(format!("{text} is not from {least:?} to {most:?}")),
    }
}

/// A mistake in the command line or a scenario. The process prints it and exits 64.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UsageError(pub(crate) String);

/// Finds the component that a command line or a scenario names; a relative path is relative to `base`.
pub(crate) fn find(name: &str, base: &Path) -> Result<Source, UsageError> {
    Source::find(name, base).map_err(|error| UsageError(error.to_string()))
}

impl PluginArgs {
    pub(crate) fn source(&self) -> Result<Source, UsageError> {
        find(&self.plugin, Path::new(""))
    }

    /// The plugin's limits, with everything granted.
    pub(crate) fn terms(&self) -> Result<Terms, UsageError> {
        self.terms.terms(default_limits(&self.plugin), None)
    }
}

impl TermArgs {
    /// The limits and the tokenizer that are given, else these, with everything granted.
    pub(crate) fn terms(&self, mut limits: Limits, tokenizer: Option<&Path>) -> Result<Terms, UsageError> {
        limits.memory_bytes = self.memory.unwrap_or(limits.memory_bytes);
        limits.deadline = self.deadline.unwrap_or(limits.deadline);
        terms(limits, self.tokenizer.as_deref().or(tokenizer))
    }

    /// Whether settings are given.
    pub(crate) fn has_settings(&self) -> bool {
        self.settings != NO_SETTINGS
    }

    /// The settings as JSON text.
    pub(crate) fn settings(&self) -> Result<String, UsageError> {
        let text = match self.settings.strip_prefix('@') {
            None => self.settings.clone(),
            Some(file) => std::fs::read_to_string(file)
                .map_err(|error| UsageError(format!("--settings: {file}: {error}")))?,
        };
        let wrong = |why: String| UsageError(format!("--settings: {why}"));
        let mut settings = match (serde_json::from_str::<serde_json::Value>(&text), table(&text)) {
            (Ok(settings), _) | (Err(_), Some(settings)) => settings,
            (Err(error), None) => return Err(wrong(format!("not JSON: {error}"))),
        };
        match with_files(&mut settings, Path::new("")) {
            Ok(()) => Ok(settings.to_string()),
            Err(why) => Err(wrong(why)),
        }
    }
}

/// Explains why a plugin does not start with these settings, and which option may be missing.
pub(crate) fn not_started(component: &Component, settings: &str, error: &StartError) -> String {
    let uses_tokens = component.wanted().contains(&"tokenizer");
    let has_tokens = component.grants().tokenizer.as_ref().is_some_and(|tokens| tokens.size() > 0);
    match error {
        _ if uses_tokens && !has_tokens => {
            format!("{error}; the plugin uses the model's tokenizer, and none was given: --tokenizer")
        }
        StartError::Refused { .. } if settings == NO_SETTINGS => {
            format!("{error}; none were given: --settings")
        }
        _ => error.to_string(),
    }
}

/// The limits of a plugin that are not given: a plugin in this binary has its own.
pub(crate) fn default_limits(plugin: &str) -> Limits {
    let own = plugin.strip_prefix("builtin:").and_then(afterbay_bundled::find);
    // A test parses the defaults of every bundled plugin.
    let own = own.and_then(|own| PluginDefaults::parse(own.defaults).ok()).unwrap_or_default();
    let afterbay_config::Limits { memory_bytes, deadline, hold } = own.limits;
    Limits { memory_bytes, deadline, hold, ..Limits::default() }
}

/// Parses a TOML table in braces.
fn table(text: &str) -> Option<serde_json::Value> {
    let document: serde_json::Value = toml::from_str(&format!("settings = {text}")).ok()?;
    document.get("settings").filter(|settings| settings.is_object()).cloned()
}

/// Replaces each `{ file = "…" }` in the settings by the text of that file, as a configuration does.
pub(crate) fn with_files(settings: &mut serde_json::Value, base: &Path) -> Result<(), String> {
    let members = settings.as_object_mut().into_iter().flat_map(|members| members.values_mut());
    let problems: Vec<String> =
        members.flat_map(|member| read_files(member, base, &mut Vec::new())).collect();
    if problems.is_empty() { Ok(()) } else { Err(problems.join("; ")) }
}

/// The limits, with everything granted. The plugin's own metrics are discarded, and without a tokenizer the model has no tokens.
pub(crate) fn terms(limits: Limits, tokenizer: Option<&Path>) -> Result<Terms, UsageError> {
    let tokens: Arc<dyn Tokens> = match tokenizer {
        None => Arc::new(NoTokens),
        Some(path) => {
            Arc::new(ModelTokens::load(path).map_err(|error| UsageError(format!("tokenizer: {error}")))?)
        }
    };
    let grants = Grants {
        log: true,
        metrics: Some(Arc::new(())),
        health: true,
        store: Some(Arc::new(PluginStore::in_memory())),
        call: true,
        signals: true,
        request: true,
        tokenizer: Some(tokens),
    };
    Ok(Terms { limits, grants, digest: None, allowed: None })
}

/// Whether a component starts and describes itself.
pub(crate) fn starts(host: &Host, file: &Path) -> bool {
    terms(Limits::default(), None).is_ok_and(|terms| host.load_file("project", file, terms).is_ok())
}

/// The tokens of an unknown model: none.
struct NoTokens;

impl Tokens for NoTokens {
    fn size(&self) -> u32 {
        0
    }

    fn bytes(&self, _: TokenId) -> &[u8] {
        &[]
    }

    fn special(&self) -> &[TokenId] {
        &[]
    }

    fn end_of_text(&self) -> &[TokenId] {
        &[]
    }

    fn encode(&self, _: &str) -> Result<Vec<TokenId>, EncodeError> {
        Err(EncodeError::Failed("no tokenizer was given: --tokenizer".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afterbay_plugin_loader::plugin_host;

    #[test]
    fn a_bundled_plugin_asks_only_for_its_default_grants() {
        let host = plugin_host().unwrap();
        for plugin in afterbay_bundled::all() {
            let name = plugin.name;
            let defaults = PluginDefaults::parse(plugin.defaults).unwrap();
            let granted: Vec<&str> = defaults.grant.iter().map(|grant| grant.word()).collect();
            let source = Source::find(&format!("builtin:{name}"), Path::new("")).unwrap();
            let component = source.load(&host, terms(Limits::default(), None).unwrap()).unwrap();
            for grant in component.wanted() {
                assert!(granted.contains(grant), "{name} asks for {grant}");
            }
        }
    }

    #[test]
    fn settings_that_are_refused_beside_a_tokenizer_of_a_scenario_blame_no_missing_tokenizer() {
        let host = plugin_host().unwrap();
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../path/text/tests/fixtures/byte-level");
        let source = Source::find("builtin:match-text", Path::new("")).unwrap();
        let why = |tokenizer: Option<&Path>, settings: &str| {
            let component = source.load(&host, terms(Limits::default(), tokenizer).unwrap()).unwrap();
            let Err(error) = component.instantiate(settings) else { panic!("{settings} are taken") };
            not_started(&component, settings, &error)
        };
        let settings = r#"{"presets": ["us-ssn"]}"#;
        let refused = why(Some(&fixture), settings);
        assert!(!refused.contains("--tokenizer") && refused.contains("us-ssn"), "{refused}");
        assert!(why(Some(&fixture), NO_SETTINGS).ends_with("none were given: --settings"));
        assert!(why(None, settings).ends_with("none was given: --tokenizer"));
    }
}
