//! The ggml back-end that computes on the other side of the channel: `libggml-virtgpu`.
//!
//! llama.cpp, or any ggml program, loads this library like one of its own back-ends. It is linked against no ggml: what
//! it needs of the program's ggml it looks up in whichever library called it, so one binary serves every build.
//!
//! | module | what |
//! |---|---|
//! | [`ffi`] | ggml's side: symbols, tables of functions, tensors. All of the `unsafe` that ggml needs |
//! | [`session`] | the connection to a worker: posts, awaits, collects answers |
//! | [`connect`] | finds the daemon and opens sessions |
//! | [`virtgpu`] | the transport of a virtual machine |
//! | [`graphs`] | graphs as objects: what was sent is not sent again |
//! | [`regions`] | memory that the worker sees as well |
//! | [`store`] | weights that the host has already are not sent |
//! | [`hashing`] | the hashes by which they are asked for |
//! | [`slots`] | numbers for what the host keeps |
//! | [`memo`] | questions about operations, asked once |
//! | [`sys`] | tells that this process is a child that was forked off |
//! | [`log`] | one line each, through ggml's own log |

mod connect;
mod ffi;
mod graphs;
mod hashing;
mod log;
mod memo;
mod regions;
mod session;
mod slots;
mod store;
mod sys;
#[cfg(target_os = "linux")]
mod virtgpu;
