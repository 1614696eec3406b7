//! The ggml back-end that computes on the other side of the channel.
