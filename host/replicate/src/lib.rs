//! The journal as messages of NATS JetStream, and back.
