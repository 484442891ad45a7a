//! The disk, as far as the journal needs one, so that a test can own it.
