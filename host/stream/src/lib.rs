//! One stream: the path of a batch from the scheduler's socket to its reader's.
