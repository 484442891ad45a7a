//! The layouts of a stream's frames: those of the configuration, or of the engine that the connector found.

use crate::rendezvous::RendezvousFile;
use afterbay_config as config;
use afterbay_wire::Layouts;
use anyhow::Context;

/// The layouts, and the text by which the journal names them.
pub(crate) fn layouts(
    stream: &config::Stream,
    rendezvous: Option<&RendezvousFile>,
) -> anyhow::Result<(Layouts, String)> {
    let of_engine = rendezvous.and_then(|rendezvous| rendezvous.layout.as_ref());
    let text = match (&stream.layout, of_engine) {
        _ if !stream.engine.traits().has_layouts => stream.engine.word().to_owned(),
        (config::Layout::Auto, Some(layout)) => layout.to_string(),
        (config::Layout::Auto, None) => return Ok((Layouts::builtin(), "auto".to_owned())),
        (config::Layout::Version(version), _) => version.clone(),
        (config::Layout::File(path), _) => {
            let named = || format!("layout {}", path.display());
            let text = std::fs::read_to_string(path).with_context(named)?;
            return Ok((Layouts::of_text(&text).with_context(named)?, text));
        }
    };
    Ok((Layouts::of_text(&text)?, text))
}
