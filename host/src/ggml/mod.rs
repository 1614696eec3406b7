//! ggml's libraries on this machine, loaded at run time, behind safe types.
//!
//! Nothing in here is linked against ggml. [`Library`] is one directory's `libggml-base` with the back-ends loaded
//! beside it; [`Device`], [`Backend`], [`Buffer`] and [`Graph`] own what ggml gives. Only exported functions of ggml
//! are called, never slots of its tables: they serve every generation of its plug-in interface.

mod ffi;
mod validate;

pub use ffi::{Backend, Buffer, Device, Event, Graph, Library, LoadError, Place, Shared, Span, Staging};
pub use validate::{Invalid, ValidGraph};
