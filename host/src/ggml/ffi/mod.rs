//! What calls ggml. Everything that comes in here has been validated.

mod event;
mod functions;
mod graph;
mod huge;
mod names;
mod nontemporal;
mod objects;
mod optimize;
mod runs;
mod shared;
mod staging;

pub use event::Event;
pub use functions::LoadError;
pub use graph::Graph;
pub use objects::{Backend, Buffer, Device, Library, Place};
pub use shared::{Shared, Span};
pub use staging::Staging;
