//! The scheduler's frames as rows and columns, msgpack and pickle.
