//! The topics that one SUB has subscribed to at a PUB. A topic is the beginning of a message.

use bytes::Bytes;

use crate::zmtp::error::ZmtpError;

/// Different topics of one SUB. A further one ends its connection: libzmq cannot receive a refusal. (A topic has at
/// most [`COMMAND_BYTES_MAX`](crate::zmtp::COMMAND_BYTES_MAX) bytes.)
pub const SUBSCRIPTIONS_MAX: usize = 256;

/// The topics and how often each was subscribed to. As many cancels remove a topic.
#[derive(Debug, Default)]
pub struct Subscriptions(Vec<(Bytes, u64)>);

impl Subscriptions {
    /// Adds a subscription.
    pub fn add(&mut self, topic: Bytes) -> Result<(), ZmtpError> {
        if let Some((_, times)) = self.0.iter_mut().find(|(known, _)| *known == topic) {
            *times += 1;
            return Ok(());
        }
        if self.0.len() >= SUBSCRIPTIONS_MAX {
            return Err(ZmtpError::Subscriptions { limit: SUBSCRIPTIONS_MAX });
        }
        self.0.push((topic, 1));
        Ok(())
    }

    /// Removes a subscription, if there is one to this topic.
    pub fn cancel(&mut self, topic: &[u8]) {
        if let Some(at) = self.0.iter().position(|(known, _)| known == topic) {
            self.0[at].1 -= 1;
            if self.0[at].1 == 0 {
                self.0.swap_remove(at);
            }
        }
    }

    /// Whether the message begins with one of the topics.
    pub fn want(&self, message: &[u8]) -> bool {
        self.0.iter().any(|(topic, _)| message.starts_with(topic))
    }

    /// Whether there is no subscription.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_is_wanted_until_it_was_cancelled_as_often_as_it_was_subscribed_to() {
        let mut subscriptions = Subscriptions::default();
        assert!(!subscriptions.want(b"") && subscriptions.is_empty());
        for topic in ["ab", "ab", "c"] {
            subscriptions.add(topic.into()).unwrap();
        }
        assert!(subscriptions.want(b"ab") && subscriptions.want(b"abc") && subscriptions.want(b"cab"));
        assert!(!subscriptions.want(b"a") && !subscriptions.want(b"bab"));
        subscriptions.cancel(b"ab");
        subscriptions.cancel(b"never");
        assert!(subscriptions.want(b"ab"));
        subscriptions.cancel(b"ab");
        subscriptions.cancel(b"ab");
        assert!(!subscriptions.want(b"ab") && subscriptions.want(b"c"));
        subscriptions.add(Bytes::new()).unwrap();
        assert!(subscriptions.want(b"") && subscriptions.want(b"anything"));
    }

    #[test]
    fn topics_past_the_limit_are_refused_and_known_ones_are_not() {
        let mut subscriptions = Subscriptions::default();
        for n in 0..SUBSCRIPTIONS_MAX {
            subscriptions.add(n.to_string().into()).unwrap();
        }
        assert_eq!(
            subscriptions.add("more".into()),
            Err(ZmtpError::Subscriptions { limit: SUBSCRIPTIONS_MAX })
        );
        assert_eq!(subscriptions.add("0".into()), Ok(()));
        subscriptions.cancel(b"7");
        assert_eq!(subscriptions.add("more".into()), Ok(()));
    }
}
