//! The message in which Afterbay itself records the signals that it announced to plugins. It has a place among the frames, so that
//! a plugin that is shown recorded frames gets the signals where the first plugin got them.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value as Json;

/// The beginning of every such message. No frame of an engine begins like it.
const HEAD: &[u8] = br#"{"afterbay":"signals""#;

#[derive(Deserialize)]
struct Message {
    signals: Json,
}

/// The message with these signals, in the form of a scenario.
pub fn signals_frame(signals: &Json) -> Bytes {
    let mut frame = HEAD.to_vec();
    frame.extend_from_slice(format!(r#","signals":{signals}}}"#).as_bytes());
    frame.into()
}

/// The signals of a message. `None`: the frame is no such message, or cannot be read.
pub fn read_signals(frame: &[u8]) -> Option<Json> {
    let message: Message = serde_json::from_slice(frame).ok().filter(|_| is_signals(frame))?;
    Some(message.signals)
}

/// Whether the frame is such a message.
pub(crate) fn is_signals(frame: &[u8]) -> bool {
    frame.starts_with(HEAD)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn recorded_signals_are_read_again_and_no_reader_gets_them() {
        let signals = json!({"live_requests": 3});
        let frame = signals_frame(&signals);
        assert_eq!(read_signals(&frame), Some(signals));
        assert_eq!(read_signals(b"{}"), None);
        let decoded = crate::decode(frame, &crate::Layouts::builtin());
        let crate::DecodedFrame::Barrier(barrier) = decoded else { panic!("a batch") };
        assert!(barrier.is_internal());
        assert_eq!(barrier.kind, crate::BarrierKind::Signals);
    }
}
