//! Black-box tests over real sockets and real components.
