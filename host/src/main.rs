//! `ferryd`: runs a guest's ggml graphs on the host's devices.
fn main() {}
