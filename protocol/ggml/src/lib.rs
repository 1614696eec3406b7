//! Layouts of ggml's C structs, by ABI generation.
