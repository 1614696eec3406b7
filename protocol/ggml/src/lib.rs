//! Layouts of ggml's C structs, by ABI generation. Declarations only: no code of ggml is called here.
//!
//! ggml's plug-in interface is a set of structs of function pointers whose layout moves between releases, not
//! always with a new `GGML_BACKEND_API_VERSION`. What is the same in all of them is declared once; what moved has
//! one type per layout:
//!
//! | generation | API version | what moved | since |
//! |---|---|---|---|
//! | G1 | 1 | | the floor: `use_counts` in the graph (July 2025) |
//! | G2a | 2 | `graph_optimize` in the backend, `device_id` in the properties | |
//! | G2b | 2 | the 2d transfers, in the middle of backend and buffer | |
//! | G3 | 3 | `alloc_buffer_n`, `get_alloc_size_n` in the middle of the buffer type | |
//!
//! Sources: ggml's `ggml.h`, `ggml-impl.h` and `ggml-backend-impl.h` of ggml 0.21 and 0.26; the older generations
//! from the differences between released builds. `tests/` checks the layouts against the headers.

pub mod backend;
pub mod graph;
pub mod tensor;

pub use backend::Generation;
pub use graph::CGraph;
pub use tensor::Tensor;
