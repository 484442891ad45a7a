//! Poison frames: frames that make the stream panic each time they pass the plugins.
//!
//! After three equal panics on one frame, the frame passes unread.

use afterbay_journal::FrameNo;

/// Equal panics on one frame after which the frame is poison.
const PANICS_MAX: u32 = 3;

/// The frame between decode and route, and the panics on it.
#[derive(Default)]
pub(crate) struct PoisonDetector {
    current: Option<FrameNo>,
    suspect: Option<PoisonFrame>,
}

/// A frame that made the stream panic.
struct PoisonFrame {
    frame: FrameNo,
    panics: u32,
    /// The message of the panics.
    why: String,
}

impl PoisonDetector {
    /// Notes that a frame enters. Returns the message of its panics if the frame is poison.
    pub(crate) fn enter(&mut self, frame: FrameNo) -> Option<String> {
        self.current = Some(frame);
        let passed = self.suspect.take_if(|suspect| {
            suspect.frame < frame || (suspect.frame == frame && suspect.panics >= PANICS_MAX)
        })?;
        (passed.frame == frame).then_some(passed.why)
    }

    /// Notes that the frame has passed.
    pub(crate) fn leave(&mut self) {
        self.current = None;
    }

    /// The frame that is between decode and route.
    pub(crate) fn current(&self) -> Option<FrameNo> {
        self.current
    }

    /// Counts a panic with this message against the current frame.
    pub(crate) fn after_panic(self, why: &str) -> PoisonDetector {
        let earlier = |frame| self.suspect.filter(|suspect| suspect.frame == frame && suspect.why == why);
        let suspect = self.current.map(|frame| {
            let panics = earlier(frame).map_or(0, |suspect| suspect.panics) + 1;
            PoisonFrame { frame, panics, why: why.to_owned() }
        });
        PoisonDetector { current: None, suspect }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panic_on(mut detector: PoisonDetector, frame: u64, why: &str) -> PoisonDetector {
        assert_eq!(detector.enter(FrameNo(frame)), None);
        detector.after_panic(why)
    }

    #[test]
    fn a_frame_is_poison_after_three_equal_panics() {
        let mut detector = PoisonDetector::default();
        for _ in 0..3 {
            detector = panic_on(detector, 7, "index out of bounds");
        }
        assert_eq!(detector.enter(FrameNo(7)).as_deref(), Some("index out of bounds"));
        detector.leave();
        assert_eq!(detector.enter(FrameNo(8)), None);
    }

    #[test]
    fn another_message_or_another_frame_begins_anew() {
        let detector = panic_on(panic_on(PoisonDetector::default(), 7, "a"), 7, "a");
        let mut other_message = panic_on(detector, 7, "b");
        assert_eq!(other_message.enter(FrameNo(7)), None);
        other_message.leave();
        let mut other_frame = panic_on(panic_on(PoisonDetector::default(), 7, "a"), 8, "a");
        assert_eq!(other_frame.enter(FrameNo(8)), None);
    }

    #[test]
    fn an_earlier_frame_does_not_pass_for_the_poison_frame() {
        let mut detector = PoisonDetector::default();
        for _ in 0..3 {
            detector = panic_on(detector, 7, "a");
        }
        assert_eq!(detector.enter(FrameNo(6)), None);
        detector.leave();
        assert!(detector.enter(FrameNo(7)).is_some());
    }
}
