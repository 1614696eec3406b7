//! What calls ggml. Everything that comes in here has been validated.

mod functions;
mod graph;
mod names;
mod objects;

pub use functions::LoadError;
pub use graph::Graph;
pub use objects::{Backend, Buffer, Device, Library, Place};
